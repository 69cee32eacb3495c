"""Quarantine of write-ahead logs that a power cut broke: data behind the break is set aside, and never applied."""

import os
import shutil
import time
from pathlib import Path

from topics_service.storage import durable
from topics_service.storage.wal.archive import numbered
from topics_service.storage.wal.validation import Break


def set_aside(directory: Path, broken: Break) -> Path:
    """Cut the logs at the break, and return the new subdirectory with the later logs and a full copy of the broken one.
    Durable on return; after a kill in the middle the logs break at the same point. Raises
    OSError."""
    aside = directory / f"power-cut-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
    aside.mkdir(exist_ok=True)
    for number, path in sorted(numbered(directory), reverse=True):  # so that the rest still ends in the break
        if number > broken.number:
            path.rename(aside / path.name)
        elif number == broken.number:
            _keep(path, aside, broken.keep)
    durable.sync(aside)
    durable.sync(directory)
    return aside


def _keep(path: Path, aside: Path, size: int) -> None:
    """Keep only the first bytes of a log."""
    part = path.with_suffix(".log.tmp")
    with path.open("rb") as whole, part.open("wb") as out:
        left = size
        while left:
            data = whole.read(min(left, 1 << 20))
            out.write(data)
            left -= len(data)
        out.flush()
        os.fsync(out.fileno())
    shutil.copyfile(path, aside / path.name)
    durable.sync(aside / path.name)
    part.replace(path)
