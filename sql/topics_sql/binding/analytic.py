"""Expressions of analytical queries: columns of several sources, aggregates, windows, subqueries."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.tables import aggregates, calendar, functions, relations
from topics_service.engine.tables.casts import INTEGERS, NUMBERS
from topics_service.engine.tables.expressions import Column, Expression, Literal, Unary, type_of
from topics_service.engine.tables.functions import Volatility
from topics_service.engine.tables.plans import Order
from topics_service.engine.tables.relations import Aggregate, Frame, Inner, Window
from topics_service.engine.tables.types import BIGINT, BOOLEAN, INTEGER, TEXT, Kind, Type
from topics_sql import syntax
from topics_sql.binding.expressions import Expressions, is_untyped_text
from topics_sql.binding.scope import Context, Relation
from topics_sql.binding.types import without_bounds
from topics_sql.syntax import Tree

if TYPE_CHECKING:
    from topics_sql.binding.analysis import Planner

GROUPING: Final = "grouping"
"""The function that tells the sets of GROUPING SETS apart."""
_GROUPING: Final = "42803"
MAX_GROUPING: Final = 31
_WINDOWING: Final = "42P20"


class Scope:
    """The names that a part of a query sees: its own relations, and those around it."""

    def __init__(self, parent: "Scope | None" = None) -> None:
        self.parent = parent
        self.relations: list[Relation] = []
        self.bare: list[tuple[str, Column]] = []
        """Columns that need no table before them, in the order of `*`."""
        self.ctes: dict[str, Any] = {}
        self.own: set[int] = set()
        """The numbers of the columns of its relations."""
        self.outer: set[int] = set()
        """The numbers of columns from around it that it uses."""
        self.places: dict[int, int] = {}

    def add(self, relation: Relation) -> None:
        """Add a relation."""
        self.relations.append(relation)
        self.bare.extend(relation.columns.items())
        self.own.update(column.column for column in relation.columns.values())

    def find(self, parts: Sequence[str]) -> list[Column]:
        """The columns of a name in this scope alone."""
        *qualifier, name = parts
        if not qualifier:
            return [column for label, column in self.bare if label == name]
        meant = [each for each in self.relations if is_meant(each, qualifier)]
        return [each.columns[name] for each in meant if name in each.columns]


def is_meant(relation: Relation, qualifier: Sequence[str]) -> bool:
    """Return whether a qualifier names the relation."""
    return relation.name == qualifier[-1] and (len(qualifier) == 1 or relation.namespace == qualifier[0])


class Analytic(Expressions):
    """Binds the expressions of one clause. `aggregates` is where calls over groups go, `windows` those over windows."""

    def __init__(
        self,
        planner: "Planner",
        scope: Scope,
        clause: str,
        found: list[Aggregate] | None = None,
        windows: list[Aggregate] | None = None,
        named: dict[str, syntax.Window] | None = None,
    ) -> None:
        super().__init__(planner.context)
        self.planner = planner
        self.scope = scope
        self.clause = clause
        self.found = found
        self.windows = windows
        self.named = named or {}

    def bind(self, tree: Tree) -> Expression:
        """See Expressions."""
        rule = RULES.get(tree.__class__)
        return super().bind(tree) if rule is None else rule(self, tree)

    def column(self, tree: syntax.Name) -> Expression:
        """Bind a column of this query, or of one around it."""
        scope: Scope | None = self.scope
        passed: list[Scope] = []
        while scope is not None:
            found = scope.find(tree.parts)
            shown = ".".join(tree.parts)
            if len(found) > 1:
                message = f"column {shown} is in several tables"
                raise self.context.refuse(tree.at, message, Reason.COLUMN_NOT_FOUND, "42702")
            if found:
                number = found[0].column
                for each in passed:
                    each.outer.add(number)
                scope.places.setdefault(number, tree.at)
                return found[0]
            passed.append(scope)
            scope = scope.parent
        if not self.scope.relations and self.scope.parent is None:
            raise self.context.refuse(tree.at, f"column {shown}, but no table is read", Reason.COLUMN_NOT_FOUND)
        *qualifier, _ = tree.parts
        if qualifier and not any(is_meant(each, qualifier) for scope in passed for each in scope.relations):
            message = f"no table {'.'.join(qualifier)} to take {shown} from"
            raise self.context.refuse(tree.at, message, Reason.COLUMN_NOT_FOUND)
        where = " or ".join(dict.fromkeys(each.name for each in self.scope.relations)) or "the query"
        raise self.context.column_not_found(tree.at, shown, where)

    # ------------------------------------------------------------------------------------------------- calls

    def function(self, tree: syntax.Call) -> Expression:
        """Bind a function: of a row, of a group or of a window."""
        known = aggregates.AGGREGATES.get(tree.function)
        if tree.function == GROUPING:
            return self._grouping(tree)
        if known is None:
            function = functions.FUNCTIONS.get(tree.function)
            if function is not None and function.volatility is Volatility.VOLATILE:
                message = f"{tree.function}() can't be used in an analytical query"
                raise self.context.refuse(tree.at, message, Reason.UNSUPPORTED_SQL)
            if not tree.is_plain or tree.within:
                message = f"{tree.function}() is no aggregate"
                raise self.context.refuse(tree.at, message, Reason.SYNTAX_ERROR, "42809")
            return self.call(tree)
        return self._over(tree, known)

    def _grouping(self, tree: syntax.Call) -> Expression:
        """Bind GROUPING, whose arguments are looked for among the keys later."""
        if self.found is None:
            raise self.context.refuse(tree.at, f"GROUPING has no place in {self.clause}", sqlstate=_GROUPING)
        if not tree.arguments or len(tree.arguments) > MAX_GROUPING or not tree.is_plain or tree.distinct:
            message = f"it is called as grouping(key, ...), with at most {MAX_GROUPING} keys"
            raise self.context.refuse(tree.at, message, Reason.FUNCTION_NOT_FOUND)
        inside = Analytic(self.planner, self.scope, "GROUPING")
        number = self.planner.number()
        self.planner.grouping[number] = tree.at
        self.found.append(Aggregate(number, GROUPING, tuple(map(inside.value, tree.arguments)), INTEGER))
        return Column(number, INTEGER)

    def _over(self, tree: syntax.Call, known: aggregates.Function) -> Expression:
        target, inside = self._target(tree, known)
        arguments: tuple[Expression, ...] = ()
        if tree.star:
            if tree.function != "count":
                raise self.context.refuse(tree.at, f"{tree.function} takes values")
        elif not tree.arguments and known.name == "count":
            raise self.context.refuse(tree.at, "count takes a value or *", Reason.FUNCTION_NOT_FOUND)
        arguments = inside.arguments(tree, known)
        order = tuple(inside.order_item(item) for item in tree.order)
        kind = known.result([type_of(each) for each in arguments] or [None])
        if known.within:
            kind = self._within(tree, known, order)
        elif tree.within:
            raise self.context.refuse(tree.at, f"{tree.function} takes no WITHIN GROUP", Reason.SYNTAX_ERROR, "42809")
        if tree.distinct and order and known.name in ("json_agg", "jsonb_agg"):
            message = f"{tree.function} takes DISTINCT or ORDER BY, not both"
            raise self.context.refuse(tree.at, message, Reason.UNSUPPORTED_SQL)
        if tree.distinct and tree.star:
            raise self.context.refuse(tree.at, "DISTINCT takes a value")
        condition = None if tree.filter is None else inside.condition(tree.filter)
        window = None if tree.over is None else self._window(inside, tree.over)
        if window is not None and (tree.distinct or tree.order):
            message = "DISTINCT and ORDER BY within a call over a window are not supported"
            raise self.context.refuse(tree.at, message, Reason.UNSUPPORTED_SQL)
        if condition is not None and known.only_window:
            raise self.context.refuse(tree.at, f"{tree.function} takes no FILTER", Reason.UNSUPPORTED_SQL)
        number = self.planner.number()
        target.append(
            Aggregate(number, tree.function, arguments, kind, tree.distinct, condition, order, tree.within, window)
        )
        return Column(number, kind)

    def _target(self, tree: syntax.Call, known: aggregates.Function) -> tuple[list[Aggregate], "Analytic"]:
        """The list that a call belongs to, and the binder of what is in it."""
        if tree.over is not None:
            if self.windows is None:
                raise self.context.refuse(tree.at, f"windows have no place in {self.clause}", sqlstate=_WINDOWING)
            if known.within:
                raise self.context.refuse(tree.at, f"{tree.function} over a window is", Reason.UNSUPPORTED_SQL)
            return self.windows, Analytic(self.planner, self.scope, "a window", self.found)
        if known.only_window:
            raise self.context.refuse(tree.at, f"{tree.function}() needs OVER", sqlstate=_WINDOWING)
        if self.found is None:
            raise self.context.refuse(tree.at, f"aggregates have no place in {self.clause}", sqlstate=_GROUPING)
        return self.found, Analytic(self.planner, self.scope, "an aggregate")

    def arguments(self, tree: syntax.Call, known: aggregates.Function) -> tuple[Expression, ...]:
        """Bind the arguments of an aggregate or of a function of a window."""
        if tree.star:
            return ()
        bound = [self.bind(each) for each in tree.arguments]
        for place, each in enumerate(bound):
            if type_of(each) is None:
                wanted = known.wanted[place] if place < len(known.wanted) else None
                if wanted is None and place == 2:
                    wanted = type_of(bound[0])
                bound[place] = self.settle(each, wanted or TEXT, tree.arguments[place].at)
        with self.context.placed(tree.at):
            aggregates.resolve(known.name, [type_of(each) for each in bound])
        if len(bound) == 3:  # the default of lag and lead
            (_, bound[2]), _ = self._alike([bound[0], bound[2]], [tree.arguments[0], tree.arguments[2]], tree.at)
        return tuple(bound)

    def _within(self, tree: syntax.Call, known: aggregates.Function, order: Sequence[Order]) -> Type | None:
        if not tree.within or len(order) != 1:
            raise self.context.refuse(tree.at, f"it is called as {known.shape}", Reason.FUNCTION_NOT_FOUND, "42883")
        kind = type_of(order[0].expression)
        if known.name == "percentile_cont" and kind is not None and kind.kind not in NUMBERS:
            raise self.context.refuse(tree.at, f"it is called as {known.shape}", Reason.FUNCTION_NOT_FOUND, "42883")
        return known.result([kind])

    def order_item(self, item: syntax.OrderItem) -> Order:
        """Bind a key of ORDER BY."""
        return Order(self.comparable(item.tree), item.descending, item.nulls_first)

    def comparable(self, tree: Tree) -> Expression:
        """Bind a value that has an order and an equality."""
        bound = self.value(tree)
        kind = type_of(bound)
        if kind is not None and kind.kind is Kind.JSON:
            message = "JSON has no order: take out of it what is compared, as in data ->> 'name'"
            raise self.context.refuse(tree.at, message, Reason.FUNCTION_NOT_FOUND)
        return bound

    def _window(self, inside: "Analytic", tree: syntax.Window) -> Window:
        base = None
        if tree.base is not None:
            given = self.named.get(tree.base)
            if given is None:
                raise self.context.refuse(tree.at, f"there is no window {tree.base}", sqlstate="42704")
            base = self._window(inside, given)
        partition = tuple(inside.comparable(each) for each in tree.partition)
        order = tuple(inside.order_item(each) for each in tree.order)
        ordered = order or (() if base is None else base.order)
        frame = None if tree.frame is None else self._frame(inside, tree.frame, ordered)
        if base is not None:
            if partition or (order and base.order):
                message = f"the window {tree.base} can't be changed so"
                raise self.context.refuse(tree.at, message, sqlstate=_WINDOWING)
            return Window(base.partition, order or base.order, frame or base.frame)
        return Window(partition, order, frame)

    def _frame(self, inside: "Analytic", tree: syntax.Frame, order: Sequence[Order]) -> Frame:
        if tree.start == "unbounded following" or tree.end == "unbounded preceding":
            raise self.context.refuse(tree.at, "the frame ends before it begins", sqlstate=_WINDOWING)
        rows = [
            None
            if each is None
            else inside.distance(each, order, tree.at)
            if tree.unit == "range"
            else inside.whole_number(each, "the distance")
            for each in (tree.start_rows, tree.end_rows)
        ]
        return Frame(tree.unit, tree.start, tree.end, rows[0], rows[1], tree.exclude)

    def distance(self, tree: Tree, order: Sequence[Order], at: int) -> Expression:
        """Bind the distance of RANGE: an integer beside integers, an interval of no months beside timestamps."""
        if len(order) != 1:
            message = "RANGE with a distance needs one key of ORDER BY"
            raise self.context.refuse(at, message, Reason.SYNTAX_ERROR, "42P20")
        kind = type_of(order[0].expression)
        if isinstance(tree, syntax.Interval) and kind is not None and kind.kind is Kind.TIMESTAMP:
            length = self.length(tree)
            if isinstance(length, Literal) and isinstance(length.value, str):
                months, micros = calendar.parse_interval(length.value)
                if not months and micros >= 0:
                    return Literal(micros, BIGINT)
            message = "the distance of RANGE is a constant from zero up, and without months"
            raise self.context.refuse(tree.at, message, Reason.UNSUPPORTED_SQL)
        if kind is None or kind.kind not in INTEGERS or isinstance(tree, syntax.Interval):
            message = "RANGE with a distance takes integers, or timestamps with an INTERVAL"
            raise self.context.refuse(at, message, Reason.UNSUPPORTED_SQL)
        return self.whole_number(tree, "the distance")

    # -------------------------------------------------------------------------------------------- subqueries

    def value_of(self, tree: syntax.Subquery) -> Expression:
        """Bind a query of one value."""
        scope = Scope(self.scope)
        query, kind = self._one(tree.query, scope, "a query in the place of a value")
        return self._inner(scope, "value", query, kind)

    def exists(self, tree: syntax.Exists) -> Expression:
        """Bind EXISTS."""
        scope = Scope(self.scope)
        return self._inner(scope, "exists", self.planner.query(tree.query, scope), BOOLEAN)

    def in_query(self, tree: syntax.InQuery) -> Expression:
        """Bind IN with a query."""
        found = self._any("any", "=", tree.operand, tree.query, tree.at)
        return Unary("not", found, BOOLEAN) if tree.negated else found

    def quantified(self, tree: syntax.Quantified) -> Expression:
        """Bind ANY and ALL."""
        return self._any("all" if tree.all else "any", tree.op, tree.left, tree.query, tree.at)

    def _any(self, kind: str, op: str, left: Tree, right: syntax.Query, at: int) -> Expression:
        scope = Scope(self.scope)
        query, found = self._one(right, scope, "the query of IN, ANY and ALL")
        operand = self.bind(left)
        if type_of(operand) is None:
            operand = self.settle(operand, TEXT if found is None else without_bounds(found), left.at)
        with self.context.placed(at):
            functions.operator(op, type_of(operand), found)
        return self._inner(scope, kind, query, BOOLEAN, op, operand)

    def _one(self, tree: syntax.Query, scope: Scope, what: str) -> tuple[relations.Query, Type | None]:
        query = self.planner.query(tree, scope)
        if len(query.outputs) != 1:
            raise self.context.refuse(tree.at, f"{what} has one column, not {len(query.outputs)}")
        return query, query.outputs[0].type

    def _inner(
        self,
        scope: Scope,
        kind: str,
        query: relations.Query,
        result: Type | None,
        op: str = "=",
        operand: Expression | None = None,
    ) -> Expression:
        number = self.planner.number()
        self.planner.inner.append(Inner(number, kind, query, result, op, operand))
        self.planner.uses[number] = scope.outer | (set() if operand is None else relations.numbers_of(operand))
        return Column(number, result)


def text_if_bare(bound: Expression) -> Expression:
    """A string that met no type is TEXT."""
    return Literal(bound.value, TEXT) if isinstance(bound, Literal) and is_untyped_text(bound) else bound


RULES: Final[dict[type, Callable[[Analytic, Any], Expression]]] = {
    syntax.Name: Analytic.column,
    syntax.Call: Analytic.function,
    syntax.Subquery: Analytic.value_of,
    syntax.Exists: Analytic.exists,
    syntax.InQuery: Analytic.in_query,
    syntax.Quantified: Analytic.quantified,
}


def not_grouped(context: Context, name: str, at: int) -> TopicsError:
    """Make the error of a column that is neither grouped by nor in an aggregate."""
    message = f"column {name} must be in GROUP BY or in an aggregate"
    return context.refuse(at, message, Reason.SYNTAX_ERROR, _GROUPING)
