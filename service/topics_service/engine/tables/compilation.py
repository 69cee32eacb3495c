"""Expressions as functions of Python: one for WHERE, CHECK, DEFAULT, SET, filters of routes and the columns of results.

A tree becomes the source of a lambda over the values of a row by position, with the three-valued logic of SQL. Nothing
that a user wrote is in that source: constants, columns' places and functions are reached by names made here.
"""

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final, NamedTuple, cast

from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.tables import arithmetic, casts, documents, functions, patterns
from topics_service.engine.tables.casts import FLOATS, INTEGERS
from topics_service.engine.tables.errors import invalid_value, sql_error
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
    Side,
    Unary,
    children,
    type_of,
)
from topics_service.engine.tables.functions import Environment, Form
from topics_service.engine.tables.numbers import RANGES
from topics_service.engine.tables.types import Kind, Type, Value

Evaluator = Callable[[Sequence[Value], Sequence[Value] | None, Sequence[Value]], Value]
"""A compiled expression: of the row (NEW), the other row (OLD or EXCLUDED; None has NULLs only) and the parameters."""
Filter = Callable[[Sequence[Value], Sequence[Value] | None, Sequence[Value]], bool]
ListEvaluator = Callable[[Sequence[Value], Sequence[Value] | None, Sequence[Value]], list[Value]]

MAX_DEPTH: Final = 200
"""The most operators inside each other; chains of AND and of OR count once."""
MAX_NODES: Final = 50_000
MAX_BRANCHES: Final = 500
"""The most branches of a CASE, and the most items of IN if some are not constants."""
_INLINE: Final = 8
"""The depth of one lambda; a deeper operand gets its own. Parser and stack of Python have bounds too."""
_BRANCHES: Final = 8
_COMPARISONS: Final = frozenset({"=", "<>", "<", "<=", ">", ">="})
_OPPOSITE: Final = {"=": "<>", "<>": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
_PYTHON: Final = {"=": "==", "<>": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_WITH_NAN: Final = {
    # NaN equals NaN, and is above all other floats
    "=": "({0} == {1} or ({0} != {0} and {1} != {1}))",
    "<>": "({0} != {1} and ({0} == {0} or {1} == {1}))",
    "<": "({0} < {1} or ({1} != {1} and {0} == {0}))",
    "<=": "({0} <= {1} or {1} != {1})",
    ">": "({0} > {1} or ({0} != {0} and {1} == {1}))",
    ">=": "({0} >= {1} or {0} != {0})",
}
_DEFAULT: Final = Environment()


def compile_expression(
    expression: Expression, positions: Mapping[int, int], environment: Environment = _DEFAULT
) -> Evaluator:
    """Compile an expression; `positions` are those of columns in the rows, by column id.

    The evaluator raises `invalid_value`, `division_by_zero`. Raises `unsupported_sql` (54001) for one that is too deep
    or too large.
    """
    writer = _Writer(positions, environment)
    writer.prepare(expression)
    return cast(Evaluator, writer.function(writer.value(expression).text))


def compile_filter(expression: Expression, positions: Mapping[int, int], environment: Environment = _DEFAULT) -> Filter:
    """Compile a condition that only TRUE passes, as in WHERE."""
    writer = _Writer(positions, environment)
    writer.prepare(expression)
    return cast(Filter, writer.function(writer.test(expression, wanted=True)))


def compile_list(
    expressions: Sequence[Expression], positions: Mapping[int, int], environment: Environment = _DEFAULT
) -> ListEvaluator:
    """Compile several expressions into one function, as for the columns of a result."""
    writer = _Writer(positions, environment)
    for each in expressions:
        writer.prepare(each)
    text = ", ".join([writer.value(each).text for each in expressions])
    return cast(ListEvaluator, writer.function(f"[{text}]"))


class _Code(NamedTuple):
    """A piece of source whose value is that of a node."""

    text: str
    nullable: bool = True
    fails: bool = False
    """True if its evaluation may raise."""
    plain: bool = False
    """True for a name: never NULL, and free to repeat."""


class _Operands(NamedTuple):
    """Operands under names, and the test that none is NULL: empty if it can't be."""

    names: list[str]
    are_null: str
    are_there: str
    fails: bool


class _Writer:
    """Writes one expression, or several, as source."""

    def __init__(self, positions: Mapping[int, int], environment: Environment) -> None:
        self._positions = positions
        self._environment = environment
        self._names: dict[str, Any] = {"__builtins__": {}}
        self._temporaries = 0
        self._written: dict[int, _Code] = {}  # by the id of its node

    def function(self, text: str) -> Any:
        return eval(f"lambda r, o, p: {text}", self._names)  # of names, numbers and templates from this module

    def prepare(self, expression: Expression) -> None:
        """Write what lies deep in a tree, the deepest first, so that recursion is short. Refuse what is too deep."""
        nodes, deep = 0, []
        stack = [(expression, 1, False)]
        while stack:
            node, depth, continues = stack.pop()
            nodes += 1
            if depth > MAX_DEPTH or nodes > MAX_NODES:
                what = f"deeper than {MAX_DEPTH} operators" if depth > MAX_DEPTH else f"longer than {MAX_NODES} parts"
                raise sql_error(Reason.UNSUPPORTED_SQL, f"an expression is {what}", sqlstate="54001")
            below = children(node)
            if below and depth % _INLINE == 0 and not continues:
                deep.append(node)
            for child in below:
                chained = _continues(node, child)
                stack.append((child, depth if chained else depth + 1, chained))
        for node in reversed(deep):
            self._written[id(node)] = self._apart(self.value(node))

    def _apart(self, code: _Code) -> _Code:
        """A piece of source as a function of its own."""
        return code._replace(text=f"{self._constant(self.function(code.text))}(r, o, p)", plain=False)

    # ------------------------------------------------------------------ names

    def _constant(self, value: object) -> str:
        name = f"k{len(self._names)}"
        self._names[name] = value
        return name

    def _temporary(self) -> str:
        self._temporaries += 1
        return f"t{self._temporaries}"

    def _operands(self, codes: Sequence[_Code]) -> _Operands:
        """Name operands. All are evaluated, in their order, unless an earlier one is NULL and none after it fails."""
        names, nulls, theres = [], [], []
        eager = any(code.fails for code in codes[1:])
        for code in codes:
            if code.plain:
                names.append(code.text)
                continue
            name = self._temporary()
            names.append(name)
            nulls.append(f"({name} := {code.text}) is None")
            theres.append(f"({name} := {code.text}) is not None")
        fails = any(code.fails for code in codes)
        if eager:
            return _Operands(
                names, " | ".join(f"({each})" for each in nulls), " & ".join(f"({each})" for each in theres), fails
            )
        return _Operands(names, " or ".join(nulls), " and ".join(theres), fails)

    # ------------------------------------------------------------------ nodes

    def value(self, node: Expression) -> _Code:
        """The source of a node's value, with None for NULL."""
        return self._written.get(id(node)) or _HANDLERS[node.__class__](self, node)

    def literal(self, node: Literal) -> _Code:
        if node.value is None:
            return _Code("None")
        if node.value is True or node.value is False:
            return _Code("True" if node.value else "False", nullable=False, plain=True)
        return _Code(self._constant(node.value), nullable=False, plain=True)

    def column(self, node: Column) -> _Code:
        place = int(self._positions[node.column])
        return _Code(f"r[{place}]" if node.side is Side.NEW else f"(None if o is None else o[{place}])")

    def parameter(self, node: Parameter) -> _Code:
        return _Code(f"p[{int(node.number) - 1}]")

    def unary(self, node: Unary) -> _Code:
        if node.op == "not":
            return self._logic(node)
        code = self.value(node.operand)
        made = node.type or type_of(node.operand)
        negate = None if made is None else arithmetic.negation(made.kind)
        if negate is None:
            raise _unknown_types(node.op)
        return self._strict(negate, [code])

    def binary(self, node: Binary) -> _Code:
        if node.op in ("and", "or"):
            return self._logic(node)
        if node.op in _COMPARISONS:
            operands, text = self._comparison(node, node.op)
            return self._guarded(operands, text)
        if node.op in ("is distinct", "is not distinct"):
            left, right = self._converted([node.left, node.right])
            called = f"{self._constant(arithmetic.same)}({left.text}, {right.text})"
            text = called if node.op == "is not distinct" else f"(not {called})"
            return _Code(text, nullable=False, fails=left.fails or right.fails)
        return self._computed(node)

    def _computed(self, node: Binary) -> _Code:
        if node.type is None:
            if isinstance(node.left, Literal) and isinstance(node.right, Literal):
                return _Code("None")
            raise _unknown_types(node.op)
        kind = node.type.kind
        sides = [node.left, node.right]
        if kind in FLOATS:
            codes = [self._as(each, Type(Kind.DOUBLE)) for each in sides]
        elif kind is Kind.TEXT:
            codes = [self._as(each, Type(Kind.TEXT)) for each in sides]
        else:
            codes = [self.value(each) for each in sides]
        if kind in INTEGERS and node.op in ("+", "-", "*"):
            operands = self._operands(codes)
            low, high = RANGES[kind]
            made = self._temporary()
            refuse = f"{self._constant(arithmetic.refuse_overflow(kind))}()"
            computed = f"({made} := {operands.names[0]} {node.op} {operands.names[1]})"
            text = f"({made} if {self._constant(low)} <= {computed} <= {self._constant(high)} else {refuse})"
            return self._guarded(operands, text)._replace(fails=True)
        operate = arithmetic.operator(node.op, kind)
        if operate is None:
            raise _unknown_types(node.op)
        return self._strict(operate, codes)

    def _strict(self, function: Callable[..., Any], codes: Sequence[_Code], *, nullable: bool = False) -> _Code:
        """A call that gives NULL if an argument is NULL."""
        operands = self._operands(codes)
        code = self._guarded(operands, f"{self._constant(function)}({', '.join(operands.names)})")
        return code._replace(nullable=code.nullable or nullable, fails=True)

    def _guarded(self, operands: _Operands, text: str) -> _Code:
        if not operands.are_null:
            return _Code(text, nullable=False, fails=operands.fails)
        return _Code(f"(None if {operands.are_null} else {text})", fails=operands.fails)

    # ------------------------------------------------------------------ logic

    def _logic(self, node: Unary | Binary) -> _Code:
        """AND, OR and NOT as values: TRUE, FALSE or NULL."""
        if isinstance(node, Unary):
            operand = self.value(node.operand)
            operands = self._operands([operand])
            return self._guarded(operands, f"(not {operands.names[0]})")
        codes = [self.value(each) for each in _chain(node)]
        fails = any(code.fails for code in codes)
        if not any(code.nullable for code in codes):
            return _Code(f"({f' {node.op} '.join([code.text for code in codes])})", nullable=False, fails=fails)
        ends, goes_on = ("False", "True") if node.op == "and" else ("True", "False")
        names = [self._temporary() for _ in codes]
        ended = " or ".join(f"({name} := {code.text}) is {ends}" for name, code in zip(names, codes, strict=True))
        unknown = " or ".join(f"{name} is None" for name in names)
        return _Code(f"({ends} if {ended} else None if {unknown} else {goes_on})", fails=fails)

    def test(self, node: Expression, *, wanted: bool) -> str:
        """The source of a test that passes if a condition is TRUE, or FALSE: neither for NULL."""
        if id(node) in self._written:
            return f"({self._written[id(node)].text} is {wanted})"
        if isinstance(node, Unary) and node.op == "not":
            return self.test(node.operand, wanted=not wanted)
        if isinstance(node, Binary) and node.op in ("and", "or"):
            joined = " and " if (node.op == "and") == wanted else " or "
            return f"({joined.join([self.test(each, wanted=wanted) for each in _chain(node)])})"
        if isinstance(node, Binary) and node.op in _COMPARISONS:
            operands, text = self._comparison(node, node.op if wanted else _OPPOSITE[node.op])
            return f"({operands.are_there} and {text})" if operands.are_there else text
        if isinstance(node, IsNull):
            return f"({self.value(node.operand).text} is {'not ' if node.negated == wanted else ''}None)"
        if isinstance(node, InList):
            return self._membership(node, wanted=wanted)
        code = self.value(node)
        if code.nullable:
            return f"({code.text} is {wanted})"
        return code.text if wanted else f"(not {code.text})"

    def is_null(self, node: IsNull) -> _Code:
        return _Code(self.test(node, wanted=True), nullable=False, fails=True)

    def is_truth(self, node: IsTruth) -> _Code:
        text = self.test(node.operand, wanted=node.truth)
        return _Code(f"(not {text})" if node.negated else text, nullable=False, fails=True)

    # ------------------------------------------------------------ comparisons

    def _comparison(self, node: Binary, op: str) -> tuple[_Operands, str]:
        left, right = type_of(node.left), type_of(node.right)
        operands = self._operands(self._converted([node.left, node.right]))
        a, b = operands.names
        if left is None or right is None:
            return operands, f"{self._constant(arithmetic.comparison(op))}({a}, {b})"
        if (left.kind in FLOATS or right.kind in FLOATS) and not (_is_number(node.left) or _is_number(node.right)):
            return operands, _WITH_NAN[op].format(a, b)
        if left.kind in FLOATS or right.kind in FLOATS:
            return operands, _with_constant(op, a, b, left_constant=_is_number(node.left))
        return operands, f"{a} {_PYTHON[op]} {b}"

    def _converted(self, nodes: Sequence[Expression]) -> list[_Code]:
        """Operands that are compared: numbers as floats if one is, dates as timestamps."""
        kinds = {each.kind for each in map(type_of, nodes) if each is not None}
        if kinds & FLOATS and len(kinds) > 1:
            return [self._as(each, Type(Kind.DOUBLE)) for each in nodes]
        if kinds == {Kind.DATE, Kind.TIMESTAMP}:
            return [self._as(each, Type(Kind.TIMESTAMP)) for each in nodes]
        return [self.value(each) for each in nodes]

    def _as(self, node: Expression, wanted: Type | None) -> _Code:
        """A node's value as one of another type, where the languages of both agree that it is the same."""
        given = type_of(node)
        if wanted is None or given is None or given.kind is wanted.kind:
            return self.value(node)
        convert = casts.caster(given, wanted)
        if convert is None:
            return self.value(node)
        if isinstance(node, Literal) and node.value is not None:
            return _Code(self._constant(convert(node.value)), nullable=False, plain=True)
        return self._strict(convert, [self.value(node)])

    def in_list(self, node: InList) -> _Code:
        operand = self._temporary()
        found = self._found(node, operand)
        if found is None:
            if len(node.items) > MAX_BRANCHES and not all(isinstance(each, Literal) for each in node.items):
                message = f"IN has {len(node.items)} items that are not all constants, at most {MAX_BRANCHES}"
                raise sql_error(Reason.UNSUPPORTED_SQL, message, sqlstate="54001")
            first, *others = self._converted([node.operand, *node.items])
            contains = self._constant(arithmetic.contains if not node.negated else arithmetic.lacks)
            items = "".join([f"{code.text}, " for code in others])
            return _Code(f"{contains}({first.text}, ({items}))", fails=any(code.fails for code in (first, *others)))
        code = self.value(node.operand)
        if _has_null(node):
            text = f"({not node.negated} if {found} else None)"
        else:
            text = f"(not {found})" if node.negated else found
        return _Code(f"(None if ({operand} := {code.text}) is None else {text})", fails=code.fails)

    def _membership(self, node: InList, *, wanted: bool) -> str:
        operand = self._temporary()
        found = self._found(node, operand)
        if found is None:
            return f"({self.in_list(node).text} is {wanted})"
        there = f"({operand} := {self.value(node.operand).text}) is not None"
        if wanted != node.negated:
            return f"({there} and {found})"
        return f"({there} and {'False' if _has_null(node) else f'not {found}'})"

    def _found(self, node: InList, operand: str) -> str | None:
        """The test whether an operand is in a set of constants; None if the list has others."""
        types = [type_of(each) for each in (node.operand, *node.items)]
        kinds = {each.kind for each in types if each is not None}
        if type_of(node.operand) is None or not all(isinstance(each, Literal) for each in node.items):
            return None
        if kinds & FLOATS or (len(kinds) > 1 and not kinds <= casts.NUMBERS):
            return None
        values = frozenset([each.value for each in node.items if isinstance(each, Literal)]) - {None}
        return f"({operand} in {self._constant(values)})"

    def like(self, node: Like) -> _Code:
        operand = self.value(node.operand)
        if isinstance(node.pattern, Literal) and isinstance(node.pattern.value, str):
            match = patterns.matcher(node.pattern.value, node.escape, node.ignore_case)
            code = self._strict(match, [operand])._replace(fails=operand.fails)
        else:
            escape, ignore_case = node.escape, node.ignore_case
            code = self._strict(
                lambda text, pattern: patterns.matcher(pattern, escape, ignore_case)(text),
                [operand, self.value(node.pattern)],
            )
        if not node.negated:
            return code
        operands = self._operands([code])
        return self._guarded(operands, f"(not {operands.names[0]})")

    # ------------------------------------------------------------- other nodes

    def case(self, node: Case) -> _Code:
        if len(node.branches) > MAX_BRANCHES:
            message = f"CASE has {len(node.branches)} branches, at most {MAX_BRANCHES}"
            raise sql_error(Reason.UNSUPPORTED_SQL, message, sqlstate="54001")
        if len(node.branches) > _BRANCHES:
            other = self._apart(self.case(Case(node.branches[_BRANCHES:], node.otherwise, node.type)))
        else:
            other = _Code("None") if node.otherwise is None else self._as(node.otherwise, node.type)
        made = [
            (self.test(test, wanted=True), self._as(result, node.type)) for test, result in node.branches[:_BRANCHES]
        ]
        text = " else ".join([*(f"{code.text} if {test}" for test, code in made), other.text])
        nullable = other.nullable or any(code.nullable for _, code in made)
        return _Code(f"({text})", nullable=nullable, fails=True)

    def cast(self, node: Cast) -> _Code:
        given = type_of(node.operand)
        convert = casts.caster(given, node.type)
        if convert is None:
            return self.value(node.operand)
        if isinstance(node.operand, Literal):
            folded = self._folded(convert, [node.operand])
            if folded is not None:
                return folded
        return self._strict(convert, [self.value(node.operand)], nullable=given is not None and given.kind is Kind.JSON)

    def _folded(self, function: Callable[..., Any], arguments: Sequence[Expression]) -> _Code | None:
        """The result of a call with constants; None if there is none, so that it is raised when it is asked for."""
        values = [each.value for each in arguments if isinstance(each, Literal)]
        if None in values:
            return _Code("None")
        try:
            return self.literal(Literal(function(*values)))
        except TopicsError:
            return None

    def json_get(self, node: JsonGet) -> _Code:
        get = documents.get_text if node.type.kind is Kind.TEXT else documents.get
        code = self._strict(get, [self.value(node.operand), self.value(node.key)], nullable=True)
        return code._replace(fails=False)

    def call(self, node: Call) -> _Code:
        found = functions.resolve(node.function, [type_of(each) for each in node.arguments])
        match found.function.form:
            case Form.COMMON:
                return self._common(found, node)
            case Form.ENVIRONMENT:
                text = f"{self._constant(found.signature.implementation)}({self._constant(self._environment)})"
                return _Code(text, nullable=False, fails=True)
            case Form.TEXTS:
                texts = [self._as(each, Type(Kind.TEXT)) for each in node.arguments]
                called = ", ".join([code.text for code in texts])
                return _Code(f"{self._constant(found.signature.implementation)}({called})", nullable=False, fails=True)
            case _:
                return self._applied(found, node.arguments)

    def _applied(self, found: functions.Resolved, arguments: Sequence[Expression]) -> _Code:
        function = found.signature.implementation
        assert function is not None
        pairs = list(zip(arguments, found.arguments, strict=True))
        if all(isinstance(each, Literal) and _kind(each) is _kind_of(wanted) for each, wanted in pairs):
            folded = self._folded(function, arguments)
            if folded is not None:
                return folded
        return self._strict(function, [self._as(*each) for each in pairs])

    def _common(self, found: functions.Resolved, node: Call) -> _Code:
        codes = [self._as(each, found.result) for each in node.arguments]
        fails = any(code.fails for code in codes)
        match found.function.name:
            case "coalesce":
                names = [self._temporary() for _ in codes[1:]]
                tests = [
                    f"{name} if ({name} := {code.text}) is not None" for name, code in zip(names, codes, strict=False)
                ]
                text = " else ".join([*tests, codes[-1].text])
                return _Code(f"({text})", nullable=all(code.nullable for code in codes), fails=fails)
            case "nullif":
                first = self._temporary()
                same = self._constant(arithmetic.same)
                return _Code(
                    f"(None if {same}(({first} := {codes[0].text}), {codes[1].text}) else {first})", fails=fails
                )
            case name:
                pick = self._constant(arithmetic.greatest if name == "greatest" else arithmetic.least)
                called = ", ".join([code.text for code in codes])
                return _Code(f"{pick}({called})", nullable=all(code.nullable for code in codes), fails=fails)


_HANDLERS: Final[dict[type, Callable[[_Writer, Any], _Code]]] = {
    Literal: _Writer.literal, Column: _Writer.column, Parameter: _Writer.parameter, Unary: _Writer.unary,
    Binary: _Writer.binary, IsNull: _Writer.is_null, IsTruth: _Writer.is_truth, InList: _Writer.in_list,
    Like: _Writer.like, Case: _Writer.case, Cast: _Writer.cast, JsonGet: _Writer.json_get, Call: _Writer.call,
}  # fmt: skip


def _continues(node: Expression, child: Expression) -> bool:
    """Tell whether a node and its operand are one chain of AND or OR."""
    return isinstance(node, Binary) and isinstance(child, Binary) and node.op == child.op and node.op in ("and", "or")


def _chain(node: Binary) -> list[Expression]:
    """The operands of a chain of AND or OR, in order."""
    found: list[Expression] = []
    stack: list[Expression] = [node]
    while stack:
        each = stack.pop()
        if isinstance(each, Binary) and each.op == node.op:
            stack += (each.right, each.left)
        else:
            found.append(each)
    return found


def _has_null(node: InList) -> bool:
    return any(isinstance(each, Literal) and each.value is None for each in node.items)


def _kind(node: Expression) -> Kind | None:
    return _kind_of(type_of(node))


def _kind_of(sql_type: Type | None) -> Kind | None:
    return None if sql_type is None else sql_type.kind


def _is_number(node: Expression) -> bool:
    """Tell whether a node is a constant other than NULL and NaN."""
    return isinstance(node, Literal) and isinstance(node.value, int | float | Decimal) and node.value == node.value


def _with_constant(op: str, a: str, b: str, *, left_constant: bool) -> str:
    """Compare a float with a constant: the one that may be NaN is above it."""
    plain = f"{a} {_PYTHON[op]} {b}"
    other = b if left_constant else a
    if (op in ("<", "<=") and left_constant) or (op in (">", ">=") and not left_constant):
        return f"({plain} or {other} != {other})"
    return f"({plain})"


def _unknown_types(op: str) -> TopicsError:
    return invalid_value(f"the types of the operands of {op} are not known: write a CAST", sqlstate="42P18")
