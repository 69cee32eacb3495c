"""The records of one log against its state: each can be read, none is missing, and the sums are right."""

from collections.abc import Callable

from topics_service.engine.deletes import CHUNK_BITS
from topics_service.engine.snapshot import Snapshot
from topics_service.engine.verify.findings import DECODING, Findings, Part
from topics_service.engine.verify.walk import LiveBytes
from topics_service.storage import keys
from topics_service.storage.block import StoredBlock
from topics_service.storage.kafkablock import decode
from topics_service.storage.store import Family
from topics_service.storage.verify import Damage


class Records:
    """Takes the blocks of one log in order, as they are stored. Memory: a number for each 64 Ki seqs with deletes."""

    def __init__(
        self, findings: Findings, part: Part, s: Snapshot, look: Callable[[StoredBlock], None] | None = None
    ) -> None:
        """`look` is shown each block that is as it was written, with its columns decoded."""
        self._findings = findings
        self._part = part
        self._s = s
        self._look = look
        self._top = s.volatile_from - 1 if s.volatile_from else s.head  # the last that can be on disk
        self._next = s.earliest  # live records up to here are accounted for
        self._before: StoredBlock | None = None
        self._why: Damage | str | None = None  # the rows in place of the next records
        self._whole = True
        self._sums = LiveBytes(s)

    def damage(self, damage: Damage) -> None:
        """Here rows can't be read."""
        self._why, self._whole = damage, False

    def row(self, key: bytes, value: bytes) -> int:
        """The next row. Returns how many records it holds, 0 if it can't be read."""
        part, base = self._part, keys.read_u64(key, 8)
        try:
            block = decode(value, part.log_id, base)
            if self._look is not None:
                block.columns()
        except DECODING as error:
            self._cover(base)
            self._why, self._whole = str(error), False
            return 0
        self._cover(base)
        self._check(block)
        self._next = max(self._next, block.end_seq)
        self._before = block
        self._sums.add(block, self._top + 1)
        if self._look is not None:
            self._look(block)
        return block.count

    def finish(self) -> None:
        """Check the end."""
        s = self._s
        self._cover(self._top + 1)
        if not self._whole or self._part.settled is None:
            return
        if self._sums.live != s.bytes:
            self._wrong(f"it counts {s.bytes} bytes, its records have {self._sums.live}")
        before = self._before
        if before is not None and before.cum_bytes + before.nbytes != s.cum_bytes:
            total = before.cum_bytes + before.nbytes
            self._wrong(f"it counts {s.cum_bytes} bytes that were ever written, its last records {total}")
        if before is not None and (before.last_ts > s.last_ts or before.max_ts > s.max_ts):
            self._wrong("its last records are younger than its state says", before.base_seq, before.end_seq - 1)
        for number in s.deletes.numbers():
            first = number << CHUNK_BITS
            if s.deletes.count(first, s.earliest):
                continue  # its marked records can be removed
            marked = s.deletes.dead_bytes(first, first + (1 << CHUNK_BITS), lambda _: 0)
            if marked != self._sums.dead.get(number, 0):
                text = f"a delete bitmap counts {marked} bytes, its records have {self._sums.dead.get(number, 0)}"
                self._wrong(text, first, first + (1 << CHUNK_BITS) - 1)

    def _cover(self, stop: int) -> None:
        """The next records begin at `stop`: earlier ones are missing."""
        why, self._why = self._why, None
        reported = False
        for first, last in self._s.between_gaps(self._next, min(stop, self._top + 1)):
            reported, self._whole = True, False
            if why is None:
                self._findings.report("missing", "no block holds these records", self._part, first, last)
            elif isinstance(why, str):
                self._findings.report("damaged", f"records can't be read: {why}", self._part, first, last)
            else:
                self._findings.unreadable(Family.BLOCKS, why, self._part, first, last)
        if isinstance(why, str) and not reported:
            self._findings.report("damaged", f"a block of dead records can't be read: {why}", self._part)
        self._next = max(self._next, stop)

    def _check(self, block: StoredBlock) -> None:
        first, last, before = block.base_seq, block.end_seq - 1, self._before
        if last > self._top:
            self._wrong(f"there are records above the head {self._top}", first, last)
        if before is None:
            return
        if first < before.end_seq:
            self._wrong(f"blocks overlap: the one before ends at {before.end_seq - 1}", first, last)
        elif self._whole and block.cum_bytes != before.cum_bytes + before.nbytes:
            self._wrong("the bytes before these records are not counted right", first, last)
        if block.first_ts < before.last_ts or block.max_ts < before.max_ts:
            self._wrong("these records are older than those before them", first, last)

    def _wrong(self, text: str, first: int | None = None, last: int | None = None) -> None:
        self._findings.report("mismatch", text, self._part, first, last)
