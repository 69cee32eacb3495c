"""Making a backup: a checkpoint goes to the target, as far as it is not there yet."""

import contextlib
import hashlib
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from msgspec import UNSET, UnsetType

from topics_backup import inventory, pruning, repository, shipping
from topics_backup.errors import BackupError
from topics_backup.manifest import FORMAT, SHARDS_FORMAT, File, LogPoint, Manifest, Part, encode, new_id
from topics_backup.target import CHUNK_BYTES, Target
from topics_service import __version__
from topics_service.engine.clock import SystemClock
from topics_service.engine.engine import Engine
from topics_service.engine.placement import SINGLE, Place
from topics_service.storage import checkpoint, shardfiles
from topics_service.storage.holding import Hold, in_use
from topics_service.storage.rocks import RocksStore
from topics_service.storage.store import StoreError, StoreOpenError
from topics_service.storage.wal.archive import Line

_UNSHARED: Final = frozenset({"LOCK", "LOG", "IDENTITY"})  # created again when the copy is opened
_PASS_SECONDS: Final = pruning.GRACE_SECONDS / 2


def create(target: Target, directory: Path, created_ms: int, data_dir: Path, source: str | None = None) -> Manifest:
    """Copy the checkpoint in `directory`, which is of the moment `created_ms`, and return what was written.

    Files that the target already has, by size and hash, are not copied again. The manifest comes last: until then the
    backup is invisible. `data_dir` is that of which the checkpoint is; both have shards, or neither. `source` is
    what the manifest names as its origin, by default `data_dir` on this host. Raises
    BackupError, and OSError for the checkpoint's files.
    """
    count = shardfiles.count_of(directory)
    if count is None:
        shards: list[Part] | UnsetType = UNSET
        whole = _part(directory, data_dir)
        sources = dict.fromkeys(whole.files, directory)
    else:
        own = [shardfiles.directory(directory, shard) for shard in range(count)]
        shards = [_part(path, shardfiles.directory(data_dir, shard)) for shard, path in enumerate(own)]
        whole = Part(files=[], topics=[])
        sources = {file: path for part, path in zip(shards, own, strict=True) for file in part.files}
    new_bytes = 0
    while True:  # a long pass may rely on files that a prune has removed since: see pruning
        began = time.monotonic()
        there = repository.sizes(target)
        doomed = pruning.doomed(target)
        for file, path in sources.items():
            if there.get(file.key) != file.size or file.key in doomed:
                target.put_file(file.key, path / file.name)
                new_bytes += file.size
        if time.monotonic() - began < _PASS_SECONDS:
            break
    made = Manifest(
        format=FORMAT if count is None else SHARDS_FORMAT,
        id=new_id(created_ms, secrets.token_hex(3)),
        created_ms=created_ms,
        server_version=__version__,
        store_format=checkpoint.FORMAT,
        source=source or f"{socket.gethostname()}:{data_dir}",
        bytes=sum(file.size for part in ([whole] if shards is UNSET else shards) for file in part.files),
        new_bytes=new_bytes,
        files=whole.files,
        topics=whole.topics,
        log=whole.log,
        shards=shards,
    )
    target.put(made.key, encode(made))
    return made


def _part(directory: Path, data_dir: Path) -> Part:
    """One database: the checkpoint in `directory`, of that in `data_dir`."""
    line = shipping.line_of(data_dir)
    found = inventory.read(directory)
    files = [hashed(directory / name) for name in file_names(directory)]
    log = None if line is None else _log_point(line, directory, found)
    return Part(files=files, topics=found.topics, log=log)


def file_names(directory: Path) -> list[str]:
    """The files of a checkpoint that belong into a copy of it. Raises BackupError, and OSError."""
    names = sorted(path.name for path in directory.iterdir() if path.is_file() and path.name not in _UNSHARED)
    if "CURRENT" not in names:
        raise BackupError(f"{directory} is not a checkpoint: it has no CURRENT file")
    return names


def hashed(path: Path) -> File:
    """The entry of a file in a manifest. Raises OSError."""
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while piece := file.read(CHUNK_BYTES):
            digest.update(piece)
            size += len(piece)
    return File(path.name, size, digest.hexdigest())


@contextmanager
def offline(data_dir: Path, boot_id: str) -> Iterator[tuple[Path, int]]:
    """A checkpoint of a data directory that no server has open, and its moment in ms.

    Opens, recovers and closes the directory, each of its shards, as a start and a stop of the server would, and holds
    its lock so long; a server that starts after that removes the checkpoint. Raises BackupError.
    """
    path = data_dir / "checkpoints" / f"offline-{secrets.token_hex(3)}"
    now = time.time_ns() // 1_000_000
    try:
        try:
            _make_offline(data_dir, path, boot_id)
        except StoreError as error:
            raise BackupError(f"{error} (a running server is backed up with --server)") from error
        yield path, now
    finally:
        checkpoint.remove(path)
        with contextlib.suppress(OSError):  # another one's is there
            path.parent.rmdir()


def _make_offline(data_dir: Path, path: Path, boot_id: str) -> None:
    count = shardfiles.count_of(data_dir)
    if count is None:
        _checkpoint(data_dir, path, boot_id, SINGLE)
        return
    with _held(data_dir):
        shardfiles.create(path, count)
        for shard in range(count):
            own, place = shardfiles.directory(data_dir, shard), Place(shard, count)
            _checkpoint(own, shardfiles.directory(path, shard), boot_id, place)


def _checkpoint(data_dir: Path, path: Path, boot_id: str, place: Place) -> None:
    if not (data_dir / "CURRENT").is_file():
        raise BackupError(f"{data_dir} is not a data directory: it has no CURRENT file")
    store = RocksStore(data_dir, boot_id=boot_id)
    try:
        engine = Engine(store, SystemClock(), boot_id=boot_id, place=place)
        engine.close()
        checkpoint.create(store, path)
    finally:
        store.close()


@contextmanager
def _held(data_dir: Path) -> Iterator[None]:
    """Hold the lock of a data directory with shards."""
    try:
        hold = Hold(data_dir)
    except BlockingIOError:
        raise StoreOpenError(f"{data_dir}: {in_use(data_dir)}") from None
    try:
        yield
    finally:
        hold.release()


def _log_point(line: Line, directory: Path, found: inventory.Found) -> LogPoint:
    numbers = [int(path.stem) for path in directory.glob("*.log")]
    return LogPoint(line.id, min(numbers, default=line.first), found.next_seq, found.written_ms)
