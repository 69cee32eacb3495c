"""Expressions of the engine from those of the text: columns found, values typed, as PostgreSQL does.

A string in quotes and a parameter have no type of their own: they take that of what they meet.
"""

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, Final

from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.tables import values
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
)
from topics_service.engine.tables.types import Kind, Type
from topics_sql import syntax
from topics_sql.binding import functions
from topics_sql.binding.scope import Context, Relation, find_column
from topics_sql.binding.types import (
    BIGINT,
    BOOLEAN,
    DECIMAL,
    DOUBLE,
    FLOATS,
    INTEGER,
    INTEGERS,
    JSON,
    TEXT,
    common,
    is_numeric,
    promoted,
    resolve,
    without_bounds,
)
from topics_sql.syntax import Tree
from topics_sql.tokens import words

MAX_DIGITS: Final = 400
ORDERED_ONLY: Final = frozenset({"<", "<=", ">", ">="})
AGGREGATES: Final = words(
    """any_value approx_count_distinct array_agg avg bool_and bool_or corr count every first group_concat json_agg
    jsonb_agg last listagg max median min mode stddev stddev_pop stddev_samp string_agg sum var_pop var_samp variance"""
)


class Expressions:
    """Binds expressions over some relations.

    `stable` false: only immutable functions (routes, checks). `parameters` false: no `$1` (definitions).
    """

    def __init__(
        self, context: Context, relations: Sequence[Relation] = (), *, volatile: bool = True, parameters: bool = True
    ) -> None:
        self.context = context
        self.relations = relations
        self._volatile = volatile
        self._parameters = parameters

    # -------------------------------------------------------------------- entries

    def value(self, tree: Tree) -> Expression:
        """Bind an expression of any type."""
        bound = self.bind(tree)
        if bound.__class__ is Literal and bound.type is None and bound.value is not None:
            return Literal(bound.value, TEXT)
        return bound

    def condition(self, tree: Tree) -> Expression:
        """Bind a condition. Raises `invalid_value` if it is not BOOLEAN."""
        return self._boolean(self.bind(tree), tree.at)

    def whole_number(self, tree: Tree, what: str) -> Expression:
        """Bind the number of LIMIT and OFFSET."""
        bound = self.settle(self.bind(tree), BIGINT, tree.at)
        if isinstance(bound, Literal) and isinstance(bound.value, int) and bound.value < 0:
            raise self.context.refuse(tree.at, f"{what} must not be negative", Reason.INVALID_VALUE, "2201W")
        kind = type_of(bound)
        if kind is not None and kind.kind not in INTEGERS:
            raise self._mismatch(tree.at, f"{what} is a whole number, not {kind.name}")
        return bound

    def assigned(self, tree: Tree, target: Type, what: str) -> Expression:
        """Bind a value that goes into a column."""
        return self.assign(self.bind(tree), target, what, tree.at)

    def assign(self, bound: Expression, target: Type, what: str, at: int) -> Expression:
        """Fit a value to the type of a column. Raises `invalid_value`."""
        if isinstance(bound, Literal) and (bound.type is None or is_numeric(bound.type)):
            with self.context.placed(at):
                if bound.type is None:
                    text = bound.value
                    return Literal(None if text is None else values.from_text(text, target, what), target)
                if is_numeric(target):
                    return Literal(values.coerce(bound.value, target, what), target)
        bound = self.settle(bound, target, at)
        kind = type_of(bound)
        if kind is None or kind.kind is target.kind:
            return bound
        numbers = is_numeric(kind) and is_numeric(target)
        days = {kind.kind, target.kind} == {Kind.DATE, Kind.TIMESTAMP}
        if numbers or days or target.kind is Kind.TEXT:
            return Cast(bound, target)
        raise self._mismatch(at, f"{what} is {target.name}, not {kind.name}: cast the value")

    # -------------------------------------------------------------------- binding

    def bind(self, tree: Tree) -> Expression:
        """Bind an expression; a string alone and a parameter are left without type."""
        return BINDERS[tree.__class__](self, tree)

    def constant(self, tree: syntax.Constant) -> Expression:
        if tree.kind == "number":
            with self.context.placed(tree.at):
                return number(str(tree.value))
        return Literal(tree.value, BOOLEAN if tree.kind == "boolean" else None)

    def parameter(self, tree: syntax.Parameter) -> Expression:
        if not self._parameters:
            raise self.context.refuse(tree.at, "a definition has no parameters", Reason.INVALID_REQUEST, "42P02")
        self.context.use_parameter(tree.number, tree.at)
        return Parameter(tree.number)

    def name(self, tree: syntax.Name) -> Expression:
        return find_column(self.context, self.relations, tree.parts, tree.at)

    def prefix(self, tree: syntax.Prefix) -> Expression:
        if tree.op == "not":
            return Unary("not", self.condition(tree.operand), BOOLEAN)
        operand = self.bind(tree.operand)
        if isinstance(operand, Literal) and isinstance(operand.value, int | Decimal) and is_numeric(operand.type):
            return typed_number(-operand.value if tree.op == "-" else operand.value)
        operand = self.settle(operand, DOUBLE if isinstance(operand, Literal) else BIGINT, tree.operand.at)
        kind = type_of(operand)
        if kind is not None and not is_numeric(kind):
            raise self._mismatch(tree.at, f"{tree.op} takes a number, not {kind.name}")
        return Unary("-", operand, kind) if tree.op == "-" else operand

    def infix(self, tree: syntax.Infix) -> Expression:
        op = tree.op
        if op in ("and", "or"):
            return Binary(op, self.condition(tree.left), self.condition(tree.right), BOOLEAN)
        left, right = self.bind(tree.left), self.bind(tree.right)
        if op == "||":
            return self._concatenation(left, right, tree)
        if op in ("+", "-", "*", "/", "%"):
            return self._arithmetic(op, left, right, tree)
        left, right = self._alike(left, right, tree)
        return Binary(op, left, right, BOOLEAN)

    def is_(self, tree: syntax.Is) -> Expression:
        if tree.what == "null":
            return IsNull(self.value(tree.operand), tree.negated)
        return IsTruth(self.condition(tree.operand), tree.what == "true", tree.negated)

    def in_(self, tree: syntax.In) -> Expression:
        operand = self.bind(tree.operand)
        items = [self.bind(item) for item in tree.items]
        if type_of(operand) is None:
            kind = next((kind for kind in map(type_of, items) if kind is not None), None)
            if kind is None and any(isinstance(each, Literal) and each.value is not None for each in (operand, *items)):
                kind = TEXT
            if kind is not None:
                operand = self.settle(operand, without_bounds(kind), tree.operand.at)
        bound = []
        for item, each in zip(items, tree.items, strict=True):
            operand, right = self._alike_at(operand, item, tree.operand.at, each.at, "=")
            bound.append(right)
        return InList(operand, tuple(bound), tree.negated)

    def like(self, tree: syntax.Like) -> Expression:
        operand = self._text(self.bind(tree.operand), tree.operand.at, "LIKE")
        pattern = self._text(self.bind(tree.pattern), tree.pattern.at, "LIKE")
        return Like(operand, pattern, tree.ignore_case, tree.negated, tree.escape)

    def case(self, tree: syntax.Case) -> Expression:
        operand = None if tree.operand is None else self.bind(tree.operand)
        conditions: list[Expression] = []
        for when, _ in tree.branches:
            if operand is None or tree.operand is None:
                conditions.append(self.condition(when))
            else:
                left, right = self._alike_at(operand, self.bind(when), tree.operand.at, when.at, "=")
                conditions.append(Binary("=", left, right, BOOLEAN))
        trees = [then for _, then in tree.branches] + ([] if tree.otherwise is None else [tree.otherwise])
        results, kind = self._unified([self.bind(each) for each in trees], trees, "CASE")
        branches = tuple(zip(conditions, results, strict=False))
        return Case(branches, results[-1] if tree.otherwise is not None else None, kind)

    def cast(self, tree: syntax.Cast) -> Expression:
        target = resolve(self.context.text, tree.type)
        operand = self.bind(tree.operand)
        if isinstance(operand, Literal) and operand.type is None:
            with self.context.placed(tree.operand.at):
                text = operand.value
                return Literal(None if text is None else values.from_text(text, target, "the text"), target)
        operand = self.settle(operand, target, tree.operand.at)
        kind = type_of(operand)
        if kind == target:
            return operand
        if isinstance(operand, Literal) and isinstance(operand.value, int) and target.kind is Kind.BIGINT:
            return Literal(operand.value, target)
        if kind is not None and not can_cast(kind.kind, target.kind):
            raise self.context.refuse(
                tree.at, f"{kind.name} can't be cast to {target.name}", Reason.INVALID_VALUE, "42846"
            )
        return Cast(operand, target)

    def json_get(self, tree: syntax.JsonGet) -> Expression:
        operand = self.settle(self.bind(tree.operand), JSON, tree.operand.at)
        kind = type_of(operand)
        if kind is not None and kind.kind is not Kind.JSON:
            raise self._mismatch(tree.at, f"-> and ->> take JSON, not {kind.name}")
        key = self.settle(self.bind(tree.key), TEXT, tree.key.at)
        key_type = type_of(key)
        if key_type is not None and key_type.kind is not Kind.TEXT and key_type.kind not in INTEGERS:
            raise self._mismatch(tree.key.at, f"the name of a member or an index, not {key_type.name}")
        return JsonGet(operand, key, TEXT if tree.as_text else JSON)

    def call(self, tree: syntax.Call) -> Expression:
        name = tree.function
        if name in AGGREGATES:
            what = "count(*) beside other columns is" if tree.star else "aggregates but count(*) are"
            raise self.context.refuse(tree.at, f"{what} not supported", Reason.UNSUPPORTED_SQL)
        if tree.star or tree.distinct:
            raise self.context.refuse(tree.at, f"{name} takes values")
        function = functions.find(name)
        if function is None:
            raise self.context.refuse(tree.at, f"function {name} does not exist", Reason.FUNCTION_NOT_FOUND)
        if not self._volatile and not function.immutable:
            message = f"{name}() may not be used here: its result is not always the same"
            raise self.context.refuse(tree.at, message, Reason.UNSUPPORTED_SQL, "42P17")
        arguments = [self.bind(each) for each in tree.arguments]
        if function.unified:
            arguments, _ = self._unified(arguments, tree.arguments, name)
        else:
            for position, each in enumerate(tree.arguments):
                kind = function.argument(position)
                arguments[position] = self.settle(
                    arguments[position], kind or TEXT, each.at, only_literals=kind is None
                )
        with self.context.placed(tree.at):
            result = functions.result(name, [type_of(each) for each in arguments])
        return Call(name, tuple(arguments), result)

    # --------------------------------------------------------------------- typing

    def settle(self, bound: Expression, kind: Type, at: int, *, only_literals: bool = False) -> Expression:
        """Give a type to a string or a parameter that has none."""
        if isinstance(bound, Literal):
            if bound.type is None:
                if bound.value is None:
                    return Literal(None, kind)
                with self.context.placed(at):
                    return Literal(values.from_text(bound.value, kind, "the text"), kind)
        elif isinstance(bound, Parameter) and bound.type is None and not only_literals:
            self.context.type_parameter(bound.number, kind, at)
            return Parameter(bound.number, kind)
        return bound

    def _alike(self, left: Expression, right: Expression, tree: syntax.Infix) -> tuple[Expression, Expression]:
        return self._alike_at(left, right, tree.left.at, tree.right.at, tree.op)

    def _alike_at(
        self, left: Expression, right: Expression, left_at: int, right_at: int, op: str
    ) -> tuple[Expression, Expression]:
        """Make two values comparable."""
        left_type, right_type = type_of(left), type_of(right)
        if left_type is None and right_type is None:
            if any(isinstance(each, Literal) and each.value is not None for each in (left, right)):
                left, right = self.settle(left, TEXT, left_at), self.settle(right, TEXT, right_at)
            return left, right
        if left_type is None:
            assert right_type is not None
            return self.settle(left, without_bounds(right_type), left_at), right
        if right_type is None:
            return left, self.settle(right, without_bounds(left_type), right_at)
        if left_type.kind is right_type.kind:
            if left_type.kind is Kind.JSON and op in ORDERED_ONLY:
                raise self._mismatch(right_at, "JSON has no order: compare what ->> gives")
            return left, right
        both = common(left_type, right_type)
        if both is None:
            raise self._mismatch(right_at, f"{left_type.name} and {right_type.name} can't be compared: cast one")
        if is_numeric(both) and both.kind not in FLOATS:
            return left, right
        return self._to(left, both), self._to(right, both)

    def _to(self, bound: Expression, kind: Type) -> Expression:
        """Convert a value to a type that it has in common with another."""
        own = type_of(bound)
        if own is None or own.kind is kind.kind or (own.kind in FLOATS and kind.kind in FLOATS):
            return bound
        if isinstance(bound, Literal) and isinstance(bound.value, int | Decimal) and kind.kind in FLOATS:
            return Literal(float(bound.value), kind)
        return Cast(bound, kind)

    def _boolean(self, bound: Expression, at: int) -> Expression:
        bound = self.settle(bound, BOOLEAN, at)
        kind = type_of(bound)
        if kind is not None and kind.kind is not Kind.BOOLEAN:
            raise self._mismatch(at, f"a condition is BOOLEAN, not {kind.name}")
        return bound

    def _text(self, bound: Expression, at: int, what: str) -> Expression:
        bound = self.settle(bound, TEXT, at)
        kind = type_of(bound)
        if kind is not None and kind.kind is not Kind.TEXT:
            raise self._mismatch(at, f"{what} takes TEXT, not {kind.name}: cast it")
        return bound

    def _concatenation(self, left: Expression, right: Expression, tree: syntax.Infix) -> Expression:
        kinds = [kind.kind for kind in (type_of(left), type_of(right)) if kind is not None]
        if Kind.BYTES in kinds and Kind.TEXT not in kinds and len(set(kinds)) == 1:
            kind = Type(Kind.BYTES)
            return Binary("||", self.settle(left, kind, tree.left.at), self.settle(right, kind, tree.right.at), kind)
        if Kind.JSON in kinds and Kind.TEXT not in kinds:
            raise self.context.refuse(tree.at, "|| of JSON is not supported", Reason.UNSUPPORTED_SQL)
        sides = []
        for bound, each in ((left, tree.left), (right, tree.right)):
            bound = self.settle(bound, TEXT, each.at)
            own = type_of(bound)
            sides.append(bound if own is None or own.kind is Kind.TEXT else Cast(bound, TEXT))
        return Binary("||", sides[0], sides[1], TEXT)

    def _arithmetic(self, op: str, left: Expression, right: Expression, tree: syntax.Infix) -> Expression:
        left_type, right_type = type_of(left), type_of(right)
        if left_type is None:
            left = self.settle(left, without_bounds(right_type or BIGINT), tree.left.at)
        if right_type is None:
            right = self.settle(right, without_bounds(type_of(left) or BIGINT), tree.right.at)
        left_type, right_type = type_of(left), type_of(right)
        if left_type is None or right_type is None or not is_numeric(left_type) or not is_numeric(right_type):
            named = " and ".join("NULL" if kind is None else kind.name for kind in (left_type, right_type))
            raise self._mismatch(tree.at, f"{op} takes numbers, not {named}")
        result = promoted(left_type, right_type)
        if result.kind in FLOATS:
            if op == "%":
                raise self._mismatch(tree.at, "% takes whole numbers or DECIMAL")
            left, right = self._to(left, result), self._to(right, result)
        return Binary(op, left, right, result)

    def _unified(
        self, bound: Sequence[Expression], trees: Sequence[Tree], what: str
    ) -> tuple[list[Expression], Type | None]:
        """Bring values to one type: branches of CASE, arguments of COALESCE."""
        kind: Type | None = None
        for each, tree in zip(bound, trees, strict=True):
            own = type_of(each)
            if own is None:
                continue
            both = own if kind is None else common(kind, own)
            if both is None:
                assert kind is not None
                raise self._mismatch(tree.at, f"{what} can't be {kind.name} and {own.name}: cast one")
            kind = both
        if kind is None and any(isinstance(each, Literal) and each.value is not None for each in bound):
            kind = TEXT
        if kind is None:
            return list(bound), None
        wide = without_bounds(kind)
        return [self._to(self.settle(each, wide, tree.at), kind) for each, tree in zip(bound, trees, strict=True)], kind

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
}


def type_of(bound: Expression) -> Type | None:
    """The type of an expression."""
    if isinstance(bound, IsNull | IsTruth | InList | Like):
        return BOOLEAN
    return bound.type


def number(text: str) -> Literal:
    """The literal of a number: INTEGER, BIGINT or DECIMAL. Raises `invalid_value` for one beyond all."""
    return typed_number(python_number(text))


def python_number(text: str) -> int | Decimal:
    """A number of the text. Raises `invalid_value` for one beyond all types."""
    if len(text) <= MAX_DIGITS:
        if text.isdecimal() or (text[1:].isdecimal() and text[0] == "-"):
            return int(text)
        value = Decimal(text)
        if abs(value.adjusted()) <= MAX_DIGITS:
            return value
    raise invalid_value(f"the number {text[:40]} is out of range", out_of_range=True)


def typed_number(value: int | Decimal) -> Literal:
    """The literal of a number."""
    if isinstance(value, int):
        if -(1 << 31) <= value < 1 << 31:
            return Literal(value, INTEGER)
        if -(1 << 63) <= value < 1 << 63:
            return Literal(value, BIGINT)
        return Literal(Decimal(value), DECIMAL)
    return Literal(value, DECIMAL)


def can_cast(source: Kind, target: Kind) -> bool:
    """Return whether CAST goes from one kind to the other."""
    if source is target or Kind.TEXT in (source, target):
        return True
    if is_numeric(Type(source)) and is_numeric(Type(target)):
        return True
    return (source, target) in CASTS


CASTS: Final = frozenset(
    {
        (Kind.DATE, Kind.TIMESTAMP), (Kind.TIMESTAMP, Kind.DATE), (Kind.TIMESTAMP, Kind.TIME),
        (Kind.BOOLEAN, Kind.INTEGER), (Kind.INTEGER, Kind.BOOLEAN),
        *((Kind.JSON, kind) for kind in (*INTEGERS, *FLOATS, Kind.DECIMAL, Kind.BOOLEAN)),
    }
)  # fmt: skip
