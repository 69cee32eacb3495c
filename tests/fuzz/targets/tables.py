"""Keys and rows of tables."""

import struct
from decimal import Decimal
from typing import Any, Final

import msgspec
from fuzz.target import Target

from topics_service.api.access.auth import Role
from topics_service.api.access.users import UserRow
from topics_service.api.access.verifiers import Verifier
from topics_service.api.sql import users
from topics_service.engine.errors import TopicsError
from topics_service.engine.tables import (
    calendar,
    catalog,
    changelog,
    documents,
    keycode,
    rowcode,
    topic_catalog,
    values,
)
from topics_service.engine.tables.expressions import Binary, Call, Column, Literal
from topics_service.engine.tables.messages import META_START, envelope_of, meta_end
from topics_service.engine.tables.model import (
    Alias,
    Check,
    ColumnSchema,
    Index,
    Namespace,
    Op,
    PayloadMode,
    Route,
    Table,
)
from topics_service.engine.tables.runtime import key_of_entry
from topics_service.engine.tables.types import Kind, Type
from topics_service.engine.verify.definitions import Definitions
from topics_service.engine.verify.tables import named
from topics_service.storage import keys

_TABLES: Final = "topics_service.engine.tables"
_MONEY: Final = Type(Kind.DECIMAL, precision=10, scale=2)
_COLUMNS: Final = tuple(
    ColumnSchema(id=i + 1, name=f"c{i}", type=_MONEY if kind is Kind.DECIMAL else Type(kind))
    for i, kind in enumerate(Kind)
)
_IDS: Final = tuple(column.id for column in _COLUMNS)
_VERSIONS: Final = ((1, 7, 8, 99), _IDS)
_TABLE: Final = Table(
    number=1, namespace="n", name="t", columns=_COLUMNS, primary_key=(1,), versions=_VERSIONS, next_column=100
)
_ROW: Final = [
    True, 1, -2, 3, 0.5, 1.5, Decimal("1.50"), "t", b"\0", '{"a":[1]}', 5, 6, 7, "0188e5b5-2e9c-7a6b-8a1c-0242ac120002",
]  # fmt: skip
_NULLS: Final = [None] * len(_COLUMNS)
_KEY_COLUMNS: Final = [i for i, column in enumerate(_COLUMNS) if column.type.kind is not Kind.JSON]
_KEY_TYPES: Final = [*(_COLUMNS[i].type for i in _KEY_COLUMNS), Type(Kind.DECIMAL)]
_KEYS: Final = [[*(_ROW[i] for i in _KEY_COLUMNS), Decimal("-12.5")], [None] * len(_KEY_TYPES)]
_reader: Final = rowcode.Reader(_TABLE)


def _row(stored: bytes) -> Any:
    """A row, and what readers make of it."""
    row = _reader.read(stored)
    return row, [values.to_text(value, column.type) for value, column in zip(row[:9], _COLUMNS, strict=False)]


def _document(data: bytes) -> Any:
    """A document, what is read from it, and what others read from that."""
    text = values.coerce(data.decode("utf-8", "surrogateescape"), Type(Kind.JSON), "c")
    assert isinstance(text, str)
    inner = documents.get(text, "a")
    return text, inner and documents.get_text(inner, 0), documents.text_of(text), documents.to_value(text)


_TEXT: Final = Type(Kind.TEXT)
_BIGINT: Final = Type(Kind.BIGINT)
_DEFINED: Final = Table(
    number=1, namespace="app", name="t",
    columns=(
        ColumnSchema(0, "id", _BIGINT, default=Call("snowflake_id", (), _BIGINT), default_text="snowflake_id()"),
        ColumnSchema(1, "a", _TEXT, not_null=True, initial=Literal("x", _TEXT)),
    ),
    primary_key=(0,), versions=((0,), (0, 1)), next_column=2, next_index=2, indexes=(Index(1, "i", (1,), unique=True),),
    checks=(Check("c", Binary("<>", Column(1, _TEXT), Literal("y", _TEXT), Type(Kind.BOOLEAN)), "a <> 'y'"),),
    created_ms=5,
)  # fmt: skip
_ROUTE: Final = Route(7, 1, Op.UPDATE, PayloadMode.DIFF, partition_by=(Column(1, _TEXT),), partition_text="a")
_DEFINITIONS: Final = [
    (b"namespace\0app", b"\1" + catalog.encode(Namespace("app"))),
    (b"table\0" + keys.u64(1), b"\1" + catalog.encode(_DEFINED)),
    (topic_catalog.route_key(_ROUTE), topic_catalog.encode(_ROUTE)),
    (topic_catalog.alias_key(7), topic_catalog.encode(Alias("app.feed", 7))),
    (b"build\0" + keys.index_prefix(1, 1), keys.u64(1)),
]


def _definitions(data: bytes) -> Any:
    """The findings of an audit about a definition and an index entry, beside sound ones; it declares no errors."""
    said: list[str] = []
    found = Definitions(lambda kind, text, table: said.append(text))
    for key, _ in _DEFINITIONS:
        if data.startswith(key):
            found.load([*_DEFINITIONS, (key, data[len(key) :])], [7])
            return said
    found.load([*_DEFINITIONS, (data, data)], [7])
    return said, named(found.tables[1], keys.u64(1) + data)


TARGETS: Final[tuple[Target, ...]] = (
    Target(
        name="definition of a table, route or alias",
        decode=_definitions,
        samples=[key + value for key, value in _DEFINITIONS],
        covers=[
            f"{_TABLES}.catalog",
            f"{_TABLES}.topic_catalog",
            *(f"{_TABLES}.topic_catalog:{name}" for name in ("_decode", "decode_route", "decode_alias")),
        ],
        cost=10,
    ),
    Target(
        name="row of a user",
        decode=users._decode,
        samples=[users._encode(UserRow("ada", Role.DBA, Verifier("a", "b", "c"), ("a.", "b.")))],
        covers=["topics_service.api.sql.users"],
        errors=(msgspec.MsgspecError, ValueError),
        again=users._encode,
    ),
    Target(
        name="counters of a route",
        decode=topic_catalog.decode_counts,
        samples=[topic_catalog.encode_counts(5, 1 << 40)],
        covers=[f"{_TABLES}.topic_catalog:decode_counts"],
        errors=(ValueError,),
        again=lambda counts: topic_catalog.encode_counts(*counts),
    ),
    Target(
        name="entry of a change log",
        decode=lambda data: changelog.read_entry(data[:24], data[24:]),
        samples=[bytes(23) + b"\1\1" + keys.u64(7) + msgspec.msgpack.encode([(b"k", None, b"row")])],
        covers=[f"{_TABLES}.changelog"],
        errors=(changelog.CorruptRowError,),
    ),
    Target(
        name="row of a change log",
        decode=changelog.read_state,
        samples=[changelog.write_state(changelog.new_state(bytes, is_kept=True))],
        covers=[f"{_TABLES}.changelog"],
        errors=(ValueError, IndexError, msgspec.MsgspecError),
        again=changelog.write_state,
    ),
    Target(
        name="key of an index entry",
        decode=lambda data: key_of_entry(keys.u64(1), data[:-2], data[-2:]),
        samples=[keys.index_prefix(1, 1) + b"\1a\0\1" + b"\1" * 9 + b"\0\x09"],
        covers=[f"{_TABLES}.runtime:key_of_entry"],
        errors=(struct.error,),
    ),
    Target(
        name="envelope of a change",
        decode=envelope_of,
        samples=[META_START + b"7" + meta_end("app.t", Op.INSERT, PayloadMode.FULL), b'{"message_id":5}', b"{}"],
        covers=[f"{_TABLES}.messages"],
    ),
    Target(
        name="row of a table",
        decode=_row,
        samples=[
            rowcode.encode(1, _ROW),
            rowcode.encode(1, _NULLS),
            rowcode.encode(0, [False, Decimal("-3.25"), "x", {"gone": [1]}]),  # type: ignore[list-item]
        ],
        covers=[f"{_TABLES}.rowcode:_decoder"],
        errors=(rowcode.CorruptRowError,),
    ),
    Target(
        name="key of a row of a table",
        decode=lambda data: keycode.decode(data, _KEY_TYPES),
        samples=[keycode.encode(key, _KEY_TYPES) for key in _KEYS],
        covers=[
            f"{_TABLES}.keycode",
            *(
                f"{_TABLES}.keycode:{name}"
                for name in ("decode", "decode_prefix", "decoded", "_float", "_read_float", "_read_integer")
            ),
        ],
        errors=(keycode.CorruptKeyError,),
        again=lambda key: keycode.encode(key, _KEY_TYPES),
    ),
    Target(
        name="JSON document of a column",
        decode=_document,
        samples=[b'{"a": ["x", 1.50, null], "b": {"c": "\\u00e4\\\\u0000"}}', b'"text"', b"1234567890123456789"],
        covers=[f"{_TABLES}.documents", *(f"{_TABLES}.documents:{name}" for name in ("to_value", "compact"))],
        errors=(TopicsError,),
    ),
    Target(
        name="interval",
        decode=lambda data: calendar.add(5, data.decode("utf-8", "surrogateescape")),
        samples=[b"1 year -2 mons +3.5 days 04:05:06.789", b"7d 1us", b"1d  1d  1d  1d  1d  1d  1d  1d  1d  1d !"],
        covers=[f"{_TABLES}.calendar:parse_interval"],
        errors=(TopicsError,),
    ),
    Target(
        name="value of a column as text",
        decode=lambda data: [_text(data.decode("utf-8", "surrogateescape"), column.type) for column in _COLUMNS],
        samples=[
            b"true", b"-12345.678e-3", b"\\x00ff", b"AHg=", b"2026-01-31T12:00:00.5+02:00", b"23:59:59.999999",
            b"{0188e5b5-2e9c-7a6b-8a1c-0242ac120002}", b"Infinity",
        ],
        covers=[f"{_TABLES}.values:from_text", f"{_TABLES}.values:_bytes", f"{_TABLES}.numbers:narrow"],
    ),
)  # fmt: skip


def _text(text: str, sql_type: Type) -> Any:
    """A value and how it is shown, or the refusal."""
    try:
        value = values.from_text(text, sql_type, "c")
    except TopicsError as error:
        return error
    return value, values.to_text(value, sql_type), values.to_json(value, sql_type)
