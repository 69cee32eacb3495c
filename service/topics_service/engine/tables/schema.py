"""The catalog, as the binder of statements asks it."""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from topics_service.engine.tables.model import Index, Namespace, Route, Table, TableName, View
from topics_service.engine.tables.types import Type


class TopicName(NamedTuple):
    """A topic that a statement names: its name at every door, its number, and whether it is a queue."""

    name: str
    number: int
    is_queue: bool


class Schema(Protocol):
    """The catalog at one moment. Names are folded already."""

    @property
    def version(self) -> int:
        """A number that changes with every definition of a table, index, route, alias or namespace."""
        ...

    @property
    def system(self) -> Mapping[str, tuple[tuple[str, Type], ...]]:
        """The system tables: names and types of their columns in order, by name without `system.`."""
        ...

    def namespace(self, name: str) -> Namespace | None:
        """Find a namespace."""
        ...

    def table(self, name: TableName) -> Table | None:
        """Find a table."""
        ...

    def view(self, name: TableName) -> View | None:
        """Find a view."""
        ...

    def index(self, name: TableName) -> tuple[Table, Index] | None:
        """Find an index; its namespace is that of its table."""
        ...

    def topic(self, name: str) -> TopicName | None:
        """Find a topic by its name or alias."""
        ...

    def routes(self, table: int) -> tuple[Route, ...]:
        """The routes of a table."""
        ...
