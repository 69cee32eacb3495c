"""Rows by their keys, answered as soon as their messages arrive: Bind, Execute and Sync of a prepared statement.

Whatever is not exactly that, or fails, is left to the session's task, which has not been told of the messages yet.
"""

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from topics_postgres import decoding, oids, wire
from topics_postgres.encoding import Encoder, encoders
from topics_postgres.portals import Portal, Prepared, expanded
from topics_service.api.sql.pointread import PointRead
from topics_service.api.sql.session import Status

if TYPE_CHECKING:
    from topics_postgres.session import Session

_MAX_BYTES: Final = 8 << 10
"""Longer messages are rare, and take what counts them."""
_MAX_FORMS: Final = 16
"""The formats of parameters, and those of results, that are kept of a statement: clients have one or two."""
_BIND: Final = ord("B")
_HEAD: Final = 5
_NULL: Final = 0xFFFFFFFF
_EXECUTE: Final = b"E\0\0\0\x09\0\0\0\0\0S\0\0\0\x04"
_TAILS: Final = {_EXECUTE: False, b"D\0\0\0\x06P\0" + _EXECUTE: True}
"""What follows a Bind of the portal without a name, and if that has a Describe."""
_FOUND, _NOT_FOUND = [
    [wire.command_complete(f"SELECT {count}") + wire.ready(status) for status in (b"I", b"T")] for count in (1, 0)
]
"""The ends of replies, outside and within a transaction."""

_Read = Callable[[bytes], Any]


class _Shape:
    """The rows of a statement in some formats: the encoders of the columns, and what a described reply begins with."""

    __slots__ = ("described", "encoders", "formats")

    def __init__(self, prepared: Prepared, formats: Sequence[int]) -> None:
        columns = prepared.columns or ()
        self.formats = formats
        self.encoders: Sequence[Encoder] = encoders([column.type for column in columns], formats)
        self.described = wire.BIND_COMPLETE + wire.row_description(list(map(oids.column_of, columns)), formats)


class QuickStatement:
    """A prepared statement that reads a row by its key."""

    __slots__ = ("parameters", "read", "shapes")

    def __init__(self, read: PointRead) -> None:
        self.read = read
        self.parameters: dict[bytes, Sequence[_Read]] = {}
        """The decoders of the parameters, by the part of a Bind that has their formats and number."""
        self.shapes: dict[bytes, _Shape] = {}
        """The same of the results."""

    def learn(self, prepared: Prepared, body: bytes) -> None:
        """Keep what the formats of a Bind mean. Raises PgError and MalformedError for one that is wrong."""
        given = wire.bind(body)
        at = body.index(b"\0", body.index(b"\0") + 1) + 1
        form, result = body[at : at + 4 + 2 * len(given.formats)], body[-2 - 2 * len(given.results) :]
        formats = expanded(given.formats, len(given.values))
        reads = [decoding.decoder(oid, each) for oid, each in zip(prepared.oids, formats, strict=True)]
        if len(self.parameters) < _MAX_FORMS:
            self.parameters[form] = [_fitting(*each) for each in zip(reads, self.read.fits, strict=True)]
        if len(self.shapes) < _MAX_FORMS:
            self.shapes[result] = _Shape(prepared, expanded(given.results, len(prepared.columns or ())))


def _fitting(read: _Read, fit: Callable[[Any], Any]) -> _Read:
    return lambda data: fit(read(data))


class QuickPath:
    """The queries of one session that are answered at once."""

    def __init__(self, session: "Session") -> None:
        self._session = session
        self._statements = session.statements
        self._portals = session.portals
        self._requests = session.statistics.requests

    def answer(self, data: bytes) -> bytes | None:
        """The reply to messages that have arrived while the session waits for some; None leaves them to the session."""
        if data[0] != _BIND or len(data) > _MAX_BYTES:
            return None
        try:
            return self._answer(data)
        except Exception:
            return None  # the session meets it again, and reports it

    def _answer(self, data: bytes) -> bytes | None:
        started = time.perf_counter()
        end = int.from_bytes(data[1:_HEAD], "big") + 1
        is_described = _TAILS.get(data[end:])
        if is_described is None or data[_HEAD]:
            return None
        at = data.index(b"\0", _HEAD + 1) + 1
        prepared = self._statements.known(data[_HEAD + 1 : at - 1])
        if prepared is None or prepared.quick is None:
            return None
        quick = prepared.quick
        first = at + 4 + 2 * (data[at] << 8 | data[at + 1])
        reads = quick.parameters.get(data[at:first])
        if reads is None:
            quick.learn(prepared, data[_HEAD:end])
            return None
        values = list[Any]()
        for read in reads:
            size = int.from_bytes(data[first : first + 4], "big")
            first += 4
            if size == _NULL:
                values.append(None)
            else:
                values.append(read(data[first : first + size]))
                first += size
        shape = quick.shapes.get(data[first:end])
        if shape is None:
            quick.learn(prepared, data[_HEAD:end])
            return None
        return self._reply(prepared, quick, shape, values, is_described=is_described, size=end, started=started)

    def _reply(
        self,
        prepared: Prepared,
        quick: QuickStatement,
        shape: _Shape,
        values: Sequence[Any],
        *,
        is_described: bool,
        size: int,
        started: float,
    ) -> bytes | None:
        session = self._session
        is_open = session.sql.status is Status.OPEN
        if (self._portals.are_open and not is_open) or not session.is_ready:
            return None
        rows = quick.read.run(values)
        if rows is None:
            return None
        fields = [None if value is None else make(value)
                  for row in rows for value, make in zip(row, shape.encoders, strict=True)]  # fmt: skip
        if is_open:  # the portal stays to the end of the transaction
            portal = Portal(prepared, (), shape.formats, size)
            portal.is_begun, portal.encoders, portal.tag = True, shape.encoders, f"SELECT {len(rows)}"
            self._portals.add("", portal)
        head = shape.described if is_described else wire.BIND_COMPLETE
        reply = head + wire.data_row(fields) + _FOUND[is_open] if rows else head + _NOT_FOUND[is_open]
        self._requests.observe("select", "ok", time.perf_counter() - started)
        return reply
