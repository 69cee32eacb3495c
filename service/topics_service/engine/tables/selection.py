"""Queries, compiled from their plans: rows of a table, of system tables handed in, or one row of constants."""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any, Final

from topics_service.engine.errors import Reason
from topics_service.engine.tables import compilation, plans, scanning
from topics_service.engine.tables.compilation import Evaluator
from topics_service.engine.tables.errors import invalid_value, sql_error
from topics_service.engine.tables.expressions import Expression
from topics_service.engine.tables.functions import Environment
from topics_service.engine.tables.model import Table
from topics_service.engine.tables.outcomes import MAX_ROWS, Outcome, Result, TopicGap, too_large
from topics_service.engine.tables.runtime import TableRuntime
from topics_service.engine.tables.system_schema import SYSTEM_TABLES
from topics_service.engine.tables.topic_reads import TopicReads, TopicScanner
from topics_service.engine.tables.types import Value
from topics_service.storage.store import Reader

ROWS_A_SLICE: Final = 128
"""Rows that are examined before others have a turn: less than a millisecond."""
_MAX_NUMBER: Final = (1 << 63) - 1

SystemRows = Callable[[str], Iterable[Sequence[Value]]]
"""The rows of a system table, by its name without `system.`."""
Readers = Callable[[Table], Reader]
"""The rows of a table to read."""
Steps = Generator[None, None, Outcome]
_Rows = Iterator[Sequence[Value]]


def no_system_rows(name: str) -> Iterable[Sequence[Value]]:
    """Raise: there are no system tables here."""
    raise sql_error(Reason.UNSUPPORTED_SQL, f"system.{name} can't be read within a transaction")


class SelectStatement:
    """A query. `runtime` is that of its table, None for other sources."""

    def __init__(
        self,
        action: plans.Select,
        runtime: TableRuntime | None,
        environment: Environment,
        topics: TopicReads | None = None,
    ) -> None:
        self.is_point = False
        self._outputs = action.outputs
        self._count = action.count
        self._distinct = action.distinct
        self._orders = action.order
        self._source = action.source
        self.runtime = runtime
        self._table = None if runtime is None else runtime.table
        places: Any = _SAME if runtime is None else runtime.places

        def compiled(expression: Expression) -> Evaluator:
            return compilation.compile_expression(expression, places, environment)

        if isinstance(action.source, plans.TableSource):
            assert runtime is not None
            decode = not action.count or action.filter is not None
            self._open = scanning.compiled(runtime, action.source.access, decode=decode)
            self.is_point = scanning.is_point(action.source.access)
        elif isinstance(action.source, plans.TopicSource):
            self._scanner = TopicScanner(action.source, environment)
        self._topics = topics
        self._matches = (
            None if action.filter is None else compilation.compile_filter(action.filter, places, environment)
        )
        outputs = [] if action.count else [output.expression for output in action.outputs]
        self._project = compilation.compile_list(outputs, places, environment)
        orders = [order.expression for order in action.order]
        self._keys = compilation.compile_list(orders, places, environment) if orders else None
        self._limit = None if action.limit is None else compiled(action.limit)
        self._offset = None if action.offset is None else compiled(action.offset)

    def run(self, readers: Readers, parameters: Sequence[Value], system: SystemRows = no_system_rows) -> Steps:
        """Run the query in slices. Raises `result_too_large` for more than 10,000 rows or 16 MiB."""
        result, gaps = Result(self._outputs), list[TopicGap]()
        for row in self.rows(readers, parameters, system, cap=MAX_ROWS, gaps=gaps):
            if row is None:
                yield
            else:
                result.add(row)
        return Outcome(result.rows, len(result.rows), gaps)

    def rows(
        self,
        readers: Readers,
        parameters: Sequence[Value],
        system: SystemRows = no_system_rows,
        cap: int | None = None,
        gaps: list[TopicGap] | None = None,
    ) -> Iterator[Sequence[Value] | None]:
        """The rows of the result, and None where others should have a turn; at most `cap` of them are sorted.

        `gaps` gets what a topic has lost of what is read.
        """
        limit = number_of(self._limit, parameters, "LIMIT")
        offset = number_of(self._offset, parameters, "OFFSET") or 0
        if limit == 0:
            return
        if isinstance(self._source, plans.TopicSource):
            yield from self._of_topic(parameters, limit, offset, cap, [] if gaps is None else gaps)
            return
        if self._count:
            yield from self._counted(self._passing(readers, parameters, system), offset)
            return
        yield from self._results(self._passing(readers, parameters, system), parameters, limit, offset, cap)

    # ---------------------------------------------------------------- internals

    def _results(
        self,
        passing: Iterator[Sequence[Value] | None],
        parameters: Sequence[Value],
        limit: int | None,
        offset: int,
        cap: int | None,
    ) -> Iterator[Sequence[Value] | None]:
        """The rows of the result, from those that pass the filter."""
        rows = self._projected(passing, parameters)
        if self._keys is not None:
            last = None if limit is None else offset + limit
            rows = self._sorted(rows, cap, last)
        for pair in self._unique(rows) if self._distinct else rows:
            if pair is None:
                yield None
            elif offset:
                offset -= 1
            else:
                yield pair[1]
                if limit is not None:
                    limit -= 1
                    if not limit:
                        return

    def _of_topic(
        self, parameters: Sequence[Value], limit: int | None, offset: int, cap: int | None, gaps: list[TopicGap]
    ) -> Iterator[Sequence[Value] | None]:
        """As `rows`, of the records of a topic."""
        topics, scanner, matches = self._topics, self._scanner, self._matches
        assert topics is not None, "the engine has topics"
        yield from topics.prepare(scanner.topic)
        moment = topics.moment(scanner.topic)
        try:
            if self._count and matches is None:
                total = 0
                for number in scanner.count(moment, parameters, gaps):
                    if number is None:
                        yield None
                    else:
                        total += number
                if not offset:
                    yield (total,)
                return
            passing = _filtered(scanner.rows(moment, parameters, gaps), matches, parameters)
            if self._count:
                yield from self._counted(passing, offset)
            else:
                yield from self._results(passing, parameters, limit, offset, cap)
        finally:
            moment.close()

    def _passing(
        self, readers: Readers, parameters: Sequence[Value], system: SystemRows
    ) -> Iterator[Sequence[Value] | None]:
        """The rows of the source that pass the filter."""
        matches = self._matches
        for examined, row in enumerate(self._read(readers, parameters, system), 1):
            if not examined % ROWS_A_SLICE:
                yield None
            if matches is None or matches(row, None, parameters):
                yield row

    def _read(self, readers: Readers, parameters: Sequence[Value], system: SystemRows) -> _Rows:
        source = self._source
        if self._table is not None:
            return (found.row for found in self._open(readers(self._table), parameters))
        if isinstance(source, plans.SystemSource):
            return iter(system(source.name))
        if isinstance(source, plans.Join):
            return _joined(source, system)
        return iter(((),))

    def _projected(
        self, rows: Iterator[Sequence[Value] | None], parameters: Sequence[Value]
    ) -> Iterator[tuple[Sequence[Value], Sequence[Value]] | None]:
        """The rows of the result, each with the values that it is sorted by."""
        keys, project = self._keys, self._project
        for row in rows:
            if row is None:
                yield None
            else:
                yield () if keys is None else keys(row, None, parameters), project(row, None, parameters)

    def _sorted(
        self, rows: Iterator[tuple[Sequence[Value], Sequence[Value]] | None], cap: int | None, last: int | None
    ) -> Iterator[tuple[Sequence[Value], Sequence[Value]] | None]:
        """The first `last` rows in order: of more than `cap`, and no such bound, there are too many."""
        found: list[tuple[Sequence[Value], Sequence[Value]]] = []
        keep = None if last is None or self._distinct else last
        for pair in rows:
            if pair is None:
                yield None
                continue
            found.append(pair)
            if keep is not None and keep <= MAX_ROWS:
                if len(found) >= 2 * keep + 64:
                    self._sort(found)
                    del found[keep:]
            elif cap is not None and len(found) > cap:
                raise too_large()
        self._sort(found)
        yield from found

    def _sort(self, rows: list[tuple[Sequence[Value], Sequence[Value]]]) -> None:
        for at in range(len(self._orders) - 1, -1, -1):
            order = self._orders[at]
            null = (0 if order.nulls_first is not order.descending else 2,)

            def key(pair: tuple[Sequence[Value], Any], at: int = at, null: tuple[int] = null) -> Any:
                value = pair[0][at]
                if value is None:
                    return null
                return (1, value != value, value)  # NaN is the greatest number

            rows.sort(key=key, reverse=order.descending)

    def _unique(
        self, rows: Iterator[tuple[Sequence[Value], Sequence[Value]] | None]
    ) -> Iterator[tuple[Sequence[Value], Sequence[Value]] | None]:
        seen: set[tuple[Value, ...]] = set()
        for pair in rows:
            if pair is None:
                yield None
                continue
            values = tuple(pair[1])
            if values not in seen:
                if len(seen) == MAX_ROWS:
                    raise too_large()
                seen.add(values)
                yield pair

    def _counted(self, rows: Iterator[Sequence[Value] | None], offset: int) -> Iterator[Sequence[Value] | None]:
        count = 0
        for row in rows:
            if row is None:
                yield None
            else:
                count += 1
        if not offset:
            yield (count,)


def _filtered(
    rows: Iterator[Sequence[Value] | None], matches: compilation.Filter | None, parameters: Sequence[Value]
) -> Iterator[Sequence[Value] | None]:
    """The rows that pass a filter, and None at each turn of the rows and after some of them."""
    examined = 0
    for row in rows:
        if row is None:
            yield None
            continue
        examined += 1
        if not examined % ROWS_A_SLICE:
            yield None
        if matches is None or matches(row, None, parameters):
            yield row


class InTransaction:
    """Implements Statement: a query among the statements of a transaction."""

    def __init__(self, statement: SelectStatement) -> None:
        self.statement = statement

    def run(self, tx: Any, rows: Sequence[Sequence[Value]]) -> Steps:
        """See Statement."""
        (parameters,) = rows
        return self.statement.run(tx.reader, parameters)


class _Same(dict[int, int]):
    """The places of columns whose ids are their places."""

    def __missing__(self, column: int) -> int:
        return column


_SAME: Final = _Same()


def _joined(join: plans.Join, system: SystemRows) -> _Rows:
    left, right = [list(system(source.name)) for source in (join.left, join.right)]
    width = len(SYSTEM_TABLES[join.left.name])
    by_key: dict[tuple[Value, ...], list[Sequence[Value]]] = {}
    for row in right:
        key = tuple(row[place - width] for _, place in join.equal)
        if None not in key:
            by_key.setdefault(key, []).append(row)
    empty = [None] * len(SYSTEM_TABLES[join.right.name])
    for row in left:
        partners = by_key.get(tuple(row[place] for place, _ in join.equal), ())
        for partner in partners:
            yield [*row, *partner]
        if join.outer and not partners:
            yield [*row, *empty]


def number_of(evaluate: Evaluator | None, parameters: Sequence[Value], what: str) -> int | None:
    """The value of LIMIT or OFFSET; NULL is none. Raises `invalid_value` for a negative one."""
    if evaluate is None:
        return None
    value = evaluate((), None, parameters)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MAX_NUMBER:
        raise invalid_value(f"{what} must be an integer from 0", sqlstate="2201W" if what == "LIMIT" else "2201X")
    return value
