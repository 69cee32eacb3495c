"""Startup recovery: loads the catalog and one state row per log, never records. Time to ready is O(topics).

A data directory remembers the boot it was used in and whether it was closed. After a SIGKILL within the same boot the
write-ahead log is whole and nothing is lost. After an unclean end in another boot the tail may be: every log that does
not fsync continues above its durable ceiling, and the range in between becomes an explicit interior gap.
"""

import struct
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from itertools import islice

import msgspec

from topics_service.engine import retention, snapshot
from topics_service.engine.blocks import BlockCache, LogBlocks
from topics_service.engine.deletes import Chunk, Deletes, decode_chunk
from topics_service.engine.errors import TopicsError
from topics_service.engine.log import Log
from topics_service.engine.model import TopicConfig
from topics_service.engine.offsets.positions import (
    GroupRow,
    Position,
    decode_position,
    is_group_row,
    read_position_key,
)
from topics_service.engine.offsets.positions import decode_row as decode_group
from topics_service.engine.router.router import RouterRow, cursor_key, decode_cursor
from topics_service.engine.router.router import decode_row as decode_router
from topics_service.engine.snapshot import Gap, Snapshot
from topics_service.engine.topic import StoredTopic, Topic, TopicRow
from topics_service.engine.writer import Writer
from topics_service.storage import keys
from topics_service.storage.store import Family, Store, StoreOpenError, WriteBatch

_BOOT_KEY = b"boot"
_CLEAN = b"clean"
_ALL = (b"", b"\xff" * 16)
_SLICE = 64  # topics: a third of a millisecond
_DAMAGE = (TopicsError, ValueError, struct.error, msgspec.MsgspecError)


class RowWithRawConfig(TopicRow, kw_only=True, array_like=True):
    """The catalog row of a topic with its config undecoded: most topics have the same few configs."""

    config: msgspec.Raw  # type: ignore[assignment]


decode_catalog_row = msgspec.msgpack.Decoder(RowWithRawConfig).decode
decode_config = msgspec.msgpack.Decoder(TopicConfig).decode


def load(writer: Writer, memory: Store, cache: BlockCache, boot_id: str) -> Iterator[tuple[list[Topic], float]]:
    """Yield all topics on disk, recovered, some at a time, with the completed fraction of the work (below 1).

    Decisions of recovery are durable when the iterator ends.

    Raises StoreOpenError, naming the row, when the catalog or a log's state is damaged.
    """
    store = writer.store
    batch = writer.begin()
    logs = _Logs(writer, memory, cache, boot_id, batch)
    recover, open_log = logs.recover, logs.open  # the latter is one object for all topics
    batch.put(Family.META, _BOOT_KEY, boot_id.encode())
    rows = store.scan(Family.TOPICS, *_ALL)
    loaded, total = 0, logs.count
    configs: dict[bytes, TopicConfig] = {}
    known: dict[int, tuple[int, ...]] = {}  # ceilings: most logs have the same few
    while some := list(islice(rows, _SLICE)):
        topics: list[Topic] = []
        for key, value in some:
            number = keys.read_u64(key)
            try:
                row = decode_catalog_row(value)
                if not row.log_ids:
                    raise ValueError("it has no partition")
                raw = bytes(row.config)
                config = configs.get(raw)
                if config is None:
                    config = configs[raw] = decode_config(raw)
            except _DAMAGE as error:
                raise _damaged(f"the catalog row {number}", error) from error
            name = row.name
            if len(row.log_ids) == 1:
                state, ceiling = recover(name, config, row.log_ids[0])
                ceilings = known.get(ceiling)
                if ceilings is None:
                    ceilings = known[ceiling] = (ceiling,)
                stored = StoredTopic(value, open_log, (state,), ceilings)
            else:
                states, ceilings = zip(*[recover(name, config, log_id) for log_id in row.log_ids], strict=True)
                stored = StoredTopic(value, open_log, states, ceilings)
            topics.append(Topic.dormant(number, name, config, stored))
        yield topics, loaded / total
        loaded += len(topics)
    writer.commit(batch)
    store.sync()
    writer.on_synced(writer.written)
    logs.recovered()


class _Logs:
    """The logs of a data directory, and how it was left. Decisions of recovery go into `batch`."""

    def __init__(self, writer: Writer, memory: Store, cache: BlockCache, boot_id: str, batch: WriteBatch) -> None:
        self._writer = writer
        self._memory = memory
        self._cache = cache
        self._batch = batch
        store = writer.store
        ended = store.get(Family.META, _BOOT_KEY)
        self._is_unclean = ended not in (None, _CLEAN)
        self._is_tail_lost = self._is_unclean and (not boot_id or ended != boot_id.encode())
        self._rows = dict(store.scan(Family.LOGS, *_ALL))
        self._ceilings = dict(store.scan(Family.CEILINGS, *_ALL))
        self.count = len(self._rows)  # of all logs
        self._changed: dict[int, Snapshot] = {}  # states that recovery has changed
        self._deletes: dict[int, dict[int, Chunk]] = {}
        for log_id, number, value in _pairs(store, Family.DELETES):
            with _refuse_damage(f"the delete bitmap {number} of log {log_id}"):
                self._deletes.setdefault(log_id, {})[number] = decode_chunk(value)
        self._gaps: dict[int, list[Gap]] = {}
        for log_id, start, value in _pairs(store, Family.GAPS):
            with _refuse_damage(f"the gap at {start} of log {log_id}"):
                self._gaps.setdefault(log_id, []).append(Gap.of_row(start, value))

    def recover(self, topic: str, config: TopicConfig, log_id: int) -> tuple[bytes, int]:
        """Recover a log of the topic, once; return its state row and its ceiling, for `open`."""
        key = keys.u64(log_id)
        row = self._rows.pop(key, None)
        found = self._ceilings.pop(key, None)
        try:
            ceiling = 0 if found is None else keys.read_u64(found)
        except _DAMAGE as error:
            raise _damaged(f'the ceiling of topic "{topic}"', error) from error
        if row is None:
            raise StoreOpenError(f'the log of topic "{topic}" has no state row')
        try:
            head, count, nbytes, volatile_from = snapshot.figures(row)
        except _DAMAGE as error:
            raise _damaged(f'the state row of topic "{topic}"', error) from error
        in_memory = bool(volatile_from) or (self._is_unclean and config.durability == "ephemeral")
        if in_memory or (self._is_tail_lost and config.durability != "fsync" and ceiling > head):
            s = self._changed[log_id] = snapshot.decode(row)
            self._complete(log_id, s)
            with _refuse_damage(f'topic "{topic}"'):
                blocks = LogBlocks(log_id, self._cache, self._writer.store, self._memory)
                lose(s, blocks, log_id, volatile_from or head + 1, ceiling, self._batch)
            count, nbytes = s.count, s.bytes
        self._writer.total_records += count
        self._writer.total_bytes += nbytes
        return row, ceiling

    def recovered(self) -> None:
        """Release what only `recover` needs: dormant topics keep this object for as long as they are."""
        del self._rows, self._ceilings, self._batch

    def open(self, log_id: int, row: bytes, ceiling: int) -> Log:
        """The log as it was recovered, once."""
        s = self._changed.pop(log_id, None)
        if s is None:
            s = snapshot.decode(row)
            self._complete(log_id, s)
        return Log(log_id, self._writer, self._memory, self._cache, s, ceiling)

    def _complete(self, log_id: int, s: Snapshot) -> None:
        """Give the state the deletes and the gaps, which have rows of their own."""
        if log_id in self._deletes:
            s.deletes = Deletes(self._deletes.pop(log_id))
        if log_id in self._gaps:
            s.gaps = tuple(self._gaps.pop(log_id))


def routers(store: Store, topics: Container[str]) -> Iterator[tuple[int, RouterRow, int, int]]:
    """Yield every router on disk: its number, row, cursor and forwarded_total. O(routers).

    Raises StoreOpenError, naming the router, when one of its rows is damaged or missing or an end is no topic.
    """
    rows = dict(store.scan(Family.ROUTERS, *_ALL))
    for key, value in rows.items():
        if key[8:] != b"\x00":
            continue
        number = keys.read_u64(key)
        with _refuse_damage(f"router {number}"):
            row = decode_router(value)
            cursor, forwarded = decode_cursor(rows.get(cursor_key(number), b""))
            for end in (row.config.source, row.config.dest):
                if end not in topics:
                    raise ValueError(f'"{row.name}" has the topic "{end}" as an end, which does not exist')
        yield number, row, cursor, forwarded


def groups(
    store: Store, topics: Iterable[Topic]
) -> Iterator[tuple[int, GroupRow, Mapping[tuple[Topic, int], Position]]]:
    """Yield every consumer group on disk: number, row, and positions by topic and partition. O(groups and positions).

    Raises StoreOpenError, naming the row, when one is damaged or is of a group, topic or partition that is not there.
    """
    found: dict[int, GroupRow] = {}
    names: set[str] = set()
    for key, value in store.scan(Family.GROUPS, *_ALL):
        if is_group_row(key):
            number = keys.read_u64(key)
            with _refuse_damage(f"group {number}"):
                row = found[number] = decode_group(value)
                if row.name in names:
                    raise ValueError(f'there are two groups "{row.name}"')
                names.add(row.name)
    by_number = {topic.number: topic for topic in topics} if found else {}
    positions: dict[int, dict[tuple[Topic, int], Position]] = {}
    for key, value in store.scan(Family.POSITIONS, *_ALL):
        with _refuse_damage(f"the position {key.hex()}"):
            number, epoch, partition = read_position_key(key)
            topic = by_number.get(epoch)
            if number not in found or topic is None or partition >= topic.partition_count:
                raise ValueError("its group or partition does not exist")
            positions.setdefault(number, {})[topic, partition] = decode_position(value)
    for number, row in found.items():
        yield number, row, positions.get(number, {})


def close(writer: Writer, logs: Iterable[Log]) -> None:
    """Write state that is only in memory and mark the directory as closed."""
    batch = writer.begin()
    for log in logs:
        s = copy(log.state)
        if s.volatile_from:
            lose(s, log.blocks, log.log_id, s.volatile_from, s.head, batch)
            batch.put(Family.CEILINGS, keys.u64(log.log_id), keys.u64(s.head))
    batch.put(Family.META, _BOOT_KEY, _CLEAN)
    writer.commit(batch)


def lose(s: Snapshot, blocks: LogBlocks, log_id: int, start: int, ceiling: int, batch: WriteBatch) -> None:
    """Turn the records from `start` on into an explicit loss; the log continues above the ceiling and the old head."""
    head = max(s.head, ceiling)
    if start > head:
        return
    if start <= s.head:
        s.cum_bytes = blocks.cum_bytes_below(start)
        s.head = start - 1
        for number in s.deletes.numbers():
            batch.delete(Family.DELETES, keys.pair(log_id, number))
        # marks below `earliest` cover nothing any more: their blocks may be removed
        first = s.earliest
        s.deletes = s.deletes.forget_from(start, lambda seq: retention.size_of(blocks, seq) if seq >= first else 0)
        for number in s.deletes.numbers():
            batch.put(Family.DELETES, keys.pair(log_id, number), s.deletes.encode(number))
        s.count = s.live_between(s.earliest, start)
        s.bytes = retention.live_bytes(s, blocks, s.earliest, start)
    s.head = head
    s.volatile_from = 0
    s.sealed_to = min(s.sealed_to, start - 1)
    if s.count:
        batch.delete_range(Family.GAPS, keys.pair(log_id, start), keys.u64(log_id + 1))
        s.gaps = (*(gap for gap in s.gaps if gap.stop < start), Gap(start, head, "cap"))
        batch.put(Family.GAPS, *s.gaps[-1].row(log_id))
    else:
        s.earliest, s.evict_cap = head + 1, head
        batch.delete_range(Family.GAPS, *keys.log_range(log_id))
        s.gaps = ()
    batch.put(Family.LOGS, keys.u64(log_id), snapshot.encode(s))


def _pairs(store: Store, family: Family) -> Iterator[tuple[int, int, bytes]]:
    """The rows of a family whose keys are a log id and another number."""
    for key, value in store.scan(family, *_ALL):
        yield keys.read_u64(key), keys.read_u64(key, 8), value


@contextmanager
def _refuse_damage(what: str) -> Iterator[None]:
    """Convert any error of a decoder into a StoreOpenError that names the damaged row."""
    try:
        yield
    except _DAMAGE as error:
        raise _damaged(what, error) from error


def _damaged(what: str, error: Exception) -> StoreOpenError:
    return StoreOpenError(f"{what} is damaged: {error}")
