"""Checkpoints of a shard: the state of everything below a number of its log, as files by their content.

The manifest comes last. A maker that is killed before leaves files without one, which `collect` removes in time.
"""

import asyncio
import secrets
import shutil
import struct
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct

from topics_backup.creation import file_names, hashed
from topics_backup.manifest import File, is_database, seal, unseal
from topics_cluster.bucket import Bucket
from topics_cluster.log import START, Position
from topics_cluster.objects import DamagedObjectError
from topics_cluster.parallel import run_all
from topics_cluster.store import POSITION_KEY, ShardStore, read_position
from topics_service import __version__
from topics_service.storage import checkpoint, keys
from topics_service.storage.private import make_private
from topics_service.storage.secondary import SecondaryStore
from topics_service.storage.store import Family, StoreError
from topics_service.storage.wal.batches import MOMENT_KEY

FORMAT: Final = 1
PARALLEL: Final = 8
"""The number of files that are sent, or received, at the same time."""
PASS_SECONDS: Final = 1800.0
"""A pass over the files may trust for so long what it found in the store; see `collect`."""
LIMIT_SECONDS: Final = 43_200.0
"""The longest time that a checkpoint may take."""
_DIGITS: Final = 20
_LOG_SECONDS: Final = 60.0
_LOOK_SECONDS: Final = 0.05


class CheckpointError(StoreError):
    """A checkpoint can't be made or used; the cause is on this machine or in its version."""


class Checkpoint(Struct, frozen=True, kw_only=True):
    """The manifest of the state at a position of the log. It may have more batches of the epoch, up to `applied`, which
    are in the log as well."""

    format: int
    shard: int
    number: int
    epoch: int
    ticket: int
    applied: int
    created_ms: int
    node: str
    server_version: str
    store_format: str
    files: list[File]
    written_ms: int = 0
    """The time of its last batch by the clock of the owner that wrote it; 0 if unknown."""

    @property
    def position(self) -> Position:
        """The position from which its log is to be read."""
        return Position(self.epoch, self.number, self.ticket)

    @property
    def from_ms(self) -> int:
        """The first moment to which it leads."""
        return self.written_ms or self.created_ms

    @property
    def nbytes(self) -> int:
        """The total size of its files."""
        return sum(file.size for file in self.files)


class Entry(NamedTuple):
    """A checkpoint as a list shows it: its number, and the time of its manifest by the store's clock, in seconds."""

    number: int
    modified: float


class Schedule(NamedTuple):
    """Says when a checkpoint is due: after `log_bytes` of log, or after `seconds` if there was any, and never within
    `least_seconds`."""

    log_bytes: int = 256 << 20
    seconds: float = 600.0
    least_seconds: float = 60.0

    def is_due(self, log_bytes: int, seconds: float) -> bool:
        """Return whether one is due, by the bytes of log and the seconds since the one before."""
        if log_bytes <= 0 or seconds < self.least_seconds:
            return False
        return log_bytes >= self.log_bytes or seconds >= self.seconds


def folder_of(shard: int) -> str:
    """The prefix of the manifests of a shard."""
    return f"s{shard}/ckpt/"


def name_of(shard: int, number: int) -> str:
    """The name of a manifest."""
    return f"{folder_of(shard)}{number:0{_DIGITS}}"


def files_of(shard: int) -> str:
    """The prefix of the files of a shard's checkpoints."""
    return f"s{shard}/files/"


def file_name(shard: int, file: File) -> str:
    """The name of a file of a checkpoint, by its content."""
    return f"{files_of(shard)}{file.sha256}"


async def entries(bucket: Bucket, shard: int) -> list[Entry]:
    """The checkpoints of a shard, the highest number last. Raises BucketError."""
    folder = folder_of(shard)
    found = [(each.name.removeprefix(folder), each.modified) for each in await bucket.list(folder)]
    return sorted(Entry(int(n), modified) for n, modified in found if len(n) == _DIGITS and n.isdecimal())


async def load(bucket: Bucket, shard: int, number: int) -> Checkpoint | None:
    """Read a manifest; None if there is none. Raises DamagedObjectError and BucketError, and CheckpointError for one of
    another format."""
    data = await bucket.get(name_of(shard, number))
    return None if data is None else decode(shard, number, data)


def decode(shard: int, number: int, data: bytes) -> Checkpoint:
    """Decode the manifest that was found under its name. Raises DamagedObjectError and CheckpointError."""
    name = name_of(shard, number)
    try:
        found = msgspec.json.decode(unseal(data), type=Checkpoint)
    except (ValueError, RecursionError) as error:
        raise DamagedObjectError(name, str(error)) from error
    if found.format != FORMAT:
        raise CheckpointError(
            f"{name} has the format {found.format}, this version reads {FORMAT}: use a later version of topics"
        )
    if (found.shard, found.number) != (shard, number) or not is_database(found.files):
        raise DamagedObjectError(name, "contradicts itself")
    return found


async def newest_position(bucket: Bucket, shard: int) -> Position | None:
    """The position of the newest checkpoint; None if there is none. Nothing at or above it was ever deleted.

    Where its manifest is damaged it is that of the one before, below which alone data is deleted. Raises
    DamagedObjectError, BucketError and CheckpointError.
    """
    first: DamagedObjectError | None = None
    for number, _ in reversed((await entries(bucket, shard))[-2:]):
        try:
            found = await load(bucket, shard, number)
        except DamagedObjectError as error:
            first = first or error
        else:
            if found is not None:
                return found.position
    if first is not None:
        raise first
    return None


class Standing(NamedTuple):
    """The position of a copy of a store, the ticket of its newest batch, and the time at which that was written (0:
    unknown)."""

    position: Position
    ticket: int
    written_ms: int


def standing_in(directory: Path) -> Standing:
    """Read how far a copy of a store is. Raises StoreError and CheckpointError."""
    with tempfile.TemporaryDirectory(prefix="topics-checkpoint-") as own:
        store = SecondaryStore(directory, Path(own))
        try:
            row, written = store.get(Family.META, POSITION_KEY), store.get(Family.META, MOMENT_KEY)
        finally:
            store.close()
    try:
        position, ticket = (START, START.ticket) if row is None else read_position(row)
        return Standing(position, ticket, 0 if written is None else keys.read_u64(written))
    except (ValueError, struct.error) as error:
        raise CheckpointError(f"{directory}: {error}") from None


async def in_the_log(store: ShardStore, ticket: int) -> None:
    """Wait until the store knows that its batches up to a ticket are in the log. Raises CheckpointError."""
    try:
        async with asyncio.timeout(_LOG_SECONDS):
            while store.position.ticket < ticket:
                if store.uploader is None or store.uploader.failure is not None:
                    raise CheckpointError("the store has what is not in the log, and does not own the shard")
                await asyncio.sleep(_LOOK_SECONDS)
    except TimeoutError:
        raise CheckpointError(f"ticket {ticket} did not get into the log within {_LOG_SECONDS:.0f} seconds") from None


class Maker:
    """Makes the checkpoints of one shard, one at a time.

    `folder` is on the file system of the store, and for it alone: what is in it is removed. The hashes of files that
    stay are kept from one checkpoint to the next.
    """

    def __init__(
        self, bucket: Bucket, shard: int, folder: Path, node: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._bucket = bucket
        self._shard = shard
        self._folder = folder
        self._node = node
        self._clock = clock
        self._hashes: dict[tuple[int, int, int], File] = {}

    async def make(self, store: ShardStore) -> Checkpoint | None:
        """Make the checkpoint of a store as it is, of a follower or an owner; None if there is one of its number by
        now.

        Waits until what the store has is in the log: what a stale owner has written must not be published. Raises
        CheckpointError, BucketError, StoreError and OSError; then there is no manifest.
        """
        async with self._copy(store) as directory:
            await in_the_log(store, (await asyncio.to_thread(standing_in, directory)).ticket)
            return await self.publish(directory)

    async def publish(self, directory: Path) -> Checkpoint | None:
        """Make the checkpoint of a copy of a store. Returns and raises as `make`."""
        position, applied, written_ms = await asyncio.to_thread(standing_in, directory)
        files = await asyncio.to_thread(self._files, directory)
        await self._upload(directory, files)
        made = Checkpoint(
            format=FORMAT,
            shard=self._shard,
            number=position.number,
            epoch=position.epoch,
            ticket=position.ticket,
            applied=applied,
            created_ms=time.time_ns() // 1_000_000,
            node=self._node,
            server_version=__version__,
            store_format=checkpoint.FORMAT,
            files=files,
            written_ms=written_ms,
        )
        name = name_of(self._shard, made.number)
        return made if await self._bucket.create(name, [seal(msgspec.json.encode(made))]) else None

    @asynccontextmanager
    async def _copy(self, store: ShardStore) -> AsyncIterator[Path]:
        """A checkpoint of the store on this machine, for a while."""
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)  # of one that was killed
        make_private(self._folder)
        directory = self._folder / secrets.token_hex(4)
        try:
            await asyncio.to_thread(checkpoint.create, store, directory)
            yield directory
        finally:
            await asyncio.to_thread(checkpoint.remove, directory)

    def _files(self, directory: Path) -> list[File]:
        """The files of the checkpoint. Tables never change, so one that is known need not be read."""
        found: list[File] = []
        known: dict[tuple[int, int, int], File] = {}
        for name in file_names(directory):
            path = directory / name
            status = path.stat()
            identity = status.st_ino, status.st_size, status.st_mtime_ns
            file = self._hashes.get(identity)
            if file is None or file.name != name:
                file = hashed(path)
            if name.endswith(".sst"):
                known[identity] = file
            found.append(file)
        self._hashes = known
        return found

    async def _upload(self, directory: Path, files: Iterable[File]) -> None:
        """Send what the store lacks, again and again until a pass was short: a long one may rely on files that are
        removed meanwhile."""
        began = self._clock()
        sent: set[str] = set()
        while True:
            pass_began = self._clock()
            there = sent | await self._shared()
            lacking = {file.sha256: file for file in files if file.sha256 not in there}
            puts = (
                self._bucket.put_file(file_name(self._shard, each), directory / each.name) for each in lacking.values()
            )
            await run_all(puts, PARALLEL)
            sent |= lacking.keys()
            if self._clock() - pass_began <= PASS_SECONDS:
                return
            if self._clock() - began > LIMIT_SECONDS:
                raise CheckpointError(f"the checkpoint took longer than {LIMIT_SECONDS:.0f} seconds")

    async def _shared(self) -> set[str]:
        """The hashes of files that stay in the store for the time of a pass: those of the two newest checkpoints."""
        found: set[str] = set()
        for number, _ in (await entries(self._bucket, self._shard))[-2:]:
            try:
                manifest = await load(self._bucket, self._shard, number)
            except (DamagedObjectError, CheckpointError):
                continue
            found |= {file.sha256 for file in manifest.files} if manifest is not None else set()
        return found
