"""Records of one partition, read as they were at one moment: by ranges of seqs and by tags, in either direction.

Everything here is an iterator whose None gives others a turn.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Final

from topics_service.engine import reader
from topics_service.engine.log import Log
from topics_service.engine.model import TagMatch
from topics_service.engine.snapshot import Snapshot
from topics_service.engine.tables.outcomes import TopicGap
from topics_service.engine.tables.topic_columns import Columns, Row
from topics_service.storage.block import StoredBlock

Piece = tuple[StoredBlock, int, int]
"""Records of a block, by their positions from the first up to the second."""

MAX_GAPS: Final = 100
"""Gaps that a query tells of."""
_PIECE: Final = 128
_BLOCKS_A_TURN: Final = 8
_FIRST_WINDOW: Final = 1 << 12
_LARGEST_WINDOW: Final = 1 << 16
_MATCHES: Final = 1 << 10
_BYTES: Final = 1 << 20
_stop_of = attrgetter("stop")


class PartitionScan:
    """The records of a partition with seqs from `low` to `high`, both included: of `points` alone, if these are given,
    else those with one of `tags`, if these are given.

    `check` raises when the topic is gone; `gaps` gets what was lost in the part that is read.
    """

    def __init__(
        self,
        topic: str,
        partition: int,
        log: Log,
        view: Snapshot,
        columns: Columns,
        check: Callable[[], None],
        gaps: list[TopicGap],
        *,
        low: int,
        high: int,
        points: Sequence[int] | None = None,
        tags: Sequence[TagMatch] | None = None,
    ) -> None:
        self.view = view
        self.low = low
        self.high = min(high, view.head)
        self._topic = topic
        self._partition = partition
        self._log = log
        self._columns = columns
        self._check = check
        self._gaps = gaps
        self._points = points
        self._tags = tags

    def rows(self, *, reverse: bool = False) -> Iterator[Row | None]:
        """The rows, by seq."""
        rows, partition = self._columns.rows, self._partition
        for piece in self.pieces(reverse=reverse):
            if piece is None:
                yield None
            elif reverse:
                yield from reversed(list(rows(partition, *piece)))
            else:
                yield from rows(partition, *piece)

    def pieces(self, *, reverse: bool = False) -> Iterator[Piece | None]:
        """The records as pieces of blocks, by seq; in reverse the records of a piece are still in their order."""
        if self._points is not None:
            yield from self._given(reverse=reverse)
        elif self._tags is None:
            yield from self._backward() if reverse else self._forward()
        else:
            yield from self._found_backward() if reverse else self._found()

    def count(self) -> Iterator[int | None]:
        """Numbers of records, which together are all."""
        if self._tags is None and self._points is None:
            yield sum(self.view.live_between(first, last + 1) for first, last in self._between(self.low, self.high))
            return
        for piece in self.pieces():
            yield None if piece is None else piece[2] - piece[1]

    # ------------------------------------------------------------------------------------------------ all records

    def _between(self, low: int, high: int) -> Iterator[tuple[int, int]]:
        """The ranges of seqs that were not lost; the losses are noted as they are met."""
        s = self.view
        if low < s.evict_floor:
            self._note(low, min(high, s.earliest - 1), s.eviction_reason(low))
        at = max(low, s.earliest)
        while at <= high:
            gap = s.gap_at(at)
            if gap is not None:
                self._note(at, min(gap.stop, high), gap.reason)
                at = gap.stop + 1
                continue
            following = s.next_gap(at)
            end = high if following is None else min(high, following.start - 1)
            yield at, end
            at = end + 1

    def _between_back(self, low: int, high: int) -> Iterator[tuple[int, int]]:
        """As `_between`, the last range first."""
        s = self.view
        first = max(low, s.earliest)
        at = high
        while at >= first:
            gap = s.gap_at(at)
            if gap is not None:
                self._note(max(gap.start, low), at, gap.reason)
                at = gap.start - 1
                continue
            before = bisect_left(s.gaps, at, key=_stop_of)
            start = max(first, s.gaps[before - 1].stop + 1) if before else first
            yield start, at
            at = start - 1
        if low < s.evict_floor:
            self._note(low, min(high, s.earliest - 1), s.eviction_reason(low))

    def _note(self, first: int, last: int, reason: str) -> None:
        if first <= last and len(self._gaps) < MAX_GAPS:
            self._gaps.append(TopicGap(self._topic, self._partition, first, last, reason))

    def _block(self, seq: int) -> StoredBlock:
        self._check()
        blocks = self._log.blocks
        if self._columns.needs_records:
            return blocks.records(seq, scan=True)
        return blocks.tagged(seq, scan=True) if self._columns.needs_texts else blocks.find(seq, scan=True)

    def _given(self, *, reverse: bool) -> Iterator[Piece | None]:
        """The records whose seqs are given."""
        assert self._points is not None
        seqs = sorted({seq for seq in self._points if self.low <= seq <= self.high}, reverse=reverse)
        for seq in seqs:
            for _ in self._between(seq, seq):
                pass  # for the losses
        live = set(self.view.live_among(seqs))
        yield from self._pieces([seq for seq in seqs if seq in live])

    def _forward(self) -> Iterator[Piece | None]:
        read = 0
        for first, last in self._between(self.low, self.high):
            at = first
            while (at := self.view.deletes.first_unmarked(at, last + 1)) <= last:
                block = self._block(at)
                stop = min(block.end_seq, last + 1)
                for start, end in self._live(at, stop):
                    yield block, start - block.base_seq, end - block.base_seq
                at = stop
                read += 1
                if not read % _BLOCKS_A_TURN:
                    yield None

    def _backward(self) -> Iterator[Piece | None]:
        read = 0
        for first, last in self._between_back(self.low, self.high):
            at = last
            while at >= first and (at := self.view.last_live_below(at + 1)) >= first:
                block = self._block(at)
                start = max(block.base_seq, first)
                for begin, end in reversed(list(self._live(start, at + 1))):
                    yield block, begin - block.base_seq, end - block.base_seq
                at = start - 1
                read += 1
                if not read % _BLOCKS_A_TURN:
                    yield None

    def _live(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """The ranges of seqs in [start, stop) that are not deleted, each of at most `_PIECE`."""
        deletes = self.view.deletes
        while (start := deletes.first_unmarked(start, stop)) < stop:
            end = deletes.first_marked(start, min(stop, start + _PIECE))
            yield start, end
            start = end

    # ----------------------------------------------------------------------------------------------------- by tag

    def _found(self) -> Iterator[Piece | None]:
        """Forward: windows that grow, so that a LIMIT reads little, and each tag is found in all of them."""
        window, at = _FIRST_WINDOW, max(self.low, self.view.earliest)
        for _ in self._between(self.low, self.high):
            pass  # for the losses
        while at <= self.high:
            stop = min(self.high, at + window - 1)
            for seqs in self._search(at, stop):
                yield from (None,) if seqs is None else self._pieces(seqs)
            at, window = stop + 1, min(window * 2, _LARGEST_WINDOW)

    def _found_backward(self) -> Iterator[Piece | None]:
        window, at = _FIRST_WINDOW, self.high
        first = max(self.low, self.view.earliest)
        while at >= first:
            start = max(first, at - window + 1)
            for seqs in self._search(start, at):
                yield from (None,) if seqs is None else self._pieces(list(reversed(seqs)))
            at, window = start - 1, min(window * 2, _LARGEST_WINDOW)
        for _ in self._between_back(self.low, self.high):
            pass

    def _search(self, low: int, high: int) -> Iterator[list[int] | None]:
        """The seqs of a window whose record has one of the tags, in order, after turns."""
        found: set[int] = set()
        assert self._tags is not None
        for match in self._tags:
            cursor = low - 1
            while cursor < high:
                self._check()
                page = reader.read(
                    self._topic, self.view, self._log.blocks, cursor, _MATCHES, _BYTES, frozenset(), high,
                    scan=True, match=match, stores=self._log.stores(self.view), partition=self._partition,
                    work=reader.WORK >> 2,
                )  # fmt: skip
                for piece in page.slices:
                    found.update(range(piece.block.base_seq + piece.start, piece.block.base_seq + piece.stop))
                cursor = max(cursor + 1, page.next_from_seq)
                yield None
        yield sorted(found)

    def _pieces(self, seqs: Sequence[int]) -> Iterator[Piece | None]:
        block: StoredBlock | None = None
        read = 0
        for seq in seqs:
            if block is None or not block.base_seq <= seq < block.end_seq:
                block = self._block(seq)
                read += 1
                if not read % _BLOCKS_A_TURN:
                    yield None
            place = seq - block.base_seq
            yield block, place, place + 1
