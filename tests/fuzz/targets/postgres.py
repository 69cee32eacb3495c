"""Bytes of PostgreSQL clients: messages, values of parameters, statements of the session, rows of COPY."""

import struct
from collections.abc import Callable
from typing import Any, Final

from fuzz.target import Target

from topics_postgres import copying, decoding, oids, wire
from topics_postgres.errors import MalformedError, PgError
from topics_postgres.statements import Splitter
from topics_postgres.variables import Variables, is_known

_ERRORS: Final = (MalformedError, PgError)
_MESSAGES: Final[dict[int, Callable[[bytes], Any]]] = {
    0: wire.startup, 1: wire.query, 2: wire.parse, 3: wire.bind, 4: wire.target, 5: wire.execute, 6: wire.sasl_initial
}  # fmt: skip
_STATEMENTS: Final = (
    "SELECT pg_catalog.version(), current_setting('x', true) AS y, \"user\" FROM t WHERE a = current_user; SHOW x",
    "BEGIN ISOLATION LEVEL READ COMMITTED, READ ONLY; SET LOCAL a.b TO 'x', -1; ROLLBACK WORK TO SAVEPOINT \"s\"; END",
    "COPY a.t (x, \"y z\") FROM STDIN WITH (FORMAT csv, HEADER match, NULL 'n', FORCE_NULL (x, \"y z\"), QUOTE '''')",
    "COPY (SELECT (1), ')' FROM t) TO STDOUT CSV HEADER; DEALLOCATE ALL; DISCARD ALL; UNLISTEN *; RESET ALL; CLOSE c",
    "SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE; SET TIME ZONE 'UTC'; SELECT set_config('a', 'b', false)",
)
_BINARY: Final = sorted(decoding.BINARY)
_OPTIONS: Final = (
    copying.Options(),
    copying.Options(form="csv", delimiter=b",", null=b"", header=True),
    copying.Options(form="csv", delimiter=b";", null=b"x", escape=b"\\", force_null=frozenset("*")),
    copying.Options(form="binary"),
)
_ROWS: Final = (
    b"1\ta\\tb\n\\N\t\\x41\\101\\\\\n2\tlast\r\n\\.\n",
    b'a,b\n1,"x,""y""\nz"\n2,\n3,""\n',
    b'1;"a\\"b"\n"x";x\n',
    copying.SIGNATURE + struct.pack(">Ii", 0, 0) + struct.pack(">hi1si", 2, 1, b"a", -1) + struct.pack(">h", -1),
)


def _message(data: bytes) -> Any:
    return _MESSAGES[data[0] % len(_MESSAGES)](data[1:]) if data else None


def _value(data: bytes) -> Any:
    """A parameter: in text or in binary, of the type that the first byte chooses."""
    if len(data) < 2:
        return None
    oid = _BINARY[data[1] % len(_BINARY)]
    return decoding.decoder(oid, data[0] % 2)(data[2:])


def _statements(data: bytes) -> Any:
    text = data.decode("utf-8", "replace")
    variables = Variables("ada", is_superuser=False)
    found = Splitter(is_known).split(text)
    for statement in found:
        if hasattr(statement, "options"):
            copying.options_of(statement.options, is_in=statement.is_in)
        if hasattr(statement, "value") and statement.name != "all":
            variables.set(statement.name, statement.value)
    return len(found)


def _rows(data: bytes) -> Any:
    """Rows of COPY that arrive in two parts."""
    if len(data) < 2:
        return None
    reader = copying.reader(_OPTIONS[data[0] % len(_OPTIONS)], ["x", "y"])
    half = 2 + data[1] * len(data) // 256
    return [*reader.feed(data[2:half]), *reader.feed(data[half:]), *reader.finish()]


TARGETS: Final[tuple[Target, ...]] = (
    Target(
        name="postgres messages",
        decode=_message,
        samples=[
            b"\0" + struct.pack(">I", 3 << 16) + b"user\0ada\0database\0x\0\0",
            b"\1SELECT 1\0",
            b"\2name\0SELECT $1\0\0\1\0\0\0\x17",
            b"\3p\0s\0\0\1\0\1\0\2\0\0\0\4\0\0\0\5\xff\xff\xff\xff\0\1\0\1",
            b"\4Sname\0",
            b"\5p\0\0\0\0\7",
            b"\6SCRAM-SHA-256\0\0\0\0\4n,,n",
        ],
        covers=["topics_postgres.wire:parse"],
        errors=_ERRORS,
    ),
    Target(
        name="postgres values",
        decode=_value,
        samples=[
            bytes((1, _BINARY.index(oids.NUMERIC))) + struct.pack(">hhHH3h", 3, 1, 0x4000, 2, 12, 3456, 7800),
            bytes((1, _BINARY.index(oids.TIMESTAMPTZ))) + struct.pack(">q", 1 << 48),
            bytes((1, _BINARY.index(oids.DATE))) + struct.pack(">i", 9000),
            bytes((1, _BINARY.index(oids.UUID))) + bytes(range(16)),
            bytes((1, _BINARY.index(oids.JSONB))) + b'\1{"a":1}',
            bytes((0, _BINARY.index(oids.BYTEA))) + b"a\\\\b\\001",
            bytes((0, _BINARY.index(oids.BYTEA))) + b"\\x00ff",
            bytes((0, _BINARY.index(oids.NUMERIC))) + b"-12.50e3",
            bytes((0, _BINARY.index(oids.INT8))) + b" 77 ",
        ],
        covers=[],
        errors=_ERRORS,
    ),
    Target(
        name="postgres statements",
        decode=_statements,
        samples=[statement.encode() for statement in _STATEMENTS],
        covers=[],
        errors=_ERRORS,
        growth=2000,
    ),
    Target(
        name="postgres copy",
        decode=_rows,
        samples=[bytes((number, 90)) + rows for number, rows in enumerate(_ROWS)],
        covers=[],
        errors=_ERRORS,
        growth=500,
    ),
)
