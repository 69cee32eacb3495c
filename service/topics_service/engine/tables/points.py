"""Queries of one row by its whole primary key, which take no turns of the event loop."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from topics_service.engine.tables import compilation, plans
from topics_service.engine.tables.expressions import Literal
from topics_service.engine.tables.layers import LayeredReader
from topics_service.engine.tables.runtime import TableRuntime
from topics_service.engine.tables.types import Value
from topics_service.storage.store import Family

if TYPE_CHECKING:
    from topics_service.engine.tables.tables import Tables

_ROWS: Final = Family.ROWS


class PointQuery:
    """One such query, compiled. It means what its plan does for as long as `is_current`."""

    __slots__ = ("_encode", "_keys", "_matches", "_number", "_prefix", "_project", "_read", "_runtime", "_tables")

    def __init__(self, tables: "Tables", action: plans.Select, runtime: TableRuntime, access: plans.Lookup) -> None:
        places, environment = runtime.places, tables.environment
        self._tables = tables
        self._runtime = runtime
        self._number = runtime.table.number
        self._prefix = runtime.prefix
        self._encode = runtime.encode_key
        self._read = runtime.read
        self._keys = compilation.compile_list(access.keys[0], places, environment)
        self._project = compilation.compile_list([each.expression for each in action.outputs], places, environment)
        self._matches = (
            None if action.filter is None else compilation.compile_filter(action.filter, places, environment)
        )

    @property
    def is_current(self) -> bool:
        """Return whether the table is as it was when the query was compiled."""
        return self._tables.is_current(self._runtime)

    def run(self, parameters: Sequence[Value]) -> Sequence[Value] | None:
        """The row, as `Tables.select` finds it; None if there is none. Raises what that raises, or what causes it."""
        tables = self._tables
        tables.set_time()
        values = self._keys((), None, parameters)
        if None in values:
            return None
        key, store = self._prefix + self._encode(values), tables.writer.store
        layer = tables.pending.layer(self._number)
        stored = store.get(_ROWS, key) if layer is None else LayeredReader(store, layer).get(_ROWS, key)
        if stored is None:
            return None
        row = self._read(stored)
        if self._matches is not None and not self._matches(row, None, parameters):
            return None
        return self._project(row, None, parameters)


def compiled(tables: "Tables", action: plans.Select) -> PointQuery | None:
    """Compile a query, or return None if it is another one. Raises as `Tables.runtime`."""
    source = action.source
    if not isinstance(source, plans.TableSource) or not isinstance(source.access, plans.Lookup):
        return None
    if (
        len(source.access.keys) != 1
        or action.count
        or action.order
        or action.offset is not None
        or not _is_open(action.limit)
    ):
        return None
    return PointQuery(tables, action, tables.runtime(source.table), source.access)


def _is_open(limit: object) -> bool:
    """Return whether a LIMIT leaves a row in any case."""
    if limit is None:
        return True
    return isinstance(limit, Literal) and isinstance(limit.value, int) and limit.value >= 1
