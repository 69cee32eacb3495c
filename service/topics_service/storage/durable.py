"""Files whose content, and whose names in a directory, outlive a power cut."""

import os
from pathlib import Path


def replace(path: Path, data: bytes) -> None:
    """Replace the content of the file by `data`, atomically. Raises OSError."""
    part = path.with_name(f"{path.name}.tmp")
    with part.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Make a file, or the names in a directory, durable. Raises OSError."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
