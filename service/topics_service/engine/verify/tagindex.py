"""The tag index of one log, alone and against the records.

Both ways with one pass each: every tagged record that is indexed has to stand in the row of its run, and the rows must
have no other live records. Only when they do, records are looked up one by one.
"""

from array import array
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from operator import lt
from typing import Final

from topics_client.units import counted
from topics_service.engine import tagruns
from topics_service.engine.blocks import BlockCache
from topics_service.engine.snapshot import Snapshot
from topics_service.engine.verify.findings import DECODING, Findings, Part
from topics_service.storage import keys
from topics_service.storage.block import StoredBlock
from topics_service.storage.kafkablock import KafkaBlock, decode
from topics_service.storage.store import Family, StoreError
from topics_service.storage.tagchunk import Chunk, CorruptChunkError

_CACHE_BYTES: Final = 32 << 20
_MAX_REPORTED: Final = 20  # of the rows of one log


class TagIndex:
    """Checks the rows when it is made; with `deep`, take every intact block by `look` and then `finish`."""

    def __init__(self, findings: Findings, part: Part, s: Snapshot, *, deep: bool) -> None:
        self._findings = findings
        self._part = part
        self._s = s
        self._deep = deep
        self._marked: set[int] = set()
        self._top = min(s.sealed_to, s.volatile_from - 1) if s.volatile_from else s.sealed_to
        self._whole = True
        self._runs: list[tagruns.Run] = []
        self._live_entries = 0
        self._live_tagged = 0
        for key, value in self._rows():
            self._row(key, value)

    def look(self, block: StoredBlock) -> None:
        """The rows have to know the tags of this block."""
        if block.base_seq > self._top or block.base_seq in self._marked:
            return
        positions: defaultdict[bytes, list[int]] = defaultdict(list)
        for i, tag in enumerate(block.tagged().tags or ()):
            if tag is not None and self._s.is_live(block.base_seq + i):
                positions[tag].append(block.base_seq + i)
        for tag, seqs in positions.items():
            self._live_tagged += len(seqs)
            known = self._known(tag, seqs[0], seqs[-1])
            absent = [seq for seq in seqs if seq not in known]
            if absent:
                text = f"the tag index does not know {counted(len(absent), 'record')} with the tag {_shown(tag)}"
                self._findings.report("missing", text, self._part, absent[0], absent[-1])
                self._whole = False

    def finish(self) -> None:
        """All blocks were read; unreadable ones are reported elsewhere."""
        if self._whole and self._live_entries != self._live_tagged:
            self._find_strays()

    def _rows(self) -> Iterator[tuple[bytes, bytes]]:
        return self._findings.rows(Family.TAGS, *keys.log_range(self._part.log_id))

    def _row(self, key: bytes, value: bytes) -> None:
        part = self._part
        if key < keys.unindexed_range(part.log_id)[1]:
            if len(key) != 18 or value or keys.tag_run(key) > self._s.sealed_to:
                self._findings.report("damaged", f"the mark {key.hex()} of the tag index is none", part)
            elif self._deep:
                self._check_mark(keys.tag_run(key))
            return
        if key < keys.tag_rows(part.log_id)[0]:
            with self._findings.decoding(f"the row {key.hex()} of the tag index", part):
                self._run_row(key, value)
            return
        run = keys.tag_run(key)
        if not value or len(value) % 4 or key[-10:-8] != b"\x00\x01":
            self._findings.report("damaged", f"the row {key.hex()} of the tag index is none", part)
            return
        row = array("I", value)
        if not all(map(lt, row, row[1:])):
            self._findings.report("damaged", f"the row {key.hex()} of the tag index is not in order", part)
            self._whole = False
        elif run + row[-1] > self._s.sealed_to:
            text = f"the tag index speaks of seqs above {self._s.sealed_to}, where it ends"
            self._findings.report("mismatch", text, part, run + row[0], run + row[-1])
            self._whole = False
        elif self._deep:
            self._live_entries += sum(map(self._s.is_live, (run + position for position in row)))

    def _run_row(self, key: bytes, value: bytes) -> None:
        """Check the row of a run, or one of its chunks, which come behind all runs."""
        part, first_run, first_chunk = self._part, *keys.runs(self._part.log_id)
        if key < first_run:
            if len(key) != 11 or len(value) != 8:
                raise StoreError("it is none")
        elif key < first_chunk:
            run = tagruns.Run(*keys.run_of(key), tagruns.read_stop(part.log_id, value))
            if self._runs and self._runs[-1].stop > run.base:
                raise StoreError("it overlaps with the run before it")
            self._runs.append(run)
            if run.stop - 1 > self._s.sealed_to:
                text = f"the tag index speaks of seqs above {self._s.sealed_to}, where it ends"
                self._findings.report("mismatch", text, part, run.base, run.stop - 1)
                self._whole = False
        elif (run_of := self._run_of_chunk(key)) is not None:
            chunk = Chunk(value)
            chunk.check()
            seqs = [run_of.base + position for position in chunk.entries().positions]
            if max(seqs) >= run_of.stop:
                raise StoreError("it speaks of seqs behind its run")
            if self._deep:
                self._live_entries += sum(map(self._s.is_live, seqs))

    def _run_of_chunk(self, key: bytes) -> tagruns.Run | None:
        """The run that a chunk belongs to; None if it is of a merge that has not ended."""
        base, level = keys.run_of_chunk(key)
        run = self._covering(base)
        return run if run is not None and (run.base, run.level) == (base, level) else None

    def _covering(self, seq: int) -> tagruns.Run | None:
        at = bisect_right(self._runs, seq, key=lambda run: run.base) - 1
        return self._runs[at] if at >= 0 and seq < self._runs[at].stop else None

    def _check_mark(self, base: int) -> None:
        self._marked.add(base)
        if base >= self._s.earliest and self._findings.source.get(
            Family.BLOCKS, keys.pair(self._part.log_id, base)
        ) is None:  # fmt: skip
            text = f"the tag index marks a block at {base}, where none begins"
            self._findings.report("mismatch", text, self._part, base, base)

    def _known(self, tag: bytes, seq: int, last: int) -> set[int]:
        """The seqs that the index has for the tag, at least those among `seq..last`, which one block has."""
        known = self._in_row(tag, seq)
        run = self._covering(seq)
        if run is not None:
            with suppress(*DECODING):  # reported when the rows were read
                for positions in tagruns.positions(self, self._part.log_id, run, tag, seq - run.base):
                    known.update(map(run.base.__add__, positions))
                    if run.base + positions[-1] >= last:
                        break
        return known

    def floor(self, family: Family, key: bytes) -> tuple[bytes, bytes] | None:
        """See tagruns.Rows."""
        return self._findings.source.floor(family, key)

    def scan(self, family: Family, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """See tagruns.Rows."""
        return self._findings.rows(family, start, stop)

    def _in_row(self, tag: bytes, seq: int) -> set[int]:
        """The seqs in the row of an earlier version whose run can hold `seq`."""
        wanted = keys.tag(self._part.log_id, tag, seq)
        try:
            found = self._findings.source.floor(Family.TAGS, wanted)
        except DECODING:  # reported when the rows were read
            return set()
        if found is None or found[0][:-8] != wanted[:-8] or len(found[1]) % 4:
            return set()
        run = keys.tag_run(found[0])
        return {run + position for position in array("I", found[1])}

    def _find_strays(self) -> None:
        """Report rows with live records that don't have the tag."""
        cache, reported, log_id = BlockCache(_CACHE_BYTES), 0, self._part.log_id
        for tag, seqs in self._entries(log_id):
            strays = [seq for seq in seqs if self._s.is_live(seq) and self._tag(cache, seq) not in (tag, _UNKNOWN)]
            if strays:
                reported += 1
                text = f"the tag index is wrong about {counted(len(strays), 'record')} without the tag {_shown(tag)}"
                self._findings.report("mismatch", text, self._part, strays[0], strays[-1])
                if reported == _MAX_REPORTED:
                    return

    def _entries(self, log_id: int) -> Iterator[tuple[bytes, Sequence[int]]]:
        """The tags of the index that can be read, each with seqs."""
        for key, value in self._findings.rows(Family.TAGS, keys.runs(log_id)[1], keys.log_range(log_id)[1]):
            if key >= keys.tag_rows(log_id)[0]:
                run = keys.tag_run(key)
                yield (
                    _unescaped(key),
                    [run + position for position in (array("I", value) if not len(value) % 4 else ())],
                )
            elif (run_of := self._run_of_chunk(key)) is not None:
                with suppress(CorruptChunkError):
                    chunk = Chunk(value)
                    for i in range(chunk.count):
                        yield chunk.tag(i), [run_of.base + position for position in chunk.positions(i)]

    def _tag(self, cache: BlockCache, seq: int) -> bytes | None:
        block = cache.find(self._part.log_id, seq)
        if block is None:
            try:
                row = self._findings.source.floor(Family.BLOCKS, keys.pair(self._part.log_id, seq))
                if row is None or keys.read_u64(row[0]) != self._part.log_id:
                    return _UNKNOWN
                block = decode(row[1], self._part.log_id, keys.read_u64(row[0], 8))
                if isinstance(block, KafkaBlock):
                    block = block.columns()
            except DECODING:  # reported with the records
                return _UNKNOWN
            cache.put(block)
        tags = block.tagged().tags if seq < block.end_seq else (_UNKNOWN,) * (seq - block.base_seq + 1)
        return None if tags is None else tags[seq - block.base_seq]


_UNKNOWN: Final = b"\xff\x00unknown"  # no tag: it is not UTF-8


def _shown(tag: bytes) -> str:
    return repr(tag.decode(errors="replace"))


def _unescaped(key: bytes) -> bytes:
    return key[8:-10].replace(b"\x00\xff", b"\x00")
