"""Functions of the server that DuckDB calls: one for each node of an expression that it would compute otherwise."""

import inspect
import threading
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, Final

from topics_service.api.sql.analysis.text import carried
from topics_service.engine.errors import TopicsError
from topics_service.engine.tables.compilation import compile_expression
from topics_service.engine.tables.expressions import Expression, children, type_of
from topics_service.engine.tables.types import Kind, Type

MAX_FUNCTIONS: Final = 2000
"""Functions of one database; another one is opened when there are as many."""


class Calls:
    """Makes functions in a DuckDB database when they are first wanted, and keeps the error of the last that failed."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._names: dict[Expression, str] = {}
        self._lock = threading.Lock()
        self._failed = threading.local()

    @property
    def is_full(self) -> bool:
        """Return whether another database should be opened."""
        return len(self._names) >= MAX_FUNCTIONS

    def name(self, node: Expression) -> str:
        """The name of the function of a node over columns from 0 on."""
        with self._lock:
            name = self._names.get(node)
            if name is None:
                name = f"x{len(self._names)}"
                self._make(name, node)
                self._names[node] = name
            return name

    def failure(self) -> TopicsError | None:
        """The error with which a function failed in this thread since it was asked last."""
        error: TopicsError | None = getattr(self._failed, "error", None)
        self._failed.error = None
        return error

    def _make(self, name: str, node: Expression) -> None:
        import pyarrow as pa

        kinds = [type_of(each) for each in children(node)]
        result = type_of(node)
        evaluate = compile_expression(node, {place: place for place in range(len(kinds))})
        readers = [_reader(kind) for kind in kinds]
        made = {"VARCHAR": pa.string(), "BOOLEAN": pa.bool_(), "BLOB": pa.binary(), "DOUBLE": pa.float64()}.get(
            carried(result), pa.int64()
        )
        is_decimal = result is not None and result.kind is Kind.DECIMAL
        failed = self._failed

        def run(*columns: Any) -> Any:
            try:
                values = [read(column.to_pylist()) for read, column in zip(readers, columns, strict=True)]
                found: list[Any] = [evaluate(row, None, ()) for row in zip(*values, strict=True)]
            except TopicsError as error:
                failed.error = error
                raise
            if is_decimal:
                found = [None if each is None else format(each, "f") for each in found]
            return pa.array(found, made)

        names = [f"a{place}" for place in range(len(kinds))]  # it looks at the signature
        positional = inspect.Parameter.POSITIONAL_ONLY
        run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [inspect.Parameter(each, positional) for each in names]
        )
        self._connection.create_function(
            name, run, [carried(kind) for kind in kinds], carried(result), type="arrow", null_handling="special"
        )


def _reader(kind: Type | None) -> Callable[[Sequence[Any]], Sequence[Any]]:
    if kind is not None and kind.kind is Kind.DECIMAL:
        return lambda values: [None if each is None else Decimal(each) for each in values]
    return lambda values: values
