"""Queries of one row by its whole primary key, which take no turns of the event loop."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from topics_service.engine.tables import compilation, plans, references
from topics_service.engine.tables.expressions import Call, Expression, Literal
from topics_service.engine.tables.functions import is_immutable
from topics_service.engine.tables.layers import LayeredReader
from topics_service.engine.tables.runtime import TableRuntime
from topics_service.engine.tables.types import Value
from topics_service.storage.store import Family

if TYPE_CHECKING:
    from topics_service.engine.tables.tables import Tables

_ROWS: Final = Family.ROWS


class PointQuery:
    """One such query, compiled for the catalog as readers see it now."""

    __slots__ = (
        "_encode", "_keys", "_matches", "_number", "_prefix", "_project", "_read", "_runtime", "_tables", "_version",
    )  # fmt: skip

    def __init__(self, tables: "Tables", action: plans.Select, runtime: TableRuntime, access: plans.Lookup) -> None:
        places = runtime.places
        self._tables = tables
        self._version = tables.schema.version
        self._runtime = runtime
        self._number = runtime.table.number
        self._prefix = runtime.prefix
        self._encode = runtime.encode_key
        self._read = runtime.read
        self._keys = compilation.compile_list(access.keys[0], places)
        self._project = compilation.compile_list([each.expression for each in action.outputs], places)
        self._matches = None if action.filter is None else compilation.compile_filter(action.filter, places)

    @property
    def is_current(self) -> bool:
        """Return whether no definition has changed since then."""
        tables = self._tables
        return tables.catalog.view.version == self._version and tables.runtimes.get(self._number) is self._runtime

    def run(self, parameters: Sequence[Value]) -> Sequence[Value] | None:
        """The row, as `Tables.select` finds it while this is current; None if there is none.

        Raises what that raises, or what causes it.
        """
        values = self._keys((), None, parameters)
        if None in values:
            return None
        tables, key = self._tables, self._prefix + self._encode(values)
        store, layer = tables.writer.store, tables.pending.layer(self._number)
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
    if len(source.access.keys) != 1 or action.count or action.order or action.offset is not None:
        return None
    expressions = (*source.access.keys[0], *(each.expression for each in action.outputs), action.filter)
    if not _is_open(action.limit) or not all(map(_is_immutable, expressions)):
        return None
    return PointQuery(tables, action, tables.runtime(source.table), source.access)


def _is_open(limit: Expression | None) -> bool:
    """Return whether a LIMIT leaves a row in any case."""
    if limit is None:
        return True
    return isinstance(limit, Literal) and isinstance(limit.value, int) and limit.value >= 1


def _is_immutable(expression: Expression | None) -> bool:
    """Return whether an expression needs neither the time nor chance."""
    return expression is None or not any(
        isinstance(node, Call) and not is_immutable(node.function) for node in references.nodes(expression)
    )
