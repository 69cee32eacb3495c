"""Directories with access for their owner only."""

import stat
from pathlib import Path

_MODE = stat.S_IRWXU


def make_private(directory: Path) -> None:
    """Make a directory for its owner alone, regardless of the umask, and missing parents with default modes.

    An existing one is unchanged. Raises OSError.
    """
    directory.parent.mkdir(parents=True, exist_ok=True)
    try:
        directory.mkdir(_MODE)
    except FileExistsError:
        if not directory.is_dir():
            raise
        return
    if stat.S_IMODE(directory.stat().st_mode) & 0o777 != _MODE:  # the umask took from the owner
        directory.chmod(_MODE)


def open_to(path: Path) -> str:
    """Return who besides the owner may read a file or use a directory: "everyone", "its group" or "".

    Also "" where there is no such file.
    """
    try:
        mode = path.stat().st_mode
    except OSError:
        return ""
    if mode & stat.S_IRWXO:
        return "everyone"
    return "its group" if mode & stat.S_IRWXG else ""
