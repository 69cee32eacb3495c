"""Rights that a statement needs: capabilities, and names within the prefixes of the caller."""

from collections.abc import Callable, Iterator
from typing import Any, Final

from topics_service.api.access.auth import Principal
from topics_service.api.access.roles import Capability, require
from topics_service.engine.tables import plans
from topics_service.engine.tables.model import Table

_INSPECTED: Final = frozenset({"users", "settings", "live", "transactions"})
"""The system tables that show other callers, or the server."""
Need = tuple[Capability, tuple[str, ...]]


def check(action: plans.Action, principal: Principal, table_of: Callable[[int], Table | None]) -> None:
    """Raise `forbidden` unless the caller may run the action. `table_of` finds a table by its number.

    System tables show only rows that the caller may see, so reading one needs no name.
    """
    for capability, names in _needs(action, table_of):
        require(principal, capability, names)


def names(action: plans.Action, table_of: Callable[[int], Table | None]) -> list[str]:
    """The names that a statement is about."""
    return sorted({name for _, needed in _needs(action, table_of) for name in needed})


def _needs(action: plans.Action, table_of: Callable[[int], Table | None]) -> Iterator[Need]:
    match action:
        case plans.Select():
            yield from _reads(action)
        case plans.Analysis():
            yield from _computes(action)
        case plans.Insert(table=table, conflict=conflict, select=select):
            yield Capability.INSERT, (table.table_id,)
            if conflict is not None and conflict.assignments is not None:
                yield Capability.UPDATE, (table.table_id,)
            if select is not None:
                yield from _reads(select)
            yield from _computes(action.query)
        case plans.Update(table=table):
            yield Capability.UPDATE, (table.table_id,)
            yield from _computes(action.query)
        case plans.Delete(table=table):
            yield Capability.DELETE, (table.table_id,)
            yield from _computes(action.query)
        case plans.Consume() | plans.Ack():
            yield Capability.CONSUME, (action.topic,) if action.group is None else (action.topic, action.group)
        case plans.CreateUser() | plans.AlterUser() | plans.DropUser():
            yield Capability.USERS, ()
        case plans.Explain() | plans.Nothing() | plans.Use():
            yield Capability.SELECT, ()
        case plans.SetAlias(topic=topic, alias=alias):
            yield (
                Capability.DEFINE_DROP if alias is None else Capability.DEFINE,
                (topic,) if alias is None else (topic, alias),
            )
        case _ if (definition := _DEFINITIONS.get(type(action))) is not None:
            yield definition, tuple(_defined(action, table_of))


def _computes(query: plans.Analysis | None) -> Iterator[Need]:
    if query is not None:
        yield Capability.SELECT, tuple(table.table_id for table in query.tables)
        yield from map(_of_system, query.system)
        if query.topics:
            yield Capability.CONSUME, tuple(source.topic for source in query.topics)


def _reads(select: plans.Select) -> Iterator[Need]:
    match select.source:
        case plans.TableSource(table=table):
            yield Capability.SELECT, (table.table_id,)
        case plans.TopicSource(topic=topic):
            yield Capability.CONSUME, (topic,)
        case plans.SystemSource(name=name):
            yield _of_system(name)
        case plans.Join(left=left, right=right):
            yield _of_system(left.name)
            yield _of_system(right.name)
        case None:
            yield Capability.SELECT, ()


def _of_system(name: str) -> Need:
    return Capability.INSPECT if name in _INSPECTED else Capability.SELECT, ()


def _defined(action: Any, table_of: Callable[[int], Table | None]) -> Iterator[str]:
    """The names that a definition is about: tables with their namespace, topics, aliases, `app.` for a namespace."""
    if isinstance(action, plans.CreateNamespace | plans.DropNamespace):
        yield f"{action.name}."
        return
    if isinstance(action, plans.CreateTopic | plans.DropTopic | plans.ClearTopic):
        yield action.name
    if isinstance(action, plans.CreateView):
        yield action.view.view_id
    if isinstance(action, plans.DropView):
        yield str(action.name)
    if (table := getattr(action, "table", None)) is not None:
        yield table.table_id
    if isinstance(action, plans.RenameTable):
        yield f"{action.table.namespace}.{action.name}"
    if (topic := getattr(action, "topic", None)) is not None:
        yield topic
    if (alias := getattr(action, "alias", None)) is not None:
        yield alias
    if isinstance(action, plans.AddSource):
        source = table_of(action.route.table)
        if source is not None:
            yield source.table_id
    if (config := getattr(action, "config", None)) is not None:
        yield from config.retain_until_acked_by or ()


_DEFINITIONS: Final[dict[type, Capability]] = {
    **dict.fromkeys(
        (
            plans.CreateNamespace, plans.CreateTable, plans.AddColumn, plans.RenameColumn, plans.ChangeType,
            plans.SetDefault, plans.RenameTable, plans.SetTableOptions, plans.CreateIndex, plans.CreateTopic,
            plans.AddSource, plans.SetTopicOptions, plans.CreateView,
        ),
        Capability.DEFINE,
    ),
    **dict.fromkeys(
        (
            plans.DropNamespace, plans.DropColumn, plans.DropTable, plans.Truncate, plans.DropIndex, plans.DropTopic,
            plans.ClearTopic, plans.DropSource, plans.DropView,
        ),
        Capability.DEFINE_DROP,
    ),
}  # fmt: skip
