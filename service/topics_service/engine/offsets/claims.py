"""Claimed ranges of one partition, for one group: what is acknowledged, what workers hold, and what is free.

Pure: no I/O, time is given. Offsets are counted from 0, ranges are half open. Everything below `base` is acknowledged;
above it lie pieces, ranges that are acknowledged, held or released; what no piece covers was never handed out.
"""

from collections.abc import Iterator
from enum import Enum
from heapq import heapify, heappop, heappush

from msgspec import Struct
from sortedcontainers import SortedDict


class Hold(Enum):
    """State of a piece."""

    HELD = 1
    RELEASED = 2
    """Free again: its claim has ended. It is a range of its own until it is handed out."""
    ACKED = 3


class Piece(Struct):
    """A range `start..stop` above the base; `claim_id` of one that is held."""

    start: int
    stop: int
    hold: Hold
    claim_id: str = ""


class ClaimedRanges:
    """Ranges of a partition. At most as many pieces as there are claims open at one time, and one between each two."""

    def __init__(self, base: int) -> None:
        self.base = base
        self.last_ended = float("-inf")
        """Moment when a claim ended last without being acknowledged."""
        self._pieces: SortedDict[int, Piece] = SortedDict()
        self._held: dict[str, Piece] = {}
        self._deadlines: list[tuple[float, str]] = []

    @property
    def pieces(self) -> int:
        """The number of pieces."""
        return len(self._pieces)

    @property
    def held(self) -> int:
        """The number of open claims."""
        return len(self._held)

    def next_deadline(self) -> float | None:
        """The moment when the next claim ends, None without open ones."""
        while self._deadlines and self._deadlines[0][1] not in self._held:
            heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def expire(self, now: float) -> int:
        """Release the claims whose time is over; returns their number."""
        expired = 0
        while (due := self.next_deadline()) is not None and due <= now:
            self.release(heappop(self._deadlines)[1], due)
            expired += 1
        return expired

    def free(self) -> Iterator[tuple[int, int | None]]:
        """The free ranges in order, the last one without an end. Nothing may change while it runs."""
        at = self.base
        for piece in self._pieces.values():
            if piece.start > at:
                yield at, piece.start
            if piece.hold is Hold.RELEASED:
                yield piece.start, piece.stop
            at = piece.stop
        yield at, None

    def claim(self, claim_id: str, start: int, stop: int, deadline: float) -> None:
        """Hold a range, which is one of `free` or the beginning of one."""
        self._cut(start, stop)
        piece = Piece(start, stop, Hold.HELD, claim_id)
        self._pieces[start] = self._held[claim_id] = piece
        heappush(self._deadlines, (deadline, claim_id))
        if len(self._deadlines) > 2 * len(self._held) + 64:
            self._deadlines = [each for each in self._deadlines if each[1] in self._held]
            heapify(self._deadlines)

    def release(self, claim_id: str, now: float) -> None:
        """End a claim: what is left of its range is free again."""
        piece = self._held.pop(claim_id, None)
        if piece is not None:
            piece.hold, piece.claim_id = Hold.RELEASED, ""
            self.last_ended = max(self.last_ended, now)

    def holder(self, start: int, stop: int) -> str | None:
        """A claim that holds something of the range."""
        return next((piece.claim_id for piece in self._within(start, stop) if piece.hold is Hold.HELD), None)

    def around(self, offset: int) -> int:
        """The start of the range that an offset lies in: of its piece, or of what was never handed out; `base` if it
        is acknowledged."""
        start = self.base
        for piece in self._pieces.values():
            if offset < piece.start:
                break
            if offset < piece.stop:
                return self.base if piece.hold is Hold.ACKED else piece.start
            start = piece.stop
        return start

    def is_acked(self, offset: int) -> bool:
        """Return whether the offset is acknowledged."""
        return offset < self.base or any(piece.hold is Hold.ACKED for piece in self._within(offset, offset + 1))

    def ack(self, start: int, stop: int) -> None:
        """Acknowledge a range, held by a worker or not; `base` follows the lowest offset that is not acknowledged."""
        start = max(start, self.base)
        if start >= stop:
            return
        self._cut(start, stop)
        before = self._before(start)
        if before is not None and before.hold is Hold.ACKED and before.stop == start:
            start = before.start
        after = self._pieces.get(stop)
        if after is not None and after.hold is Hold.ACKED:
            del self._pieces[stop]
            stop = after.stop
        self._pieces[start] = Piece(start, stop, Hold.ACKED)
        self._settle()

    def forward(self, base: int) -> None:
        """Acknowledge everything below `base`, which is higher than it was."""
        self._cut(self.base, base)
        self.base = base
        self._settle()

    def back(self, base: int) -> None:
        """Begin again at a lower `base`: nothing above it counts as acknowledged, and what is held stays held."""
        self.base = base
        for start in [start for start, piece in self._pieces.items() if piece.hold is not Hold.HELD]:
            del self._pieces[start]

    # --- internals

    def _settle(self) -> None:
        """Move the base over what is acknowledged."""
        while self._pieces:
            start, piece = self._pieces.peekitem(0)
            if start != self.base or piece.hold is not Hold.ACKED:
                break
            del self._pieces[start]
            self.base = piece.stop

    def _cut(self, start: int, stop: int) -> None:
        """Take a range out of all pieces."""
        for piece in list(self._within(start, stop)):
            del self._pieces[piece.start]
            if piece.start < start:
                self._pieces[piece.start] = Piece(piece.start, start, piece.hold, piece.claim_id)
            if stop < piece.stop:
                self._pieces[stop] = Piece(stop, piece.stop, piece.hold, piece.claim_id)
            if piece.hold is Hold.HELD:  # cut at its start: what is left is behind
                left = self._pieces.get(stop) if stop < piece.stop else None
                if left is None:
                    del self._held[piece.claim_id]
                else:
                    self._held[piece.claim_id] = left

    def _before(self, start: int) -> Piece | None:
        """The last piece that starts in front of an offset."""
        at = self._pieces.bisect_left(start)
        return self._pieces.peekitem(at - 1)[1] if at else None

    def _within(self, start: int, stop: int) -> Iterator[Piece]:
        """The pieces that overlap a range."""
        before = self._before(start)
        if before is not None and before.stop > start:
            yield before
        for at in self._pieces.irange(start, stop, inclusive=(True, False)):
            yield self._pieces[at]
