"""DuckDB, locked down: it reads what it is handed and nothing else, within its memory, in the thread of the caller."""

import logging
import threading
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, Final, Protocol

from topics_service.api.sql.analysis.calls import Calls
from topics_service.api.sql.analysis.text import DIVIDED, Text
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.tables import plans
from topics_service.engine.tables.errors import invalid_value, sql_error
from topics_service.engine.tables.outcomes import MAX_ROWS, Outcome, Result
from topics_service.engine.tables.types import Kind, Value

_LOG: Final = logging.getLogger("topics.sql")
_BATCH: Final = 1024
_OVERFLOW: Final = "topics overflow"
_ZERO: Final = "topics division by zero"
_FINITE: Final = "isfinite(a) AND isfinite(b)"


class StoppedError(Exception):
    """The query was stopped: its time is over, or the caller is gone."""


def _macros() -> list[str]:
    """Arithmetic of floats with the errors of PostgreSQL."""
    made = []
    for name, kind in (("real", "FLOAT"), ("double", "DOUBLE")):
        overflow, zero = f"CAST(error('{_OVERFLOW}') AS {kind})", f"CAST(error('{_ZERO}') AS {kind})"
        for word, op in (("plus", "+"), ("minus", "-")):
            text = f"CASE WHEN {_FINITE} AND NOT isfinite(a {op} b) THEN {overflow} ELSE a {op} b END"
            made.append(f"CREATE MACRO {name}_{word}(a, b) AS {text}")
        under = "(a * b = 0 AND a <> 0 AND b <> 0)"
        text = f"CASE WHEN ({_FINITE} AND NOT isfinite(a * b)) OR {under} THEN {overflow} ELSE a * b END"
        made.append(f"CREATE MACRO {name}_times(a, b) AS {text}")
        under = "(a / b = 0 AND a <> 0 AND isfinite(b))"
        text = (
            f"CASE WHEN b = 0 THEN CASE WHEN isnan(a) THEN a WHEN a IS NULL THEN NULL ELSE {zero} END "
            f"WHEN ({_FINITE} AND NOT isfinite(a / b)) OR {under} THEN {overflow} ELSE a / b END"
        )
        made.append(f"CREATE MACRO {name}_divided(a, b) AS {text}")
    return made


def configuration(memory_bytes: int) -> dict[str, str | bool | int | float | list[str]]:
    """The configuration of a database that reads no file and no network, and stays within its memory."""
    return {
        "allow_community_extensions": "false",
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
        "enable_external_access": "false",
        "memory_limit": f"{memory_bytes}B",
        "temp_directory": "",
        "threads": "1",
    }


class Duck:
    """One database in memory. Queries have a cursor each; several may run at once, in threads."""

    def __init__(self, memory_bytes: int) -> None:
        import duckdb
        import pyarrow.compute  # noqa: F401 - loaded here, in a thread, and not when the event loop needs it first

        self.errors = duckdb
        self._connection = duckdb.connect(":memory:", config=configuration(memory_bytes))
        for macro in _macros():
            self._connection.execute(macro)
        self._connection.execute("SET lock_configuration = true")
        self.calls = Calls(self._connection)

    def cursor(self) -> Any:
        """The connection of one query."""
        return self._connection.cursor()


class Names:
    """Implements Sources: names under which Arrow is registered."""

    def table(self, number: int) -> str:
        """See Sources."""
        return f"t{number}"

    def system(self, name: str) -> str:
        """See Sources."""
        return f"s_{name}"

    def topic(self, source: int) -> str:
        """See Sources."""
        return f"p{source}"


class Rows(Protocol):
    """Collects the rows of a query."""

    rows: list[Sequence[Value]]

    def add(self, row: Sequence[Value]) -> None:
        """Add a row. Raises `result_too_large`."""
        ...


class Run:
    """One query, run by `run` in a thread; `stop` ends it from another one."""

    def __init__(
        self,
        duck: Duck,
        action: plans.Analysis,
        parameters: Sequence[Value],
        now_us: int,
        rows: Mapping[str, Any],
        result: Rows | None = None,
    ) -> None:
        self._result = Result(action.outputs) if result is None else result
        self._cap = MAX_ROWS + 1 if result is None else None
        self._shorten = _short if result is None else _least
        self._duck = duck
        self._action = action
        self._parameters = parameters
        self._now_us = now_us
        self._rows = rows
        self._cursor: Any = None
        self._lock = threading.Lock()
        self._is_stopped = False

    def stop(self) -> None:
        """End the query, whose `run` raises StoppedError. To be repeated until it has: it may not have begun."""
        with self._lock:
            self._is_stopped = True
            if self._cursor is not None:
                self._cursor.interrupt()

    def run(self) -> Outcome:
        """Run the query. Raises the errors of docs/errors.md, and StoppedError."""
        duck = self._duck
        with self._lock:
            if self._is_stopped:
                raise StoppedError()
            self._cursor = cursor = duck.cursor()
        duck.calls.failure()
        try:
            for name, table in self._rows.items():
                cursor.register(name, table)
            text = Text(self._action, self._parameters, duck.calls, self._now_us, Names())
            query = text.query(self._action.query, self._cap)
            return self._fetched(cursor.sql(query, params=text.constants or None).to_arrow_reader(_BATCH))
        except duck.errors.Error as error:
            raise self._refused(error) from None
        finally:
            with self._lock:
                self._cursor = None
            cursor.close()

    def _fetched(self, batches: Any) -> Outcome:
        result, shorten = self._result, self._shorten
        decimals = [
            place
            for place, output in enumerate(self._action.outputs)
            if output.type is not None and output.type.kind is Kind.DECIMAL and not output.type.precision
        ]
        for batch in batches:
            if self._is_stopped:
                raise StoppedError()
            lists: list[list[Any]] = [column.to_pylist() for column in batch.columns]
            for place in decimals:
                lists[place] = [shorten(each) for each in lists[place]]
            for row in zip(*lists, strict=True):
                result.add(row)
        return Outcome(result.rows, len(result.rows))

    def _refused(self, error: Exception) -> Exception:
        errors, text = self._duck.errors, str(error)
        known = self._duck.calls.failure()
        failed = next((failure for each in self._rows.values() if (failure := getattr(each, "failure", None))), None)
        if isinstance(error, errors.InterruptException) or self._is_stopped:
            return StoppedError()
        if known is not None and "UDF" in text:
            return known
        if isinstance(failed, TopicsError):
            return failed
        if isinstance(error, errors.OutOfMemoryException):
            message = "the query needs more memory than it may have (TOPICS_SQL_MEMORY_BYTES)"
            return sql_error(Reason.QUERY_TOO_LARGE, message)
        if _ZERO in text or "Division by zero" in text:
            return sql_error(Reason.DIVISION_BY_ZERO, "division by zero")
        if "More than one row returned by a subquery" in text:
            message = "a query in the place of a value has more than one row"
            return invalid_value(message, sqlstate="21000")
        if _OVERFLOW in text or isinstance(error, errors.OutOfRangeException | errors.ConversionException):
            return invalid_value("a number is out of range", out_of_range=True)
        if isinstance(error, errors.InternalException | errors.FatalException):
            return sql_error(Reason.INTERNAL, "DuckDB failed", sqlstate="XX000")
        _LOG.warning("DuckDB refused a query: %s", text.partition("\n")[0][:500])
        return sql_error(Reason.UNSUPPORTED_SQL, "DuckDB can't answer a query of this form")


def _short(value: Decimal | None) -> Decimal | None:
    """A DECIMAL that has no scale of its own, without the zeros that computing in one has added."""
    if value is None or -int(value.as_tuple().exponent) < DIVIDED:
        return value
    whole = value.to_integral_value()
    return whole if whole == value else value.normalize()


def _least(value: Decimal | None) -> Decimal | None:
    """A DECIMAL that has no scale of its own, without zeros at its end: a row keeps it as it is."""
    if value is None:
        return None
    whole = value.to_integral_value()
    return whole if whole == value else value.normalize()
