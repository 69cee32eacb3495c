"""Statements that change rows, compiled from their plans."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Final, Protocol

from topics_service.engine.errors import Reason
from topics_service.engine.tables import compilation, plans, scanning
from topics_service.engine.tables.compilation import Evaluator
from topics_service.engine.tables.errors import sql_error
from topics_service.engine.tables.expressions import Expression, Literal, Parameter
from topics_service.engine.tables.outcomes import Outcome, Result
from topics_service.engine.tables.runtime import Row, TableRuntime
from topics_service.engine.tables.scanning import Found
from topics_service.engine.tables.selection import SelectStatement
from topics_service.engine.tables.staging import MAX_BYTES, Clash
from topics_service.engine.tables.transaction import TableTransaction
from topics_service.engine.tables.types import Value

CHANGES_A_SLICE: Final = 256
"""Rows that are changed before others have a turn: a few milliseconds."""
READS_A_SLICE: Final = 128
"""Rows that are examined before others have a turn: less than a millisecond."""
_ROW_BYTES: Final = 200
_ROWS_KEPT: Final = 1024
"""Rows that an UPDATE or DELETE keeps as they are read. Of more it keeps the bytes: the collector of garbage looks at
each list of values again and again, and never at bytes."""

_Stored = tuple[bytes, bytes]
Steps = Generator[None, None, Outcome]
Matches = Callable[[Sequence[Value], Sequence[Value] | None, Sequence[Value]], bool]
Make = Callable[[Sequence[Value]], Row]


class Statement(Protocol):
    """A compiled plan that runs in a transaction."""

    def run(self, tx: TableTransaction, rows: Sequence[Sequence[Value]]) -> Steps:
        """Run it in slices, for each of these rows of parameters."""
        ...


class Returning:
    """RETURNING: the rows that a statement changed, as its outputs."""

    def __init__(self, runtime: TableRuntime, outputs: Sequence[plans.Output]) -> None:
        self._outputs = outputs
        self._project = compilation.compile_list(
            [output.expression for output in outputs], runtime.places, runtime.environment
        )

    def collect(self) -> Result | None:
        """The place for the rows of one run; None if there are no outputs."""
        return Result(self._outputs) if self._outputs else None

    def add(self, result: Result, new: Row, old: Row | None, parameters: Sequence[Value]) -> None:
        """Add a row."""
        result.add(self._project(new, old, parameters))


class InsertStatement:
    """INSERT: of rows of expressions, or of the rows of a query, which is read to its end first."""

    def __init__(self, runtime: TableRuntime, action: plans.Insert, select: SelectStatement | None) -> None:
        self._runtime = runtime
        self._places = [runtime.places[column] for column in action.columns]
        self._makers = [_maker(runtime, self._places, row) for row in action.rows]
        self._select = select
        outputs = () if action.select is None else action.select.outputs
        self._fits = [runtime.fit(place, output.type) for place, output in zip(self._places, outputs, strict=False)]
        self._returning = Returning(runtime, action.returning)
        self._conflict = None if action.conflict is None else _Conflict(runtime, action.conflict)

    def run(self, tx: TableTransaction, rows: Sequence[Sequence[Value]]) -> Steps:
        """See Statement."""
        runtime, returning, insert, check = self._runtime, self._returning, tx.insert, self._runtime.check
        tx.touch(runtime.table)
        result, number, count = returning.collect(), 0, 0
        for parameters in rows:
            made = self._made(parameters) if self._select is None else (yield from self._selected(tx, parameters))
            for row in made:
                number += 1
                if not number % CHANGES_A_SLICE:
                    yield
                check(row)
                clash = insert(runtime, row)
                done = row if clash is None else self._resolve(tx, row, clash, parameters)
                if done is not None:
                    count += 1
                    if result is not None:
                        returning.add(result, done, None, parameters)
        return Outcome(() if result is None else result.rows, count)

    def _made(self, parameters: Sequence[Value]) -> Iterable[Row]:
        return [make(parameters) for make in self._makers]

    def _resolve(self, tx: TableTransaction, row: Row, clash: Clash, parameters: Sequence[Value]) -> Row | None:
        """Do what is to be done about a row that has the key of another; return what became of it."""
        if self._conflict is None:
            raise self._runtime.taken(clash.of, row)
        return self._conflict.resolve(tx, row, clash, parameters)

    def _selected(self, tx: TableTransaction, parameters: Sequence[Value]) -> Generator[None, None, list[Row]]:
        assert self._select is not None
        runtime, places, rows, nbytes = self._runtime, self._places, list[Row](), 0
        given = set(places)
        defaults = [
            (place, default)
            for place, default in enumerate(runtime.defaults)
            if default is not None and place not in given
        ]
        for values in self._select.rows(tx.reader, parameters):
            if values is None:
                yield
                continue
            row: Row = [None] * len(runtime.places)
            for place, default in defaults:
                row[place] = default((), None, ())
            for place, fit, value in zip(places, self._fits, values, strict=True):
                row[place] = value if fit is None else fit(value)
                nbytes += len(value) if isinstance(value, str | bytes) else 0
            nbytes += _ROW_BYTES
            if nbytes > MAX_BYTES:
                raise sql_error(Reason.RESULT_TOO_LARGE, f"the rows to insert have more than {MAX_BYTES} bytes")
            rows.append(row)
        return rows


class _Conflict:
    """ON CONFLICT."""

    def __init__(self, runtime: TableRuntime, conflict: plans.OnConflict) -> None:
        self._runtime = runtime
        self._any = conflict.any
        self._index = None if conflict.index is None else runtime.index(conflict.index)
        self._assign = None if conflict.assignments is None else _assigner(runtime, conflict.assignments)
        self._matches = None if conflict.filter is None else runtime.matcher(conflict.filter)

    def resolve(self, tx: TableTransaction, row: Row, clash: Clash, parameters: Sequence[Value]) -> Row | None:
        """Return the row as it was changed, None if nothing happens. Raises for a clash of another key."""
        runtime = self._runtime
        if self._any:
            return None
        if clash.of is not self._index:  # that of the first key in order: the one that is named may clash as well
            holder = None
            if self._index is not None:
                holder = tx.staged.holder(runtime, self._index, self._index.head(row), row)
            if holder is None:
                raise runtime.taken(clash.of, row)
            clash = Clash(self._index, holder)
        if self._assign is None:
            return None
        stored = tx.staged.stored(clash.key)
        assert stored is not None, "it is what the row clashes with"
        old = runtime.read(stored)
        if self._matches is not None and not self._matches(old, row, parameters):
            return None
        new = self._assign(old, row, parameters)
        tx.update(runtime, clash.key, stored, old, new)
        return new


class _Change(ABC):
    """The rows that an UPDATE or DELETE is about, all found before the first is changed."""

    def __init__(self, runtime: TableRuntime, action: plans.Update | plans.Delete) -> None:
        self._runtime = runtime
        self._open = scanning.compiled(runtime, action.access)
        self._matches = None if action.filter is None else runtime.matcher(action.filter)
        self._returning = Returning(runtime, action.returning)

    def run(self, tx: TableTransaction, rows: Sequence[Sequence[Value]]) -> Steps:
        """See Statement."""
        result, number = self._returning.collect(), 0
        for at, parameters in enumerate(rows, 1):
            if not at % READS_A_SLICE:
                yield
            rows_found = yield from self._found(tx, parameters)
            rows_found.reverse()
            while rows_found:  # each is let go when it is done: to free a million at once would hold up others
                found = rows_found.pop()
                number += 1
                if not number % CHANGES_A_SLICE:
                    yield
                if not isinstance(found, Found):
                    found = Found(*found, self._runtime.read(found[1]))
                new, old = self._change(tx, found, parameters)
                if result is not None:
                    self._returning.add(result, new, old, parameters)
        return Outcome(() if result is None else result.rows, number)

    @abstractmethod
    def _change(self, tx: TableTransaction, found: Found, parameters: Sequence[Value]) -> tuple[Row, Row | None]:
        """Change a row; return the row that there is now, or was, and the one before it."""

    def _found(self, tx: TableTransaction, parameters: Sequence[Value]) -> Generator[None, None, list[Found | _Stored]]:
        matches, rows, nbytes = self._matches, list[Found | _Stored](), 0
        for examined, found in enumerate(self._open(tx.reader(self._runtime.table), parameters), 1):
            if not examined % READS_A_SLICE:
                yield
            if matches is None or matches(found.row, None, parameters):
                rows.append(found if len(rows) < _ROWS_KEPT else (found.key, found.stored))
                nbytes += _ROW_BYTES + len(found.key) + len(found.stored)
                if nbytes > MAX_BYTES:
                    raise sql_error(Reason.RESULT_TOO_LARGE, f"the rows to change have more than {MAX_BYTES} bytes")
        return rows


class UpdateStatement(_Change):
    """UPDATE."""

    def __init__(self, runtime: TableRuntime, action: plans.Update) -> None:
        super().__init__(runtime, action)
        self._assign = _assigner(runtime, action.assignments)

    def _change(self, tx: TableTransaction, found: Found, parameters: Sequence[Value]) -> tuple[Row, Row | None]:
        key, stored, old = found
        new = self._assign(old, None, parameters)
        tx.update(self._runtime, key, stored, old, new)
        return new, old


class DeleteStatement(_Change):
    """DELETE."""

    def _change(self, tx: TableTransaction, found: Found, parameters: Sequence[Value]) -> tuple[Row, Row | None]:
        key, stored, row = found
        tx.delete(self._runtime, key, stored, row)
        return row, None


def _maker(runtime: TableRuntime, places: Sequence[int], row: Sequence[Expression | None]) -> Make:
    """The function that makes a row of the parameters: quick where it has but parameters and constants."""
    given = dict(zip(places, row, strict=True))
    template: Row = [None] * len(runtime.places)
    picks: list[tuple[int, int]] = []
    evaluators: list[tuple[int, Evaluator]] = []
    for place, default in enumerate(runtime.defaults):
        expression = given.get(place)
        if isinstance(expression, Literal):
            template[place] = expression.value
        elif isinstance(expression, Parameter) and runtime.fit(place, expression.type) is None:
            picks.append((place, expression.number - 1))
        elif expression is not None:
            evaluators.append((place, runtime.assigned(place, expression)))
        elif default is not None:
            evaluators.append((place, default))

    def make(parameters: Sequence[Value]) -> Row:
        made = template.copy()
        for place, number in picks:
            made[place] = parameters[number]
        for place, evaluate in evaluators:
            made[place] = evaluate((), None, parameters)
        return made

    if not evaluators and picks == [(place, place) for place in range(len(template))]:
        return lambda parameters: list(parameters[: len(template)])
    return make


def _assigner(
    runtime: TableRuntime, assignments: Sequence[tuple[int, Expression | None]]
) -> Callable[[Row, Row | None, Sequence[Value]], Row]:
    """The function that makes the new row of the old one, another and the parameters."""
    pairs: list[tuple[int, Evaluator | None]] = []
    for column, expression in assignments:
        place = runtime.places[column]
        if place in runtime.key_places:
            name = runtime.table.columns[place].name
            message = f'column "{name}" of the primary key can\'t be updated: delete the row and insert another'
            raise sql_error(Reason.UNSUPPORTED_SQL, message, column=name)
        pairs.append((place, runtime.defaults[place] if expression is None else runtime.assigned(place, expression)))

    def assign(old: Row, other: Row | None, parameters: Sequence[Value]) -> Row:
        new = old.copy()
        for place, evaluate in pairs:
            new[place] = None if evaluate is None else evaluate(old, other, parameters)
        return new

    return assign
