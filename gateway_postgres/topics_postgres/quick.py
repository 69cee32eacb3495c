"""Rows by their keys, answered as soon as their messages arrive: Bind, Execute and Sync of a prepared statement.

Whatever is not exactly that, or fails, is left to the session's task, which has not received the messages yet.
"""

import struct
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from topics_postgres import decoding, oids, wire
from topics_postgres.encoding import encoders
from topics_postgres.portals import Portal, Prepared, expanded
from topics_service.api.sql.pointread import PointRead
from topics_service.api.sql.session import Status
from topics_service.engine.tables.types import Kind, Type

if TYPE_CHECKING:
    from topics_postgres.session import Session

_MAX_BYTES: Final = 8 << 10
"""Longer messages are rare, and take what counts them."""
_MAX_FORMS: Final = 8
"""The forms of messages that are kept for a statement: a client has one or two."""
_BIND: Final = ord("B")
_HEAD: Final = 5
_NULL: Final = 0xFFFFFFFF
_EXECUTE: Final = b"E\0\0\0\x09\0\0\0\0\0S\0\0\0\x04"
_TAILS: Final = {_EXECUTE: False, b"D\0\0\0\x06P\0" + _EXECUTE: True}
"""The messages behind a Bind of the portal without a name, and if a Describe is among them."""
_SIZE: Final = struct.Struct(">I")
_ENDS: Final = [
    [wire.command_complete(f"SELECT {count}") + wire.ready(letter) for count in (0, 1)] for letter in (b"I", b"T")
]
"""The ends of replies outside and within a transaction, with no row and with one."""
_BYTES: Final = {oids.INT2: 2, oids.INT4: 4, oids.INT8: 8}
_KIND_BYTES: Final = {Kind.SMALLINT: 2, Kind.INTEGER: 4, Kind.BIGINT: 8}

_Read = Callable[[bytes], Any]


class _Form:
    """The bytes that a client sends around the values of a statement, and what the replies have in common."""

    __slots__ = ("encoders", "formats", "head", "prefix", "reads", "suffix", "tail_bytes")

    def __init__(self, prepared: Prepared, read: PointRead, body: bytes, tail: bytes) -> None:
        """Raises PgError and MalformedError for a Bind with this body that is wrong."""
        given = wire.bind(body)
        at = body.index(b"\0", body.index(b"\0") + 1) + 1
        self.prefix = body[: at + 4 + 2 * len(given.formats)]
        self.suffix = body[-2 - 2 * len(given.results) :] + tail
        self.tail_bytes = len(tail)
        formats = expanded(given.formats, len(given.values))
        self.reads = [_read(*each) for each in zip(prepared.oids, formats, read.types, read.fits, strict=True)]
        columns = prepared.columns or ()
        self.formats = expanded(given.results, len(columns))
        self.encoders = encoders([column.type for column in columns], self.formats)
        self.head = wire.BIND_COMPLETE
        if _TAILS[tail]:
            self.head += wire.row_description(list(map(oids.column_of, columns)), self.formats)


def _read(oid: int, form: int, kind: Type | None, fit: Callable[[Any], Any]) -> _Read:
    """The function that makes a parameter of a value."""
    read, size = decoding.decoder(oid, form), _BYTES.get(oid, 0)
    if not form or not size or kind is None or size > _KIND_BYTES.get(kind.kind, 0):
        return lambda data: fit(read(data))

    def integer(data: bytes) -> int:
        """An integer that the type has in any case."""
        if len(data) != size:
            raise ValueError("a value has another size than its type")
        return int.from_bytes(data, "big", signed=True)

    return integer


class QuickStatement:
    """A prepared statement that reads a row by its key."""

    __slots__ = ("forms", "read")

    def __init__(self, read: PointRead) -> None:
        self.read = read
        self.forms: list[_Form] = []


class QuickPath:
    """The queries of one session that are answered at once."""

    def __init__(self, session: "Session") -> None:
        self._session = session
        self._statements = session.statements.kept
        self._portals = session.portals
        self._requests = session.statistics.requests

    def answer(self, data: bytes) -> bytes | None:
        """The reply to messages that have arrived while the session waits for some; None leaves them to the session."""
        if data[0] != _BIND or len(data) > _MAX_BYTES:
            return None
        started = time.perf_counter()
        try:
            prepared = self._statements.get(data[_HEAD + 1 : data.index(b"\0", _HEAD + 1)].decode())
            if prepared is None or prepared.quick is None:
                return None
            quick = prepared.quick
            for form in quick.forms:
                if data.startswith(form.prefix, _HEAD) and data.endswith(form.suffix):
                    break
            else:
                self._learn(prepared, quick, data)
                return None
            at, end, values = _HEAD + len(form.prefix), len(data) - len(form.suffix), list[Any]()
            for read in form.reads:
                (size,) = _SIZE.unpack_from(data, at)
                at += 4
                if size == _NULL:
                    values.append(None)
                else:
                    values.append(read(data[at : at + size]))
                    at += size
            if at != end or _SIZE.unpack_from(data, 1)[0] + 1 + form.tail_bytes != len(data):
                return None
            session = self._session
            is_open = session.sql.status is Status.OPEN
            if (self._portals.open and not is_open) or not session.is_ready():
                return None
            rows = quick.read.run(values)
            if rows is None:
                return None
            row = wire.data_row(rows[0], form.encoders) if rows else b""
            reply = form.head + row + _ENDS[is_open][len(rows)]
            if is_open:
                self._portals.add("", _finished(prepared, form, len(rows), end))
        except Exception:
            return None  # the session meets it again, and reports it
        self._requests.observe("select", "ok", time.perf_counter() - started)
        return reply

    def _learn(self, prepared: Prepared, quick: QuickStatement, data: bytes) -> None:
        """Keep the form of these messages, for the next ones."""
        end = _SIZE.unpack_from(data, 1)[0] + 1
        if data[end:] in _TAILS and not data[_HEAD] and len(quick.forms) < _MAX_FORMS:
            quick.forms.append(_Form(prepared, quick.read, data[_HEAD:end], data[end:]))


def _finished(prepared: Prepared, form: _Form, count: int, size: int) -> Portal:
    """The portal at its end, where it stays until the transaction is over."""
    portal = Portal(prepared, (), form.formats, size)
    portal.is_begun, portal.encoders, portal.tag = True, form.encoders, f"SELECT {count}"
    return portal
