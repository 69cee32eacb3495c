"""Types of PostgreSQL: the OIDs by which clients know those of columns and parameters."""

from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple, cast

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
INT2_VECTOR: Final = 22
XID: Final = 28
OID_VECTOR: Final = 30
UUID: Final = 2950
JSONB: Final = 3802
VOID: Final = 2278

_MODIFIER_OFFSET: Final = 4  # of lengths and precisions in a type modifier


class _Known(NamedTuple):
    oid: int
    size: int


ARRAYS: Final = {
    BOOL: 1000, BYTEA: 1001, CHAR: 1002, NAME: 1003, INT2: 1005, INT4: 1007, TEXT: 1009, BPCHAR: 1014, VARCHAR: 1015,
    INT8: 1016, FLOAT4: 1021, FLOAT8: 1022, OID: 1028, TIMESTAMP: 1115, DATE: 1182, TIME: 1183, TIMESTAMPTZ: 1185,
    NUMERIC: 1231, UUID: 2951, JSON: 199, JSONB: 3807,
}  # fmt: skip
"""The OIDs of arrays, by those of their elements."""
ELEMENTS: Final = {array: element for element, array in ARRAYS.items()}
"""The OIDs of elements, by those of arrays."""


class CatalogKind(Enum):
    """Kinds of types that only columns of the catalog have. The value is the OID."""

    OID = OID
    XID = XID
    INT2_VECTOR = INT2_VECTOR
    OID_VECTOR = OID_VECTOR
    BOOL_ARRAY = ARRAYS[BOOL]
    INT2_ARRAY = ARRAYS[INT2]
    INT4_ARRAY = ARRAYS[INT4]
    INT8_ARRAY = ARRAYS[INT8]
    FLOAT4_ARRAY = ARRAYS[FLOAT4]
    FLOAT8_ARRAY = ARRAYS[FLOAT8]
    OID_ARRAY = ARRAYS[OID]
    TEXT_ARRAY = ARRAYS[TEXT]


def catalog_type(kind: CatalogKind) -> Type:
    """A type that only the catalog has. The engine never sees it."""
    return Type(cast("Kind", kind))


OF_KIND: Final[Mapping[Kind | CatalogKind, _Known]] = {
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
    **{kind: _Known(kind.value, 4 if kind.value in (OID, XID) else -1) for kind in CatalogKind},
}
_OF_OID: Final = {
    **{known.oid: Type(kind) for kind, known in OF_KIND.items() if isinstance(kind, Kind)},
    VARCHAR: Type(Kind.TEXT),
    BPCHAR: Type(Kind.TEXT),
    NAME: Type(Kind.TEXT),
    CHAR: Type(Kind.TEXT),
    JSON: Type(Kind.JSON),
    TIMESTAMP: Type(Kind.TIMESTAMP),
    OID: Type(Kind.BIGINT),
}


_CATALOG_KINDS: Final = {kind.value: kind for kind in CatalogKind}


def oid_of(kind: Type | None) -> int:
    """The OID of a type; a value without a type is text."""
    if kind is None:
        return TEXT
    return VARCHAR if kind.length else OF_KIND[kind.kind].oid


def type_of(oid: int) -> Type | None:
    """The type that values of an OID are taken as; None for one that is left open, or not known."""
    return _OF_OID.get(oid)


def type_of_catalog(oid: int) -> Type | None:
    """The type of a parameter in a query of the catalog, where there are arrays."""
    known = type_of(oid)
    if oid in _CATALOG_KINDS:
        return catalog_type(_CATALOG_KINDS[oid])
    return catalog_type(CatalogKind.TEXT_ARRAY) if known is None and oid in ELEMENTS else known


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
    return Column(given.name, oid_of(kind), -1 if kind.length else OF_KIND[kind.kind].size, modifier)
