"""Payloads of events: a row, its key or its difference as JSON text. Hot path."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct, defstruct

from topics_service.engine.tables import values
from topics_service.engine.tables.model import ColumnSchema, Table
from topics_service.engine.tables.types import Kind, Type, Value

Row = Sequence[Value]

_encode = msgspec.json.Encoder().encode


class Payloads:
    """Makes the payloads of rows of one table, which are sequences of values in the order of its columns."""

    def __init__(self, table: Table) -> None:
        places = {column.id: place for place, column in enumerate(table.columns)}
        key = [places[column] for column in table.primary_key]
        self._key = _Object([table.columns[place] for place in key])
        self._full = _Object(table.columns)
        self._key_places = key
        self._single = table.columns[key[0]].type if len(key) == 1 else None
        self._names = [column.name for column in table.columns]
        self._converters = [_converter(column.type) for column in table.columns]

    def key(self, row: Row) -> bytes:
        """The primary key as an object."""
        return self._key.encode([row[place] for place in self._key_places])

    def full(self, row: Row) -> bytes:
        """All columns as an object."""
        return self._full.encode(row)

    def diff(self, new: Row | None, old: Row | None) -> bytes:
        """The key, and the columns before and after the change: of an Update those that differ."""
        row = old if new is None else new
        assert row is not None, "one of them is there"
        before = after = b"null"
        if new is None or old is None:
            if old is not None:
                before = self.full(old)
            else:
                after = self.full(row)
        else:
            changed = [place for place, (a, b) in enumerate(zip(new, old, strict=True)) if differ(a, b)]
            before, after = self._part(old, changed), self._part(new, changed)
        return b'{"key":%b,"before":%b,"after":%b}' % (self.key(row), before, after)

    def tag(self, row: Row, key: bytes | None) -> bytes:
        """The key as text: the value of a single column, else `key`, which is `key(row)` or None."""
        if self._single is None:
            return self.key(row) if key is None else key
        value = row[self._key_places[0]]
        text = value if isinstance(value, str) else values.to_text(value, self._single)
        return b"" if text is None else text.encode()

    def _part(self, row: Row, places: Sequence[int]) -> bytes:
        converters, names = self._converters, self._names
        part: dict[str, Any] = {}
        for place in places:
            value, convert = row[place], converters[place]
            part[names[place]] = value if convert is None or value is None else convert(value)
        return _encode(part)


class _Object:
    """Encodes values as a JSON object. A struct of msgspec takes half the time of a dict."""

    def __init__(self, columns: Sequence[ColumnSchema]) -> None:
        fields = [(f"c{place}", Any) for place in range(len(columns))]
        self._new: Callable[..., Struct] = defstruct(
            "Row", fields, rename=dict(zip((name for name, _ in fields), (c.name for c in columns), strict=True))
        )
        converters = [(place, _converter(column.type)) for place, column in enumerate(columns)]
        self._converters = [(place, convert) for place, convert in converters if convert is not None]

    def encode(self, row: Row) -> bytes:
        """The object of the values."""
        if not self._converters:
            return _encode(self._new(*row))
        converted: list[Any] = list(row)
        for place, convert in self._converters:
            value = converted[place]
            if value is not None:
                converted[place] = convert(value)
        return _encode(self._new(*converted))


def differ(a: Value, b: Value) -> bool:
    """Return whether two values of a column differ: equal numbers may be written differently, NaN equals itself."""
    return a is not b and a != b and not (a != a and b != b)


def _converter(sql_type: Type) -> Callable[[Any], Any] | None:
    """Make the value of JSON of a value that is not NULL; None if msgspec writes the value itself so."""
    if sql_type.kind is Kind.JSON:
        return _raw
    return None if sql_type.kind is Kind.BYTES else values.json_converter(sql_type)


def _raw(text: str) -> Raw:
    return Raw(text.encode())
