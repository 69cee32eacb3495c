"""Text for DuckDB from the plan of a query.

Nothing that a user wrote is in the text: tables, columns and functions have names that are made here, and constants are
parameters. What DuckDB computes otherwise than this server does (decimal division, text of values, JSON, LIKE with
escapes, ...) is a call into the functions of the server, `Calls`.

TIMESTAMP and TIME are BIGINT there, DATE is INTEGER, UUID and JSON are VARCHAR: as `engine.tables.types` has them.
"""

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final, Protocol

from msgspec.structs import replace

from topics_service.api.sql.analysis.series import decimal_type, known, series
from topics_service.engine.errors import Reason
from topics_service.engine.tables import datetimes, plans, relations
from topics_service.engine.tables.casts import FLOATS, INTEGERS, NUMBERS
from topics_service.engine.tables.compilation import compile_expression
from topics_service.engine.tables.errors import sql_error
from topics_service.engine.tables.expressions import (
    Binary,
    Call,
    Case,
    Cast,
    Column,
    Expression,
    InList,
    IsNull,
    IsTruth,
    JsonGet,
    Like,
    Literal,
    Parameter,
    Unary,
    children,
    type_of,
)
from topics_service.engine.tables.plans import Order
from topics_service.engine.tables.selection import number_of
from topics_service.engine.tables.types import DECIMAL, JSON, Kind, Type, Value

DIVIDED: Final = 16
"""Decimals of a DECIMAL that is divided, or computed by a function, and has no scale of its own."""
WHOLE: Final[dict[Kind, str]] = {
    Kind.BOOLEAN: "BOOLEAN", Kind.SMALLINT: "SMALLINT", Kind.INTEGER: "INTEGER", Kind.BIGINT: "BIGINT",
    Kind.REAL: "FLOAT", Kind.DOUBLE: "DOUBLE", Kind.TEXT: "VARCHAR", Kind.BYTES: "BLOB", Kind.JSON: "VARCHAR",
    Kind.TIMESTAMP: "BIGINT", Kind.DATE: "INTEGER", Kind.TIME: "BIGINT", Kind.UUID: "VARCHAR",
}  # fmt: skip
_UNITS: Final = ("second", "minute", "hour", "day", "week", "month", "quarter", "year")
_FIELDS: Final = ("year", "month", "day", "hour", "minute", "dow", "isodow", "doy", "week", "quarter")
_MOVED: Final = ("date_add", "date_subtract")
_COMPARISONS: Final = {
    "=": "=", "<>": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">=",
    "is distinct": "IS DISTINCT FROM", "is not distinct": "IS NOT DISTINCT FROM",
}  # fmt: skip


class Calls(Protocol):
    """The functions of the server that the text calls."""

    def name(self, node: Expression) -> str:
        """The name of the function that computes a node from its operands, which are columns from 0 on."""
        ...


def duck_type(kind: Type | None) -> str:
    """The type of a value in DuckDB."""
    if kind is None:
        return "VARCHAR"
    if kind.kind is Kind.DECIMAL:
        return f"DECIMAL({kind.precision}, {kind.scale})" if kind.precision else f"DECIMAL(38, {DIVIDED})"
    return WHOLE[kind.kind]


def carried(kind: Type | None) -> str:
    """The type that a value has on its way into a function of the server, and back."""
    if kind is None or kind.kind in (Kind.DECIMAL, Kind.TEXT, Kind.JSON, Kind.UUID):
        return "VARCHAR"
    if kind.kind is Kind.BOOLEAN or kind.kind is Kind.BYTES:
        return WHOLE[kind.kind]
    return "DOUBLE" if kind.kind in FLOATS else "BIGINT"


class Text:
    """Writes one query. `constants` are the values of its parameters, in order."""

    def __init__(
        self, analysis: plans.Analysis, parameters: Sequence[Value], calls: Calls, now_us: int, sources: "Sources"
    ) -> None:
        self.constants: list[Any] = []
        self._parameters = parameters
        self._calls = calls
        self._now = now_us
        self._sources = sources
        self._topics = analysis.topics
        self._inner = {each.number: each for each in analysis.inner}
        self._grouping: list[dict[Expression, str]] = []  # of the queries around, the columns of keys of sets

    # ----------------------------------------------------------------------------------------------- queries

    def query(self, query: relations.Query, cap: int | None = None) -> str:
        """The text of a query, with at most `cap` rows."""
        named = ""
        if query.named:
            recursive = "RECURSIVE " if any(each.recursive for each in query.named) else ""
            parts = [f"{self._name(each)} AS ({self.query(each.query)})" for each in query.named]
            named = f"WITH {recursive}{', '.join(parts)} "
        body = query.body
        if isinstance(body, relations.Core):
            text = self._core(body, query.order)
        else:
            inner = self._constants(body) if isinstance(body, relations.Constants) else self._combined(body)
            text = inner
            if query.order:
                text = f"SELECT * FROM ({inner}){self._order(query.order)}"
            elif query.limit is not None or query.offset is not None or cap is not None:
                text = f"SELECT * FROM ({inner})"
        return named + text + self._limits(query, cap)

    def _name(self, named: relations.Named) -> str:
        columns = ", ".join(f"c{number}" for number, _ in _made(named.query.body))
        return f"q{named.number}({columns})"

    def _limits(self, query: relations.Query, cap: int | None) -> str:
        """LIMIT and OFFSET, which are computed here: their numbers don't depend on rows."""
        limit, offset = self._count(query.limit, "LIMIT"), self._count(query.offset, "OFFSET")
        if cap is not None:
            limit = cap if limit is None else min(limit, cap)
        text = "" if limit is None else f" LIMIT {limit}"
        return f"{text} OFFSET {offset}" if offset else text

    def _count(self, expression: Expression | None, what: str) -> int | None:
        if expression is None:
            return None
        if relations.numbers_of(expression):
            raise sql_error(Reason.UNSUPPORTED_SQL, f"{what} can't depend on rows")
        return number_of(compile_expression(expression, {}), self._parameters, what)

    def _core(self, core: relations.Core, order: Sequence[Order]) -> str:
        source = "" if core.rows is None else f" FROM {self._rows(core.rows)}"
        where = "" if core.filter is None else f" WHERE {self.value(core.filter)}"
        if core.grouped:
            grouping = {key.expression: f"k{key.number}" for key in core.keys} if len(core.sets) > 1 else {}
            if grouping:  # arguments of aggregates are not NULL where a key is
                named = ", ".join(f"{self.value(key.expression)} AS k{key.number}" for key in core.keys)
                source, where = f" FROM (SELECT *, {named}{source}{where})", ""
                made = [f"k{key.number} AS c{key.number}" for key in core.keys]
            else:
                made = [f"{self.value(key.expression)} AS c{key.number}" for key in core.keys]
            self._grouping.append(grouping)
            made += [f"{self._aggregate(each)} AS c{each.number}" for each in core.aggregates]
            self._grouping.pop()
            keys = ", ".join(str(place) for place in range(1, len(core.keys) + 1))
            group = f" GROUP BY {keys}" if keys else ""
            if len(core.sets) > 1:
                sets = (f"({', '.join(f'k{number}' for number in each)})" for each in core.sets)
                group = f" GROUP BY GROUPING SETS ({', '.join(sets)})"
            if not made:
                made = ["count(*) AS c0"]
            source, where = f" FROM (SELECT {', '.join(made)}{source}{where}{group})", ""
            if core.having is not None:
                where = f" WHERE {self.value(core.having)}"
        if core.windows:
            made = [f"{self._aggregate(each)} AS c{each.number}" for each in core.windows]
            source, where = f" FROM (SELECT *, {', '.join(made)}{source}{where})", ""
        distinct = "DISTINCT " if core.distinct else ""
        if core.distinct_on:
            distinct = f"DISTINCT ON ({', '.join(map(self.value, core.distinct_on))}) "
        outputs = ", ".join(f"{self.value(each.expression)} AS c{each.number}" for each in core.outputs) or "1"
        return f"SELECT {distinct}{outputs}{source}{where}{self._order(order)}"

    def _order(self, order: Sequence[Order]) -> str:
        if not order:
            return ""
        return f" ORDER BY {', '.join(map(self._key, order))}"

    def _key(self, key: Order) -> str:
        direction = "DESC" if key.descending else "ASC"
        # a bare number would be the place of a column
        text = self.value(key.expression)
        return f"({text}) {direction} NULLS {'FIRST' if key.nulls_first else 'LAST'}"

    def _constants(self, body: relations.Constants) -> str:
        rows = []
        for row in body.rows:
            cells = [self._as(each, kind) for each, (_, kind) in zip(row, body.columns, strict=True)]
            rows.append(f"({', '.join(cells)})")
        columns = ", ".join(f"c{number}" for number, _ in body.columns)
        return f"SELECT * FROM (VALUES {', '.join(rows)}) v({columns})"

    def _combined(self, body: relations.Combined) -> str:
        sides = []
        for side in (body.left, body.right):
            made = _made(side.body)
            cells = [
                f"{self._cast(f'c{theirs}', kind, wanted)} AS c{number}"
                for (theirs, kind), (number, wanted) in zip(made, body.columns, strict=True)
            ]
            sides.append(f"SELECT {', '.join(cells)} FROM ({self.query(side)})")
        op = body.op.upper() + (" ALL" if body.all else "")
        return f"{sides[0]} {op} {sides[1]}"

    def _rows(self, rows: relations.Rows) -> str:
        match rows:
            case relations.TableRows(table=table, columns=columns):
                cells = ", ".join(f"f{column} AS c{number}" for number, column in columns)
                return f"(SELECT {cells} FROM {self._sources.table(table.number)})"
            case relations.SystemRows(name=name, columns=columns):
                cells = ", ".join(f"f{place} AS c{number}" for number, place in columns)
                return f"(SELECT {cells} FROM {self._sources.system(name)})"
            case relations.TopicRows(source=source, columns=columns):
                read = self._topics[source].scan.columns
                cells = ", ".join(f"f{place} AS c{number}" for number, place in columns if place in read)
                return f"(SELECT {cells or '1 AS c0'} FROM {self._sources.topic(source)})"
            case relations.NamedRows(query=query, columns=columns):
                cells = ", ".join(f"c{theirs} AS c{number}" for number, theirs in columns)
                return f"(SELECT {cells} FROM q{query})"
            case relations.NestedRows(query=query, lateral=lateral):
                return f"{'LATERAL ' if lateral else ''}({self.query(query)})"
            case relations.SeriesRows():
                return self._series(rows)
            case relations.JoinedRows():
                return self._joined(rows)

    def _series(self, rows: relations.SeriesRows) -> str:
        """The text of a series, whose ends are known here."""
        values = [known(each, self._parameters, self._now) for each in rows.arguments]
        column = f"c{rows.number}"
        if None in values:
            return f"(SELECT CAST(NULL AS {duck_type(rows.type)}) AS {column} WHERE false)"
        moments = series(values, rows.type)
        if isinstance(moments, range):
            ends = f"{moments.start}::BIGINT, {moments.stop}::BIGINT, {moments.step}::BIGINT"
            return f"(SELECT CAST(range AS {duck_type(rows.type)}) AS {column} FROM range({ends}))"
        rows_of = ", ".join(f"({each})" for each in moments)
        return f"(SELECT * FROM (VALUES {rows_of}) v({column}))"

    def _joined(self, rows: relations.JoinedRows) -> str:
        left, right = self._rows(rows.left), self._rows(rows.right)
        if rows.on is None:
            text = f"{left} CROSS JOIN {right}"
        else:
            text = f"{left} {rows.kind.upper()} JOIN {right} ON ({self.value(rows.on)})"
        if not rows.merged:
            return f"({text})"
        merged = ", ".join(f"{self.value(each.expression)} AS c{each.number}" for each in rows.merged)
        return f"(SELECT *, {merged} FROM {text})"

    # -------------------------------------------------------------------------------------------- aggregates

    def _aggregate(self, call: relations.Aggregate) -> str:
        if call.within:
            return self._ordered_set(call)
        if call.function == "grouping":
            keys = ", ".join(self._grouping[-1].get(each, "") for each in call.arguments)
            return f"CAST(GROUPING({keys}) AS INTEGER)" if self._grouping[-1] else "CAST(0 AS INTEGER)"
        kind = type_of(call.arguments[0]) if call.arguments else None
        if of_json := call.function in ("json_agg", "jsonb_agg"):
            call = replace(call, arguments=(Call("to_json", call.arguments, JSON),))
        arguments = [self.value(each) for each in call.arguments[:2]]
        arguments += [self._as(each, kind) for each in call.arguments[2:]]  # the default of lag and lead
        inner = "DISTINCT " if call.distinct else ""
        order = self._order(call.order)
        filtered = "" if call.filter is None else f" FILTER (WHERE {self.value(call.filter)})"
        over = "" if call.window is None else f" OVER ({self._window(call.window)})"

        def written(name: str, given: Sequence[str] = arguments) -> str:
            return f"{name}({inner}{', '.join(given)}{order}){filtered}{over}"

        name = call.function
        if name == "count" and not arguments:
            return f"count(*){filtered}{over}"
        if name == "sum" and kind is not None and kind.kind in INTEGERS:
            return f"CAST({written('sum')} AS BIGINT)"
        if name == "avg" and kind is not None and kind.kind not in FLOATS:
            total = f"CAST({written('sum')} AS VARCHAR)"
            return self._divided(total, f"CAST({written('count')} AS VARCHAR)")
        if name in ("sum", "avg") and kind is not None and kind.kind is Kind.REAL:
            return f"CAST({written(name, [f'CAST({arguments[0]} AS DOUBLE)'])} AS {duck_type(call.type)})"
        if of_json:
            items = [f"coalesce({arguments[0]}, 'null')", "','"]
            return f"('[' || {written('string_agg', items)} || ']')"
        if name == "every":
            name = "bool_and"
        if name == "ntile":
            return f"CAST({written(name)} AS INTEGER)"
        if name.startswith(("stddev", "var")):
            return written(name, [f"CAST({arguments[0]} AS DOUBLE)"])
        return written(name)

    def _ordered_set(self, call: relations.Aggregate) -> str:
        """A call with WITHIN GROUP."""
        (key,) = call.order
        arguments = ", ".join(map(self.value, call.arguments))
        value = self.value(key.expression)
        if call.function == "percentile_cont":
            value = f"CAST({value} AS DOUBLE)"
        text = f"{call.function}({arguments}) WITHIN GROUP (ORDER BY {value} {'DESC' if key.descending else 'ASC'})"
        return text if call.filter is None else f"{text} FILTER (WHERE {self.value(call.filter)})"

    def _window(self, window: relations.Window) -> str:
        parts = []
        if window.partition:
            parts.append(f"PARTITION BY {', '.join(f'({self.value(each)})' for each in window.partition)}")
        if window.order:
            parts.append(self._order(window.order).strip())
        if (frame := window.frame) is not None:
            ends = []
            for word, rows in ((frame.start, frame.start_rows), (frame.end, frame.end_rows)):
                ends.append(word.upper() if rows is None else f"{self.value(rows)} {word.upper()}")
            exclude = f" EXCLUDE {frame.exclude.upper()}" if frame.exclude else ""
            parts.append(f"{frame.unit.upper()} BETWEEN {ends[0]} AND {ends[1]}{exclude}")
        return " ".join(parts)

    # ------------------------------------------------------------------------------------------- expressions

    def value(self, expression: Expression) -> str:
        """The text of an expression."""
        return _WRITERS[expression.__class__](self, expression)

    def _literal(self, node: Literal) -> str:
        return self._constant(node.value, node.type)

    def _parameter(self, node: Parameter) -> str:
        return self._constant(self._parameters[node.number - 1], node.type)

    def _constant(self, value: Any, kind: Type | None) -> str:
        if value is None:
            return "NULL" if kind is None else f"CAST(NULL AS {duck_type(kind)})"
        target = duck_type(kind)
        if isinstance(value, Decimal) or (kind is not None and kind.kind is Kind.DECIMAL):
            value, target = str(value), decimal_type(Decimal(value))
        elif kind is None:
            value = str(value)
        self.constants.append(value)
        return f"CAST(${len(self.constants)} AS {target})"

    def _column(self, node: Column) -> str:
        inner = self._inner.get(node.column)
        return f"c{node.column}" if inner is None else self._subquery(inner)

    def _subquery(self, inner: relations.Inner) -> str:
        text = self.query(inner.query)
        if inner.kind == "value":
            return f"({text})"
        if inner.kind == "exists":
            return f"EXISTS ({text})"
        assert inner.operand is not None
        operand, kind = self.value(inner.operand), type_of(inner.operand)
        ((number, other),) = _made(inner.query.body)
        operand, column = self._alike(operand, kind, f"c{number}", other)
        return f"({operand} {_COMPARISONS[inner.op]} {inner.kind.upper()} (SELECT {column} FROM ({text})))"

    def _unary(self, node: Unary) -> str:
        operand = self.value(node.operand)
        return f"(NOT {operand})" if node.op == "not" else f"(- {operand})"

    def _binary(self, node: Binary) -> str:
        op, kind = node.op, node.type
        if op in ("and", "or"):
            return f"({self.value(node.left)} {op.upper()} {self.value(node.right)})"
        left, right = type_of(node.left), type_of(node.right)
        if op in _COMPARISONS:
            texts = self._alike(self.value(node.left), left, self.value(node.right), right)
            return f"({texts[0]} {_COMPARISONS[op]} {texts[1]})"
        if kind is not None:
            if kind.kind in INTEGERS:
                if {left and left.kind, right and right.kind} <= INTEGERS:
                    operator = "//" if op == "/" else op
                    return f"({self._as(node.left, kind)} {operator} {self._as(node.right, kind)})"
            elif kind.kind in FLOATS:
                name = {"+": "plus", "-": "minus", "*": "times", "/": "divided"}[op]
                size = "real" if kind.kind is Kind.REAL else "double"
                return f"{size}_{name}({self._as(node.left, kind)}, {self._as(node.right, kind)})"
            elif kind.kind is Kind.DECIMAL and op in "+-*" and not (op == "*" and _has_many(node)):
                return f"({self.value(node.left)} {op} {self.value(node.right)})"
            elif op == "||" and left and right and left.kind is right.kind is Kind.TEXT:
                return f"({self.value(node.left)} || {self.value(node.right)})"
        return self._call(node)

    def _divided(self, total: str, count: str) -> str:
        division = Binary("/", Column(0, DECIMAL), Column(1, DECIMAL), DECIMAL)
        return f"CAST({self._calls.name(division)}({total}, {count}) AS DECIMAL(38, {DIVIDED}))"

    def _is_null(self, node: IsNull) -> str:
        return f"({self.value(node.operand)} IS {'NOT ' if node.negated else ''}NULL)"

    def _is_truth(self, node: IsTruth) -> str:
        truth = "TRUE" if node.truth else "FALSE"
        return f"({self.value(node.operand)} IS {'NOT ' if node.negated else ''}{truth})"

    def _in(self, node: InList) -> str:
        kinds = [type_of(each) for each in (node.operand, *node.items)]
        floats = _mixed(kinds)
        texts = [
            self._number(self.value(each), kind) if floats else self._time(self.value(each), kind, kinds)
            for each, kind in zip((node.operand, *node.items), kinds, strict=True)
        ]
        return f"({texts[0]} {'NOT ' if node.negated else ''}IN ({', '.join(texts[1:])}))"

    def _like(self, node: Like) -> str:
        pattern = node.pattern
        text = pattern.value if isinstance(pattern, Literal) and not node.ignore_case else None
        if isinstance(text, str) and (not node.escape or node.escape not in text):
            return f"({self.value(node.operand)} {'NOT ' if node.negated else ''}LIKE {self.value(pattern)})"
        return self._call(node)

    def _case(self, node: Case) -> str:
        branches = [f"WHEN {self.value(when)} THEN {self._as(then, node.type)}" for when, then in node.branches]
        otherwise = "" if node.otherwise is None else f" ELSE {self._as(node.otherwise, node.type)}"
        return f"(CASE {' '.join(branches)}{otherwise} END)"

    def _cast_node(self, node: Cast) -> str:
        source, target = type_of(node.operand), node.type
        if source is None:
            return f"CAST(NULL AS {duck_type(target)})" if isinstance(node.operand, Literal) else self._call(node)
        if _casts_alike(source, target):
            return self._cast(self.value(node.operand), source, target)
        return self._call(node)

    def _function(self, node: Call) -> str:
        kinds = [type_of(each) for each in node.arguments]
        match node.function:
            case "now" | "current_timestamp":
                return self._constant(self._now, Type(Kind.TIMESTAMP))
            case "current_date":
                return self._constant(self._now // datetimes.DAY, Type(Kind.DATE))
            case "coalesce" | "greatest" | "least":
                arguments = [self._as(each, node.type) for each in node.arguments]
                return f"{node.function}({', '.join(arguments)})"
            case "nullif":
                left, right = (self.value(each) for each in node.arguments)
                shown = self._as(node.arguments[0], node.type)
                alike = self._alike(left, kinds[0], right, kinds[1])
                return f"(CASE WHEN {alike[0]} = {alike[1]} THEN NULL ELSE {shown} END)"
            case "length" | "char_length" | "character_length" if kinds[0] is not None and kinds[0].kind is Kind.TEXT:
                return f"CAST(length({self.value(node.arguments[0])}) AS INTEGER)"
            case "abs" if kinds[0] is not None and kinds[0].kind in INTEGERS:
                return f"abs({self.value(node.arguments[0])})"
            case "date_trunc" if (unit := _word(node.arguments[0], _UNITS)) is not None:
                return f"epoch_us(date_trunc('{unit}', make_timestamp({self._moment(node.arguments[1])})))"
            case "extract" | "date_part" if (
                kinds[1] is not None
                and kinds[1].kind is not Kind.TIME
                and (field := _word(node.arguments[0], _FIELDS)) is not None
            ):
                moment = f"make_timestamp({self._moment(node.arguments[1])})"
                return f"CAST(date_part('{field}', {moment}) AS DECIMAL(38, 0))"
            case _:
                return self._call(node)

    def _moment(self, node: Expression) -> str:
        return self._cast(self.value(node), type_of(node), Type(Kind.TIMESTAMP))

    def _call(self, node: Expression) -> str:
        """A call into the server's function for a node; its value, if that depends on no rows."""
        operands = children(node)
        if isinstance(node, Call) and node.function in _MOVED and not relations.numbers_of(node):
            return self._constant(known(node, self._parameters, self._now), node.type)
        again: list[Expression] = [Column(place, type_of(each)) for place, each in enumerate(operands)]
        name = self._calls.name(with_operands(node, again))
        texts = []
        for each in operands:
            kind = type_of(each)
            text = self.value(each)
            needs = kind is None or carried(kind) != duck_type(kind)
            texts.append(f"CAST({text} AS {carried(kind)})" if needs else text)
        kind = type_of(node)
        text = f"{name}({', '.join(texts)})"
        return text if carried(kind) == duck_type(kind) else f"CAST({text} AS {duck_type(kind)})"

    # ------------------------------------------------------------------------------------------------- types

    def _as(self, node: Expression, kind: Type | None) -> str:
        return self._cast(self.value(node), type_of(node), kind)

    def _cast(self, text: str, source: Type | None, target: Type | None) -> str:
        if target is None or source == target:
            return text
        if source is None:
            return (
                text if target.kind is Kind.DECIMAL and not target.precision else f"CAST({text} AS {duck_type(target)})"
            )
        if source.kind is Kind.DATE and target.kind is Kind.TIMESTAMP:
            return f"(CAST({text} AS BIGINT) * {datetimes.DAY})"
        if target.kind is Kind.DECIMAL and not target.precision:
            return f"CAST({text} AS DECIMAL(38, {DIVIDED}))" if source.kind in FLOATS else text
        if duck_type(source) == duck_type(target):
            return text
        return f"CAST({text} AS {duck_type(target)})"

    def _alike(self, left: str, left_type: Type | None, right: str, right_type: Type | None) -> tuple[str, str]:
        """Both sides of a comparison in one type."""
        kinds = [left_type, right_type]
        if _mixed(kinds):
            return self._number(left, left_type), self._number(right, right_type)
        return self._time(left, left_type, kinds), self._time(right, right_type, kinds)

    def _number(self, text: str, kind: Type | None) -> str:
        return text if kind is None or kind.kind is Kind.DOUBLE else f"CAST({text} AS DOUBLE)"

    def _time(self, text: str, kind: Type | None, kinds: Sequence[Type | None]) -> str:
        is_date = kind is not None and kind.kind is Kind.DATE
        if is_date and any(each is not None and each.kind is Kind.TIMESTAMP for each in kinds):
            return f"(CAST({text} AS BIGINT) * {datetimes.DAY})"
        return text


class Sources(Protocol):
    """The names of what is read."""

    def table(self, number: int) -> str:
        """The name of the rows of a table, whose columns are `f` and their ids."""
        ...

    def system(self, name: str) -> str:
        """The name of the rows of a system table, whose columns are `f` and their positions."""
        ...

    def topic(self, source: int) -> str:
        """The name of the records that are read of a topic, whose columns are `f` and their places."""
        ...


_WRITERS: Final[Mapping[type, Callable[[Text, Any], str]]] = {
    Literal: Text._literal,
    Parameter: Text._parameter,
    Column: Text._column,
    Unary: Text._unary,
    Binary: Text._binary,
    IsNull: Text._is_null,
    IsTruth: Text._is_truth,
    InList: Text._in,
    Like: Text._like,
    Case: Text._case,
    Cast: Text._cast_node,
    JsonGet: Text._call,
    Call: Text._function,
}


def with_operands(node: Expression, operands: Sequence[Expression]) -> Expression:
    """The same node over other operands."""
    left = iter(operands)
    seen: list[Expression] = [node]

    def change(part: Expression) -> Expression | None:
        if seen:
            seen.pop()  # the node itself
            return None
        return next(left)

    return relations.rebuilt(node, change)


def _made(body: relations.Core | relations.Constants | relations.Combined) -> list[tuple[int, Type | None]]:
    """The numbers and types of the columns of a query."""
    if isinstance(body, relations.Core):
        return [(each.number, type_of(each.expression)) for each in body.outputs]
    return list(body.columns)


def _has_many(node: Binary) -> bool:
    """Return whether the product of both factors could have too many decimals for DuckDB."""
    return all(
        (kind := type_of(each)) is not None
        and kind.kind is Kind.DECIMAL
        and not kind.precision
        and not isinstance(each, Literal | Parameter | Column)
        for each in (node.left, node.right)
    )


def _mixed(kinds: Sequence[Type | None]) -> bool:
    """Return whether numbers of these types are compared as DOUBLE."""
    known = {each.kind for each in kinds if each is not None}
    return len(known) > 1 and bool(known & FLOATS) and known <= NUMBERS


def _casts_alike(source: Type, target: Type) -> bool:
    """Return whether DuckDB casts values of one type to another as the server does."""
    if source.kind in INTEGERS:
        return target.kind in INTEGERS or target.kind is Kind.DOUBLE or target.kind is Kind.DECIMAL
    if source.kind is target.kind:
        return source.kind is not Kind.DECIMAL and not target.length
    if source.kind is Kind.DATE:
        return target.kind is Kind.TIMESTAMP
    return source.kind is Kind.REAL and target.kind is Kind.DOUBLE


def _word(node: Expression, words: Sequence[str]) -> str | None:
    if isinstance(node, Literal) and isinstance(node.value, str) and node.value.lower() in words:
        return node.value.lower()
    return None
