"""Changes with queries in them: a query that the analytical engine answers, and the change that runs for each row.

While a change is bound, a value of its query is a parameter with a negative number, and a column of a table of FROM or
USING one with a negative id. `Computed.change` makes of both the parameters that the change runs with.
"""

from collections.abc import Sequence
from typing import TypeVar

from msgspec.structs import replace

from topics_service.engine.tables import plans
from topics_service.engine.tables.expressions import Cast, Column, Expression, Parameter, type_of
from topics_service.engine.tables.model import Table
from topics_service.engine.tables.relations import Core, Made, Query, rebuilt
from topics_service.engine.tables.types import TEXT, Type
from topics_sql import syntax
from topics_sql.binding.analysis import Planner
from topics_sql.binding.analytic import Analytic, Scope
from topics_sql.binding.beyond import beyond, beyond_expression, has_names
from topics_sql.binding.scope import Context, Relation
from topics_sql.syntax import Tree

C = TypeVar("C", plans.Insert, plans.Update, plans.Delete)

_GROUPING = "42803"


class Computed:
    """The query of a change under way."""

    def __init__(self, query: plans.Analysis) -> None:
        self.query = query

    def value(self, place: int, wanted: Type) -> Expression:
        """The value of an output. One that has no type is a NULL or a text of a parameter."""
        kind = self.query.outputs[place].type
        return Cast(Parameter(-1 - place, TEXT), wanted) if kind is None else Parameter(-1 - place, kind)

    def change(self, change: C) -> C:
        """The change with parameters that are those of the query's rows, and then those of the statement."""
        width = len(self.query.outputs)

        def numbered(node: Expression) -> Expression | None:
            if isinstance(node, Parameter):
                return Parameter(-node.number if node.number < 0 else node.number + width, node.type)
            if isinstance(node, Column) and node.column < 0:
                return Parameter(-node.column, node.type)
            return None

        def again(expression: Expression | None) -> Expression | None:
            return None if expression is None else rebuilt(expression, numbered)

        def pairs(given: Sequence[tuple[int, Expression | None]]) -> tuple[tuple[int, Expression | None], ...]:
            return tuple((column, again(each)) for column, each in given)

        returning = tuple(replace(each, expression=rebuilt(each.expression, numbered)) for each in change.returning)
        if isinstance(change, plans.Insert):
            conflict = change.conflict
            if conflict is not None and conflict.assignments is not None:
                conflict = replace(conflict, assignments=pairs(conflict.assignments), filter=again(conflict.filter))
            rows = tuple(tuple(map(again, row)) for row in change.rows)
            return replace(change, rows=rows, conflict=conflict, returning=returning, query=self.query)
        assert isinstance(change.access, plans.Lookup)
        keys = tuple(tuple(rebuilt(each, numbered) for each in key) for key in change.access.keys)
        change = replace(change, access=plans.Lookup(keys), returning=returning, query=self.query)
        if isinstance(change, plans.Update):
            return replace(change, assignments=pairs(change.assignments))
        return change


# ------------------------------------------------------------------------- INSERT


def within(tree: syntax.Query, ctes: Sequence[syntax.With], *, recursive: bool) -> syntax.Query:
    """A query that sees the queries of a WITH before its statement."""
    if not ctes:
        return tree
    return replace(tree, ctes=(*ctes, *tree.ctes), recursive=recursive or tree.recursive)


def apart(tree: syntax.Query) -> tuple[syntax.Query, dict[int, Tree]]:
    """Take constants out of the columns of an analytical query, by their places: they have the types of what they are
    inserted into, and may be volatile."""
    if not isinstance(tree, syntax.Select) or tree.distinct or tree.distinct_on or beyond(tree) is None:
        return tree, {}
    if any(item.star for item in tree.items):
        return tree, {}
    taken = {
        place: item.tree
        for place, item in enumerate(tree.items)
        if item.tree is not None and beyond_expression(item.tree) is None and not has_names(item.tree)
    }
    items = tuple(
        replace(item, tree=syntax.Constant(item.at, "null")) if place in taken else item
        for place, item in enumerate(tree.items)
    )
    return replace(tree, items=items), taken


class Scalars:
    """Collects the queries in the place of values among rows of VALUES, as one query of one row."""

    def __init__(self, context: Context, ctes: Sequence[syntax.With], *, recursive: bool) -> None:
        self._context = context
        self._ctes = ctes
        self._recursive = recursive
        self._made: list[Made] = []
        self._planner: Planner | None = None

    def bind(self, tree: Tree) -> Expression:
        """Bind a query in the place of a value."""
        if self._planner is None:
            self._planner, self._scope = Planner(self._context), Scope()
            self._named = self._planner.named(self._ctes, self._scope, recursive=self._recursive)
        bound = Analytic(self._planner, self._scope, "VALUES").bind(tree)
        self._made.append(Made(self._planner.number(), bound))
        kind = type_of(bound) or TEXT
        return Parameter(-len(self._made), kind)

    def computed(self) -> Computed | None:
        """The query; None if there was none."""
        if self._planner is None:
            return None
        outputs = tuple(
            plans.Output("value", Column(each.number, type_of(each.expression)), type_of(each.expression))
            for each in self._made
        )
        query = Query(Core(None, None, tuple(self._made)), outputs, named=self._named)
        return Computed(self._planner.finished(query, "subqueries"))


# -------------------------------------------------------------- UPDATE and DELETE


def reason(tree: syntax.Update | syntax.Delete) -> str | None:
    """Name what an UPDATE or DELETE needs the engine for; None for nothing."""
    if tree.source is not None:
        return "FROM" if isinstance(tree, syntax.Update) else "USING"
    if tree.ctes:
        return "WITH"
    found = beyond_expression(tree.where)
    if found is None and isinstance(tree, syntax.Update):
        for assignment in tree.assignments:
            if not isinstance(assignment.value, syntax.Default):
                found = found or beyond_expression(assignment.value)
    return found


class Found(Computed):
    """The rows that an UPDATE or DELETE is about: their keys, then the values of `wanted`, each row once."""

    def __init__(
        self, context: Context, tree: syntax.Update | syntax.Delete, table: Table, wanted: Sequence[Tree], why: str
    ) -> None:
        word = "UPDATE" if isinstance(tree, syntax.Update) else "DELETE"
        for each in wanted:
            if (what := beyond_expression(each)) in ("aggregates", "windows"):
                raise context.refuse(each.at, f"{what} have no place in {word} itself", sqlstate=_GROUPING)
        names = {column.id: column.name for column in table.columns}
        own = (tree.table.alias,) if tree.table.alias else (table.namespace, table.name)
        at = tree.at
        key: list[Tree] = [syntax.Name(at, (*own, names[each])) for each in table.primary_key]
        target = syntax.From(tree.table.name, tree.table.alias)
        source = target if tree.source is None else syntax.Join(at, "cross", target, tree.source)
        given = syntax.Select(
            at=at, items=tuple(syntax.Item(each.at, each) for each in (*key, *wanted)), source=source,
            where=tree.where, order=tuple(syntax.OrderItem(at, each, False, False) for each in key),
            distinct_on=() if tree.source is None else tuple(key), ctes=tree.ctes, recursive=tree.recursive,
        )  # fmt: skip
        planner, scope = Planner(context), Scope()
        query = planner.query(given, scope)
        assert isinstance(query.body, Core)
        if query.body.grouped or query.body.windows:
            raise context.refuse(at, f"aggregates and windows have no place in {word} itself", sqlstate=_GROUPING)
        self._planner = planner
        self._query = query
        self._why = why
        self._others = scope.relations[1:]
        self._table = table
        self._count = len(key)
        super().__init__(planner.finished(query, why, target=table.number))

    @property
    def key(self) -> plans.Lookup:
        """The row that a row of the query is about."""
        kinds = {column.id: column.type for column in self._table.columns}
        return plans.Lookup((tuple(self.value(at, kinds[each]) for at, each in enumerate(self._table.primary_key)),))

    def assigned(self, place: int, wanted: Type) -> Expression:
        """The value of one of `wanted`."""
        return self.value(self._count + place, wanted)

    def others(self) -> list[Relation]:
        """The relations of FROM or USING, for RETURNING, whose columns become outputs of the query."""
        body, outputs = self._query.body, list(self._query.outputs)
        assert isinstance(body, Core)
        made, found = list(body.outputs), []
        for each in self._others:
            columns = {}
            for label, column in each.columns.items():
                made.append(Made(self._planner.number(), column))
                outputs.append(plans.Output(label, Column(made[-1].number, column.type), column.type))
                columns[label] = Column(-len(outputs), column.type)
            found.append(Relation(each.name, columns, each.namespace))
        query = replace(self._query, body=replace(body, outputs=tuple(made)), outputs=tuple(outputs))
        self.query = self._planner.finished(query, self._why, target=self._table.number)
        return found
