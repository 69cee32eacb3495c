"""Startup recovery: what the last end of the server has taken, and rows of routers and groups.

A data directory remembers the boot it was used in and whether it was closed. After a SIGKILL within the same boot the
write-ahead log is whole and nothing is lost. After an unclean end in another boot the tail may be: every log that does
not fsync continues above its durable ceiling, and the range in between becomes an explicit interior gap. One row says
so for all logs (`lives`).
"""

from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy

from topics_service.engine import lives, retention, snapshot
from topics_service.engine.blocks import BlockCache, LogBlocks
from topics_service.engine.lives import Ceiling
from topics_service.engine.log import Log
from topics_service.engine.offsets.positions import (
    Group,
    Position,
    decode_position,
    is_group_row,
    is_mirror_row,
    read_position_key,
)
from topics_service.engine.offsets.positions import decode_row as decode_group
from topics_service.engine.router.router import RouterRow, cursor_key, decode_cursor
from topics_service.engine.router.router import decode_row as decode_router
from topics_service.engine.snapshot import Gap, Snapshot
from topics_service.engine.stored_catalog import StoredCatalog
from topics_service.engine.stored_logs import DAMAGE, damaged
from topics_service.engine.topic import Topic
from topics_service.engine.writer import Writer
from topics_service.storage import keys
from topics_service.storage.store import Family, Store, WriteBatch

_BOOT_KEY = b"boot"
_CLEAN = b"clean"
_ALL = (b"", b"\xff" * 16)


def begin(
    writer: Writer, memory: Store, cache: BlockCache, stored: StoredCatalog, boot_id: str, *, syncs: bool
) -> None:
    """Decide what the last end of the server has taken, and let the topics be opened. Decisions are durable on return,
    unless it does not sync.

    Raises StoreOpenError, naming the row, when what is needed for that is damaged.
    """
    store, logs = writer.store, stored.logs
    batch = writer.begin()
    ended, counted = store.get(Family.META, _BOOT_KEY), lives.read(store)
    if ended not in (None, _CLEAN):
        counted = counted.after(is_tail_lost=not boot_id or ended != boot_id.encode())
        batch.put(Family.META, lives.KEY, counted.encode())
    batch.put(Family.META, _BOOT_KEY, boot_id.encode())
    writer.life = counted.ends
    logs.begin(writer, memory, cache, counted)
    writer.total_records, writer.total_bytes = logs.records, logs.bytes
    for log_id, s, ceiling in logs.volatile_states():
        topic = stored.of_log(log_id)
        if topic is not None:
            count, nbytes = s.count, s.bytes
            with _refuse_damage(f'topic "{topic.name}"'):
                lose(s, LogBlocks(log_id, cache, store, memory), log_id, s.volatile_from, ceiling, batch)
            writer.total_records += s.count - count
            writer.total_bytes += s.bytes - nbytes
    writer.commit(batch)
    if syncs:
        store.sync()
        writer.on_synced(writer.written)


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
                if end not in topics and (end == row.config.dest or row.foreign is None):
                    raise ValueError(f'"{row.name}" has the topic "{end}" as an end, which does not exist')
        yield number, row, cursor, forwarded


def groups(store: Store, topics: Mapping[int, Topic]) -> Iterator[tuple[Group, Mapping[tuple[Topic, int], Position]]]:
    """Yield every consumer group and mirror on disk, with its positions to be put. O(groups and positions).

    `topics` are all topics by number.

    Raises StoreOpenError, naming the row, when one is damaged or is of a group, topic or partition that is not there.
    """
    found: dict[int, Group] = {}
    names: set[tuple[str, bool]] = set()
    for key, value in store.scan(Family.GROUPS, *_ALL):
        is_mirror = is_mirror_row(key)
        if is_mirror or is_group_row(key):
            number = keys.read_u64(key)
            with _refuse_damage(f"group {number}"):
                row = decode_group(value)
                found[number] = Group(number, row.name, row.created_ts, row.active_ts, is_mirror=is_mirror)
                if (row.name, is_mirror) in names:
                    raise ValueError(f'there are two groups "{row.name}"')
                names.add((row.name, is_mirror))
    positions: dict[int, dict[tuple[Topic, int], Position]] = {}
    for key, value in store.scan(Family.POSITIONS, *_ALL):
        with _refuse_damage(f"the position {key.hex()}"):
            number, epoch, partition = read_position_key(key)
            topic = topics.get(epoch)
            if number not in found or topic is None or partition >= topic.partition_count:
                raise ValueError("its group or partition does not exist")
            positions.setdefault(number, {})[topic, partition] = decode_position(value)
    for number, group in found.items():
        yield group, positions.get(number, {})


def close(writer: Writer, logs: Iterable[Log]) -> None:
    """Write state that is only in memory and mark the directory as closed."""
    batch = writer.begin()
    for log in logs:
        s = copy(log.state)
        if s.volatile_from:
            batch.apply(Family.GAPS, log.owed)
            lose(s, log.blocks, log.log_id, s.volatile_from, s.head, batch)
            batch.put(Family.CEILINGS, keys.u64(log.log_id), Ceiling(s.head, writer.life).encode())
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


@contextmanager
def _refuse_damage(what: str) -> Iterator[None]:
    """Convert any error of a decoder into a StoreOpenError that names the damaged row."""
    try:
        yield
    except DAMAGE as error:
        raise damaged(what, error) from error
