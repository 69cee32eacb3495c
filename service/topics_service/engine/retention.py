"""What leaves a log and when: expiry, eviction and range deletion, computed on snapshots without touching the store.

Each function changes the (private, unpublished) snapshot it is given and returns what happened; the caller writes it.
"""

from collections.abc import Iterable

from topics_service.engine.blocks import LogBlocks
from topics_service.engine.model import TopicConfig
from topics_service.engine.snapshot import Snapshot
from topics_service.storage.block import StoredBlock


def expire(s: Snapshot, blocks: LogBlocks, ttl_ms: int, now: int, hold: int | None = None) -> bool:
    """Drop the records older than `ttl_ms` (strictly) from the front; O(log n) block look-ups. True if any went.

    Those above `hold` stay, where it is given.
    """
    if not ttl_ms or not s.count or (hold is not None and s.earliest > hold):
        return False
    oldest_kept = now - ttl_ms
    block = blocks.find(s.earliest)
    if block.ts_at(s.earliest - block.base_seq) >= oldest_kept:
        return False
    cut = first_at_or_after(s, blocks, oldest_kept)
    if hold is not None:
        cut = min(cut, hold + 1)
    s.evict_ttl = s.last_live_below(cut)
    advance(s, blocks, cut)
    return True


def evict(s: Snapshot, blocks: LogBlocks, config: TopicConfig, hold: int | None = None) -> bool:
    """Drop the oldest live records until both caps hold, never more than the tighter one asks. True if any went.

    Those above `hold` stay, where it is given.
    """
    cut = s.earliest
    if config.cap_records and s.count > config.cap_records:
        cut = s.nth_live(s.count - config.cap_records)
    if config.cap_bytes and s.bytes > config.cap_bytes:
        cut = max(cut, _past_bytes(s, blocks, s.bytes - config.cap_bytes))
    last = cut - 1
    if hold is not None and cut > hold + 1:
        cut = max(s.earliest, hold + 1)
        last = s.last_live_below(cut) if cut > s.earliest else 0
    if cut == s.earliest:
        return False
    s.evict_cap = last
    advance(s, blocks, cut)
    return True


def advance(s: Snapshot, blocks: LogBlocks, cut: int) -> int:
    """Make every record below `cut` dead, without saying why; returns how many were live."""
    cut = min(cut, s.head + 1)
    if cut <= s.earliest:
        return 0
    gone = s.live_between(s.earliest, cut)
    s.bytes -= live_bytes(s, blocks, s.earliest, cut)
    s.count -= gone
    s.earliest = s.first_live(cut)
    return gone


def live_bytes(s: Snapshot, blocks: LogBlocks, start: int, stop: int) -> int:
    """The record bytes of the live records in [start, stop)."""
    if not s.live_between(start, stop):
        return 0
    total = _bytes_before(s, blocks, stop) - _bytes_before(s, blocks, start)
    return total - s.deletes.dead_bytes(start, stop, lambda seq: size_of(blocks, seq))


def size_of(blocks: LogBlocks, seq: int) -> int:
    """The record bytes of one record."""
    block = blocks.find(seq)
    i = seq - block.base_seq
    return block.sizes_upto(i + 1) - block.sizes_upto(i)


def sizes_of(blocks: LogBlocks, seqs: Iterable[int]) -> list[tuple[int, int]]:
    """The seqs with the record bytes of each; neighbours cost one block look-up."""
    sizes: list[tuple[int, int]] = []
    block: StoredBlock | None = None
    for seq in seqs:
        if block is None or not block.base_seq <= seq < block.end_seq:
            block = blocks.find(seq)
        i = seq - block.base_seq
        sizes.append((seq, block.sizes_upto(i + 1) - block.sizes_upto(i)))
    return sizes


def _bytes_before(s: Snapshot, blocks: LogBlocks, seq: int) -> int:
    """The bytes of all records ever appended below `seq`."""
    while (gap := s.gap_at(seq)) is not None:  # gaps of two crashes can touch
        seq = gap.stop + 1
    if seq > s.head:
        return s.cum_bytes
    block = blocks.find(seq)
    return block.cum_bytes + block.sizes_upto(seq - block.base_seq)


def first_at_or_after(s: Snapshot, blocks: LogBlocks, ts: int) -> int:
    """The first seq from `earliest` on whose record has at least this ts; head + 1 if there is none.

    The record may be deleted. O(log n) block look-ups, because ts never falls with seq.
    """
    if not s.count or s.last_ts < ts:
        return s.head + 1
    first = blocks.find(s.earliest)
    if first.ts_at(s.earliest - first.base_seq) >= ts:
        return s.earliest
    low, high = s.earliest, s.head + 1  # the record at `low` is older, the one at `high` is not
    while high - low > 1:
        middle = (low + high) // 2
        while (gap := s.gap_at(middle)) is not None and gap.start - 1 > low:
            middle = gap.start - 1
        while (gap := s.gap_at(middle)) is not None:
            middle = gap.stop + 1
        if middle >= high:
            break
        block = blocks.find(middle)
        if block.first_ts >= ts:
            high = max(block.base_seq, low + 1)
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
        block = blocks.find(middle)
        if block.max_ts < ts:
            low = block.end_seq - 1
        else:
            high = max(block.base_seq, low + 1)
    return high


def _past_bytes(s: Snapshot, blocks: LogBlocks, excess: int) -> int:
    """One past the last of the oldest live records that together free at least `excess` bytes."""
    seq = s.earliest
    while True:
        block = blocks.find(seq)
        start, stop = seq - block.base_seq, min(block.end_seq, s.head + 1)
        if not s.deletes.count(seq, stop):
            before = block.sizes_upto(start)
            if block.sizes_upto(block.count) - before >= excess:
                return block.base_seq + block.fit(start, excess - 1) + 1
            excess -= block.sizes_upto(block.count) - before
        else:
            for i in range(start, block.count):
                if block.base_seq + i not in s.deletes:
                    excess -= block.sizes_upto(i + 1) - block.sizes_upto(i)
                    if excess <= 0:
                        return block.base_seq + i + 1
        seq = s.first_live(block.end_seq)
