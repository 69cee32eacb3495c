"""`topics split`: a data directory with shards made of one without. Offline."""

import contextlib
import ctypes
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from topics_server.verify import is_database
from topics_service.engine.split import Split
from topics_service.storage import checkpoint, durable, shardfiles
from topics_service.storage.boot import boot_id
from topics_service.storage.holding import is_held
from topics_service.storage.private import make_private
from topics_service.storage.rocks import LOG_POSITION_KEY, RocksStore
from topics_service.storage.store import Family, StoreError

_MARK: Final = "unfinished"  # in a directory that is being made
_END: Final = b"\xff" * 32  # above all keys
_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2


class SplitError(Exception):
    """The directory can't be split, and is as it was; the message names the cause and the next step."""


class Report(Struct, frozen=True, kw_only=True):
    """Result of a split: the topics by the shard of their home, and where the directory is that was split."""

    topics: list[int]
    before: Path


def split(path: Path, count: int, tell: Callable[[int], None] = lambda _: None) -> Report:
    """Make `count` shards of the data directory `path`. Blocks for as long as the disk takes.

    The shards share the files of the old directory, which is kept beside the new one and unchanged until that is
    complete: then they change places at once. `tell` is called with the number of each shard that is ready. Raises
    NotADirectoryError when `path` is no data directory, and SplitError.
    """
    path = path.absolute()
    work, before = _beside(path), path.with_name(f"{path.name}.unsplit")
    with _explained(path):
        _check(path, work)
        if before.exists():
            raise SplitError(f"{before} is there, where the directory would go that is split: remove or rename it")
        topics = _fill(path, work, count, tell)
        try:
            (work / _MARK).unlink()
            durable.sync(work)
        except BaseException:
            _clear(work)
            raise
        _exchange(path, work)
        work.rename(before)
        durable.sync(path.parent)
    return Report(topics=topics, before=before)


@contextmanager
def copied(path: Path, count: int, tell: Callable[[int], None] = lambda _: None) -> Iterator[Path]:
    """A copy of the data directory `path` that has `count` shards, beside it for a while. Raises as `split`."""
    path = path.absolute()
    work = _beside(path)
    with _explained(path):
        _check(path, work)
        _fill(path, work, count, tell)
    try:
        yield work
    finally:
        _clear(work)


def _beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.split")


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Make SplitErrors of other errors."""
    try:
        yield
    except (StoreError, msgspec.MsgspecError, ValueError, KeyError) as error:
        raise SplitError(f"{path} can't be split: {error}; topics verify says more") from error
    except NotADirectoryError:
        raise
    except OSError as error:
        raise SplitError(f"{path} can't be split: {error.strerror or error}") from error


def _fill(path: Path, work: Path, count: int, tell: Callable[[int], None]) -> list[int]:
    """Make `work` of the directory, but for its last step. What a killed call has left is removed, under the lock."""
    source = RocksStore(path, boot_id=boot_id())
    try:
        _clear(work)
        return _make(source, work, count, tell)
    except BaseException:
        _clear(work)
        raise
    finally:
        source.close()


def _check(path: Path, work: Path) -> None:
    if not path.is_dir():
        raise NotADirectoryError(20, "there is no data directory", str(path))
    count = shardfiles.count_of(path)
    if count is not None:
        raise SplitError(f"{path} has {count} shards already, and their number is fixed")
    if not is_database(path):
        raise NotADirectoryError(20, "there is no data directory", str(path))
    if is_held(path):
        raise SplitError(f"a server has {path} open: stop it first")
    if work.exists() and not (work / _MARK).exists():
        raise SplitError(f"{work} is there, where the shards would be made: remove or rename it")


def _clear(work: Path) -> None:
    """Remove what was made, by this call or by one that was killed."""
    if work.exists():
        for part in ("shards", shardfiles.NAME):
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(work / part) if (work / part).is_dir() else (work / part).unlink()
        shutil.rmtree(work)


def _make(source: RocksStore, work: Path, count: int, tell: Callable[[int], None]) -> list[int]:
    if source.get(Family.META, LOG_POSITION_KEY) is not None:
        raise SplitError("it is the directory of a node of a cluster")
    plan = Split(source, count, time.time_ns() // 1_000_000)
    make_private(work)
    (work / _MARK).touch()
    durable.sync(work)
    shardfiles.create(work, count)
    for shard in range(count):
        own = shardfiles.directory(work, shard)
        checkpoint.create(source, own)
        store = RocksStore(own)
        try:
            plan.apply(shard, store)
            for family in Family:
                if family is not Family.SEGMENTS:  # the space of those is given back by the server
                    store.families[family].compact_range(b"", _END)
        finally:
            store.close()
        tell(shard)
    return [plan.topics(shard) for shard in range(count)]


def _exchange(one: Path, other: Path) -> None:
    """Let two directories change places at once. Raises OSError."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        raise OSError(38, "the system can't exchange two directories")
    if renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    durable.sync(one.parent)
