"""Messages of the protocol, version 3: what clients send decoded, what they get encoded."""

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from topics_postgres.errors import MalformedError, PgError

PROTOCOL_3: Final = 3
SSL_REQUEST: Final = 80877103
GSSENC_REQUEST: Final = 80877104
CANCEL_REQUEST: Final = 80877102
MAX_PARAMETERS: Final = 65_535
_MAX_STARTUP_OPTIONS: Final = 64

_I16: Final = struct.Struct(">h")
_U16: Final = struct.Struct(">H")
_I32: Final = struct.Struct(">i")
_U32: Final = struct.Struct(">I")
_NULL: Final = b"\xff\xff\xff\xff"
_SHORT: Final = 256
_LENGTHS: Final = [_I32.pack(length) for length in range(_SHORT)]


class Startup(NamedTuple):
    """The start of a session."""

    minor: int
    parameters: dict[str, str]


class Parse(NamedTuple):
    """A statement to prepare, and the OIDs of its parameters, 0 where the client leaves them open."""

    name: str
    sql: str
    oids: tuple[int, ...]


class Bind(NamedTuple):
    """Values for a statement; formats are 0 for text, 1 for binary: none, one for all, or one each."""

    portal: str
    statement: str
    formats: Sequence[int]
    values: list[bytes | None]
    results: Sequence[int]


class Reading:
    """Reads the fields of one message. Raises MalformedError at its end."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def i16(self) -> int:
        """A signed integer of 16 bits."""
        return int(_I16.unpack(self.take(2))[0])

    def u16(self) -> int:
        """A count."""
        return int(_U16.unpack(self.take(2))[0])

    def i32(self) -> int:
        """A signed integer of 32 bits."""
        return int(_I32.unpack(self.take(4))[0])

    def u32(self) -> int:
        """An OID."""
        return int(_U32.unpack(self.take(4))[0])

    def take(self, count: int) -> bytes:
        """That many bytes."""
        end = self._at + count
        if count < 0 or end > len(self._data):
            raise MalformedError("a message is shorter than its fields")
        found = self._data[self._at : end]
        self._at = end
        return found

    def text(self) -> str:
        """A text up to its NUL."""
        end = self._data.find(b"\0", self._at)
        if end < 0:
            raise MalformedError("a text has no end")
        found = self._data[self._at : end]
        self._at = end + 1
        try:
            return found.decode()
        except UnicodeDecodeError:
            raise PgError("22021", "the text is not valid UTF-8") from None

    def end(self) -> None:
        """Raise MalformedError unless everything is read."""
        if self._at != len(self._data):
            raise MalformedError("a message is longer than its fields")

    @property
    def at_end(self) -> bool:
        """Return whether everything is read."""
        return self._at >= len(self._data)


def startup(data: bytes) -> Startup:
    """The body of a StartupMessage behind its length. Raises MalformedError, PgError."""
    reading = Reading(data)
    version = reading.u32()
    if version >> 16 != PROTOCOL_3:
        raise PgError("0A000", f"protocol {version >> 16}.{version & 0xFFFF} is not supported: there is 3.0")
    found: dict[str, str] = {}
    while True:
        name = reading.text()
        if not name:
            break
        found[name] = reading.text()
        if len(found) > _MAX_STARTUP_OPTIONS:
            raise MalformedError("too many options at the start")
    reading.end()
    return Startup(version & 0xFFFF, found)


def query(data: bytes) -> str:
    """The text of a simple query."""
    reading = Reading(data)
    found = reading.text()
    reading.end()
    return found


def parse(data: bytes) -> Parse:
    """A Parse message."""
    reading = Reading(data)
    name, sql = reading.text(), reading.text()
    count = reading.u16()
    oids = struct.unpack(f">{count}I", reading.take(4 * count))
    reading.end()
    return Parse(name, sql, oids)


def bind(data: bytes) -> Bind:
    """A Bind message."""
    reading = Reading(data)
    portal, statement = reading.text(), reading.text()
    count = reading.u16()
    formats = struct.unpack(f">{count}h", reading.take(2 * count))
    count = reading.u16()
    if len(formats) > 1 and len(formats) != count:
        raise MalformedError("a Bind has formats for another number of values")
    values: list[bytes | None] = []
    for _ in range(count):
        length = reading.i32()
        values.append(None if length == -1 else reading.take(length))
    count = reading.u16()
    results = struct.unpack(f">{count}h", reading.take(2 * count))
    reading.end()
    if not {*formats, *results} <= {0, 1}:
        raise PgError("08P01", "a format is neither 0 (text) nor 1 (binary)")
    return Bind(portal, statement, formats, values, results)


def target(data: bytes) -> tuple[str, str]:
    """The kind (S or P) and the name in a Describe or Close message."""
    reading = Reading(data)
    kind = reading.take(1).decode("latin-1")
    name = reading.text()
    reading.end()
    if kind not in ("S", "P"):
        raise MalformedError("a message names neither a statement nor a portal")
    return kind, name


def execute(data: bytes) -> tuple[str, int]:
    """The portal and the row limit in an Execute message; 0 for no limit."""
    reading = Reading(data)
    portal, limit = reading.text(), reading.i32()
    reading.end()
    return portal, max(0, limit)


def sasl_initial(data: bytes) -> tuple[str, bytes]:
    """The mechanism and the first message of a client of SASL."""
    reading = Reading(data)
    mechanism, length = reading.text(), reading.i32()
    first = b"" if length == -1 else reading.take(length)
    reading.end()
    return mechanism, first


# ------------------------------------------------------------------------------------------------------- replies


def message(kind: bytes, body: bytes = b"") -> bytes:
    """Any message."""
    return b"%b%b%b" % (kind, _I32.pack(len(body) + 4), body)


AUTHENTICATED: Final = message(b"R", _I32.pack(0))
PASSWORD_WANTED: Final = message(b"R", _I32.pack(3))
PARSE_COMPLETE: Final = message(b"1")
BIND_COMPLETE: Final = message(b"2")
CLOSE_COMPLETE: Final = message(b"3")
NO_DATA: Final = message(b"n")
EMPTY_QUERY: Final = message(b"I")
SUSPENDED: Final = message(b"s")
COPY_DONE: Final = message(b"c")


def sasl(mechanisms: Iterable[str]) -> bytes:
    """The mechanisms of SASL."""
    return message(b"R", _I32.pack(10) + b"".join(each.encode() + b"\0" for each in mechanisms) + b"\0")


def sasl_continue(data: bytes) -> bytes:
    """The server's next message of SASL."""
    return message(b"R", _I32.pack(11) + data)


def sasl_final(data: bytes) -> bytes:
    """The server's last message of SASL."""
    return message(b"R", _I32.pack(12) + data)


def parameter_status(name: str, value: str) -> bytes:
    """The value of a variable."""
    return message(b"S", name.encode() + b"\0" + value.encode() + b"\0")


def key_data(pid: int, secret: bytes) -> bytes:
    """The key that cancels statements of the session."""
    return message(b"K", _U32.pack(pid) + secret)


def negotiate(minor: int, options: Sequence[str]) -> bytes:
    """The newest minor version that there is, and the options that are not known."""
    names = b"".join(each.encode() + b"\0" for each in options)
    return message(b"v", _U32.pack(PROTOCOL_3 << 16 | minor) + _I32.pack(len(options)) + names)


def ready(status: bytes) -> bytes:
    """ReadyForQuery: `I` idle, `T` in a transaction, `E` in one that failed."""
    return message(b"Z", status)


def command_complete(tag: str) -> bytes:
    """The end of a statement."""
    return message(b"C", tag.encode() + b"\0")


def error(given: PgError, *, severity: str = "ERROR") -> bytes:
    """An ErrorResponse."""
    return message(b"E", _report(given, severity))


def notice(text: str, *, sqlstate: str = "01000", severity: str = "WARNING") -> bytes:
    """A NoticeResponse."""
    return message(b"N", _report(PgError(sqlstate, text), severity))


def _report(given: PgError, severity: str) -> bytes:
    fields = [("S", severity), ("V", severity), ("C", given.sqlstate), ("M", given.message)]
    optional = (("D", given.detail), ("H", given.hint), ("P", str(given.position or "")))
    fields += [(code, value) for code, value in (*optional, *given.names) if value]
    body = "".join(f"{code}{value.replace(chr(0), '?')}\0" for code, value in fields)
    return body.encode(errors="replace") + b"\0"


class Column(NamedTuple):
    """A column of a result, as RowDescription has it."""

    name: str
    oid: int
    size: int
    modifier: int


def row_description(columns: Sequence[Column], formats: Sequence[int]) -> bytes:
    """The columns of a result and their formats."""
    parts = [_U16.pack(len(columns))]
    for column, form in zip(columns, formats, strict=True):
        name = column.name.replace("\0", "?").encode(errors="replace")
        fields = struct.pack(">IhIhih", 0, 0, column.oid, column.size, column.modifier, form)
        parts.append(name + b"\0" + fields)
    return message(b"T", b"".join(parts))


def parameter_description(oids: Sequence[int]) -> bytes:
    """The types of parameters."""
    return message(b"t", struct.pack(f">H{len(oids)}I", len(oids), *oids))


def copy_response(kind: bytes, form: int, columns: int) -> bytes:
    """CopyInResponse (`G`) or CopyOutResponse (`H`)."""
    return message(kind, struct.pack(f">bH{columns}h", form, columns, *(form for _ in range(columns))))


def copy_data(data: bytes) -> bytes:
    """A part of a COPY."""
    return b"d%b%b" % (_I32.pack(len(data) + 4), data)


def data_row(values: Sequence[Any], encoders: Sequence[Callable[[Any], bytes]]) -> bytes:
    """A row of a result, with the encoders of its values."""
    pack = _I32.pack
    parts = [b"", _U16.pack(len(encoders))]
    size = 6
    for value, encode in zip(values, encoders, strict=True):
        if value is None:
            parts.append(_NULL)
            size += 4
        else:
            field = encode(value)
            length = len(field)
            parts += (_LENGTHS[length] if length < _SHORT else pack(length), field)
            size += length + 4
    parts[0] = b"D" + pack(size)
    return b"".join(parts)
