"""Counting switches of RocksDB to a new write-ahead log file, by looking at its directory."""

from pathlib import Path


class SwitchCounter:
    """Counts the log files (`000123.log`) that appeared since this object was made.

    A file that came and went between two looks is missed: the count is a lower bound.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._switches = 0
        self._newest = max(self._numbers(), default=0)

    def switches(self) -> int:
        """Look, and return the count so far. Reads the directory; raises OSError if that fails."""
        new = [number for number in self._numbers() if number > self._newest]
        if new:
            self._switches += len(new)
            self._newest = max(new)
        return self._switches

    def _numbers(self) -> list[int]:
        return [int(file.stem) for file in self._path.glob("*.log") if file.stem.isdigit()]
