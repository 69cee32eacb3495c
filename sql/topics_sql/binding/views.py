"""Plans of statements about views."""

from typing import NamedTuple

from topics_service.engine.errors import Reason
from topics_service.engine.tables import plans
from topics_service.engine.tables.model import RESERVED_NAMESPACES, TableName, View
from topics_sql import syntax
from topics_sql.binding.analysis import Planner
from topics_sql.binding.analytic import Scope
from topics_sql.binding.naming import UNNAMED
from topics_sql.binding.pushing import table_columns
from topics_sql.binding.scope import Context


class Reads(NamedTuple):
    """Objects that a view reads: tables, columns of them by their ids, the views that it names, and topics."""

    tables: tuple[TableName, ...]
    columns: tuple[tuple[TableName, int], ...]
    views: tuple[TableName, ...]
    topics: tuple[str, ...]


def view_reads(context: Context, tree: syntax.Query) -> tuple[tuple[plans.Output, ...], Reads]:
    """The columns of a view, and what it reads."""
    planner = Planner(context)
    query = planner.query(tree, Scope())
    inner = tuple(planner.inner)
    names = {table.number: TableName(table.namespace, table.name) for table in planner.tables.values()}
    reads = {(names[table.number], column) for table, column in table_columns((query, inner))}
    topics = dict.fromkeys(planner.topics)
    return query.outputs, Reads(tuple(names.values()), tuple(sorted(reads)), tuple(planner.views), tuple(topics))


def create_view(context: Context, tree: syntax.CreateView) -> plans.CreateView:
    """Plan CREATE VIEW: its query is bound, so that it is known to work and what it reads is known."""
    full = context.table_name(tree.name)
    if full.namespace in RESERVED_NAMESPACES:
        message = f"the namespace {full.namespace} is the server's own"
        raise context.refuse(tree.name.at, message, Reason.FORBIDDEN, "42939")
    outputs, reads = view_reads(context, tree.query)
    names = [output.name for output in outputs]
    if len(tree.columns) > len(names):
        message = f"the view has {len(names)} columns, but {len(tree.columns)} names are given"
        raise context.refuse(tree.name.at, message, sqlstate="42P10")
    shown = [*tree.columns, *names[len(tree.columns) :]]
    for place, name in enumerate(shown):
        if name == UNNAMED:
            raise context.refuse(tree.query.at, f"column {place + 1} of the view needs a name", sqlstate="42P10")
        if name in shown[:place] or names[place] in names[:place]:
            message = f"the query of the view has two columns {names[place]}: give them names in it"
            raise context.refuse(tree.query.at, message, sqlstate="42701")
    columns = tuple(zip(shown, names, strict=True))
    view = View(full.namespace, full.name, tree.text, context.namespace, columns, *reads)
    return plans.CreateView(view, tree.replace)


def drop_view(context: Context, tree: syntax.DropView) -> plans.Action:
    """Plan DROP VIEW."""
    full = context.table_name(tree.name)
    if context.schema.view(full) is None:
        if tree.if_exists:
            return plans.Nothing(f"view {full} does not exist")
        error = context.refuse(tree.name.at, f"view {full} does not exist", Reason.TABLE_NOT_FOUND)
        raise error
    return plans.DropView(full, tree.cascade)
