"""The records of one log: readable blocks are saved, the ranges between them become gaps."""

from pyroaring import BitMap

from topics_service.engine import snapshot, tags
from topics_service.engine.deletes import CHUNK_BITS, Chunk, Deletes
from topics_service.engine.maintenance import SEAL_RECORDS
from topics_service.engine.repair.actions import Rows, Uncertain
from topics_service.engine.snapshot import Gap, Snapshot
from topics_service.engine.verify.findings import DECODING, Part
from topics_service.engine.verify.walk import LiveBytes
from topics_service.storage import keys
from topics_service.storage.block import Block, StoredBlock
from topics_service.storage.kafkablock import decode, encode
from topics_service.storage.store import Family
from topics_service.storage.verify import Damage

_ALL = 1 << 20  # seqs to skip if the extent of a log is unknown


class LogSalvage:
    """Takes the blocks of one log in order, and then its state with `finish`.

    Memory: the blocks of one run of the tag index (16 Ki records).
    """

    def __init__(
        self, rows: Rows, part: Part, lost: list[tuple[int, int]], *, derived: bool, known_head: int, end: Uncertain
    ) -> None:
        """`lost` are ranges of seqs. `known_head` is the highest seq that auxiliary rows refer to."""
        assert part.s is not None, "the state is made up before"
        self.s: Snapshot = part.s
        self._rows = rows
        self._part = part
        self._derived = derived
        self._known_head = known_head
        self._end = end
        self._closed = [*((gap.start, gap.stop) for gap in part.s.gaps), *lost]
        self._first: int | None = None  # where the first block begins that is saved
        self._next = self.s.earliest
        self._cum: int | None = None
        self._sums = LiveBytes(self.s)
        self._lost: list[Gap] = []
        self._run: list[Block] = []
        self._run_records = 0

    def row(self, key: bytes, value: bytes) -> None:
        """The next row of the log."""
        s = self.s
        try:
            block = decode(value, self._part.log_id, keys.read_u64(key, 8))
            block.columns()
        except DECODING:
            return
        first, stop = block.base_seq, block.end_seq
        if self._first is None and self._derived:
            s.earliest = self._next = first
            s.evict_trim = first - 1
        if stop <= s.earliest or first < (self._next if self._first is not None else 0):
            return  # dead, or merged into the one before
        if any(low < stop and first <= high for low, high in self._closed) or 0 < s.volatile_from < stop:
            return
        self._lose(self._next, first)
        self._first = first if self._first is None else self._first
        self._cum = block.cum_bytes if self._cum is None else self._cum
        if block.cum_bytes != self._cum:  # lost records do not count
            block.cum_bytes = self._cum
            value = encode(block)
        self._rows.put(Family.BLOCKS, key, value)
        self._cum += block.nbytes
        self._next = stop
        s.last_ts, s.max_ts = max(s.last_ts, block.last_ts), max(s.max_ts, block.max_ts)
        self._sums.add(block, stop)
        self._index(block)

    def damage(self, damage: Damage) -> None:
        """Missing blocks show in the seqs of the rows."""

    def finish(self) -> None:
        """There are no more blocks: save gaps, deletes and the state."""
        s = self.s
        self._flush_run()
        if not s.volatile_from:  # a start finds the head of the others, above their ceilings
            head = max(s.head, self._next - 1, *(gap.stop for gap in s.gaps))
            if head > s.head:
                self._rows.report("derived", f"its head is {head}, by its records", self._part)
            s.head = self._with_doubt(head)
        self._lose(self._next, s.volatile_from or s.head + 1)
        s.earliest = min(max(1, s.earliest), s.head + 1)
        s.gaps = _joined([*s.gaps, *self._lost])
        s.deletes = self._deletes()
        s.earliest = s.first_live(s.earliest)
        for name in ("evict_cap", "evict_ttl", "evict_trim"):
            setattr(s, name, min(getattr(s, name), s.earliest - 1))
        s.sealed_to = min(s.sealed_to, s.head)
        s.reclaimed_to = min(s.reclaimed_to, s.earliest, self._first or s.earliest)
        if not s.volatile_from:
            self._counters()
        if self._cum is not None:
            s.cum_bytes = self._cum
        if self._lost and not s.live_between(s.earliest, s.head + 1) and not s.volatile_from:
            s.earliest, s.evict_cap, s.gaps, s.deletes = s.head + 1, s.head, (), Deletes()
        log_id = self._part.log_id
        for gap in s.gaps:
            self._rows.put(Family.GAPS, *gap.row(log_id))
        for number in s.deletes.numbers():
            self._rows.put(Family.DELETES, keys.pair(log_id, number), s.deletes.encode(number))
        self._rows.put(Family.LOGS, keys.u64(log_id), snapshot.encode(s))

    def _with_doubt(self, head: int) -> int:
        """The head, above every seq that may have been handed out."""
        end, found = self._end, self._end.heads.get(self._part.log_id)
        if self._derived or end.jump:
            head = max(head, self._known_head)
        if found is not None:
            return max(head, found)
        if self._derived and self._first is None:
            return head + max(_ALL, end.jump)
        if end.jump and not (end.one_table and self._first is not None):
            return head + end.jump
        return head

    def _counters(self) -> None:
        s, count = self.s, self.s.live_between(self.s.earliest, self.s.head + 1)
        if not self._lost and not self._derived and (s.count, s.bytes) != (count, self._sums.live):
            what = f"{s.count} records of {s.bytes} bytes were {count} of {self._sums.live}"
            self._rows.report("derived", f"its counters: {what}", self._part)
        s.count, s.bytes = count, self._sums.live

    def _lose(self, start: int, stop: int) -> None:
        """The seqs of [start, stop) that lie in no gap become one each."""
        for first, last in self.s.between_gaps(start, stop):
            self._lost.append(Gap(first, last, "cap"))
            self._rows.report("gap", "can't be read any more", self._part, first, last)

    def _deletes(self) -> Deletes:
        """The marks of saved records, with their counted bytes."""
        s, chunks = self.s, {}
        for number in s.deletes.numbers():
            base, stop = number << CHUNK_BITS, (number + 1) << CHUNK_BITS
            marks = BitMap(seq - base for seq in s.deletes.between(max(base, s.earliest), min(stop, s.head + 1)))
            for gap in s.gaps:
                if gap.start < stop and gap.stop >= base:
                    marks.remove_range(max(gap.start, base) - base, min(gap.stop + 1, stop) - base)
            chunk = Chunk(marks, self._sums.dead.get(number, 0))
            if chunk == s.deletes._chunks[number]:
                chunks[number] = s.deletes._chunks[number]  # byte for byte
            elif marks:
                marks.run_optimize()
                chunks[number] = chunk
        return Deletes(chunks)

    def _index(self, block: StoredBlock) -> None:
        """Rebuild the tag index, in runs as in `maintenance`."""
        if block.end_seq - 1 > self.s.sealed_to:
            self._flush_run()
            return
        if not isinstance(block, Block):
            self._flush_run()
            tags.mark(self._rows.batch, (block,))  # type: ignore[arg-type]  # a sink has all of a batch that it needs
            return
        if self._run and (self._run[-1].end_seq != block.base_seq or self._run_records >= SEAL_RECORDS):
            self._flush_run()
        self._run.append(block)
        self._run_records += block.count

    def _flush_run(self) -> None:
        if self._run:
            tags.index(self._rows.batch, self._part.log_id, self._run)  # type: ignore[arg-type]
        self._run, self._run_records = [], 0


def _joined(gaps: list[Gap]) -> tuple[Gap, ...]:
    """The gaps in order, those of one reason that touch as one."""
    result: list[Gap] = []
    for gap in sorted(gaps, key=lambda gap: gap.start):
        if result and result[-1].stop == gap.start - 1 and result[-1].reason == gap.reason:
            result[-1] = Gap(result[-1].start, gap.stop, gap.reason)
        else:
            result.append(gap)
    return tuple(result)
