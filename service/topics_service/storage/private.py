"""Directories with access for their owner only."""

import stat
from pathlib import Path

_MODE = stat.S_IRWXU


def make_private(directory: Path) -> None:
    """Make a directory for its owner alone, whatever the umask, and what is missing above it as usual.

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
    """Name those who may read a file or use a directory beside its owner: "everyone", "its group" or "" for nobody.

    Also "" where there is no such file.
    """
    try:
        mode = path.stat().st_mode
    except OSError:
        return ""
    if mode & stat.S_IRWXO:
        return "everyone"
    return "its group" if mode & stat.S_IRWXG else ""
