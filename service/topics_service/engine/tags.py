"""The tag index: where records with a tag are, without walking the log (SPEC DESIGN 7.2).

Sealed blocks are indexed by run: one row per distinct tag of a run, holding positions relative to the run's base.
Blocks above `sealed_to` are few by construction (`upkeep`) and are looked at directly.
"""

from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator

from topics_service.engine.blocks import LogBlocks
from topics_service.engine.model import TagMatch
from topics_service.engine.snapshot import Snapshot
from topics_service.storage import keys
from topics_service.storage.block import Block
from topics_service.storage.store import Family, Store, WriteBatch


def index(batch: WriteBatch, log_id: int, run: Iterable[Block]) -> None:
    """Add the index rows of a run of blocks."""
    base: int | None = None
    positions: defaultdict[bytes | None, list[int]] = defaultdict(list)
    for block in run:
        base = block.base_seq if base is None else base
        if block.tags is None:
            continue
        offset = block.base_seq - base
        for i, tag in enumerate(block.tags, offset):
            positions[tag].append(i)
    positions.pop(None, None)
    for tag, found in positions.items():
        batch.put(Family.TAGS, keys.tag(log_id, tag or b"", base or 0), array("I", found).tobytes())


def matching(
    stores: Iterable[Store], log_id: int, s: Snapshot, blocks: LogBlocks, match: TagMatch, bound: int
) -> list[int]:
    """The live seqs below `bound` whose tag matches, ascending. Cost grows with the matches, not with the log."""
    prefix = match.op == "Glob"
    found: set[int] = set()
    for store in stores:
        for _, run, row in _rows(store, log_id, match.value, prefix=prefix):
            found.update(run + offset for offset in array("I", row))
    at = max(s.sealed_to + 1, s.earliest)
    while (at := s.first_live(at)) <= s.head:
        block = blocks.find(at)
        found.update(block.base_seq + i for i in block.positions_of(match.value, prefix=prefix))
        at = block.end_seq
    return sorted(seq for seq in found if seq < bound and s.is_live(seq))


def prune(store: Store, batch: WriteBatch, log_id: int, match: TagMatch, head: int) -> None:
    """Remove the rows of a match whose records up to `head` are all being deleted."""
    for key, run, row in _rows(store, log_id, match.value, prefix=match.op == "Glob"):
        if run + array("I", row)[-1] <= head:
            batch.delete(Family.TAGS, key)


def prune_below(store: Store, batch: WriteBatch, log_id: int, tags: Iterable[bytes], earliest: int) -> None:
    """Remove the rows of these tags that point only below `earliest`."""
    for tag in tags:
        for key, run, row in _rows(store, log_id, tag, prefix=False):
            if run + array("I", row)[-1] >= earliest:
                break
            batch.delete(Family.TAGS, key)


def _rows(store: Store, log_id: int, tag: bytes, *, prefix: bool) -> Iterator[tuple[bytes, int, bytes]]:
    for key, row in store.scan(Family.TAGS, *keys.tag_range(log_id, tag, prefix=prefix)):
        yield key, keys.tag_run(key), row
