"""The tag index: finds records with a tag without walking the log.

Sealed blocks are indexed in runs (`tagruns`; `tagrows` has what earlier versions wrote). Blocks above `sealed_to` are
few by construction (`maintenance`) and are looked at directly.

Batches of Kafka clients would have to be decoded for it, which costs more than the rest of their append. So they
are only marked as not indexed, and indexed when a tag is looked up (`maintenance.index_marked`).
"""

import heapq
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple

from topics_service.engine import tagrows, tagruns
from topics_service.engine.blocks import LogBlocks
from topics_service.engine.model import TagMatch
from topics_service.engine.snapshot import Snapshot
from topics_service.storage import keys
from topics_service.storage.block import Block, StoredBlock
from topics_service.storage.store import Family, Store, WriteBatch


def index(batch: WriteBatch, log_id: int, run: Iterable[Block]) -> None:
    """Index a run of blocks."""
    tagruns.add(batch, log_id, run)


def mark(batch: WriteBatch, blocks: Iterable[StoredBlock]) -> None:
    """Note that sealed blocks are not indexed."""
    for block in blocks:
        batch.put(Family.TAGS, keys.unindexed(block.log_id, block.base_seq), b"")


def marked(store: Store, log_id: int, start: int = 0) -> Iterator[int]:
    """Yield the bases, from `start` on, of the sealed blocks in `store` that are not indexed."""
    for key, _ in store.scan(Family.TAGS, *keys.unindexed_range(log_id, start)):
        yield keys.tag_run(key)


def is_marked(store: Store, block: StoredBlock) -> bool:
    """Return whether the block is one that is not indexed."""
    return store.get(Family.TAGS, keys.unindexed(block.log_id, block.base_seq)) is not None


def indexed_to(stores: Iterable[Store], blocks: LogBlocks, seq: int) -> int:
    """Return the last seq, from `seq` on, before a block that is not indexed."""
    end, stores = (1 << 64) - 1, tuple(stores)
    if blocks.marked is None:
        blocks.marked = any(True for store in stores for _ in marked(store, blocks.log_id))
    if not blocks.marked:
        return end
    for store in stores:
        found = store.floor(Family.TAGS, keys.unindexed(blocks.log_id, seq))
        if found is not None and found[0] >= keys.unindexed_range(blocks.log_id)[0]:
            base = keys.tag_run(found[0])
            if not blocks.is_below(base, seq):
                return seq - 1
        end = min(end, next(marked(store, blocks.log_id, seq), end + 1) - 1)
    return end


class Matches(NamedTuple):
    """Live seqs, and how many were found in all: the index has dead ones as well."""

    seqs: list[int]
    found: int


def matching(
    stores: Iterable[Store], log_id: int, s: Snapshot, blocks: LogBlocks, match: TagMatch, bound: int
) -> Matches:
    """Find the live seqs below `bound` with a matching tag, ascending. The cost grows with the matches, not the log.

    Every block marked as not indexed is decoded for it; `maintenance.index_marked` avoids that.
    """
    prefix = match.op == "Glob"
    found: set[int] = set()
    for store in stores:
        for run in tagruns.runs(store, log_id, s.earliest):
            if run.base < bound:
                places: Iterable[int] = (
                    tagruns.positions_below(store, log_id, run, match.value) or ()
                    if prefix
                    else chain.from_iterable(tagruns.positions(store, log_id, run, match.value))
                )
                found.update(map(run.base.__add__, places))
        found.update(tagrows.matching(store, log_id, match))
        for base in marked(store, log_id) if blocks.marked is not False else ():
            if base < bound and not blocks.is_below(base, s.earliest):
                block = blocks.tagged(base, scan=True)
                found.update(base + i for i in block.positions_of(match.value, prefix=prefix))
    at = max(s.sealed_to + 1, s.earliest)
    while (at := s.first_live(at)) <= s.head:
        block = blocks.tagged(at)
        found.update(block.base_seq + i for i in block.positions_of(match.value, prefix=prefix))
        at = block.end_seq
    return Matches(sorted(seq for seq in found if seq < bound and s.is_live(seq)), len(found))


def walk(stores: Iterable[Store], log_id: int, match: TagMatch, start: int) -> Iterator[tuple[int, int, bool]] | None:
    """The indexed seqs at or above `start` whose tag matches, as ascending ranges [first, stop), dead ones included.

    A range with False is one of a Glob of many tags, whose records are cheaper to look at than the index. The index is
    read only as far as the result is consumed, beginning at the run that holds `start`. None if it is of no use.
    """
    stores = tuple(stores)
    older = tagrows.walk(stores, log_id, match, start) if any(tagrows.exist(each, log_id) for each in stores) else ()
    if older is None:
        return None
    ways = [_walk(store, log_id, match, start) for store in stores]
    return heapq.merge(*ways, ((first, stop, True) for first, stop in older))


def prune(store: Store, batch: WriteBatch, log_id: int, match: TagMatch, head: int, matches: Matches) -> None:
    """Remove from the index what it has of a match, where that pays, when all its records up to `head` are being
    deleted, which are the `matches`."""
    if matches.found >= tagruns.PRUNED:
        prefix = match.op == "Glob"
        for run in tagruns.runs(store, log_id):
            stop = max(0, head + 1 - run.base)
            tagruns.prune(store, batch, log_id, run, match.value, prefix=prefix, stop=stop)
    tagrows.prune(store, batch, log_id, match, head)


def _walk(store: Store, log_id: int, match: TagMatch, start: int) -> Iterator[tuple[int, int, bool]]:
    for run in tagruns.runs(store, log_id, start):
        if match.op == "Eq":
            for row in tagruns.positions(store, log_id, run, match.value, max(0, start - run.base)):
                for first, stop in tagrows.ranges(run.base, row, start):
                    yield first, stop, True
        else:
            places = tagruns.positions_below(store, log_id, run, match.value, tagruns.WIDE)
            if places is None:
                yield max(run.base, start), run.stop, False
            else:
                for first, stop in tagrows.ranges(run.base, places, start):
                    yield first, stop, True
