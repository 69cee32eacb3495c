"""The copies of one slice of forwarding, gathered from blocks of the source as columns (docs/contract.md, 7.4)."""

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from itertools import chain
from typing import Protocol

from topics_service.engine.deletes import Deletes
from topics_service.engine.model import TagMatch
from topics_service.engine.router.provenance import Run, joined
from topics_service.engine.snapshot import Snapshot
from topics_service.storage.block import Block, merge

RECORDS = 1000  # looked at in one slice
BYTES = 512 << 10  # copied in one slice, but always one record
BLOCKS = 256  # read in one slice

Piece = tuple[Block, Sequence[int]]


class SourceBlocks(Protocol):
    """The blocks of a source: see LogBlocks."""

    log_id: int

    def tagged(self, seq: int, *, scan: bool = False) -> Block:
        """See LogBlocks."""
        ...

    def inflate(self, block: Block) -> None:
        """See LogBlocks."""
        ...


class Copies:
    """The live records after a cursor that pass a filter, up to the size of one slice.

    `cursor` is the last seq that was copied or skipped.
    """

    __slots__ = ("_block", "count", "cursor", "pieces")

    def __init__(self, s: Snapshot, blocks: SourceBlocks, cursor: int, end: int, match: TagMatch | None) -> None:
        """Gather from the seqs after `cursor` up to `end`, between which `s` has no gap."""
        self._block: Block | None = None
        self.pieces: list[Piece] = []
        self.count = 0
        self.cursor = cursor
        looked_at, room, reads = 0, BYTES, 0
        at = s.first_live(max(cursor + 1, s.earliest))
        while at <= end:
            if looked_at >= RECORDS or reads == BLOCKS:
                self.cursor = at - 1
                return
            block = blocks.tagged(at, scan=True)
            reads += 1
            start = at - block.base_seq
            stop = min(start + RECORDS - looked_at, min(block.end_seq, end + 1) - block.base_seq)
            if block.sizes_upto(stop) - block.sizes_upto(start) > room:
                stop = min(stop, max(block.fit(start, room), start if self.count else start + 1))
                if stop == start:
                    self.cursor = at - 1
                    return
            positions = _chosen(block, start, stop, s, match)
            if positions:
                blocks.inflate(block)
                self.pieces.append((block, positions))
                self.count += len(positions)
                room -= block.sizes_upto(positions[-1] + 1) - block.sizes_upto(positions[0])
            looked_at += stop - start
            at = s.first_live(block.base_seq + stop)
        self.cursor = end

    def keep(self, wanted: Callable[[int], bool]) -> None:
        """Skip the records with unwanted seqs."""
        pieces: list[Piece] = []
        for block, positions in self.pieces:
            kept = [i for i in positions if wanted(block.base_seq + i)]
            if kept:
                pieces.append((block, positions if len(kept) == len(positions) else kept))
        self.pieces, self._block = pieces, None
        self.count = sum(len(positions) for _, positions in pieces)

    def cut(self, count: int) -> None:
        """Keep the first `count` records only, fewer than there are; the cursor is then just before the next one."""
        left = count
        for i, (block, positions) in enumerate(self.pieces):
            if left < len(positions):
                self.cursor = block.base_seq + positions[left] - 1
                self.pieces = self.pieces[:i] + ([(block, positions[:left])] if left else [])
                break
            left -= len(positions)
        self.count, self._block = count, None

    def runs(self, first: int) -> list[Run]:
        """Map source seqs to seqs of the destination, the first of which is `first`."""
        runs: list[Run] = []
        for block, positions in self.pieces:
            if isinstance(positions, range):
                runs.append((block.base_seq + positions.start, first, len(positions)))
                first += len(positions)
            else:
                for i in positions:
                    runs.append((block.base_seq + i, first, 1))
                    first += 1
        return joined(runs)

    def seqs(self) -> Iterator[int]:
        """The source seqs of the records, ascending."""
        return chain.from_iterable((block.base_seq + i for i in positions) for block, positions in self.pieces)

    def block(self) -> Block:
        """Return all records as one block without meaningful seqs; the source's block if it holds exactly these."""
        if self._block is None:
            picked = [block.picked(positions) for block, positions in self.pieces]
            self._block = picked[0] if len(picked) == 1 else merge(picked)
        return self._block


class LastCopies:
    """A cache of the last slice: the routers of one source run one after the other and need the same records."""

    __slots__ = ("_copies", "_cursor", "_deletes", "_log_id", "_match")

    def __init__(self) -> None:
        self._copies: Copies | None = None
        self._log_id = self._cursor = 0
        self._deletes: Deletes | None = None
        self._match: TagMatch | None = None

    def gather(self, s: Snapshot, blocks: SourceBlocks, cursor: int, end: int, match: TagMatch | None) -> Copies:
        """Return `Copies` of the same arguments, which may end earlier. The caller may change it."""
        found = self._copies
        if (
            found is None
            or (blocks.log_id, cursor, match) != (self._log_id, self._cursor, self._match)
            or s.deletes is not self._deletes
            or s.earliest > cursor + 1
            or found.cursor > end
        ):
            found = Copies(s, blocks, cursor, end, match)
            if found.count:
                found.block()
            self._log_id, self._cursor, self._match = blocks.log_id, cursor, match
            self._copies, self._deletes = found, s.deletes
        return copy(found)


def _chosen(block: Block, start: int, stop: int, s: Snapshot, match: TagMatch | None) -> Sequence[int]:
    """The positions from start to stop - 1 of live records with a matching tag."""
    if match is not None:
        found = block.positions_of(match.value, prefix=match.op == "Glob")
        if not s.deletes:
            return found if stop - start == block.count else [i for i in found if start <= i < stop]
        return [i for i in found if start <= i < stop and block.base_seq + i not in s.deletes]
    if s.deletes:
        dead = {seq - block.base_seq for seq in s.deletes.between(block.base_seq + start, block.base_seq + stop)}
        if dead:
            return [i for i in range(start, stop) if i not in dead]
    return range(start, stop)
