"""Definitions of views, and what depends on a table or a view: the views that read it."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from msgspec import structs

from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.tables import plans
from topics_service.engine.tables.catalog import CatalogView, Edit
from topics_service.engine.tables.errors import sql_error
from topics_service.engine.tables.model import Table, TableName, View

MAX_VIEWS: Final = 10_000
MAX_DEPTH: Final = 16
"""Views over views over views."""
_SHOWN: Final = 5


def created(state: CatalogView, definition: plans.CreateView, now_ms: int, check_free: Callable[[], None]) -> View:
    """The view as it is stored. Raises `already_exists`, and `invalid_value` for one that reads itself."""
    view, name = definition.view, TableName(definition.view.namespace, definition.view.name)
    old = state.view(name)
    if old is None or not definition.replace:
        check_free()
        if len(state.views) >= MAX_VIEWS:
            raise sql_error(Reason.THROTTLED, "the server has reached its limit of views", sqlstate="54000")
    elif (over := _over(state, (name,))) and _names(old) != _names(view)[: len(old.columns)]:
        raise dependent(f"view {name}", over, "its columns can't be others", view=str(name))
    if _depth(state, view, name, 1) > MAX_DEPTH:
        message = f"view {name} reads itself, or is over more than {MAX_DEPTH} views"
        raise sql_error(Reason.INVALID_VALUE, message, sqlstate="42P17", view=str(name))
    return structs.replace(view, created_ms=now_ms if old is None else old.created_ms)


def _names(view: View) -> list[str]:
    return [shown for shown, _ in view.columns]


def _depth(state: CatalogView, view: View, name: TableName, depth: int) -> int:
    if depth > MAX_DEPTH:
        return depth
    deepest = depth
    for below in view.views:
        if below == name:
            return MAX_DEPTH + 1
        found = state.view(below)
        if found is not None:
            deepest = max(deepest, _depth(state, found, name, depth + 1))
    return deepest


def dropped(state: CatalogView, definition: plans.DropView) -> list[TableName]:
    """The views that go with one: those over it, with CASCADE. Raises `table_not_found`, `dependent_objects`."""
    name = definition.name
    if state.view(name) is None:
        raise sql_error(Reason.TABLE_NOT_FOUND, f"view {name} does not exist", table=str(name))
    over = _over(state, (name,))
    if over and not definition.cascade:
        raise dependent(f"view {name}", over, "drop them, or use CASCADE", view=str(name))
    return [name, *over]


def of_table(state: CatalogView, table: Table, column: int | None = None) -> list[TableName]:
    """The views that read a table, or one column of it, and those over these."""
    name = TableName(table.namespace, table.name)
    if column is None:
        first = [each for each, view in state.views.items() if name in view.tables]
    else:
        first = [each for each, view in state.views.items() if (name, column) in view.reads]
    return [*first, *(each for each in _over(state, first) if each not in first)]


def check_table(state: CatalogView, table: Table, what: str, column: int | None = None) -> None:
    """Raise `dependent_objects` if a view reads the table, or the column of it."""
    if found := of_table(state, table, column):
        raise dependent(what, found, "drop them first", table=table.table_id)


def in_namespace(state: CatalogView, namespace: str) -> list[TableName]:
    """The views of a namespace, and those over them or its tables in others."""
    own = [name for name in state.views if name.namespace == namespace]
    for table in state.in_namespace(namespace):
        own += [name for name in of_table(state, table) if name not in own]
    return [*own, *(name for name in _over(state, own) if name not in own)]


def drop_all(edit: Edit, names: Iterable[TableName]) -> None:
    """Stage the end of views."""
    for name in names:
        edit.drop_view(name)


def dependent(what: str, views: Sequence[TableName], advice: str, **facts: Any) -> TopicsError:
    """Make the error of what views depend on."""
    names = [str(each) for each in views]
    message = f"{what} is read by view {', view '.join(names[:_SHOWN])}; {advice}"
    return sql_error(Reason.DEPENDENT_OBJECTS, message, dependents=names[:100], **facts)


def _over(state: CatalogView, names: Sequence[TableName]) -> list[TableName]:
    """The views over some views, directly or not."""
    found: dict[TableName, None] = {}
    wanted = set(names)
    while True:
        more = [name for name, view in state.views.items() if name not in wanted and not wanted.isdisjoint(view.views)]
        if not more:
            return list(found)
        found.update(dict.fromkeys(more))
        wanted.update(more)
