"""A table as its rows need it: keys, stored form, entries of indexes and checks, compiled once for each definition."""

import struct
from collections.abc import Callable, Sequence
from typing import Final

from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.tables import compilation, keycode, rowcode
from topics_service.engine.tables.compilation import Evaluator
from topics_service.engine.tables.errors import sql_error
from topics_service.engine.tables.expressions import Expression, type_of
from topics_service.engine.tables.functions import Environment
from topics_service.engine.tables.model import Index, Table
from topics_service.engine.tables.types import Type, Value
from topics_service.engine.tables.values import coercer
from topics_service.storage import keys
from topics_service.storage.store import StoreError

Row = list[Value]

DAMAGE: Final = (StoreError, rowcode.CorruptRowError, struct.error)
"""The errors of reading rows that are damaged."""
_LENGTH: Final = struct.Struct(">H")


class IndexRuntime:
    """The entries of an index: its prefix, the encoded values, the primary key.

    The value of an entry is the length of its primary key, so that this is found without reading the values.
    """

    __slots__ = ("columns", "head", "index", "places", "prefix", "types", "unique")

    def __init__(self, table: Table, index: Index) -> None:
        places = {column.id: place for place, column in enumerate(table.columns)}
        self.index = index
        self.unique = index.unique
        self.places = tuple(places[column] for column in index.columns)
        self.columns = [table.columns[place].name for place in self.places]
        self.types = tuple(table.columns[place].type for place in self.places)
        self.prefix = keys.index_prefix(table.number, index.number)
        self.head = _prefixed(self.prefix, self.places, keycode.encoder(self.types))
        """Makes the entry of a row up to the primary key."""


class TableRuntime:
    """See the module."""

    def __init__(self, table: Table, environment: Environment) -> None:
        places = {column.id: place for place, column in enumerate(table.columns)}
        self.table = table
        self.places = places
        self.environment = environment
        self.is_routed = False
        """Its changes have events; set from outside."""
        assert table.versions[-1] == tuple(places), "rows are stored in the order of the columns"
        self.prefix = keys.u64(table.number)
        self.key_places = tuple(places[column] for column in table.primary_key)
        self.key_types = tuple(table.columns[place].type for place in self.key_places)
        self.encode_key = keycode.encoder(self.key_types)
        self.key = _prefixed(self.prefix, self.key_places, self.encode_key)
        """Makes the key of a row."""
        self.encode = rowcode.encoder(len(table.versions) - 1)
        """Makes the stored form of a row."""
        self.read = rowcode.Reader(table).read
        self.indexes = [IndexRuntime(table, index) for index in table.indexes]
        self.unique = [index for index in self.indexes if index.unique]
        self.required = tuple(
            place for place, column in enumerate(table.columns) if column.not_null or place in self.key_places
        )
        self._checks = [
            (check, compilation.compile_expression(check.expression, places, environment)) for check in table.checks
        ]
        self._defaults: list[Evaluator | None] | None = None

    @property
    def defaults(self) -> list[Evaluator | None]:
        """The defaults of the columns; None for NULL."""
        if self._defaults is None:
            self._defaults = [
                None if column.default is None else self.assigned(place, column.default)
                for place, column in enumerate(self.table.columns)
            ]
        return self._defaults

    def compile(self, expression: Expression) -> Evaluator:
        """Compile an expression over rows of the table."""
        return compilation.compile_expression(expression, self.places, self.environment)

    def assigned(self, place: int, expression: Expression) -> Evaluator:
        """Compile an expression whose value goes into a column."""
        evaluate, fit = self.compile(expression), self.fit(place, type_of(expression))
        if fit is None:
            return evaluate
        return lambda row, other, parameters: fit(evaluate(row, other, parameters))

    def fit(self, place: int, given: Type | None) -> Callable[[Value], Value] | None:
        """The function that fits values of a type to a column with a length or a precision; None if they are fit."""
        column = self.table.columns[place]
        if given == column.type or not (column.type.length or column.type.precision):
            return None
        return coercer(column.type, f'column "{column.name}"')

    def matcher(
        self, expression: Expression
    ) -> Callable[[Sequence[Value], Sequence[Value] | None, Sequence[Value]], bool]:
        """Compile a condition over rows of the table: whether it is TRUE."""
        return compilation.compile_filter(expression, self.places, self.environment)

    def index(self, number: int) -> IndexRuntime:
        """The index with this number. Raises `transaction_error` (40001) if it was dropped since a plan was made."""
        for index in self.indexes:
            if index.index.number == number:
                return index
        message = f"an index of {self.table.table_id} was dropped since the statement was read: run it again"
        raise sql_error(Reason.TRANSACTION_ERROR, message, sqlstate="40001", table=self.table.table_id)

    def check(self, row: Row) -> None:
        """Raise `not_null_violation` or `check_violation` for a row that the table can't have."""
        for place in self.required:
            if row[place] is None:
                raise self.missing(place)
        for check, passes in self._checks:
            if passes(row, None, ()) is False:
                message = f'a row of {self.table.table_id} violates the check "{check.name}": {check.text}'
                raise sql_error(Reason.CHECK_VIOLATION, message, table=self.table.table_id, constraint=check.name)

    def missing(self, place: int) -> TopicsError:
        """The error of a NULL."""
        name, table = self.table.columns[place].name, self.table.table_id
        return sql_error(
            Reason.NOT_NULL_VIOLATION, f'column "{name}" of {table} may not be NULL', table=table, column=name
        )

    def taken(self, index: IndexRuntime | None, row: Sequence[Value]) -> TopicsError:
        """The error of a key that exists: of the primary key for None."""
        table, places = self.table, self.key_places if index is None else index.places
        name = f"{table.name}_pkey" if index is None else index.index.name
        columns = [table.columns[place].name for place in places]
        what = ", ".join(columns)
        message = f'a row of {table.table_id} with the same ({what}) exists: unique key "{name}"'
        return sql_error(Reason.UNIQUE_VIOLATION, message, table=table.table_id, constraint=name, columns=columns)


def _prefixed(
    prefix: bytes, places: Sequence[int], encode: Callable[[Sequence[Value]], bytes]
) -> Callable[[Sequence[Value]], bytes]:
    """The function that makes a key of some values of a row."""
    if len(places) == 1:
        (place,) = places
        return lambda row: prefix + encode((row[place],))
    return lambda row: prefix + encode([row[place] for place in places])


def unreadable(error: Exception) -> TopicsError:
    """The error of rows or entries that can't be read."""
    file = error.file if isinstance(error, StoreError) else None
    where = "" if file is None else f" (the file {file} is damaged)"
    return TopicsError(Reason.INTERNAL, f"rows of a table can't be read{where}: {error}")


def key_length(key: bytes) -> bytes:
    """The value of an entry of a row with this key."""
    return _LENGTH.pack(len(key) - 8)


def key_of_entry(prefix: bytes, entry: bytes, value: bytes) -> bytes:
    """The key of the row of an entry."""
    return prefix + entry[len(entry) - _LENGTH.unpack(value)[0] :]
