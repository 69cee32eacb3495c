"""The read path: from a cursor to a page of record slices and at most one tombstone (docs/contract.md, 5)."""

from collections.abc import Iterator, Sequence

from topics_service.engine import retention, tags
from topics_service.engine.blocks import LogBlocks
from topics_service.engine.errors import invalid
from topics_service.engine.limits import Limits
from topics_service.engine.model import DiffReply, DiffRequest, GapReason, Slice, TagMatch, Tombstone, TopicConfig
from topics_service.engine.snapshot import Snapshot
from topics_service.storage.block import Block
from topics_service.storage.store import Store

WORK = 1 << 14  # what a page with a tag filter may cost: 1 for each record looked at, and
_RANGE = 8  # for each range of matches found in the tag index,
_BLOCK = 128  # for each block read for its matches, or 1 for each KiB of it if that is more: about 5 ms in all
SLICES = 512  # what a page of a scan may be made of: each costs about 4 us, so that 16,000 took 130 ms of the loop
NEAR = 1 << 14  # so few records before the end of the index a Glob looks at all of them rather than at its tags


def start(s: Snapshot, blocks: LogBlocks, request: DiffRequest) -> int:
    """Return the `from_seq` for `from_ts` or `last`. Raises `invalid_request` if more than one start is given."""
    if request.from_seq or (request.from_ts is not None and request.last is not None):
        raise invalid("from_seq, from_ts and last are mutually exclusive")
    if request.last is None:
        return retention.first_at_or_after(s, blocks, request.from_ts or 0) - 1
    if request.last >= s.count:
        return s.earliest - 1
    return s.nth_live(s.count - request.last) - 1 if request.last else s.head


def page(
    request: DiffRequest,
    config: TopicConfig,
    s: Snapshot,
    blocks: LogBlocks,
    stores: Sequence[Store],
    limits: Limits,
    partition_count: int,
) -> DiffReply:
    """The page that a Diff asks for, without its wait."""
    from_seq, limit = request.from_seq, request.limit
    if request.from_ts is not None or request.last is not None:
        from_seq = start(s, blocks, request)
        limit = limit or request.last or 0
    elif request.committed:
        from_seq = min(from_seq, s.head)
    reply = read(
        request.topic,
        s,
        blocks,
        from_seq,
        min(limit or limits.default_limit, limits.max_limit),
        min(request.max_batch_bytes or limits.default_batch_bytes, limits.max_batch_bytes),
        frozenset(request.nodes if config.dedupe_node else ()),
        match=request.filter,
        stores=stores,
        partition=request.partition,
    )
    reply.partition_count = partition_count
    return reply


def locate(s: Snapshot, blocks: LogBlocks, ts: int) -> tuple[int, int]:
    """The first live seq with a record time of `ts` (ms) or later, head + 1 if there is none, and the head."""
    return s.first_live(retention.first_at_or_after(s, blocks, ts)), s.head


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
    match: TagMatch | None = None,
    stores: Sequence[Store] = (),
    partition: int = 0,
    work: int | None = None,
) -> DiffReply:
    """Read the records after `from_seq`: at most `limit` examined and `max_bytes` delivered (but always one).

    With `end_seq` nothing behind it is read: a gap is cut there too. For `scan` see `LogBlocks.find`; its pages have at
    most `SLICES` slices, of which there are many where much was deleted in between.

    With `match` only records whose tag matches are examined, found through the tag index in `stores`. The page then
    ends, even if short, after `work`, by default WORK: its cursor is after the examined records, and more may follow.
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
    page = _Page(s, limit, max_bytes, nodes, SLICES if scan else limit)
    if match is None:
        cursor = _fill(page, s, blocks, at, end, scan=scan)
    else:
        cursor = _Search(page, s, blocks, match, stores, WORK if work is None else work).fill(at, end)
    return DiffReply(
        topic=topic,
        partition=partition,
        slices=page.slices,
        next_from_seq=cursor,
        head_seq=s.head,
        earliest_seq=s.earliest,
        tombstone=tombstone,
        records_scanned=page.examined + page.skipped,
    )


def _fill(page: "_Page", s: Snapshot, blocks: LogBlocks, at: int, end: int, *, scan: bool) -> int:
    """Fill the page with the records `at..end`; return the cursor to continue from."""
    while at <= end and page.open:
        block = blocks.records(at, scan=scan)
        stop = min(block.end_seq, end + 1)
        page.take(block, at - block.base_seq, stop - block.base_seq)
        at = s.first_live(stop)
        if at <= end and page.is_full:
            page.open = False
    return end if page.open and not page.is_full else page.last_examined


def _tombstone(s: Snapshot, from_seq: int) -> tuple[Tombstone | None, int]:
    """Return the loss at the cursor, if any, and the seq to continue from."""
    next_seq = from_seq + 1
    if from_seq > s.head:
        return _gap(s, 1, s.head, "recreated"), s.earliest
    if next_seq < s.evict_floor:
        return _gap(s, next_seq, s.earliest - 1, s.eviction_reason(next_seq)), s.earliest
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


class _Search:
    """Fills a page with the records whose tag matches: from the tag index as far as it goes, then from the blocks.

    A Glob of many tags looks at the blocks at once, as does one that is `NEAR` to the end of the index.
    """

    def __init__(
        self, page: "_Page", s: Snapshot, blocks: LogBlocks, match: TagMatch, stores: Sequence[Store], work: int
    ) -> None:
        self._page = page
        self._s = s
        self._blocks = blocks
        self._match = match
        self._stores = stores
        self._work = work
        self._block: Block | None = None

    def fill(self, at: int, end: int) -> int:
        """Fill the page with the matches in `at..end`; return the cursor to continue from."""
        sealed = min(end, self._s.sealed_to, tags.indexed_to(self._stores, self._blocks, at))
        if at <= sealed and (self._match.op == "Eq" or sealed - at >= NEAR):
            found = tags.walk(self._stores, self._blocks.log_id, self._match, at)
            if found is not None:
                cursor = self._take_found(found, at, sealed)
                if cursor is not None:
                    return cursor
                at = sealed + 1
        return self._look_at_all(at, end)

    def _take_found(self, found: Iterator[tuple[int, int, bool]], at: int, sealed: int) -> int | None:
        """Take ranges of matches up to `sealed`; the cursor if the page ends there, else None."""
        for first, stop, is_exact in found:
            if first > sealed:
                break
            first, stop = max(first, at), min(stop, sealed + 1)
            if first >= stop:
                continue  # reported before: the index can be in two stores
            if not is_exact:
                at = self._look_at_all(self._s.first_live(first), stop - 1)
                if at < stop - 1 or not self._page.open or self._page.is_full or self._work <= 0:
                    return at
                at = stop
                continue
            self._work -= _RANGE + stop - first
            while (at := self._s.deletes.first_unmarked(first, stop)) < stop:
                block = self._read(at)
                first = min(stop, block.end_seq)
                if not self._take(block, at, first):
                    return max(self._page.last_examined, at - 1)
                if self._work <= 0:
                    return first - 1
            if self._work <= 0:
                return stop - 1
        return None

    def _look_at_all(self, at: int, end: int) -> int:
        """Examine every record of `at..end`; return the cursor."""
        page, s = self._page, self._s
        while at <= end:
            block = self._blocks.tagged(at, scan=at <= s.sealed_to)
            stop = min(block.end_seq, end + 1, at + self._work)
            examined, cursor = page.examined, stop - 1
            for first, last in _matching_ranges(block, at, stop, self._match):
                if not self._take(block, first, last):
                    cursor = max(page.last_examined, first - 1)
                    break
            page.skipped += s.live_between(at, cursor + 1) - (page.examined - examined)
            self._work -= max(stop - at, block.nbytes >> 10)
            if not page.open or page.is_full or self._work <= 0:
                return cursor
            at = s.first_live(stop)
        return end

    def _take(self, block: Block, first: int, stop: int) -> bool:
        """Add the live records among these seqs; return whether there is room for more."""
        self._blocks.inflate(block)
        self._page.take(block, first - block.base_seq, stop - block.base_seq)
        return self._page.open and not self._page.is_full

    def _read(self, seq: int) -> Block:
        """Return the block that holds `seq`."""
        block = self._block
        if block is None or seq >= block.end_seq:
            block = self._block = self._blocks.records(seq)
            self._work -= max(_BLOCK, block.nbytes >> 10)
        return block


def _matching_ranges(block: Block, first: int, stop: int, match: TagMatch) -> Iterator[tuple[int, int]]:
    """Yield the ranges of seqs among records first..stop-1 of the block that have a matching tag."""
    column, base = block.tags, block.base_seq
    if column is None:
        return
    value, prefix = match.value, match.op == "Glob"
    at, end = first - base, stop - base
    while at < end:
        if prefix:
            at = next((i for i in range(at, end) if (tag := column[i]) is not None and tag.startswith(value)), end)
        else:
            try:
                at = column.index(value, at, end)
            except ValueError:
                return
        begin = at
        while at < end and (tag := column[at]) is not None and (tag.startswith(value) if prefix else tag == value):
            at += 1
        if begin < at:
            yield base + begin, base + at


class _Page:
    """A page being filled; `open` while it has room."""

    def __init__(self, s: Snapshot, limit: int, max_bytes: int, nodes: frozenset[bytes], max_slices: int) -> None:
        self._deletes = s.deletes
        self._limit = limit
        self._max_slices = max_slices
        self._budget = max_bytes
        self._nodes = nodes
        self.slices: list[Slice] = []
        self.examined = 0
        self.last_examined = 0
        self.skipped = 0  # looked at, but passed over for their tag
        self.open = True

    @property
    def is_full(self) -> bool:
        """Return whether the limit of examined records is reached."""
        return self.examined >= self._limit

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
        nodes = block.nodes if self._nodes else None
        if nodes is not None:
            for i in range(start, stop):
                if nodes[i] in self._nodes:
                    self._examine(block, i + 1, 1)
                elif not self._deliver(block, i, i + 1):
                    return
        elif start < stop and not self._deliver(block, start, stop):
            return
        if full:
            self.open = False

    def _deliver(self, block: Block, start: int, stop: int) -> bool:
        """Deliver records within the byte budget; False (and closed) if some are left, or the page is full."""
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
        if taken < stop or len(self.slices) == self._max_slices:
            self.open = False
            return False
        return True

    def _examine(self, block: Block, stop: int, count: int) -> None:
        self.examined += count
        self.last_examined = block.base_seq + stop - 1
