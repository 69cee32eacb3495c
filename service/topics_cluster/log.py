"""The log of a shard as two state machines, without I/O and clock: its writer and its reader.

The log is objects with numbers, each made with put-if-absent. The owner of epoch e acknowledges number n once it has
made all its numbers up to n, and begins no number n + window before. A node that wants to own the shard reads the log
to its end and puts a *fence* at the first number that is free: from then on epoch e can acknowledge nothing there or
above. Objects that the former owner has under way lie below the fence's `resume`, and no reader gets them.
"""

import struct
from collections import deque
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from topics_cluster import objects
from topics_cluster.objects import Header, Kind, LogObject

MAX_WINDOW: Final = 16
"""No writer has more objects under way; every fence leaves that many numbers out, whatever window the owner had."""
MAX_OBJECT_BYTES: Final = 4 << 20
"""An object with more than one batch has no larger body."""
EARLY_BYTES: Final = 512 << 10
"""Pending bytes that open a further slot at once."""
SMALL_BYTES: Final = 64 << 10
"""Pending bytes from which on an object does not linger: its PUT costs little for each of them."""

_POSITION: Final = struct.Struct(">3Q")
_USUAL_SECONDS: Final = 0.05  # of a PUT, before one has been seen
_SMOOTHING: Final = 0.125
_MOST_SECONDS: Final = 1.0  # that one PUT counts with: an outage is not usual
_SEVERAL: Final = 0.5  # share of objects with batches of different moments, from which on there are several writers,
_ONE: Final = 0.25  # and below which there is one: those that share every object come back almost at one moment


class OutOfOrderError(Exception):
    """The object `name` does not continue what was read before it.

    Either the reader stands in a stretch that was deleted, and there is a newer checkpoint, or the log is damaged.
    """

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"the object {name} is out of order: {why}")
        self.name = name


class Position(NamedTuple):
    """A place in the log, behind all below `number`: the last fence there has `epoch`, the last batch `ticket`."""

    epoch: int
    number: int
    ticket: int

    def pack(self) -> bytes:
        """The position as 24 bytes."""
        return _POSITION.pack(*self)


START: Final = Position(0, 1, 0)
"""The position in an empty log."""


class Put(NamedTuple):
    """An object to make, until the store has answered that it is there: always the same bytes under the same name."""

    number: int
    name: str
    parts: Sequence[bytes]
    ticket: int
    """That of its last batch."""
    nbytes: int


class _Pending(NamedTuple):
    ticket: int
    parts: Sequence[bytes]
    nbytes: int


class _UnderWay:
    """An object that is begun and not acknowledged."""

    __slots__ = ("began", "is_made", "put")

    def __init__(self, put: Put, began: float) -> None:
        self.put = put
        self.began = began
        self.is_made = False


class Appender:
    """The writer of one epoch: gathers batches into objects and acknowledges their tickets in order.

    The first object begins as soon as there is a batch. A further one begins beside it, up to `window` in all, when
    EARLY_BYTES are pending or the newest takes more than twice the usual time of a PUT: small writes share objects.

    An object of less than SMALL_BYTES begins no sooner than `linger` after the one before began, while there are
    several writers: batches that come at different moments would share it. A single writer that waits for each of its
    writes has nothing to share with, and does not wait. Times are seconds of any clock that does not go back.
    """

    def __init__(
        self,
        shard: int,
        epoch: int,
        first: int,
        nonce: bytes,
        *,
        version: int = 1,
        window: int = 4,
        linger: float = 0.0,
    ) -> None:
        """Begin with the number `first`, after a fence of `epoch`, and write objects of `version`. Raises ValueError
        for a window out of bounds."""
        if not 1 <= window <= MAX_WINDOW:
            raise ValueError(f"the window has to be 1 to {MAX_WINDOW}, not {window}")
        self.shard = shard
        self.epoch = epoch
        self.nonce = nonce
        self.version = version
        self.window = window
        self.linger = linger
        self.next = first
        """The number of the next object."""
        self.fenced = False
        """True once another owner was met: nothing is begun or acknowledged after that."""
        self.hurries = False
        """True once objects begin as soon as they have a batch, as many at once as the window allows."""
        self.usual_seconds = _USUAL_SECONDS
        """The smoothed time of a PUT."""
        self.unacknowledged_bytes = 0
        self.pending_bytes = 0
        """The bytes of batches that are in no object yet."""
        self._pending: deque[_Pending] = deque()
        self._under_way: deque[_UnderWay] = deque()  # from the oldest that is not acknowledged, without holes
        self._last_began = float("-inf")
        self._looked_at = 0  # pending batches at the last look
        self._is_shared = False  # of the next object: batches came at several moments, or beside one under way
        self._sharing = 0.0  # the smoothed share of such objects
        self._are_several = False

    @property
    def under_way(self) -> Sequence[Put]:
        """The objects that are begun and not acknowledged, by number."""
        return [each.put for each in self._under_way]

    @property
    def oldest(self) -> int:
        """The oldest number that is not acknowledged; `next` if all are."""
        return self.next - len(self._under_way)

    @property
    def waiting_since(self) -> float | None:
        """The time at which the oldest object that is not acknowledged was begun; also for other threads."""
        try:
            return self._under_way[0].began
        except IndexError:
            return None

    def add(self, ticket: int, parts: Sequence[bytes], nbytes: int) -> None:
        """Take a batch: its bytes in parts (see `objects`), `nbytes` in all. Tickets grow by one."""
        self._pending.append(_Pending(ticket, parts, nbytes))
        self.pending_bytes += nbytes
        self.unacknowledged_bytes += nbytes

    @property
    def begins_at(self) -> float | None:
        """The time from which on `begin` gives an object, if nothing else happens; None: at no time."""
        if not self._pending or self.fenced or len(self._under_way) >= self.window:
            return None
        at = float("-inf")
        if self.hurries:
            return at
        if self._under_way and self.pending_bytes < EARLY_BYTES:
            at = self._under_way[-1].began + 2 * self.usual_seconds
        if self._are_several and self.pending_bytes < SMALL_BYTES:
            at = max(at, self._last_began + self.linger)
        return at

    def begin(self, now: float) -> Put | None:
        """The next object to make, if one may begin now. Batches that were added since the last call count as of one
        moment."""
        if len(self._pending) > self._looked_at:
            self._is_shared |= self._looked_at > 0 or bool(self._under_way)
            self._looked_at = len(self._pending)
        at = self.begins_at
        if at is None or now < at:
            return None
        ticket, nbytes = 0, 0
        body: list[bytes] = []
        while self._pending and (not body or nbytes + self._pending[0].nbytes <= MAX_OBJECT_BYTES):
            ticket, batch, size = self._pending.popleft()
            body += batch
            nbytes += size
        self.pending_bytes -= nbytes
        number = self.next
        self.next += 1
        header = Header(Kind.DATA, self.shard, self.epoch, number, number + self.window, ticket, self.nonce)
        parts = objects.encode(header, body, version=self.version)
        put = Put(number, objects.name(self.shard, number), parts, ticket, nbytes)
        self._under_way.append(_UnderWay(put, now))
        self._sharing += _SMOOTHING * (self._is_shared - self._sharing)
        self._are_several = self._sharing >= (_ONE if self._are_several else _SEVERAL)
        self._is_shared, self._looked_at, self._last_began = False, len(self._pending), now
        return put

    def created(self, number: int, now: float) -> int | None:
        """Note that the store has made an object. Return the newest acknowledged ticket if it is another one now."""
        oldest = self.oldest
        if self.fenced or not oldest <= number < self.next or self._under_way[number - oldest].is_made:
            return None
        made = self._under_way[number - oldest]
        made.is_made = True
        self.usual_seconds += _SMOOTHING * (min(now - made.began, _MOST_SECONDS) - self.usual_seconds)
        ticket = None
        while self._under_way and self._under_way[0].is_made:
            put = self._under_way.popleft().put
            ticket = put.ticket
            self.unacknowledged_bytes -= put.nbytes
        return ticket

    def exists(self, number: int, found: bytes | None) -> Literal["ours", "fenced", "again"]:
        """Tell what it means that the store refused to make an object, by what it has under that name.

        "ours": an earlier answer was lost, `created` follows. "again": nothing is there, so a PUT is on its way:
        repeat. "fenced": another owner's; the appender is at its end.
        """
        if found is None:
            return "again"
        oldest = self.oldest
        if number < oldest or found == b"".join(self._under_way[number - oldest].put.parts):
            return "ours"
        self.fenced = True
        return "fenced"


class Tail:
    """A reader of the log, from a position to its end."""

    def __init__(self, shard: int, position: Position, applied: int | None = None, nonce: bytes | None = None) -> None:
        """Begin at a position; None: `applied` is its ticket. A fence with `nonce` is the reader's own."""
        self.shard = shard
        self.position = position
        self.applied = position.ticket if applied is None else applied
        """The ticket up to which the reader has the rows. Greater than that of the position where a former owner reads
        on in its own directory."""
        self._nonce = nonce

    @property
    def next(self) -> int:
        """The number to get next."""
        return self.position.number

    @property
    def is_ahead(self) -> bool:
        """Return whether the reader has rows that it did not meet in the log, so far."""
        return self.applied > self.position.ticket

    def read(self, data: bytes | None) -> LogObject | None:
        """Read what the store has under `next` and move behind it. None: the end of the log, for now.

        Batches up to `applied` are left out. Of a fence the header says which epoch begins, and where.

        Raises OutOfOrderError, DamagedObjectError and LaterFormatError; the position stays.
        """
        if data is None:
            return None
        epoch, number, ticket = self.position
        header, batches = found = objects.decode(self.shard, number, data)
        if header.kind is Kind.FENCE:
            if header.epoch <= epoch:
                raise self._out_of_order(f"a fence of epoch {header.epoch} follows epoch {epoch}")
            if header.ticket > ticket:
                raise self._out_of_order(f"it fences the log at ticket {header.ticket}, read was ticket {ticket}")
            if self.is_ahead and header.nonce != self._nonce:
                raise self._out_of_order(f"it fences the log at ticket {ticket}, rows up to {self.applied} are here")
            self.position = Position(header.epoch, header.resume, ticket)
            return found
        if header.epoch != epoch:
            raise self._out_of_order(f"data of epoch {header.epoch} follows epoch {epoch}")
        if batches[0].ticket > ticket + 1:
            raise self._out_of_order(f"it begins with ticket {batches[0].ticket}, read was ticket {ticket}")
        self.position = Position(epoch, number + 1, max(ticket, header.ticket))
        fresh = batches[max(0, self.applied + 1 - batches[0].ticket) :]
        self.applied = max(self.applied, header.ticket)
        return LogObject(header, fresh)

    def lacks(self, last: int) -> bool:
        """Return whether the object `next` is missing, rather than not made yet, if there is none now and there was one
        with the number `last` before: no writer begins that many numbers ahead."""
        return last >= self.next + MAX_WINDOW

    def fence(self, nonce: bytes, window: int = MAX_WINDOW, ahead: int = 0) -> Put:
        """The fence to make at `next`, where the log was seen to end. Then `read` it, or what is there instead.

        An owner that lives can be faster, again and again. A fence `ahead` of the end by less than the window stops it
        there. It counts once all below it has been read; if the log ends before, a fence at that end leaves it out.
        """
        assert 0 <= ahead < window, "a fence at the end of the log leaves out those ahead of it"
        epoch, number, ticket = self.position
        number += ahead
        header = Header(Kind.FENCE, self.shard, epoch + 1, number, number + window, ticket, nonce)
        return Put(number, objects.name(self.shard, number), objects.encode(header), ticket, 0)

    def _out_of_order(self, why: str) -> OutOfOrderError:
        return OutOfOrderError(objects.name(self.shard, self.next), why)
