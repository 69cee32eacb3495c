"""A catalog of tables in memory, for tests of the text of statements."""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from topics_service.engine.tables import plans
from topics_service.engine.tables.model import Index, Namespace, Route, Table, TableName, View
from topics_service.engine.tables.plans import Plan
from topics_service.engine.tables.schema import TopicName
from topics_service.engine.tables.system_schema import SYSTEM_TABLES
from topics_service.engine.tables.types import Type
from topics_sql.reader import Reader


class MemorySchema:
    """A `Schema` that `define` fills with the definitions of a text."""

    def __init__(self, text: str = "") -> None:
        self.tables: dict[TableName, Table] = {}
        self.topics: dict[str, TopicName] = {}
        self.all_routes: list[Route] = []
        self.reader = Reader()
        if text:
            self.define(text)

    @property
    def version(self) -> int:
        return len(self.tables)

    @property
    def system(self) -> Mapping[str, tuple[tuple[str, Type], ...]]:
        return SYSTEM_TABLES

    def namespace(self, name: str) -> Namespace | None:
        return Namespace(name) if any(table.namespace == name for table in self.tables) else None

    def table(self, name: TableName) -> Table | None:
        return self.tables.get(name)

    def view(self, name: TableName) -> View | None:
        return None

    def index(self, name: TableName) -> tuple[Table, Index] | None:
        for table in self.tables.values():
            for index in table.indexes:
                if (table.namespace, index.name) == (name.namespace, name.name):
                    return table, index
        return None

    def topic(self, name: str) -> TopicName | None:
        return self.topics.get(name)

    def routes(self, table: int) -> tuple[Route, ...]:
        return tuple(route for route in self.all_routes if route.table == table)

    # ------------------------------------------------------------------------

    def plans(self, text: str, namespace: str = "default") -> list[Plan]:
        """Plan all statements of a text."""
        return [self.reader.bind(statement, self, namespace) for statement in self.reader.parse(text)]

    def action(self, text: str, namespace: str = "default") -> Any:
        """The action of a text with one statement."""
        (plan,) = self.plans(text, namespace)
        return plan.action

    def define(self, text: str, namespace: str = "default") -> None:
        """Carry out CREATE TABLE, CREATE INDEX, CREATE TOPIC and ADD SOURCE."""
        for statement in self.reader.parse(text):
            action = self.reader.bind(statement, self, namespace).action
            if isinstance(action, plans.CreateTable):
                numbered = tuple(replace(each, number=place + 1) for place, each in enumerate(action.table.indexes))
                self._put(replace(action.table, number=len(self.tables) + 1, indexes=numbered))
            elif isinstance(action, plans.CreateIndex):
                made = replace(action.index, number=len(action.table.indexes) + 1)
                self._put(replace(action.table, indexes=(*action.table.indexes, made)))
            elif isinstance(action, plans.CreateTopic):
                self.topics[action.name] = TopicName(action.name, len(self.topics) + 1, False)
            elif isinstance(action, plans.AddSource):
                self.all_routes.append(action.route)
            else:
                raise AssertionError(f"{action} defines nothing here")

    def _put(self, table: Table) -> None:
        self.tables[TableName(table.namespace, table.name)] = table
