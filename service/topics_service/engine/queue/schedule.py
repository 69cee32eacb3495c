"""Jobs with a delay or a priority: those that wait for their time, and the order of the others.

In memory they are bitmaps of seqs, about a bit for each. Rows of Family.JOBS, by log id, kind and what follows:

    WRITE   base seq -> ready_at, count, priority     one for each append; the plain ones go with the next fold
    TIME    ready_at, base seq -> count, priority     only with a delay: in order of time, until it is over
    SET     chunk (seq >> 16), level -> bitmap        level 0..9: has this priority; 10: waits for its time
    FOLDED  -> base seq                               writes up to here are in the sets

An append writes one or two small rows; a fold moves a thousand of them into the sets, so that a start reads a few rows
for each 64 Ki seqs and not one for each job. A set may hold seqs of finished jobs: readers check the log too.
"""

import struct
from collections import defaultdict
from itertools import islice

from msgspec import Struct
from pyroaring import BitMap64

from topics_service.engine.bitmaps import first_absent
from topics_service.engine.snapshot import Snapshot
from topics_service.storage import keys
from topics_service.storage.store import Family, Store, WriteBatch

FOLD_ROWS = 1000
_DUE_ROWS = 10_000
_CHUNK_BITS = 16
_WAITING = 10  # the level of the set of waiting jobs
_WRITE, _TIME, _SET, _FOLDED = b"\x01", b"\x02", b"\x03", b"\x04"
_U64 = struct.Struct(">Q")
_PAIR = struct.Struct(">QQ")
_SET_KEY = struct.Struct(">QB")
_WRITE_ROW = struct.Struct("<QIB")
_TIME_ROW = struct.Struct("<IB")


class Write(Struct, frozen=True):
    """The jobs `base .. base + count - 1`, ready at `ready_at` (ms; 0 from the start), of one priority."""

    base: int
    count: int
    priority: int
    ready_at: int

    @property
    def stop(self) -> int:
        """One past the last seq."""
        return self.base + self.count


class Schedule:
    """The delayed and prioritised jobs of one queue.

    `waiting` are those whose time has not come; `levels` the others by priority, without those that were handed out;
    `skip` all of them from the queue's cursor on, which the order of seqs must not hand out.
    """

    def __init__(self, log_id: int, store: Store) -> None:
        self.waiting = BitMap64()
        self.levels: dict[int, BitMap64] = {}
        self.skip = BitMap64()
        self.soonest: int | None = None
        """Return the time (ms) at which the next waiting job is ready; a little early if that job was removed."""
        self._prefix = keys.u64(log_id)
        self._store = store
        self._unfolded: list[Write] = []
        self._over: list[Write] = []  # delayed ones that are due, whose rows still exist
        self._time_from = self._prefix + _TIME  # the first row that was not seen as due yet
        self._sets_from: int | None = None  # the lowest chunk that can have sets
        self._folding = False
        self._folding_from = 0

    def load(self, s: Snapshot) -> None:
        """Read the rows, as far as `s` has the jobs."""
        newest = self._store.floor(Family.JOBS, self._prefix + b"\xff")
        if newest is None or not newest[0].startswith(self._prefix):
            return
        row = self._store.get(Family.JOBS, self._prefix + _FOLDED)
        folded = 0 if row is None else _U64.unpack(row)[0]
        for key, value in self._store.scan(Family.JOBS, self._prefix + _SET, self._prefix + _FOLDED):
            chunk, level = _SET_KEY.unpack_from(key, 9)
            self._sets_from = chunk if self._sets_from is None else self._sets_from
            found = BitMap64.deserialize(value)
            if level == _WAITING:
                self.waiting.update(found)
            else:
                self._level(level).update(found)
        start = self._prefix + _WRITE + _U64.pack(folded + 1)
        for key, value in self._store.scan(Family.JOBS, start, self._prefix + _TIME):
            ready_at, count, priority = _WRITE_ROW.unpack(value)
            write = Write(_U64.unpack_from(key, 9)[0], count, priority, ready_at)
            self._unfolded.append(write)
            self._level(priority).add_range(write.base, write.stop)
            if ready_at:
                self.waiting.add_range(write.base, write.stop)
        for gap in s.gaps:  # rows of jobs that were in memory only: a crash has taken those, and left these
            for numbers in (self.waiting, *self.levels.values()):
                numbers.remove_range(gap.start, gap.stop + 1)
        for level in self.levels.values():
            level.difference_update(self.waiting)
            self.skip.update(level)
        self.skip.update(self.waiting)
        self.forget_below(s.earliest)
        self._next_time()

    # ------------------------------------------------------------------ writes

    def stage(self, batch: WriteBatch, write: Write, s: Snapshot) -> None:
        """Add the rows of new jobs to the batch of their append; `added` follows once that is written."""
        row = _WRITE_ROW.pack(write.ready_at, write.count, write.priority)
        batch.put(Family.JOBS, self._prefix + _WRITE + _U64.pack(write.base), row)
        if write.ready_at:
            row = _TIME_ROW.pack(write.count, write.priority)
            batch.put(Family.JOBS, self._time_key(write), row)
        self._folding = len(self._unfolded) + len(self._over) >= FOLD_ROWS
        if self._folding:
            self.fold(batch, s, write)

    def added(self, write: Write) -> None:
        """Apply the rows of `stage`, once they are written."""
        if self._folding:
            self.folded()
        else:
            self._unfolded.append(write)
        self.skip.add_range(write.base, write.stop)
        if not write.ready_at:
            self._level(write.priority).add_range(write.base, write.stop)
            return
        self.waiting.add_range(write.base, write.stop)
        self._time_from = min(self._time_from, self._time_key(write))
        if self.soonest is None or write.ready_at < self.soonest:
            self.soonest = write.ready_at

    def fold_is_due(self, s: Snapshot) -> bool:
        """Return whether obsolete rows wait for a `fold` that no append has done."""
        if len(self._over) >= FOLD_ROWS:
            return True
        return self._sets_from is not None and s.earliest >> _CHUNK_BITS > self._sets_from

    def fold(self, batch: WriteBatch, s: Snapshot, new: Write | None = None) -> None:
        """Stage the move of all rows into the sets, with those of `new`; `folded` follows once that is written."""
        writes = self._unfolded if new is None else [*self._unfolded, new]
        sets: defaultdict[tuple[int, int], BitMap64] = defaultdict(BitMap64)
        for write in writes:
            for chunk, start, stop in _chunks(write):
                sets[chunk, write.priority].add_range(start, stop)
            if not write.ready_at:
                batch.delete(Family.JOBS, self._prefix + _WRITE + _U64.pack(write.base))
        for (chunk, level), found in sets.items():
            stored = self._store.get(Family.JOBS, self._set_key(chunk, level))
            self._put_set(batch, chunk, level, found if stored is None else found | BitMap64.deserialize(stored), s)
        delayed = [write for write in (*writes, *self._over) if write.ready_at]
        for chunk in {chunk for write in delayed for chunk, _, _ in _chunks(write)}:
            found = self.waiting & BitMap64(range(chunk << _CHUNK_BITS, (chunk + 1) << _CHUNK_BITS))
            if new is not None and new.ready_at:
                found.update(*(range(start, stop) for number, start, stop in _chunks(new) if number == chunk))
            self._put_set(batch, chunk, _WAITING, found, s)
        for write in self._over:
            batch.delete(Family.JOBS, self._time_key(write))
            batch.delete(Family.JOBS, self._prefix + _WRITE + _U64.pack(write.base))
        if writes:
            batch.put(Family.JOBS, self._prefix + _FOLDED, _U64.pack(writes[-1].base))
        first = s.earliest >> _CHUNK_BITS
        if self._sets_from is not None and first > self._sets_from:
            batch.delete_range(Family.JOBS, self._prefix + _SET, self._set_key(first, 0))
        self._folding_from = first

    def folded(self) -> None:
        """Apply what `fold` staged, once it is written."""
        self._unfolded = []
        self._over = []
        self._sets_from = self._folding_from

    # -------------------------------------------------------------------- time

    def advance(self, now: int) -> None:
        """Make due jobs ready: a bounded number of writes; the next call continues."""
        if self.soonest is None or now < self.soonest:
            return
        due = self._store.scan(Family.JOBS, self._time_from, self._prefix + _TIME + _U64.pack(now + 1))
        for key, value in islice(due, _DUE_ROWS):
            ready_at, base = _PAIR.unpack_from(key, 9)
            count, priority = _TIME_ROW.unpack(value)
            write = Write(base, count, priority, ready_at)
            ready = self.waiting & BitMap64(range(write.base, write.stop))
            self.waiting.difference_update(ready)
            self._level(write.priority).update(ready)
            self._over.append(write)
            self._time_from = key + b"\x00"
        self._next_time()

    def lookup(self, seq: int) -> tuple[int, int]:
        """Return (priority, ready_at) of a waiting job."""
        row = self._store.floor(Family.JOBS, self._prefix + _WRITE + _U64.pack(seq))
        if row is None or not row[0].startswith(self._prefix + _WRITE):
            return 0, 0
        ready_at, _, priority = _WRITE_ROW.unpack(row[1])
        return priority, ready_at

    def priority_of(self, seq: int) -> int:
        """Return the priority of a job that was not delivered."""
        for priority, level in self.levels.items():
            if seq in level:
                return priority
        return self.lookup(seq)[0] if seq in self.waiting else 0

    # ------------------------------------------------------------------ leaving

    def forget(self, seq: int) -> None:
        """Forget a job that was delivered before a restart, or removed."""
        self.waiting.discard(seq)
        for level in self.levels.values():
            level.discard(seq)

    def forget_below(self, seq: int) -> None:
        """Forget all jobs below `seq`."""
        for numbers in (self.waiting, self.skip, *self.levels.values()):
            numbers.remove_range(0, seq)

    def first_unscheduled(self, start: int, stop: int) -> int:
        """Return the first seq in [start, stop) that is served in order of seqs; `stop` if there is none."""
        return first_absent(self.skip, start, stop) if self.skip else start

    # ---------------------------------------------------------------- internals

    def _next_time(self) -> None:
        row = next(self._store.scan(Family.JOBS, self._time_from, self._prefix + _SET), None)
        self.soonest = None if row is None else _U64.unpack_from(row[0], 9)[0]

    def _level(self, priority: int) -> BitMap64:
        if priority not in self.levels:
            self.levels[priority] = BitMap64()
            self.levels = dict(sorted(self.levels.items(), reverse=True))
        return self.levels[priority]

    def _put_set(self, batch: WriteBatch, chunk: int, level: int, found: BitMap64, s: Snapshot) -> None:
        found.remove_range(0, s.earliest)
        if found:
            found.run_optimize()
            batch.put(Family.JOBS, self._set_key(chunk, level), found.serialize())
        else:
            batch.delete(Family.JOBS, self._set_key(chunk, level))

    def _time_key(self, write: Write) -> bytes:
        return self._prefix + _TIME + _PAIR.pack(write.ready_at, write.base)

    def _set_key(self, chunk: int, level: int) -> bytes:
        return self._prefix + _SET + _SET_KEY.pack(chunk, level)


def _chunks(write: Write) -> list[tuple[int, int, int]]:
    """The chunks that a write touches, and its part of each."""
    first, last = write.base >> _CHUNK_BITS, (write.stop - 1) >> _CHUNK_BITS
    return [
        (number, max(write.base, number << _CHUNK_BITS), min(write.stop, (number + 1) << _CHUNK_BITS))
        for number in range(first, last + 1)
    ]
