"""Types of PostgreSQL: the OIDs by which clients know those of columns and parameters."""

from typing import Final, NamedTuple

from topics_postgres.wire import Column
from topics_service.api.sql.requests import ResultColumn
from topics_service.engine.tables.types import Kind, Type

BOOL: Final = 16
BYTEA: Final = 17
CHAR: Final = 18
NAME: Final = 19
INT8: Final = 20
INT2: Final = 21
INT4: Final = 23
TEXT: Final = 25
OID: Final = 26
JSON: Final = 114
FLOAT4: Final = 700
FLOAT8: Final = 701
UNKNOWN: Final = 705
BPCHAR: Final = 1042
VARCHAR: Final = 1043
DATE: Final = 1082
TIME: Final = 1083
TIMESTAMP: Final = 1114
TIMESTAMPTZ: Final = 1184
NUMERIC: Final = 1700
UUID: Final = 2950
JSONB: Final = 3802
VOID: Final = 2278

_MODIFIER_OFFSET: Final = 4  # of lengths and precisions in a type modifier


class _Known(NamedTuple):
    oid: int
    size: int


_OF_KIND: Final = {
    Kind.BOOLEAN: _Known(BOOL, 1),
    Kind.SMALLINT: _Known(INT2, 2),
    Kind.INTEGER: _Known(INT4, 4),
    Kind.BIGINT: _Known(INT8, 8),
    Kind.REAL: _Known(FLOAT4, 4),
    Kind.DOUBLE: _Known(FLOAT8, 8),
    Kind.DECIMAL: _Known(NUMERIC, -1),
    Kind.TEXT: _Known(TEXT, -1),
    Kind.BYTES: _Known(BYTEA, -1),
    Kind.JSON: _Known(JSONB, -1),
    Kind.TIMESTAMP: _Known(TIMESTAMPTZ, 8),  # an instant: clients must not read it in a zone of their own
    Kind.DATE: _Known(DATE, 4),
    Kind.TIME: _Known(TIME, 8),
    Kind.UUID: _Known(UUID, 16),
}
_OF_OID: Final = {
    **{known.oid: Type(kind) for kind, known in _OF_KIND.items()},
    VARCHAR: Type(Kind.TEXT),
    BPCHAR: Type(Kind.TEXT),
    NAME: Type(Kind.TEXT),
    CHAR: Type(Kind.TEXT),
    JSON: Type(Kind.JSON),
    TIMESTAMP: Type(Kind.TIMESTAMP),
    OID: Type(Kind.BIGINT),
}


def oid_of(kind: Type | None) -> int:
    """The OID of a type; a value without a type is text."""
    if kind is None:
        return TEXT
    return VARCHAR if kind.length else _OF_KIND[kind.kind].oid


def type_of(oid: int) -> Type | None:
    """The type that values of an OID are taken as; None for one that is left open, or not known."""
    return _OF_OID.get(oid)


def column_of(given: ResultColumn) -> Column:
    """A column of a result."""
    kind = given.type
    if kind is None:
        return Column(given.name, TEXT, -1, -1)
    modifier = -1
    if kind.length:
        modifier = kind.length + _MODIFIER_OFFSET
    elif kind.kind is Kind.DECIMAL and kind.precision:
        modifier = (kind.precision << 16 | kind.scale) + _MODIFIER_OFFSET
    return Column(given.name, oid_of(kind), -1 if kind.length else _OF_KIND[kind.kind].size, modifier)
