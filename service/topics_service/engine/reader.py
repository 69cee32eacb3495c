"""The read path: from a cursor to a page of record slices and at most one tombstone (SPEC API 3, DESIGN 7.3)."""

from topics_service.engine import retention
from topics_service.engine.blocks import LogBlocks
from topics_service.engine.errors import invalid
from topics_service.engine.model import DiffReply, DiffRequest, GapReason, Slice, Tombstone
from topics_service.engine.snapshot import Snapshot
from topics_service.storage.block import Block


def start(s: Snapshot, blocks: LogBlocks, request: DiffRequest) -> int:
    """The `from_seq` that `from_ts` or `last` stands for. Raises `invalid_request` if more than one start is given."""
    if request.from_seq or (request.from_ts is not None and request.last is not None):
        raise invalid("from_seq, from_ts and last exclude each other")
    if request.last is None:
        return retention.first_at_or_after(s, blocks, request.from_ts or 0) - 1
    if request.last >= s.count:
        return s.earliest - 1
    return s.nth_live(s.count - request.last) - 1 if request.last else s.head


def read(
    topic: str,
    s: Snapshot,
    blocks: LogBlocks,
    from_seq: int,
    limit: int,
    max_bytes: int,
    nodes: frozenset[bytes],
    end_seq: int | None = None,
    *,
    scan: bool = False,
) -> DiffReply:
    """The records after `from_seq`: at most `limit` examined, at most `max_bytes` delivered (but always one).

    With `end_seq` nothing behind it: a gap is cut there too. For `scan` see `LogBlocks.find`.
    """
    tombstone, at = _tombstone(s, from_seq)
    gap = s.next_gap(at)
    end = s.head if gap is None else gap.start - 1  # a read stops before an interior gap
    if end_seq is not None:
        if end_seq <= from_seq <= s.head:
            tombstone, end_seq = None, from_seq
        elif tombstone is not None and tombstone.gap_to > end_seq and from_seq <= s.head:
            tombstone = _gap(s, tombstone.gap_from, end_seq, tombstone.reason)
        end = min(end, end_seq)
    if at < s.earliest:
        at = min(s.earliest, end + 1)  # a deleted prefix is passed in silence
    page = _Page(s, limit, max_bytes, nodes)
    while at <= end and page.open:
        block = blocks.find(at, scan=scan)
        stop = min(block.end_seq, end + 1)
        page.take(block, at - block.base_seq, stop - block.base_seq)
        at = s.first_live(stop)
        if at <= end and page.examined >= limit:
            page.open = False
    return DiffReply(
        topic=topic,
        slices=page.slices,
        next_from_seq=end if page.open and page.examined < limit else page.last_examined,
        head_seq=s.head,
        earliest_seq=s.earliest,
        tombstone=tombstone,
        records_scanned=page.examined,
    )


def _tombstone(s: Snapshot, from_seq: int) -> tuple[Tombstone | None, int]:
    """The loss that the cursor meets, if any, and the seq to go on from."""
    next_seq = from_seq + 1
    if from_seq > s.head:
        return _gap(s, 1, s.head, "recreated"), s.earliest
    if next_seq < s.evict_floor:
        causes: list[GapReason] = []
        if s.evict_cap >= next_seq:
            causes.append("cap")
        if s.evict_ttl >= next_seq:
            causes.append("ttl")
        reason: GapReason = "source_trim" if not causes else causes[0] if len(causes) == 1 else "mixed"
        return _gap(s, next_seq, s.earliest - 1, reason), s.earliest
    lost = s.gap_at(next_seq)
    if lost is not None:
        return _gap(s, next_seq, lost.stop, lost.reason), lost.stop + 1
    return None, next_seq


def _gap(s: Snapshot, start: int, stop: int, reason: GapReason) -> Tombstone:
    return Tombstone(
        gap_from=start,
        gap_to=stop,
        reason=reason,
        missed_estimate=max(0, stop - start + 1),
        earliest_seq=s.earliest,
        head_seq=s.head,
    )


class _Page:
    """A page being filled; `open` while it has room."""

    def __init__(self, s: Snapshot, limit: int, max_bytes: int, nodes: frozenset[bytes]) -> None:
        self._deletes = s.deletes
        self._limit = limit
        self._budget = max_bytes
        self._nodes = nodes
        self.slices: list[Slice] = []
        self.examined = 0
        self.last_examined = 0
        self.open = True

    def take(self, block: Block, start: int, stop: int) -> None:
        """Add the live, unfiltered records at positions start..stop-1 of a block, as far as there is room."""
        if not self._deletes:
            self._take_live(block, start, stop)
            return
        for seq in self._deletes.between(block.base_seq + start, block.base_seq + stop):
            self._take_live(block, start, seq - block.base_seq)
            start = seq - block.base_seq + 1
            if not self.open:
                return
        self._take_live(block, start, stop)

    def _take_live(self, block: Block, start: int, stop: int) -> None:
        if start >= stop:
            return
        room = self._limit - self.examined
        if stop - start > room:
            stop, full = start + room, True
        else:
            full = False
        if self._nodes and block.nodes is not None:
            for i in range(start, stop):
                if block.nodes[i] in self._nodes:
                    self._examine(block, i + 1, 1)
                elif not self._deliver(block, i, i + 1):
                    return
        elif start < stop and not self._deliver(block, start, stop):
            return
        if full:
            self.open = False

    def _deliver(self, block: Block, start: int, stop: int) -> bool:
        """Deliver what the byte budget allows; False (and closed) if that is not all."""
        fits = block.fit(start, self._budget)
        if not self.slices and fits == start:
            fits = start + 1
        taken = min(stop, fits)
        if taken > start:
            self._budget = max(0, self._budget - (block.sizes_upto(taken) - block.sizes_upto(start)))
            last = self.slices[-1] if self.slices else None
            if last is not None and last.block is block and last.stop == start:
                self.slices[-1] = Slice(block, last.start, taken)
            else:
                self.slices.append(Slice(block, start, taken))
            self._examine(block, taken, taken - start)
        if taken < stop:
            self.open = False
            return False
        return True

    def _examine(self, block: Block, stop: int, count: int) -> None:
        self.examined += count
        self.last_examined = block.base_seq + stop - 1
