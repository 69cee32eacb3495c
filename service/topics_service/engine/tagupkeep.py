"""Background work on the tag index of one log, in slices: merging runs, and replacing the rows of earlier versions."""

from collections.abc import Sequence
from itertools import islice

from topics_service.engine import tagrows, tagruns, tags
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.log import Log
from topics_service.engine.tagruns import Merge, Run, Upkeep
from topics_service.engine.writer import Writer
from topics_service.storage import keys
from topics_service.storage.block import Block
from topics_service.storage.kafkablock import KafkaBlock
from topics_service.storage.store import Family, Store, StoreError, WriteBatch

_MOVE_RECORDS = 1 << 13  # in one slice, which decodes them
_MERGES = 8  # under way at a time: each has some megabytes in memory
_SHARE = 2  # a run goes as a whole: one that has more than this part of the live records would stay for too long
_MAX_SPAN = 1 << 31  # seqs of a run: its positions have 32 bits


def look(log: Log, writer: Writer, store: Store) -> None:
    """Note what is due in `store` after a run was added to it."""
    state = log.tag_upkeep or Upkeep()
    if state.is_damaged:
        return
    if state.merge is None:
        found = list(tagruns.runs(store, log.log_id))
        largest = min((log.view.head + 1 - log.view.earliest) // _SHARE, _MAX_SPAN)
        sources = tagruns.mergeable(found, largest)
        if sources and not _is_marked(log, store, sources):
            state.merge = Merge(store, log.log_id, sources)
    if store is writer.store and tagrows.exist(store, log.log_id):
        state.is_moving = True
    log.tag_upkeep = state if state.merge is not None or state.is_moving else None


def is_due(log: Log) -> bool:
    """Return whether there is work."""
    return log.tag_upkeep is not None and not log.tag_upkeep.is_damaged


def run(log: Log, writer: Writer) -> bool:
    """Run a slice of what is due. Returns True if more is. Raises `throttled` when the store stalls."""
    state = log.tag_upkeep
    if state is None or state.is_damaged:
        return False
    try:
        if state.merge is not None:
            if not _merge(log, writer, state.merge):
                return False  # until the log is written to again
        elif _move(log, writer):
            state.is_moving = False
    except (StoreError, TopicsError) as error:
        state.merge = None  # what it has read is not written: it begins again, after the next seal
        if isinstance(error, TopicsError) and error.reason is not Reason.INTERNAL:
            log.tag_upkeep = state if state.is_moving else None
            raise
        state.is_moving, state.is_damaged = False, True  # a look-up that comes there reports it
        return False
    if state.merge is None and not state.is_moving:
        log.tag_upkeep = None
    return log.tag_upkeep is not None


def _is_marked(log: Log, store: Store, sources: Sequence[Run]) -> bool:
    """Return whether a block between the runs is not indexed yet: it would get a run within the merged one."""
    if log.blocks.marked is False:
        return False
    return any(base < sources[-1].stop for base in islice(tags.marked(store, log.log_id, sources[0].base), 1))


def _merge(log: Log, writer: Writer, merge: Merge) -> bool:
    """Merge a slice. Returns False if too many others are under way."""
    if merge not in writer.merges:
        if len(writer.merges) >= _MERGES:
            return False
        writer.merges.add(merge)
    store, s = merge.store, log.view
    batch = writer.begin() if store is writer.store else store.batch()
    done = merge.step(batch, s.is_live if s.deletes else None, s.earliest)
    _write(writer, store, batch)
    if done is not False and log.tag_upkeep is not None:
        writer.merges.discard(merge)
        log.tag_upkeep.merge = None
        look(log, writer, store)
    return True


def _move(log: Log, writer: Writer) -> bool:
    """Index further blocks in runs; once all are, remove the rows of earlier versions and return True."""
    store, log_id, s = writer.store, log.log_id, log.view
    top = min(s.sealed_to, s.volatile_from - 1) if s.volatile_from else s.sealed_to
    value = store.get(Family.TAGS, keys.moved(log_id))
    at = max(s.earliest, 0 if value is None else keys.read_u64(value))
    batch = writer.begin()
    runs = list(tagruns.runs(store, log_id))
    blocks = list[Block]()
    left = _MOVE_RECORDS
    while at <= top and left > 0:
        gap = s.gap_at(at)
        covering = next((run for run in runs if run.base <= at < run.stop), None)
        if gap is not None or covering is not None:
            _index(batch, log_id, blocks)
            at = gap.stop + 1 if gap is not None else covering.stop if covering is not None else at
            continue
        found = log.blocks.find(at, scan=True)
        if isinstance(found, KafkaBlock) and tags.is_marked(store, found):
            _index(batch, log_id, blocks)
        else:
            blocks.append(log.blocks.tagged(at, scan=True))
            left -= found.count
        at = found.end_seq
    _index(batch, log_id, blocks)
    if at > top:
        batch.delete_range(Family.TAGS, *keys.tag_rows(log_id))
        batch.delete(Family.TAGS, keys.moved(log_id))
    else:
        batch.put(Family.TAGS, keys.moved(log_id), keys.u64(at))
    _write(writer, store, batch)
    return at > top


def _index(batch: WriteBatch, log_id: int, blocks: list[Block]) -> None:
    if blocks:
        tags.index(batch, log_id, blocks)
    blocks.clear()


def _write(writer: Writer, store: Store, batch: WriteBatch) -> None:
    if store is writer.store:
        writer.commit(batch)
    else:
        store.write(batch)
