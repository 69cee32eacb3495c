"""Plans of queries for the analytical engine."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from topics_service.engine.errors import Reason
from topics_service.engine.tables import casts
from topics_service.engine.tables.expressions import Binary, Call, Column, Expression, Literal, type_of
from topics_service.engine.tables.model import RESERVED_NAMESPACES, Table, TableName
from topics_service.engine.tables.plans import Analysis, Order, Output, TopicSource
from topics_service.engine.tables.relations import (
    Aggregate,
    Combined,
    Constants,
    Core,
    Frame,
    Inner,
    JoinedRows,
    Made,
    Named,
    NamedRows,
    NestedRows,
    Query,
    Rows,
    SystemRows,
    TableRows,
    Window,
    numbers_of,
    rebuilt,
)
from topics_service.engine.tables.types import Kind, Type
from topics_sql import syntax
from topics_sql.binding.analytic import GROUPING, Analytic, Scope, is_meant, not_grouped, text_if_bare
from topics_sql.binding.from_rows import topic_rows, view_rows
from topics_sql.binding.naming import MAX_OUTPUTS, name_of
from topics_sql.binding.pushing import pruned, topic_scans
from topics_sql.binding.scope import SYSTEM, TOPICS, Context, Relation
from topics_sql.binding.series import series_rows
from topics_sql.binding.view_queries import view_of

MAX_SOURCES: Final = 64
"""Tables that one query may read, each time that it names one."""


class Cte:
    """A query of WITH that names may refer to."""

    def __init__(self, number: int, outputs: Sequence[tuple[str, int, Type | None]]) -> None:
        self.number = number
        self.outputs = outputs


class Planner:
    """Plans one query with all that is in it."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.inner: list[Inner] = []
        self.uses: dict[int, set[int]] = {}
        """The columns from around it that a subquery uses, by its number."""
        self.tables: dict[int, Table] = {}
        self.times: Counter[int] = Counter()
        """The times that a table is named, by its number."""
        self.system: dict[str, None] = {}
        self.topics: list[str] = []
        self.views: dict[TableName, None] = {}
        """Those that the statement names; what these name is not among them."""
        self.depth = 0
        self.keys: dict[int, tuple[Table, frozenset[int]]] = {}
        """By the number of a column: its table, and the numbers of the primary key there."""
        self.grouping: dict[int, int] = {}
        """The places of calls of GROUPING in the text, by their numbers."""
        self._numbers = 0
        self._sources = 0

    def number(self) -> int:
        """The number of another column."""
        self._numbers += 1
        return self._numbers

    # ----------------------------------------------------------------------------------------------- queries

    def query(self, tree: syntax.Query, scope: Scope) -> Query:
        """Plan a query. `scope` is its own, and empty but for what is around it."""
        named = self.named(tree.ctes, scope, recursive=tree.recursive)
        body: Core | Constants | Combined
        order: tuple[Order, ...] | None = None
        if isinstance(tree, syntax.Select):
            body, names, order = self._core(tree, scope)
        elif isinstance(tree, syntax.Values):
            body, names = self._constants(tree, scope)
        else:
            body, names = self._combined(tree, scope)
        outputs = tuple(
            Output(name, Column(number, kind), kind) for name, (number, kind) in zip(names, _columns(body), strict=True)
        )
        if order is None:
            order = tuple(self._order_of_result(item, outputs) for item in tree.order)
        alone = Analytic(self, Scope(scope.parent), "LIMIT")
        limit = None if tree.limit is None else alone.whole_number(tree.limit, "LIMIT")
        offset = None if tree.offset is None else alone.whole_number(tree.offset, "OFFSET")
        return Query(body, outputs, order, limit, offset, named)

    def named(self, ctes: Sequence[syntax.With], scope: Scope, *, recursive: bool) -> tuple[Named, ...]:
        """Plan the queries of WITH, which `scope` sees from here on."""
        return tuple(self._named(each, scope, recursive=recursive) for each in ctes)

    def finished(self, query: Query, why: str, *, target: int | None = None) -> Analysis:
        """The plan of a query with all that it needs. `target` is the table whose rows it finds for a change."""
        tables = tuple(self.tables.values())
        read = tuple(number for number, times in self.times.items() if times > 1 or number != target)
        inner, topics = tuple(self.inner), tuple[TopicSource, ...]()
        if self.topics:
            query, inner = pruned(query, inner)
            topics = topic_scans(self.topics, query, inner)
        return Analysis(query, query.outputs, inner, tables, tuple(self.system), why, topics, read)

    def _named(self, tree: syntax.With, scope: Scope, *, recursive: bool) -> Named:
        number = self.number()
        reads_itself = recursive and isinstance(tree.query, syntax.Compound) and tree.query.op == "union"
        if reads_itself and isinstance(tree.query, syntax.Compound):
            first = self.query(tree.query.left, self._inside(scope))
            columns = tuple((self.number(), output.type) for output in first.outputs)
            names = self._renamed([output.name for output in first.outputs], tree.columns, tree.at, tree.name)
            scope.ctes[tree.name] = cte = Cte(number, [(n, *c) for n, c in zip(names, columns, strict=True)])
            second = self.query(tree.query.right, self._inside(scope))
            if len(second.outputs) != len(columns):
                raise self.context.refuse(tree.query.at, "both sides of UNION have the same number of columns")
            for (_, kind), output in zip(columns, second.outputs, strict=True):
                with self.context.placed(tree.query.at):
                    casts.common([kind, output.type])
            body = Combined("union", tree.query.all, first, second, columns)
            if tree.query.order or tree.query.limit is not None or tree.query.offset is not None:
                raise self.context.refuse(
                    tree.at, "ORDER BY and LIMIT in a recursive query are not supported", Reason.UNSUPPORTED_SQL
                )
            outputs = tuple(Output(n, Column(made, kind), kind) for n, made, kind in cte.outputs)
            return Named(number, Query(body, outputs), recursive=True)
        query = self.query(tree.query, self._inside(scope))
        names = self._renamed([output.name for output in query.outputs], tree.columns, tree.at, tree.name)
        scope.ctes[tree.name] = Cte(
            number,
            [(name, _number_of(output), output.type) for name, output in zip(names, query.outputs, strict=True)],
        )
        return Named(number, query)

    def _inside(self, scope: Scope) -> Scope:
        """The scope of a query in WITH or FROM: it sees the queries of WITH, and what is around all of it."""
        inside = Scope(scope.parent)
        inside.ctes = dict(scope.ctes)
        inside.outer = scope.outer
        return inside

    def _renamed(self, names: list[str], given: Sequence[str], at: int, what: str) -> list[str]:
        if len(given) > len(names):
            message = f"{what} has {len(names)} columns, but {len(given)} names are given"
            raise self.context.refuse(at, message, Reason.COLUMN_NOT_FOUND, "42P10")
        return [*given, *names[len(given) :]]

    def _constants(self, tree: syntax.Values, scope: Scope) -> tuple[Constants, list[str]]:
        binder = Analytic(self, scope, "VALUES")
        width = len(tree.rows[0])
        columns: list[tuple[int, Type | None]] = []
        rows: list[list[Expression]] = [[] for _ in tree.rows]
        for row in tree.rows:
            if len(row) != width:
                raise self.context.refuse(row[0].at, "all rows of VALUES have the same number of columns")
        for place in range(width):
            trees = [row[place] for row in tree.rows]
            bound, kind = binder._alike([binder.bind(each) for each in trees], trees, tree.at)
            columns.append((self.number(), kind))
            for row_at, each in enumerate(bound):
                rows[row_at].append(text_if_bare(each))
        names = [f"column{place}" for place in range(1, width + 1)]
        return Constants(tuple(map(tuple, rows)), tuple(columns)), names

    def _combined(self, tree: syntax.Compound, scope: Scope) -> tuple[Combined, list[str]]:
        left, right = self.query(tree.left, self._inside(scope)), self.query(tree.right, self._inside(scope))
        if len(left.outputs) != len(right.outputs):
            message = f"both sides of {tree.op.upper()} have the same number of columns"
            raise self.context.refuse(tree.at, message)
        columns: list[tuple[int, Type | None]] = []
        for mine, other in zip(left.outputs, right.outputs, strict=True):
            with self.context.placed(tree.at):
                columns.append((self.number(), casts.common([mine.type, other.type])))
        return Combined(tree.op, tree.all, left, right, tuple(columns)), [output.name for output in left.outputs]

    def _order_of_result(self, item: syntax.OrderItem, outputs: Sequence[Output]) -> Order:
        """A key of a combined query: a column of the result, by name or number."""
        found = self._output(item.tree, outputs)
        if found is None:
            message = "ORDER BY takes columns of the result here, by name or number"
            raise self.context.refuse(item.at, message, Reason.UNSUPPORTED_SQL)
        return Order(found.expression, item.descending, item.nulls_first)

    def _output(self, given: syntax.Tree, outputs: Sequence[Output]) -> Output | None:
        if isinstance(given, syntax.Constant) and given.kind == "number":
            text = str(given.value)
            if not text.isdecimal() or len(text) > 6 or not 0 < int(text) <= len(outputs):
                message = f"ORDER BY {text[:20]}, but there are {len(outputs)} columns"
                raise self.context.refuse(given.at, message, sqlstate="42P10")
            return outputs[int(text) - 1]
        if isinstance(given, syntax.Name) and len(given.parts) == 1:
            found = [output for output in outputs if output.name == given.parts[0]]
            if len({output.expression for output in found}) > 1:
                raise self.context.refuse(
                    given.at, f"ORDER BY {given.parts[0]} may be several columns", sqlstate="42702"
                )
            return found[0] if found else None
        return None

    # ------------------------------------------------------------------------------------------------ SELECT

    def _core(self, tree: syntax.Select, scope: Scope) -> tuple[Core, list[str], tuple[Order, ...]]:
        rows = None if tree.source is None else self._from(tree.source, scope)
        condition = None if tree.where is None else Analytic(self, scope, "WHERE").condition(tree.where)
        found: list[Aggregate] = []
        windows: list[Aggregate] = []
        binder = Analytic(self, scope, "SELECT", found, windows, dict(tree.windows))
        items = self._items(binder, tree.items)
        if len(tree.order) > MAX_OUTPUTS:
            message = f"ORDER BY has more than {MAX_OUTPUTS} keys"
            raise self.context.refuse(tree.order[MAX_OUTPUTS].at, message, Reason.INVALID_REQUEST, "54011")
        having = None
        if tree.having is not None:
            having = Analytic(self, scope, "HAVING", found).condition(tree.having)
        keys, places = self._keys(tree, scope, items)
        sets = tuple(tuple(dict.fromkeys(places[id(each)] for each in given)) for given in tree.sets)
        sorting = self._sorting(binder, tree, items)
        distinct_on = tuple(self._distinct_key(binder, each, items) for each in tree.distinct_on)
        grouped = bool(keys or found or tree.group is not None or tree.having is not None)
        if grouped:
            group = _Group(self, scope, keys, has_sets=bool(sets))
            group.check_grouping(found)
            items = [(name, group.over(each, at), at) for name, each, at in items]
            having = None if having is None else group.over(having, tree.at)
            windows = [group.window(each, tree.at) for each in windows]
            sorting = list(group.order(sorting, tree.at))
            distinct_on = tuple(group.over(each, tree.at) for each in distinct_on)
            keys = group.keys
        outputs = tuple(Made(self.number(), each) for _, each, _ in items)
        if tree.distinct:
            self._check_distinct(tree, sorting, outputs)
        sorting = [Order(_shown(each.expression, outputs), each.descending, each.nulls_first) for each in sorting]
        core = Core(
            rows, condition, outputs, grouped, tuple(keys), tuple(found), having, tuple(windows), tree.distinct,
            distinct_on, sets,
        )  # fmt: skip
        return core, [name for name, _, _ in items], tuple(sorting)

    def _items(self, binder: Analytic, items: Sequence[syntax.Item]) -> list[tuple[str, Expression, int]]:
        outputs: list[tuple[str, Expression, int]] = []
        for item in items:
            if item.star:
                outputs.extend((name, column, item.at) for name, column in self._star(binder.scope, item))
            elif item.tree is not None:
                outputs.append((item.alias or name_of(item.tree), binder.value(item.tree), item.tree.at))
            if len(outputs) > MAX_OUTPUTS:
                message = f"a result has more than {MAX_OUTPUTS} columns"
                raise self.context.refuse(item.at, message, Reason.INVALID_REQUEST, "54011")
        return outputs

    def _star(self, scope: Scope, item: syntax.Item) -> list[tuple[str, Column]]:
        if item.table is None:
            if not scope.relations:
                raise self.context.refuse(item.at, "* without a table to read")
            return list(scope.bare)
        meant = [each for each in scope.relations if is_meant(each, (item.table,))]
        if not meant:
            message = f"no table {item.table} to take * from"
            raise self.context.refuse(item.at, message, Reason.COLUMN_NOT_FOUND)
        return [pair for each in meant for pair in each.columns.items()]

    def _keys(
        self, tree: syntax.Select, scope: Scope, items: Sequence[tuple[str, Expression, int]]
    ) -> tuple[list[Made], dict[int, int]]:
        """The keys, each once, and their numbers by the ids of the trees."""
        keys: list[Made] = []
        places: dict[int, int] = {}
        binder = Analytic(self, scope, "GROUP BY")
        for each in tree.group or ():
            bound = self._key(binder, each, items)
            key = next((key for key in keys if key.expression == bound), None)
            if key is None:
                key = Made(bound.column if isinstance(bound, Column) else self.number(), bound)
                keys.append(key)
            places[id(each)] = key.number
        return keys, places

    def _key(self, binder: Analytic, given: syntax.Tree, items: Sequence[tuple[str, Expression, int]]) -> Expression:
        """A key: a number or an expression; a name is a column of the tables first, as in PostgreSQL."""
        if isinstance(given, syntax.Constant) and given.kind == "number":
            text = str(given.value)
            if not text.isdecimal() or len(text) > 6 or not 0 < int(text) <= len(items):
                message = f"GROUP BY {text[:20]}, but there are {len(items)} columns"
                raise self.context.refuse(given.at, message, sqlstate="42P10")
            return items[int(text) - 1][1]
        if isinstance(given, syntax.Name) and len(given.parts) == 1 and not binder.scope.find(given.parts):
            named = [each for name, each, _ in items if name == given.parts[0]]
            if named:
                return named[0]
        return binder.comparable(given)

    def _sorting(
        self, binder: Analytic, tree: syntax.Select, items: Sequence[tuple[str, Expression, int]]
    ) -> list[Order]:
        outputs = [Output(name, each, type_of(each)) for name, each, _ in items]
        found: list[Order] = []
        for item in tree.order:
            output = self._output(item.tree, outputs)
            expression = binder.comparable(item.tree) if output is None else output.expression
            found.append(Order(expression, item.descending, item.nulls_first))
        return found

    def _distinct_key(
        self, binder: Analytic, given: syntax.Tree, items: Sequence[tuple[str, Expression, int]]
    ) -> Expression:
        outputs = [Output(name, each, type_of(each)) for name, each, _ in items]
        output = self._output(given, outputs)
        return binder.comparable(given) if output is None else output.expression

    def _check_distinct(self, tree: syntax.Select, sorting: Sequence[Order], outputs: Sequence[Made]) -> None:
        shown = {output.expression for output in outputs}
        for item, given in zip(sorting, tree.order, strict=True):
            if item.expression not in shown:
                message = "with DISTINCT, ORDER BY takes columns of the result"
                raise self.context.refuse(given.at, message, Reason.UNSUPPORTED_SQL, "42P10")

    # -------------------------------------------------------------------------------------------------- FROM

    def _from(self, item: syntax.FromItem, scope: Scope) -> Rows:
        if isinstance(item, syntax.Join):
            return self._join(item, scope)
        self._sources += 1
        if self._sources > MAX_SOURCES:
            at = item.name.at if isinstance(item, syntax.From) else item.at
            message = f"a query reads more than {MAX_SOURCES} tables"
            raise self.context.refuse(at, message, Reason.INVALID_REQUEST, "54000")
        if isinstance(item, syntax.Derived):
            return self._derived(item, scope)
        if isinstance(item, syntax.Series):
            return series_rows(self, item, scope)
        return self._table(item, scope)

    def _derived(self, item: syntax.Derived, scope: Scope) -> NestedRows:
        inside = self._inside(scope)
        if item.lateral:
            inside.parent = scope
        query = self.query(item.query, inside)
        names = self._renamed([output.name for output in query.outputs], item.columns, item.at, item.alias or "it")
        columns = [(n, _number_of(o), o.type) for n, o in zip(names, query.outputs, strict=True)]
        self.add(scope, item.alias or "", None, columns, item.at)
        return NestedRows(query, item.lateral)

    def _table(self, item: syntax.From, scope: Scope) -> Rows:
        at, parts = item.name.at, item.name.parts
        if len(parts) == 1 and (cte := self._cte(scope, parts[0])) is not None:
            columns = [(name, self.number(), kind) for name, _, kind in cte.outputs]
            places = tuple((mine[1], theirs[1]) for mine, theirs in zip(columns, cte.outputs, strict=True))
            self.relation(scope, item, parts[0], None, columns)
            return NamedRows(cte.number, places)
        full = self.context.table_name(item.name)
        if full.namespace == SYSTEM:
            known = self.context.schema.system.get(full.name)
            if known is None:
                raise self.context.table_not_found(full, at)
            self.system[full.name] = None
            columns = [(name, self.number(), kind) for name, kind in known]
            self.relation(scope, item, full.name, SYSTEM, columns)
            return SystemRows(full.name, tuple((each[1], place) for place, each in enumerate(columns)))
        if full.namespace == TOPICS:
            return topic_rows(self, full, item, scope)
        if full.namespace in RESERVED_NAMESPACES:
            self.context.refuse_reserved(full.namespace, at)
        view = view_of(self.context, item)
        if view is not None:
            return view_rows(self, view, item, scope)
        table = self.context.find_table(item.name)
        self.tables[table.number] = table
        self.times[table.number] += 1
        columns = [(column.name, self.number(), column.type) for column in table.columns]
        ids = [column.id for column in table.columns]
        numbers = dict(zip(ids, (each[1] for each in columns), strict=True))
        key = frozenset(numbers[each] for each in table.primary_key)
        self.keys.update((each[1], (table, key)) for each in columns)
        self.relation(scope, item, table.name, table.namespace, columns)
        return TableRows(table, tuple((numbers[each], each) for each in ids))

    def _cte(self, scope: Scope | None, name: str) -> Cte | None:
        while scope is not None:
            if name in scope.ctes:
                found: Cte = scope.ctes[name]
                return found
            scope = scope.parent
        return None

    def relation(
        self, scope: Scope, item: syntax.From, name: str, namespace: str | None,
        columns: Sequence[tuple[str, int, Type | None]],
    ) -> None:  # fmt: skip
        names = self._renamed([each[0] for each in columns], item.columns, item.name.at, name)
        renamed = [(label, *each[1:]) for label, each in zip(names, columns, strict=True)]
        self.add(scope, item.alias or name, None if item.alias else namespace, renamed, item.name.at)

    def add(
        self, scope: Scope, name: str, namespace: str | None, columns: Sequence[tuple[str, int, Type | None]], at: int
    ) -> None:
        """Let a scope see a relation."""
        if name and any(each.name == name and each.namespace == namespace for each in scope.relations):
            raise self.context.refuse(at, f"the name {name} is given twice", sqlstate="42712")
        named: dict[str, Column] = {}
        for label, number, kind in columns:
            named.setdefault(label, Column(number, kind))
        scope.add(Relation(name, named, namespace))

    def _join(self, tree: syntax.Join, scope: Scope) -> JoinedRows:
        first, relations = len(scope.bare), len(scope.relations)
        left = self._from(tree.left, scope)
        middle = len(scope.bare)
        right = self._from(tree.right, scope)
        if tree.kind in ("right", "full") and isinstance(right, NestedRows) and right.lateral:
            message = f"{tree.kind.upper()} JOIN LATERAL is not supported"
            raise self.context.refuse(tree.at, message, Reason.UNSUPPORTED_SQL)
        names: Sequence[str] = tree.using
        if tree.natural:
            others = {name for name, _ in scope.bare[middle:]}
            names = [name for name, _ in scope.bare[first:middle] if name in others]
        condition = None
        merged: list[Made] = []
        if names:
            condition, merged = self._using(tree, scope, names, first, middle)
        elif tree.on is not None:
            condition = Analytic(self, self._part(scope, relations, first), "ON").condition(tree.on)
        kind = "cross" if condition is None and tree.kind in ("inner", "cross") else tree.kind
        if condition is None and kind != "cross":
            condition = Literal(True, Type(Kind.BOOLEAN))
        return JoinedRows(kind, left, right, condition, tuple(merged))

    def _part(self, scope: Scope, relations: int, columns: int) -> Scope:
        """The scope of ON: both sides of the join, and nothing beside."""
        part = self._inside(scope)
        part.relations, part.bare = scope.relations[relations:], scope.bare[columns:]
        part.places, part.own = scope.places, scope.own
        return part

    def _using(
        self, tree: syntax.Join, scope: Scope, names: Sequence[str], first: int, middle: int
    ) -> tuple[Expression, list[Made]]:
        binder = Analytic(self, scope, "USING")
        terms: Expression | None = None
        merged: list[Made] = []
        columns: list[tuple[str, Column]] = []
        left, right = scope.bare[first:middle], scope.bare[middle:]
        for name in names:
            pair = [[column for label, column in side if label == name] for side in (left, right)]
            for side in pair:
                if len(side) != 1:
                    message = f"USING ({name}): it is not one column on each side"
                    raise self.context.refuse(tree.at, message, Reason.COLUMN_NOT_FOUND, "42702" if side else "42703")
            mine, other = pair[0][0], pair[1][0]
            term = binder._binary("=", mine, other, tree.at, tree.at, tree.at)
            terms = term if terms is None else _both(terms, term)
            if tree.kind == "full":
                kind = casts.common([mine.type, other.type])
                made = Made(self.number(), Call("coalesce", (mine, other), kind))
                merged.append(made)
                scope.own.add(made.number)
                columns.append((name, Column(made.number, kind)))
            else:
                columns.append((name, other if tree.kind == "right" else mine))
        rest = [pair for pair in (*left, *right) if pair[0] not in names]
        scope.bare[first:] = [*columns, *rest]
        assert terms is not None
        return terms, merged


class _Group:
    """The columns of groups, for the expressions above GROUP BY: keys and aggregates."""

    def __init__(self, planner: Planner, scope: Scope, keys: list[Made], *, has_sets: bool = False) -> None:
        self.keys = keys
        self._has_sets = has_sets
        self._planner = planner
        self._scope = scope

    def over(self, expression: Expression, at: int) -> Expression:
        """The expression over the columns of the groups. Raises 42803 for a column that is none."""

        def change(node: Expression) -> Expression | None:
            for key in self.keys:
                if node == key.expression:
                    return Column(key.number, type_of(node))
            if isinstance(node, Column):
                self._check(node, at)
                self._operand(node.column, at)
            return None

        return rebuilt(expression, change)

    def window(self, call: Aggregate, at: int) -> Aggregate:
        """A function of a window over the columns of the groups."""
        window = call.window
        assert window is not None
        frame = window.frame
        if frame is not None:
            rows = [None if each is None else self.over(each, at) for each in (frame.start_rows, frame.end_rows)]
            frame = Frame(frame.unit, frame.start, frame.end, rows[0], rows[1], frame.exclude)
        return Aggregate(
            call.number, call.function, tuple(self.over(each, at) for each in call.arguments), call.type,
            call.distinct, None if call.filter is None else self.over(call.filter, at), (), False,
            Window(tuple(self.over(each, at) for each in window.partition), self.order(window.order, at), frame),
        )  # fmt: skip

    def order(self, order: Sequence[Order], at: int) -> tuple[Order, ...]:
        """Keys of ORDER BY over the columns of the groups."""
        return tuple(Order(self.over(each.expression, at), each.descending, each.nulls_first) for each in order)

    def check_grouping(self, calls: Sequence[Aggregate]) -> None:
        """Raise 42803 for GROUPING of what is no key."""
        known = {key.expression for key in self.keys}
        for call in calls:
            if call.function == GROUPING and not known.issuperset(call.arguments):
                message = "GROUPING takes what GROUP BY groups by"
                raise self._planner.context.refuse(self._planner.grouping[call.number], message, sqlstate="42803")

    def _check(self, node: Column, at: int) -> None:
        used = self._planner.uses.get(node.column)
        numbers = {node.column} if used is None else used
        for number in numbers & self._scope.own:
            if any(key.number == number for key in self.keys):
                continue
            if not self._has_sets and self._depends(number):
                column = next(c for r in self._scope.relations for c in r.columns.values() if c.column == number)
                self.keys.append(Made(number, column))
                continue
            name = next((name for name, column in self._scope.bare if column.column == number), "of a table")
            raise not_grouped(self._planner.context, name, self._scope.places.get(number, at))

    def _operand(self, number: int, at: int) -> None:
        """Bring the operand of a query in the place of a value over the columns of the groups."""
        if number in self._planner.uses:
            place = next(place for place, each in enumerate(self._planner.inner) if each.number == number)
            inner = self._planner.inner[place]
            if inner.operand is not None:
                self._planner.inner[place] = replace(inner, operand=self.over(inner.operand, at))

    def _depends(self, number: int) -> bool:
        """Return whether the primary key of the column's table is grouped by: the column has one value then."""
        known = self._planner.keys.get(number)
        return known is not None and known[1] <= {key.number for key in self.keys if isinstance(key.expression, Column)}


def _both(left: Expression, right: Expression) -> Expression:
    """Both conditions."""
    return Binary("and", left, right, Type(Kind.BOOLEAN))


def _shown(expression: Expression, outputs: Sequence[Made]) -> Expression:
    """The column of the result that has this expression, else the expression itself."""
    for output in outputs:
        if output.expression == expression:
            return Column(output.number, type_of(expression))
    return expression


def _columns(body: Core | Constants | Combined) -> list[tuple[int, Type | None]]:
    if isinstance(body, Core):
        return [(each.number, type_of(each.expression)) for each in body.outputs]
    return list(body.columns)


def _number_of(output: Output) -> int:
    (number,) = numbers_of(output.expression)
    return number


def analysis(context: Context, tree: syntax.Query, why: str) -> Analysis:
    """Plan a query for the analytical engine. Raises the errors of names and types, with their places."""
    planner = Planner(context)
    return planner.finished(planner.query(tree, Scope()), why)
