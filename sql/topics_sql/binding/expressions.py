"""Expressions of the engine from those of the text: columns found, values typed, as PostgreSQL does.

A string in quotes and a parameter have no type of their own: they take that of what they meet.
"""

from collections.abc import Callable, Sequence
from decimal import ROUND_HALF_UP, Decimal
from typing import Any, Final

from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.tables import aggregates, calendar, casts, functions, values
from topics_service.engine.tables.errors import invalid_value
from topics_service.engine.tables.expressions import (
    Binary,
    Call,
    Case,
    Cast,
    Expression,
    InList,
    IsNull,
    IsTruth,
    JsonGet,
    Like,
    Literal,
    Parameter,
    Unary,
    type_of,
)
from topics_service.engine.tables.functions import Form, Volatility
from topics_service.engine.tables.types import (
    BIGINT,
    BOOLEAN,
    DATE,
    DECIMAL,
    DOUBLE,
    INTEGER,
    JSON,
    TEXT,
    TIMESTAMP,
    Kind,
    Type,
)
from topics_sql import syntax
from topics_sql.binding.scope import Context, Relation, find_column
from topics_sql.binding.types import resolve, without_bounds
from topics_sql.syntax import Tree
from topics_sql.tokens import words

MAX_DIGITS: Final = 400
INTERVAL_FUNCTIONS: Final = frozenset({"date_add", "date_subtract", "date_bin"})
AGGREGATES: Final = words(
    """approx_count_distinct array_agg corr covar_pop covar_samp first group_concat grouping json_object_agg
    jsonb_agg jsonb_object_agg last listagg median regr_slope"""
)
"""Aggregates of PostgreSQL and others that there are none of."""


class Expressions:
    """Binds expressions over some relations.

    `volatile` false: only immutable functions (routes, checks). `parameters` false: no `$1` (definitions).
    """

    def __init__(
        self, context: Context, relations: Sequence[Relation] = (), *, volatile: bool = True, parameters: bool = True
    ) -> None:
        self.context = context
        self.relations = relations
        self.inner: Callable[[Tree], Expression] | None = None
        """Binds queries in the place of values; None where they are refused."""
        self._volatile = volatile
        self._parameters = parameters

    # -------------------------------------------------------------------- entries

    def value(self, tree: Tree) -> Expression:
        """Bind an expression of any type; a string alone is TEXT."""
        bound = self.bind(tree)
        return Literal(bound.value, TEXT) if is_untyped_text(bound) and isinstance(bound, Literal) else bound

    def condition(self, tree: Tree) -> Expression:
        """Bind a condition. Raises `invalid_value` if it is not BOOLEAN."""
        bound = self.settle(self.bind(tree), BOOLEAN, tree.at)
        kind = type_of(bound)
        if kind is not None and kind.kind is not Kind.BOOLEAN:
            raise self._mismatch(tree.at, f"a condition is BOOLEAN, not {kind.name}")
        return bound

    def whole_number(self, tree: Tree, what: str) -> Expression:
        """Bind the number of LIMIT and OFFSET."""
        bound = self.settle(self.bind(tree), BIGINT, tree.at)
        if isinstance(bound, Literal) and isinstance(bound.value, int) and bound.value < 0:
            raise self.context.refuse(tree.at, f"{what} must not be negative", Reason.INVALID_VALUE, "2201W")
        kind = type_of(bound)
        if kind is not None and kind.kind not in casts.INTEGERS:
            raise self._mismatch(tree.at, f"{what} is a whole number, not {kind.name}")
        return bound

    def assigned(self, tree: Tree, target: Type, what: str) -> Expression:
        """Bind a value that goes into a column."""
        return self.assign(self.bind(tree), target, what, tree.at)

    def assign(self, bound: Expression, target: Type, what: str, at: int) -> Expression:
        """Fit a value to the type of a column. Raises `invalid_value`."""
        kind = type_of(bound)
        if isinstance(bound, Literal):
            with self.context.placed(at):
                if kind is None:
                    return Literal(None if bound.value is None else values.from_text(bound.value, target, what), target)
                if kind.kind in casts.NUMBERS and target.kind in casts.NUMBERS:
                    return Literal(values.coerce(rounded(bound.value, target), target, what), target)
        bound = self.settle(bound, target, at)
        kind = type_of(bound)
        if kind is None or kind.kind is target.kind:
            return bound
        kinds = {kind.kind, target.kind}
        if kinds <= casts.NUMBERS or kinds == {Kind.DATE, Kind.TIMESTAMP} or target.kind is Kind.TEXT:
            return Cast(bound, target)
        raise self._mismatch(at, f"{what} is {target.name}, not {kind.name}: cast the value")

    # -------------------------------------------------------------------- binding

    def bind(self, tree: Tree) -> Expression:
        """Bind an expression; a string alone and a parameter are left without type."""
        return BINDERS[tree.__class__](self, tree)

    def constant(self, tree: syntax.Constant) -> Expression:
        """Bind a literal."""
        if tree.kind == "number":
            with self.context.placed(tree.at):
                return typed_number(python_number(str(tree.value)))
        return Literal(tree.value, BOOLEAN if tree.kind == "boolean" else None)

    def parameter(self, tree: syntax.Parameter) -> Expression:
        """Bind `$1`."""
        if not self._parameters:
            raise self.context.refuse(tree.at, "a definition has no parameters", Reason.INVALID_REQUEST, "42P02")
        return Parameter(tree.number, self.context.use_parameter(tree.number))

    def name(self, tree: syntax.Name) -> Expression:
        """Bind a column."""
        return find_column(self.context, self.relations, tree.parts, tree.at)

    def prefix(self, tree: syntax.Prefix) -> Expression:
        """Bind NOT and signs; the sign of a number is part of it."""
        if tree.op == "not":
            return Unary("not", self.condition(tree.operand), BOOLEAN)
        operand = self.bind(tree.operand)
        kind = type_of(operand)
        is_number = kind is not None and kind.kind in casts.NUMBERS
        if is_number and isinstance(tree.operand, syntax.Constant) and isinstance(operand, Literal):
            return negated(operand) if tree.op == "-" else operand
        if kind is None:
            kind = DOUBLE if isinstance(operand, Literal) else BIGINT
            operand = self.settle(operand, kind, tree.operand.at)
        if kind.kind not in casts.NUMBERS:
            raise self._mismatch(tree.at, f"{tree.op} takes a number, not {kind.name}")
        return Unary("-", operand, without_bounds(kind)) if tree.op == "-" else operand

    def infix(self, tree: syntax.Infix) -> Expression:
        """Bind AND, OR, comparisons, arithmetic and `||`."""
        op = tree.op
        if op in ("and", "or"):
            return Binary(op, self.condition(tree.left), self.condition(tree.right), BOOLEAN)
        if op in ("+", "-"):
            if tree.right.__class__ is syntax.Interval:
                return self._moved(op, tree.left, tree.right, tree.at)
            if op == "+" and tree.left.__class__ is syntax.Interval:
                return self._moved(op, tree.right, tree.left, tree.at)
        left, right = self.bind(tree.left), self.bind(tree.right)
        return self._binary(op, left, right, tree.at, tree.left.at, tree.right.at)

    def _moved(self, op: str, moment: Tree, interval: Tree, at: int) -> Expression:
        """Bind a time and an interval, which is added or taken away."""
        assert isinstance(interval, syntax.Interval)
        left, length = self.settle(self.bind(moment), TIMESTAMP, moment.at), self.length(interval)
        name = "date_add" if op == "+" else "date_subtract"
        kind = type_of(left)
        if kind is not None and kind.kind not in (Kind.DATE, Kind.TIMESTAMP):
            message = f"there is no operator {kind.name} {op} INTERVAL"
            raise self.context.refuse(at, message, Reason.FUNCTION_NOT_FOUND)
        return Call(name, (left, length), TIMESTAMP)

    def length(self, tree: syntax.Interval) -> Expression:
        """Bind an interval as its text."""
        bound = self.settle(self.bind(tree.operand), TEXT, tree.operand.at)
        kind = type_of(bound)
        if kind is not None and kind.kind is not Kind.TEXT:
            raise self._mismatch(tree.at, f"an INTERVAL is made of TEXT, not of {kind.name}")
        if isinstance(bound, Literal) and bound.value is not None:
            with self.context.placed(tree.operand.at):
                calendar.parse_interval(str(bound.value))
        return bound

    def interval(self, tree: syntax.Interval) -> Expression:
        """Refuse an interval that stands alone: it is no type of values."""
        message = "an INTERVAL stands beside a time, with + or -, or in a function that takes one"
        raise self.context.refuse(tree.at, message, Reason.UNSUPPORTED_SQL)

    def _binary(self, op: str, left: Expression, right: Expression, at: int, left_at: int, right_at: int) -> Expression:
        left_type, right_type = type_of(left), type_of(right)
        if left_type is None:
            left = self.settle_beside(left, op, right, left_at)
        if right_type is None:
            right = self.settle_beside(right, op, left, right_at)
        with self.context.placed(at):
            return Binary(op, left, right, functions.operator(op, type_of(left), type_of(right)))

    def settle_beside(self, bound: Expression, op: str, other: Expression, at: int) -> Expression:
        """Give a string or a parameter the type that it has beside another operand."""
        kind = type_of(other)
        if op == "||":
            kind = kind if kind is not None and kind.kind is Kind.BYTES else TEXT
        elif kind is None:
            if is_untyped_text(bound) or is_untyped_text(other):
                kind = TEXT if op in functions.COMPARISONS else BIGINT
            elif op not in functions.COMPARISONS:
                kind = BIGINT
        elif op == "+" and kind.kind is Kind.DATE:
            kind = INTEGER
        elif op == "-" and kind.kind is Kind.DATE and is_untyped_text(bound):
            kind = DATE
        return bound if kind is None else self.settle(bound, without_bounds(kind), at)

    def is_(self, tree: syntax.Is) -> Expression:
        """Bind IS NULL, IS TRUE and so on."""
        if tree.what == "null":
            return IsNull(self.value(tree.operand), tree.negated)
        return IsTruth(self.condition(tree.operand), tree.what == "true", tree.negated)

    def in_(self, tree: syntax.In) -> Expression:
        """Bind IN with a list."""
        operand = self.bind(tree.operand)
        items = [self.bind(item) for item in tree.items]
        if type_of(operand) is None:
            known = next((item for item in items if type_of(item) is not None), None)
            known = known or next((item for item in items if is_untyped_text(item)), operand)
            operand = self.settle_beside(operand, "=", known, tree.operand.at)
        for place, (item, each) in enumerate(zip(items, tree.items, strict=True)):
            if type_of(item) is None:
                items[place] = self.settle_beside(item, "=", operand, each.at)
            else:
                with self.context.placed(each.at):
                    functions.operator("=", type_of(operand), type_of(item))
        return InList(operand, tuple(items), tree.negated)

    def like(self, tree: syntax.Like) -> Expression:
        """Bind LIKE and ILIKE."""
        operand, pattern = self._text(tree.operand), self._text(tree.pattern)
        return Like(operand, pattern, tree.ignore_case, tree.negated, tree.escape)

    def _text(self, tree: Tree) -> Expression:
        bound = self.settle(self.bind(tree), TEXT, tree.at)
        kind = type_of(bound)
        if kind is not None and kind.kind is not Kind.TEXT:
            message = f"LIKE takes TEXT, not {kind.name}: cast it"
            raise self.context.refuse(tree.at, message, Reason.FUNCTION_NOT_FOUND)
        return bound

    def case(self, tree: syntax.Case) -> Expression:
        """Bind CASE; that with an operand becomes comparisons with it."""
        conditions: list[Expression] = []
        if tree.operand is None:
            conditions = [self.condition(when) for when, _ in tree.branches]
        else:
            operand, at = self.bind(tree.operand), tree.operand.at
            for when, _ in tree.branches:
                conditions.append(self._binary("=", operand, self.bind(when), when.at, at, when.at))
        trees = [then for _, then in tree.branches] + ([] if tree.otherwise is None else [tree.otherwise])
        results, kind = self._alike([self.bind(each) for each in trees], trees, tree.at)
        branches = tuple(zip(conditions, results, strict=False))
        return Case(branches, None if tree.otherwise is None else results[-1], kind)

    def cast(self, tree: syntax.Cast) -> Expression:
        """Bind CAST; that of a string is a literal of the type."""
        target = resolve(self.context.text, tree.type)
        read_as = TEXT if target.kind is Kind.TEXT else target  # a cast cuts what is too long
        operand = self.settle(self.bind(tree.operand), read_as, tree.operand.at)
        kind = type_of(operand)
        if kind == target:
            return operand
        if isinstance(operand, Literal) and isinstance(operand.value, int) and target.kind is Kind.BIGINT:
            return Literal(int(operand.value), target)
        with self.context.placed(tree.at):
            casts.caster(kind, target)
        return Cast(operand, target)

    def json_get(self, tree: syntax.JsonGet) -> Expression:
        """Bind `->` and `->>`."""
        operand = self.settle(self.bind(tree.operand), JSON, tree.operand.at)
        kind = type_of(operand)
        key = self.settle(self.bind(tree.key), TEXT, tree.key.at)
        key_kind = type_of(key)
        takes_key = key_kind is None or key_kind.kind is Kind.TEXT or key_kind.kind in casts.INTEGERS
        if not takes_key or (kind is not None and kind.kind is not Kind.JSON):
            message = "-> and ->> take JSON and the name of a member or an index"
            raise self.context.refuse(tree.at, message, Reason.FUNCTION_NOT_FOUND)
        return JsonGet(operand, key, TEXT if tree.as_text else JSON)

    def call(self, tree: syntax.Call) -> Expression:
        """Bind a function."""
        name = tree.function
        function = functions.FUNCTIONS.get(name)
        if function is None and (name in AGGREGATES or name in aggregates.AGGREGATES):
            here = " here" if name in aggregates.AGGREGATES else ""
            raise self.context.refuse(tree.at, f"{name}() is not supported{here}", Reason.UNSUPPORTED_SQL)
        if not tree.is_plain or tree.within:
            raise self.context.refuse(tree.at, "aggregates and windows are not supported here", Reason.UNSUPPORTED_SQL)
        if tree.star or tree.distinct:
            raise self.context.refuse(tree.at, f"{name} takes values")
        if function is not None and not self._volatile and function.volatility is not Volatility.IMMUTABLE:
            message = f"{name}() may not be used here: its result is not always the same"
            raise self.context.refuse(tree.at, message, Reason.UNSUPPORTED_SQL, "42P17")
        takes = name in INTERVAL_FUNCTIONS
        arguments = [
            self.length(each) if takes and isinstance(each, syntax.Interval) else self.bind(each)
            for each in tree.arguments
        ]
        if function is not None and function.form is Form.COMMON:
            arguments, _ = self._alike(arguments, tree.arguments, tree.at)
        with self.context.placed(tree.at):
            found = functions.resolve(name, [type_of(each) for each in arguments])
        for place, (each, wanted) in enumerate(zip(tree.arguments, found.arguments, strict=True)):
            if wanted is not None or is_untyped_text(arguments[place]):
                arguments[place] = self.settle(arguments[place], wanted or TEXT, each.at)
        return Call(name, tuple(arguments), found.result)

    def subquery(self, tree: syntax.Subquery | syntax.Exists | syntax.InQuery | syntax.Quantified) -> Expression:
        """Bind a query in the place of a value, where there may be one."""
        if self.inner is not None:
            return self.inner(tree)
        raise self.context.refuse(tree.query.at, "subqueries are not supported here", Reason.UNSUPPORTED_SQL)

    # --------------------------------------------------------------------- typing

    def settle(self, bound: Expression, kind: Type, at: int) -> Expression:
        """Give a type to a string, a NULL or a parameter that has none."""
        if isinstance(bound, Literal):
            if bound.type is None:
                with self.context.placed(at):
                    value = None if bound.value is None else values.from_text(bound.value, kind, "the text")
                    return Literal(value, kind)
        elif isinstance(bound, Parameter) and bound.type is None:
            return Parameter(bound.number, self.context.type_parameter(bound.number, kind, at))
        return bound

    def _alike(
        self, bound: Sequence[Expression], trees: Sequence[Tree], at: int
    ) -> tuple[list[Expression], Type | None]:
        """Bring values to one type: branches of CASE, arguments of COALESCE."""
        with self.context.placed(at):
            kind = casts.common([type_of(each) for each in bound])
        if kind is None and any(is_untyped_text(each) for each in bound):
            kind = TEXT
        if kind is None:
            return list(bound), None
        wide = without_bounds(kind)
        return [self.settle(each, wide, tree.at) for each, tree in zip(bound, trees, strict=True)], kind

    def _mismatch(self, at: int, message: str) -> TopicsError:
        return self.context.refuse(at, message, Reason.INVALID_VALUE, "42804")


BINDERS: Final[dict[type, Callable[[Expressions, Any], Expression]]] = {
    syntax.Constant: Expressions.constant,
    syntax.Parameter: Expressions.parameter,
    syntax.Name: Expressions.name,
    syntax.Prefix: Expressions.prefix,
    syntax.Infix: Expressions.infix,
    syntax.Is: Expressions.is_,
    syntax.In: Expressions.in_,
    syntax.Like: Expressions.like,
    syntax.Case: Expressions.case,
    syntax.Cast: Expressions.cast,
    syntax.JsonGet: Expressions.json_get,
    syntax.Call: Expressions.call,
    syntax.Subquery: Expressions.subquery,
    syntax.Exists: Expressions.subquery,
    syntax.InQuery: Expressions.subquery,
    syntax.Quantified: Expressions.subquery,
    syntax.Interval: Expressions.interval,
}


def is_untyped_text(bound: Expression) -> bool:
    """Tell whether an expression is a string that has met no type yet."""
    return isinstance(bound, Literal) and bound.type is None and bound.value is not None


def python_number(text: str) -> int | Decimal:
    """Read a number of the text. Raises `invalid_value` for one beyond all types."""
    if len(text) <= MAX_DIGITS:
        if text.isdecimal() or (text[0] == "-" and text[1:].isdecimal()):
            return int(text)
        exponent = text.lower().partition("e")[2]
        if not exponent or abs(int(exponent)) <= MAX_DIGITS:
            return Decimal(text)
    raise invalid_value(f"the number {text[:40]} is out of range", out_of_range=True)


def negated(literal: Literal) -> Literal:
    """Make the literal of a number with the other sign, all of its digits."""
    value = literal.value
    return typed_number(-value if isinstance(value, int) else value.copy_negate() if value else value)


def typed_number(value: int | Decimal) -> Literal:
    """Make the literal of a number: INTEGER, BIGINT or DECIMAL."""
    if isinstance(value, int):
        if -(1 << 31) <= value < 1 << 31:
            return Literal(value, INTEGER)
        if -(1 << 63) <= value < 1 << 63:
            return Literal(value, BIGINT)
        return Literal(Decimal(value), DECIMAL)
    return Literal(value, DECIMAL)


def rounded(value: Any, target: Type) -> Any:
    """Round a number that goes into a column of integers, half away from zero."""
    if isinstance(value, Decimal) and target.kind in casts.INTEGERS:
        return value.to_integral_value(ROUND_HALF_UP)
    return value
