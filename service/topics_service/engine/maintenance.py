"""Background work on one log, in slices: sealing (merging and indexing) small blocks, and dropping dead ones."""

from collections.abc import Iterable
from copy import copy
from itertools import groupby

from topics_service.engine import tagrows, tagruns, tags, tagupkeep
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.log import Log
from topics_service.engine.writer import Writer
from topics_service.storage import kafkablock, keys
from topics_service.storage.block import Block, CorruptBlockError, StoredBlock
from topics_service.storage.block import merge as merge_columns
from topics_service.storage.kafkablock import KafkaBlock, decode, encode
from topics_service.storage.store import Family, Store, StoreError, WriteBatch

SEAL_BLOCKS = 256  # appended blocks that make a seal worth it
SEAL_RECORDS = 1 << 14  # and the most records that a tag look-up has to walk
_SEAL_BYTES = 8 << 20  # of records that one slice has in memory
_SMALL_RECORDS = 64  # a block of less than both is merged with its small neighbours: rewriting a larger one costs
_SMALL_BYTES = 16 << 10  # more (its bytes again) than it saves readers (2 us for each block that a page touches)
_FULL_RECORDS = 1000  # merging stops here
_FULL_BYTES = 256 << 10
_USUAL_RATIO = 32  # batches of Kafka clients that are compressed better than that are not worth the time to inflate
_RECLAIM_SEQS = 64
_RECLAIM_BLOCKS = 256


def run(log: Log, writer: Writer, memory: Store) -> bool:
    """Run a bounded slice of the work due on the log. Returns True if more is due at once."""
    s = log.view
    more = False
    dead = s.earliest - s.reclaimed_to
    if not log.scans and s.earliest >= log.reclaimable_from and (dead >= _RECLAIM_SEQS or (dead > 0 and not s.count)):
        try:
            more = _reclaim(log, writer, memory)  # first: unsealed blocks have no index rows to look for
        except StoreError as error:  # of dead blocks that can't be read; damage among live ones raises TopicsError
            what = f"deleted records of {log.blocks.where} can't be removed from the disk: {error}"
            raise TopicsError(Reason.INTERNAL, what) from error
    if not more and (log.unsealed_blocks >= SEAL_BLOCKS or s.head - max(s.sealed_to, s.earliest - 1) >= SEAL_RECORDS):
        return _seal(log, writer, memory) or tagupkeep.is_due(log)
    return more or tagupkeep.run(log, writer)


def _seal(log: Log, writer: Writer, memory: Store) -> bool:
    """Merge and index the visible blocks after `sealed_to` in one atomic batch.

    Takes blocks of about `SEAL_RECORDS` records or `_SEAL_BYTES` in all, which are in memory at once.
    """
    s = log.view
    at = max(s.sealed_to + 1, s.earliest)
    volatile_from = log.state.volatile_from  # where the rows are now, which the view may not know yet
    volatile = bool(volatile_from) and at >= volatile_from
    store = memory if volatile else writer.store
    stop = s.head if volatile or not volatile_from else min(s.head, volatile_from - 1)
    run_blocks: list[StoredBlock] = []
    records = nbytes = 0
    while at <= stop and records < SEAL_RECORDS and nbytes < _SEAL_BYTES:
        gap = s.gap_at(at)
        if gap is not None:
            if run_blocks:
                break  # a run has no holes
            at = gap.stop + 1
            continue
        block = log.blocks.find(at)
        if block.end_seq > stop + 1:
            break
        if _is_small(block):
            log.blocks.inflate(block)  # it can be merged
        run_blocks.append(block)
        records += block.count
        nbytes += block.nbytes
        at = block.end_seq
    if not run_blocks:
        log.unsealed_blocks = 0
        return False
    batch = store.batch() if volatile else writer.begin()
    merged = [_merged(group) if len(group) > 1 else group[0] for group in _groups(run_blocks)]
    kept = {block.base_seq: block for block in merged}
    for block in run_blocks:
        if kept.get(block.base_seq) is not block:
            batch.delete(Family.BLOCKS, keys.pair(log.log_id, block.base_seq))
    for block in merged:
        if not any(block is old for old in run_blocks):
            batch.put(Family.BLOCKS, keys.pair(log.log_id, block.base_seq), encode(block))
    for opaque, stretch in groupby(merged, lambda block: isinstance(block, KafkaBlock)):  # runs must not overlap
        if opaque:
            log.blocks.marked = True
            tags.mark(batch, stretch)
        else:
            tags.index(batch, log.log_id, (block for block in stretch if isinstance(block, Block)))
    _finish(log, store, writer, batch, sealed_to=at - 1)
    for block in run_blocks:
        log.cache.drop(log.log_id, block.base_seq)
    for block in merged:
        log.cache.put(block)
    log.unsealed_blocks = 0 if at > log.state.head else max(0, log.unsealed_blocks - len(run_blocks))
    tagupkeep.look(log, writer, store)
    return at <= stop


def index_marked(log: Log, writer: Writer, memory: Store, stop: int | None = None) -> bool:
    """Index one live block that sealing has skipped and that begins below `stop`. Returns True if it found one.

    A damaged one keeps its mark: a delete by tag reports it while it is alive.
    """
    blocks, stores = log.blocks, tuple(reversed(log.stores(log.state)))  # the lower seqs first
    if blocks.marked is False:
        return False
    for store in stores:
        for base in tags.marked(store, log.log_id, blocks.marks_from):
            if stop is not None and base >= stop:
                return False
            batch = store.batch() if store is memory else writer.begin()
            batch.delete(Family.TAGS, keys.unindexed(log.log_id, base))
            if not blocks.is_below(base, log.view.earliest):
                try:
                    tags.index(batch, log.log_id, (blocks.records(base, scan=True),))
                except TopicsError:
                    blocks.marks_from = base + 1
                    continue
            if store is memory:
                store.write(batch)
            else:
                writer.commit(batch)
            blocks.marks_from = base + 1
            tagupkeep.look(log, writer, store)
            return True
    if tagupkeep.run(log, writer):
        return True
    blocks.marked = any(True for store in stores for _ in tags.marked(store, log.log_id))
    return False


def _merged(blocks: list[StoredBlock]) -> StoredBlock:
    """Merge blocks of one kind."""
    opaque = [block for block in blocks if isinstance(block, KafkaBlock)]
    return kafkablock.merge(opaque) if opaque else merge_columns([b for b in blocks if isinstance(b, Block)])


def _groups(blocks: Iterable[StoredBlock]) -> Iterable[list[StoredBlock]]:
    """Yield the blocks in order, with small neighbours of a kind grouped."""
    group: list[StoredBlock] = []
    records = nbytes = 0
    for block in blocks:
        size = _size_in_memory(block) if _is_small(block) else None
        fits = size is not None and records + block.count <= _FULL_RECORDS and nbytes + size <= _FULL_BYTES
        if group and not (fits and type(block) is type(group[0])):
            yield group
            group, records, nbytes = [], 0, 0
        if size is not None:
            group.append(block)
            records += block.count
            nbytes += size
        else:
            yield [block]
    if group:
        yield group


def _is_small(block: StoredBlock) -> bool:
    return block.count < _SMALL_RECORDS and block.nbytes < _SMALL_BYTES


def _size_in_memory(block: StoredBlock) -> int | None:
    """Return the size of a small block once decoded; None if it inflates too much to count as small."""
    if isinstance(block, KafkaBlock):
        return block.inflated_size(min(_FULL_BYTES, _USUAL_RATIO * block.nbytes))
    return block.nbytes


def _reclaim(log: Log, writer: Writer, memory: Store) -> bool:
    """Drop blocks that hold only records below `earliest`, and the index rows that point only there."""
    earliest = log.view.earliest  # the oldest state that a reader can be on
    more = False
    kept: list[int] = []  # ends of blocks that are not dead yet
    for store in reversed(log.stores(log.state)):  # disk first: it goes by `reclaimed_to`
        volatile = store is memory
        batch = store.batch() if volatile else writer.begin()
        start, stop = keys.pair(log.log_id, 0), keys.pair(log.log_id, earliest)
        if not volatile:
            start = keys.pair(log.log_id, log.view.reclaimed_to)
        reclaimed_to, dropped, unsealed = log.view.reclaimed_to, 0, 0
        has_rows, dead_tags = tagrows.exist(store, log.log_id), set[bytes]()
        for key, row in store.scan(Family.BLOCKS, start, stop):
            base = keys.read_u64(key, 8)
            try:
                block = decode(row, log.log_id, base)
            except CorruptBlockError:
                if not log.blocks.is_below(base, earliest):
                    break  # its end is unknown: it stays, unread
                reclaimed_to, dropped = base + 1, dropped + 1
                batch.delete(Family.TAGS, keys.unindexed(log.log_id, base))
                batch.delete(Family.BLOCKS, key)
                continue
            if block.end_seq > earliest:
                kept.append(block.end_seq)
                break
            if dropped == _RECLAIM_BLOCKS:
                more = True
                break
            dropped += 1
            unsealed += block.base_seq > log.view.sealed_to
            reclaimed_to = block.end_seq
            if isinstance(block, KafkaBlock) and tags.is_marked(store, block):
                batch.delete(Family.TAGS, keys.unindexed(log.log_id, block.base_seq))
            elif has_rows and block.base_seq <= log.view.sealed_to:
                dead_tags.update(tag for tag in block.tagged().tags or () if tag is not None)
            batch.delete(Family.BLOCKS, key)
            log.cache.drop(log.log_id, block.base_seq)  # harmless should the batch fail
        if not dropped:
            continue
        tagruns.drop_below(store, batch, log.log_id, earliest)
        tagrows.prune_below(store, batch, log.log_id, dead_tags, earliest)
        _finish(log, store, writer, batch, reclaimed_to=reclaimed_to)
        log.unsealed_blocks = max(0, log.unsealed_blocks - unsealed)
        if not volatile:
            writer.on_freed(log.log_id, reclaimed_to)
        if more:
            break
    log.reclaimable_from = min(kept, default=0)
    return more


def _finish(log: Log, store: Store, writer: Writer, batch: WriteBatch, **physical: int) -> None:
    """Write the batch with the log's changed physical fields, then update every state in use."""
    if store is writer.store:
        row = copy(log.state)
        for field, value in physical.items():
            setattr(row, field, value)
        log.commit_state(batch, row)
    else:
        store.write(batch)
    for state in log.snapshots():
        for field, value in physical.items():
            setattr(state, field, value)
