"""Inventory of a closed database: its topics, their positions, and all rows."""

import resource
import struct
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from topics_backup.errors import BackupError
from topics_backup.manifest import Partition, Topic
from topics_client.units import counted
from topics_service.engine import recovery
from topics_service.engine.engine import Engine
from topics_service.engine.errors import TopicsError
from topics_service.engine.model import DiffRequest
from topics_service.engine.placement import SINGLE, Place
from topics_service.engine.stored_logs import read_state
from topics_service.engine.topic import decode_row
from topics_service.storage import keys
from topics_service.storage.rocks import RocksStore
from topics_service.storage.secondary import SecondaryStore
from topics_service.storage.store import Family, Store, StoreError
from topics_service.storage.wal.batches import MOMENT_KEY

_ALL: Final = (b"", b"\xff" * 16)
_EVERY_KEY: Final = (b"", b"\xff" * 600)  # tags and names are in keys, too
_BOOT: Final = b"boot"
_CLEAN: Final = b"clean"
_COPIED: Final = b"backup"
_OPEN_FILES: Final = 65536
_COMPACT_SECONDS: Final = 3600.0
_PAGE: Final = 1000
_PAGE_BYTES: Final = 8 << 20


class _Beginning:
    """A clock before all records, so that nothing expires while a backup is read."""

    def now_ms(self) -> int:
        """See Clock."""
        return 0


class Found(NamedTuple):
    """The content of a database: its topics by name, the sequence number of its next row, and the time of its last
    batch (0 if unknown)."""

    topics: list[Topic]
    next_seq: int
    written_ms: int


def read(directory: Path) -> Found:
    """Read a checkpoint without changing it. Raises BackupError if it can't be read."""
    _raise_file_limit()
    with tempfile.TemporaryDirectory(prefix="topics-backup-") as own, _damage(f"the checkpoint {directory}"):
        store = SecondaryStore(directory, Path(own))
        try:
            written = store.get(Family.META, MOMENT_KEY)
            topics = sorted(_topics(store), key=lambda topic: topic.topic)
            return Found(topics, store.next_sequence, 0 if written is None else keys.read_u64(written))
        finally:
            store.close()


def _topics(store: Store) -> Iterator[Topic]:
    for key, value in store.scan(Family.TOPICS, *_ALL):
        row = decode_row(value)
        partitions = []
        for log_id in row.log_ids:
            s = read_state(store, log_id, row.config.durability)
            partitions.append(Partition(s.head, s.earliest, s.count, log_id))
        config = row.config
        epoch, numbers = row.epoch(keys.read_u64(key)), [] if row.spread is None else list(row.numbers)
        yield Topic(row.name, row.topic_id, epoch, config.type, config.durability, partitions, numbers)


def settle(
    directory: Path, jump: int = 0, next_seq: int | None = None, *, is_whole: bool = True, place: Place = SINGLE
) -> None:
    """Turn a copy of a database into a cleanly closed one, by making all decisions of a startup now.

    The copy is whole, whatever machine it is opened on. Without this a start elsewhere would take it for one that a
    power cut hit, and have the seqs jump. With `jump` they do, by this number, after the last record of each partition:
    to readers an explicit loss, as after a power cut. `next_seq` is the sequence number at which the log that was put
    there must end. Where `is_whole` is False more may have been acknowledged than the copy has, in topics that do not
    fsync: it is what a power cut has left, unless it was closed. `place` is that of a shard whose database it is.
    Raises BackupError if it can't be opened.
    """
    _raise_file_limit()
    with _damage("it"):
        store = RocksStore(directory)
        try:
            if next_seq is not None and store.opened_sequence != next_seq:
                raise BackupError(f"it ends at the row {store.opened_sequence} of the log instead of {next_seq}")
            _wait_for_room(store)
            if is_whole and store.get(Family.META, _BOOT) not in (None, _CLEAN):
                batch = store.batch()
                batch.put(Family.META, _BOOT, _COPIED)
                store.write(batch)
            engine = Engine(store, _Beginning(), boot_id=_COPIED.decode(), place=place)
            engine.close()
            if jump:
                _jump(engine, jump)
        finally:
            store.close()


def _wait_for_room(store: RocksStore) -> None:
    """Wait until RocksDB accepts writes: after replaying a long log it compacts first."""
    deadline = time.monotonic() + _COMPACT_SECONDS
    while store.is_stalled() and time.monotonic() < deadline:
        time.sleep(0.05)


def _jump(engine: Engine, seqs: int) -> None:
    batch = engine.writer.begin()
    for topic in engine.catalog.topics.values():
        for log in topic.logs:
            s = copy(log.state)
            batch.apply(Family.GAPS, log.owed)
            recovery.lose(s, log.blocks, log.log_id, s.head + 1, s.head + seqs, batch)
    engine.writer.commit(batch)
    engine.sync()


def read_everything(directory: Path, expected: list[Topic], place: Place = SINGLE) -> int:
    """Read every row and every record, compare topics with `expected`, and return how many records there are.

    `place` is that of a shard whose database it is. Raises BackupError that names the topic at fault.
    """
    with _damage("it"):
        store = RocksStore(directory)
        try:
            for family in Family:
                for _ in store.scan(family, *_EVERY_KEY):
                    pass
            engine = Engine(store, _Beginning(), boot_id=_COPIED.decode(), place=place)
            found = set(engine.catalog.topics)
            if found != {topic.topic for topic in expected}:
                odd = sorted(found ^ {topic.topic for topic in expected})
                raise BackupError(f'the topic "{odd[0]}" is in the manifest or in the data, but not in both')
            return sum(_read(engine, topic) for topic in expected)
        finally:
            store.close()


def _read(engine: Engine, topic: Topic) -> int:
    records = 0
    for number, expected in topic.numbered():
        where = f'partition {number} of the topic "{topic.topic}"'
        with _damage(where):
            state = engine.get_topic(topic.topic, touch=False, partition=number)
            count, from_seq = 0, 0
            while True:
                page = engine.diff(
                    DiffRequest(
                        topic=topic.topic, from_seq=from_seq, limit=_PAGE, max_batch_bytes=_PAGE_BYTES, partition=number
                    )
                )
                count += sum(piece.stop - piece.start for piece in page.slices)
                if page.caught_up:
                    break
                from_seq = page.next_from_seq
        if count != state.count:
            raise BackupError(f"{where} has {counted(count, 'record')}, and its counter says {state.count}")
        there = Partition(state.head_seq, state.earliest_seq, state.count, expected.log_id)
        if topic.durability != "ephemeral" and there != expected:
            raise BackupError(f"{where} is {there}, and the manifest says {expected}")
        records += count
    return records


def _raise_file_limit() -> None:
    """Raise the limit of open files: a large database has more files than a shell usually allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@contextmanager
def _damage(what: str) -> Iterator[None]:
    try:
        yield
    except (StoreError, TopicsError, ValueError, struct.error, msgspec.MsgspecError) as error:
        raise BackupError(f"{what} can't be read: {error}") from error
