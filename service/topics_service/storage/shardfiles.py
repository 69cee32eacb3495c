"""A data directory with shards: `shards.json`, which says how many there are, and a database for each."""

import json
import os
from pathlib import Path
from typing import Final

from topics_service.storage import durable
from topics_service.storage.private import make_private
from topics_service.storage.store import StoreOpenError

NAME: Final = "shards.json"
MOST_SHARDS: Final = 64
"""The most shards of a data directory, and processes that share them."""

_FORMAT: Final = 1


def count_of(path: Path) -> int | None:
    """The number of shards of the data directory; None if it has none. Raises StoreOpenError for a damaged file."""
    file = path / NAME
    try:
        found = json.loads(file.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise StoreOpenError(f"the file {file} is damaged: {error}", str(file)) from None
    known = found if isinstance(found, dict) else {}
    form, shards = known.get("format"), known.get("shards")
    if type(form) is not int or type(shards) is not int:
        raise StoreOpenError(f"the file {file} is damaged: it names no format or no shards", str(file))
    if form != _FORMAT:
        raise StoreOpenError(f"the file {file} has the format {form}, this server reads {_FORMAT}", str(file))
    if not 1 <= shards <= MOST_SHARDS:
        text = f"the file {file} names {shards} shards, and there are 1 to {MOST_SHARDS}"
        raise StoreOpenError(text, str(file))
    return shards


def create(path: Path, count: int) -> None:
    """Make a directory of `count` shards, which are made when they are opened. Durable on return. Raises OSError."""
    make_private(path)
    make_private(path / "shards")
    durable.replace(path / NAME, json.dumps({"format": _FORMAT, "shards": count}).encode() + b"\n")


def directory(path: Path, shard: int) -> Path:
    """The directory of the database of one shard."""
    return path / "shards" / str(shard)


def place_of(path: Path) -> tuple[int, int] | None:
    """The number of the shard whose database is in this directory, and how many there are; None for any other one.

    Raises StoreOpenError for a damaged file.
    """
    shard = path.resolve()
    if shard.parent.name != "shards" or not shard.name.isdecimal():
        return None
    count = count_of(shard.parent.parent)
    return None if count is None or int(shard.name) >= count else (int(shard.name), count)


def directories(path: Path) -> list[Path]:
    """The directories of all shards of a data directory that has some. Raises StoreOpenError."""
    return [directory(path, shard) for shard in range(count_of(path) or 0)]


def is_empty(path: Path) -> bool:
    """True if nothing is in the directory, or if there is none. Raises OSError."""
    try:
        with os.scandir(path) as entries:
            return next(entries, None) is None
    except FileNotFoundError:
        return True
