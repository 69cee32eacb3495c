"""Progress display of a command on a terminal. Shows nothing elsewhere."""

import os
import shutil
import sys
import time
from types import TracebackType
from typing import IO, TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

_PAUSE: Final = 0.2  # seconds between two looks
_BAR: Final = 24


class Progress:
    """A context. `advance` is cheap: it looks at the clock, and draws a few times a second.

    It draws with rich where that is installed, else one plain line, and takes it away at the end.
    """

    def __init__(
        self, what: str, total: int | None = None, *, unit: str = "records", to: IO[str] | None = None
    ) -> None:
        """`total` is in the units of `advance`; None if the end is unknown. `to` is standard error."""
        self.done = 0
        self._beside = ""
        self._what = what
        self._total = total or None
        self._unit = unit
        self._to = to or sys.stderr
        self._shown = self._to.isatty() and os.environ.get("TERM") != "dumb"
        self._begin = self._drawn = time.monotonic()
        self._rich: RichProgress | None = None
        self._plain = False  # whether a plain line stands there

    def advance(self, count: int, beside: str = "") -> None:
        """So much more is done; `beside` is printed in front of it."""
        self.done += count
        self._beside = beside
        if self._shown:
            now = time.monotonic()
            if now - self._drawn >= _PAUSE:
                self._drawn = now
                self._draw(now)

    def clear(self) -> None:
        """Take the drawing away before something else is printed."""
        if self._plain:
            self._to.write("\r\x1b[K")
            self._to.flush()
            self._plain = False

    def _draw(self, now: float) -> None:
        if self._rich is None and not self._plain:
            self._rich = _rich_progress(self._what, self._total, self._unit)
        if self._rich is not None:
            self._rich.update(self._rich.task_ids[0], completed=self.done, description=self._name)
            return
        line = plain_line(self._name, self.done, self._total, self._unit, now - self._begin)
        width = shutil.get_terminal_size().columns
        self._to.write(f"\r{line[: width - 1]}\x1b[K")
        self._to.flush()
        self._plain = True

    @property
    def _name(self) -> str:
        return f"{self._what}  {self._beside}" if self._beside else self._what

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._rich is not None:
            self._rich.stop()
            self._rich = None
        self.clear()
        self._shown = False


def plain_line(what: str, done: int, total: int | None, unit: str, seconds: float) -> str:
    """`append  [=====>      ]  45%  12.3 MB  3.2 MB/s  4 s left`"""
    rate = done / seconds if seconds > 0 else 0.0
    parts = [what]
    if total:
        share = min(1.0, done / total)
        filled = int(share * _BAR)
        parts += [f"[{('=' * filled + '>')[:_BAR]:{_BAR}}]", f"{share:4.0%}"]
    parts += [amount(done, unit), f"{amount(rate, unit)}/s"]
    if total and rate:
        parts.append(f"{max(0, total - done) / rate:.0f} s left")
    return "  ".join(parts)


def amount(number: float, unit: str) -> str:
    """A number with its unit: bytes as kB, MB, GB; anything else with a separator every three digits."""
    if unit != "B":
        return f"{number:,.0f} {unit}"
    for name in ("B", "kB", "MB"):
        if number < 1000:
            return f"{number:.0f} {name}" if name == "B" else f"{number:.1f} {name}"
        number /= 1000
    return f"{number:.1f} GB"


def _rich_progress(what: str, total: int | None, unit: str) -> "RichProgress | None":
    try:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            MofNCompleteColumn,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )
        from rich.progress import Progress as Rich
    except ModuleNotFoundError:
        return None
    count = [DownloadColumn(), TransferSpeedColumn()] if unit == "B" else [MofNCompleteColumn(), TextColumn(unit)]
    rich = Rich(
        TextColumn("{task.description}"),
        BarColumn(),
        *count,
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    rich.add_task(what, total=total)
    rich.start()
    return rich
