"""Queries of views, read again where a statement names one."""

from collections.abc import Iterator
from contextlib import contextmanager

from topics_service.engine.errors import TopicsError
from topics_service.engine.tables.model import RESERVED_NAMESPACES, View
from topics_service.engine.tables.views import MAX_DEPTH
from topics_sql import syntax
from topics_sql.binding.beyond import beyond, counts
from topics_sql.binding.scope import Context
from topics_sql.grammar.statements import view_query


def view_of(context: Context, source: object) -> View | None:
    """The view that FROM names, if it is one."""
    if not isinstance(source, syntax.From):
        return None
    full = context.table_name(source.name)
    if full.namespace in RESERVED_NAMESPACES or context.schema.table(full) is not None:
        return None
    return context.schema.view(full)


def plain_query(view: View) -> syntax.Select | None:
    """The query of a view that only picks rows of one table and computes from each; None for any other."""
    tree = view_query(view.text)
    if not isinstance(tree, syntax.Select) or beyond(tree) is not None or counts(tree):
        return None
    if tree.source is None or tree.distinct or tree.order or tree.limit is not None or tree.offset is not None:
        return None
    return tree


def is_plain(context: Context, view: View, depth: int = 0) -> bool:
    """Return whether a view, and each one below it, has a plain query."""
    tree = plain_query(view)
    if tree is None or depth > MAX_DEPTH:
        return False
    inside = Context(view.text, context.schema, view.reading_namespace)
    below = view_of(inside, tree.source)
    return below is None or is_plain(inside, below, depth + 1)


@contextmanager
def reading(around: Context, view: View, at: int) -> Iterator[Context]:
    """The context of a view's own text. Its errors have the place that names the view."""
    try:
        yield Context(view.text, around.schema, view.reading_namespace)
    except TopicsError as error:
        error.message = f"the view {view.view_id}: {error.message}"
        if isinstance(error.detail, dict):
            error.detail.pop("line", None)
            error.detail.pop("column", None)
        around.place(error, at)
        raise
