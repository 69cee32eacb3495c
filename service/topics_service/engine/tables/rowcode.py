"""Rows as they are stored: the schema version (u16, big-endian), and a MessagePack array of the values by position.

DECIMALs are text, BYTES binary, everything else is as `types` says. A row keeps the version it was written in; a
`Reader` makes today's columns of it.
"""

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, Final

import msgspec

from topics_service.engine.tables.expressions import Literal
from topics_service.engine.tables.model import ColumnSchema, Table
from topics_service.engine.tables.types import Kind, Type, Value

MAX_VERSION: Final = (1 << 16) - 1
_ENCODE: Final = msgspec.msgpack.Encoder().encode
_PYTHON: Final[dict[Kind, Any]] = {
    Kind.BOOLEAN: bool, Kind.SMALLINT: int, Kind.INTEGER: int, Kind.BIGINT: int, Kind.REAL: float, Kind.DOUBLE: float,
    Kind.DECIMAL: Decimal, Kind.TEXT: str, Kind.BYTES: bytes, Kind.JSON: str, Kind.TIMESTAMP: int, Kind.DATE: int,
    Kind.TIME: int, Kind.UUID: str,
}  # fmt: skip
_MAX_DIGITS: Final = 40


class CorruptRowError(ValueError):
    """The stored bytes are no row of the table."""


def encode(version: int, values: Sequence[Value], types: Sequence[Type] = ()) -> bytes:
    """Make the stored form of a row: its values in the order of that version. The types are not needed."""
    return version.to_bytes(2, "big") + _ENCODE(values)


def encoder(version: int) -> Callable[[Sequence[Value]], bytes]:
    """The function that makes stored rows of a version: `encode` for many rows."""
    head, encoded = version.to_bytes(2, "big"), _ENCODE
    return lambda values: head + encoded(values)


class Reader:
    """Stored rows of one table as values in today's order of columns."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._decoders: dict[int, Callable[[bytes], list[Value]]] = {}

    def read(self, stored: bytes) -> list[Value]:
        """Read a row. Columns that it lacks have the value that they were added with. Raises CorruptRowError."""
        try:
            decode = self._decoders.get(stored[0] << 8 | stored[1]) or self._decoder(stored[0] << 8 | stored[1])
            return decode(stored)
        except (IndexError, ValueError, RecursionError, msgspec.MsgspecError) as error:
            message = f"{len(stored)} bytes are no row of table {self._table.table_id}: {error}"
            raise CorruptRowError(message) from error

    def _decoder(self, version: int) -> Callable[[bytes], list[Value]]:
        table = self._table
        if version >= len(table.versions):
            raise CorruptRowError(f"it has schema version {version}, the newest one is {len(table.versions) - 1}")
        stored = table.versions[version]
        columns = {column.id: column for column in table.columns}
        python = tuple(_PYTHON[columns[each].type.kind] | None if each in columns else msgspec.Raw for each in stored)
        decode = msgspec.msgpack.Decoder(tuple.__class_getitem__(python)).decode
        decimals = [at for at, each in enumerate(stored) if each in columns and columns[each].type.kind is Kind.DECIMAL]
        today = tuple(column.id for column in table.columns)
        if stored == today:
            if not decimals:
                made: Callable[[bytes], list[Value]] = lambda row: list(decode(row[2:]))  # noqa: E731
            else:
                made = lambda row: _checked(decode(row[2:]), decimals)  # noqa: E731
        else:
            places = [stored.index(column.id) if column.id in stored else None for column in table.columns]
            missing = [_initial(column) for column in table.columns]

            def made(row: bytes) -> list[Value]:
                values = _checked(decode(row[2:]), decimals)
                return [other if at is None else values[at] for at, other in zip(places, missing, strict=True)]

        self._decoders[version] = made
        return made


def _checked(values: Sequence[Any], decimals: Sequence[int]) -> list[Value]:
    """Refuse decimals that no column can hold: computing with one could take all the memory there is."""
    for at in decimals:
        value = values[at]
        if value is not None and (not value.is_finite() or abs(value.adjusted()) > _MAX_DIGITS or len(str(value)) > 99):
            raise CorruptRowError("a decimal is beyond 38 digits")
    return list(values)


def _initial(column: ColumnSchema) -> Value:
    """The value of a column in rows that were stored before it."""
    default = column.initial
    return default.value if isinstance(default, Literal) else None
