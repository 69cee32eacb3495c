"""Retention of a log: expiry, eviction and range deletion, computed on snapshots without touching the store.

Each function changes the given (private, unpublished) snapshot and returns what happened; the caller writes it.

Unreadable records stay until the readable ones around them prove that all of them must go: damage removes nothing, and
never blocks the removal of other records.
"""

from collections.abc import Iterable

from topics_service.engine.blocks import LogBlocks, UnreadableError
from topics_service.engine.model import TopicConfig
from topics_service.engine.snapshot import Snapshot
from topics_service.storage.block import StoredBlock


def expire(s: Snapshot, blocks: LogBlocks, ttl_ms: int, now: int, hold: int | None = None) -> bool:
    """Drop records older than `ttl_ms` (strictly) from the front; O(log n) block look-ups. Returns True if any went.

    Records above `hold` stay, if given.
    """
    if not ttl_ms or not s.count or (hold is not None and s.earliest > hold):
        return False
    cut = first_at_or_after(s, blocks, now - ttl_ms)
    if hold is not None:
        cut = min(cut, hold + 1)
    last = _advance_upto(s, blocks, cut)
    if last is None:
        return False
    s.evict_ttl = last
    return True


def evict(s: Snapshot, blocks: LogBlocks, config: TopicConfig, hold: int | None = None) -> bool:
    """Drop the oldest live records until both caps hold. Returns True if any went.

    Records above `hold` stay, if given.
    """
    cut = s.earliest
    if config.cap_records and s.count > config.cap_records:
        cut = s.nth_live(s.count - config.cap_records)
    if config.cap_bytes and s.bytes > config.cap_bytes:
        cut = max(cut, _past_bytes(s, blocks, s.bytes - config.cap_bytes))
    if hold is not None:
        cut = min(cut, max(s.earliest, hold + 1))
    last = _advance_upto(s, blocks, cut)
    if last is None:
        return False
    s.evict_cap = last
    return True


def advance(s: Snapshot, blocks: LogBlocks, cut: int) -> int:
    """Make every record below `cut` dead, without recording a cause; return the number of live ones among them.

    Raises UnreadableError, and changes nothing, when `cut` lies within records that can't be read: their bytes are not
    known one by one.
    """
    cut = min(cut, s.head + 1)
    if cut <= s.earliest:
        return 0
    gone = s.live_between(s.earliest, cut)
    try:
        left = s.bytes - live_bytes(s, blocks, s.earliest, cut)
    except UnreadableError:
        left = _bytes_from(s, blocks, cut)
    s.bytes = left
    s.count -= gone
    s.earliest = s.first_live(cut)
    return gone


def _advance_upto(s: Snapshot, blocks: LogBlocks, cut: int) -> int | None:
    """As `advance`, but stop in front of records that can't be read when `cut` lies among them.

    Returns the last live record that was dropped; None if none was.
    """
    while cut > s.earliest:
        last = cut - 1 if s.is_live(cut - 1) else s.last_live_below(cut)
        try:
            advance(s, blocks, cut)
        except UnreadableError as error:
            cut = min(cut - 1, error.first or 0)
        else:
            return last
    return None


def live_bytes(s: Snapshot, blocks: LogBlocks, start: int, stop: int) -> int:
    """The record bytes of the live records in [start, stop)."""
    if not s.live_between(start, stop):
        return 0
    total = _bytes_before(s, blocks, stop) - _bytes_before(s, blocks, start)
    return total - s.deletes.dead_bytes(start, stop, lambda seq: size_of(blocks, seq))


def size_of(blocks: LogBlocks, seq: int) -> int:
    """The record bytes of one record."""
    block = blocks.find(seq)
    return block.size_at(seq - block.base_seq)


def sizes_of(blocks: LogBlocks, seqs: Iterable[int]) -> list[tuple[int, int]]:
    """Return the seqs with the record bytes of each; neighbours cost one block look-up."""
    sizes: list[tuple[int, int]] = []
    base = end = 0
    for seq in seqs:
        if not base <= seq < end:
            block = blocks.find(seq)
            base, end = block.base_seq, block.end_seq
        sizes.append((seq, block.size_at(seq - base)))
    return sizes


def _bytes_from(s: Snapshot, blocks: LogBlocks, seq: int) -> int:
    """The record bytes of the live records from `seq` on, which can lie behind ones that can't be read."""
    if not s.live_between(seq, s.head + 1):
        return 0
    dead = s.deletes.dead_bytes(seq, s.head + 1, lambda seq: size_of(blocks, seq))
    return s.cum_bytes - _bytes_before(s, blocks, seq) - dead


def _bytes_before(s: Snapshot, blocks: LogBlocks, seq: int) -> int:
    """The bytes of all records ever appended below `seq`."""
    while (gap := s.gap_at(seq)) is not None:  # gaps of two crashes can touch
        seq = gap.stop + 1
    if seq > s.head:
        return s.cum_bytes
    try:
        block = blocks.find(seq)
    except UnreadableError as error:
        if error.first is None or s.lost_between(error.first, seq) < seq - error.first:
            raise
        before = error.first - 1  # the last one that can be read, or a gap
        while (gap := s.gap_at(before)) is not None:
            before = gap.start - 1
        block = blocks.find(before)
        return block.cum_bytes + block.nbytes
    return block.cum_bytes + block.sizes_upto(seq - block.base_seq)


def first_at_or_after(s: Snapshot, blocks: LogBlocks, ts: int) -> int:
    """The first seq from `earliest` on whose record has at least this ts; head + 1 if there is none.

    The record may be deleted. One that can't be read has it, unless all of it is older than the next one that can be.
    O(log n) block look-ups, because ts never falls with seq.
    """
    if not s.count or s.last_ts < ts:
        return s.head + 1
    low, high = s.earliest, s.head + 1  # the record at `low` is older, the one at `high` is not
    try:
        first = blocks.find(s.earliest)
        if first.ts_at(s.earliest - first.base_seq) >= ts:
            return s.earliest
    except UnreadableError:
        low -= 1
    while high - low > 1:
        middle = (low + high) // 2
        while (gap := s.gap_at(middle)) is not None and gap.start - 1 > low:
            middle = gap.start - 1
        while (gap := s.gap_at(middle)) is not None:
            middle = gap.stop + 1
        if middle >= high:
            break
        start, block = _readable(s, blocks, middle, high)
        if block is None or block.first_ts >= ts:
            high = max(start, low + 1)
        elif block.last_ts < ts:
            low = block.end_seq - 1
        else:
            return max(block.base_seq + block.first_at_or_after(ts), low + 1)
    return high


def first_block_reaching(s: Snapshot, blocks: LogBlocks, ts: int) -> int:
    """The first seq of the first block with live records at whose end `max_ts` is at least `ts`, or `earliest` in it.

    head + 1 if there is none. O(log n) block look-ups, because `max_ts` never falls from block to block.
    """
    if not s.count or s.max_ts < ts:
        return s.head + 1
    low, high = s.earliest - 1, s.head + 1  # the block with `low` does not reach `ts`, the one with `high` does
    while high - low > 1:
        middle = (low + high) // 2
        while (gap := s.gap_at(middle)) is not None and gap.start - 1 > low:
            middle = gap.start - 1
        while (gap := s.gap_at(middle)) is not None:
            middle = gap.stop + 1
        if middle >= high:
            break
        start, block = _readable(s, blocks, middle, high)
        if block is None or block.max_ts >= ts:
            high = max(start, low + 1)
        else:
            low = block.end_seq - 1
    return high


def _readable(s: Snapshot, blocks: LogBlocks, seq: int, stop: int) -> tuple[int, StoredBlock | None]:
    """The block that holds `seq`, or the first one behind it, below `stop`, that can be read; and where it begins, or
    what can't be read before it."""
    start: int | None = None
    while seq < stop:
        try:
            block = blocks.find(seq)
        except UnreadableError as error:
            if start is None:
                start = max(error.first or 0, s.earliest)
            seq = stop if error.last is None else max(error.last, seq) + 1
            while (gap := s.gap_at(seq)) is not None:
                seq = gap.stop + 1
        else:
            return block.base_seq if start is None else start, block
    return s.earliest if start is None else start, None


def _past_bytes(s: Snapshot, blocks: LogBlocks, excess: int) -> int:
    """One past the last of the oldest live records that together free at least `excess` bytes.

    Not beyond records that can't be read, if less than all of them would do.
    """
    seq, goal = s.earliest, s.bytes - excess
    while seq <= s.head:
        try:
            block = blocks.find(seq)
        except UnreadableError as error:
            stop = s.head + 1 if error.last is None else error.last + 1
            try:
                excess = _bytes_from(s, blocks, stop) - goal
            except UnreadableError:
                return seq
            if excess < 0:
                return seq  # a part of them would do, and all would be too much
            seq = s.first_live(stop)
            if not excess:
                return seq
            continue
        start, stop = seq - block.base_seq, min(block.end_seq, s.head + 1)
        if not s.deletes.count(seq, stop):
            before = block.sizes_upto(start)
            if block.sizes_upto(block.count) - before >= excess:
                return block.base_seq + block.fit(start, excess - 1) + 1
            excess -= block.sizes_upto(block.count) - before
        else:
            for i in range(start, block.count):
                if block.base_seq + i not in s.deletes:
                    excess -= block.size_at(i)
                    if excess <= 0:
                        return block.base_seq + i + 1
        seq = s.first_live(block.end_seq)
    return seq
