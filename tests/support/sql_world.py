"""SQL text on an engine in memory, without the API."""

from collections.abc import Generator
from typing import Any, TypeVar, get_args

from topics_service.engine.engine import Engine
from topics_service.engine.tables import plans, values
from topics_service.engine.tables.outcomes import Outcome
from topics_service.storage.memory import MemoryStore
from topics_sql.reader import Reader

T = TypeVar("T")


class StandingClock:
    """The same time at each look."""

    def now_ms(self) -> int:
        return 1_700_000_000_000


class SqlWorld:
    """An engine, and statements on it: one transaction each."""

    def __init__(self) -> None:
        self._store = MemoryStore()
        self.reader = Reader()
        self.restart()

    def restart(self) -> None:
        """Start another engine on the same store."""
        self.engine = Engine(self._store, StandingClock(), boot_id="boot-1")

    def run(self, text: str, *parameters: Any) -> Outcome:
        """Run all statements of a text; the outcome of the last."""
        outcome = Outcome((), 0)
        for statement in self.reader.parse(text):
            plan = self.reader.bind(statement, self.engine.tables.newest, "default")
            given = [
                values.coerce(value, kind, f"${place + 1}")
                for place, (value, kind) in enumerate(zip(parameters, plan.parameters, strict=True))
            ]
            outcome = self.act(plan.action, given)
            self.engine.sync()
        return outcome

    def act(self, action: plans.Action, parameters: list[Any]) -> Outcome:
        """Run one plan."""
        tables = self.engine.tables
        if isinstance(action, plans.Select):
            return finished(tables.select(action, parameters, lambda name: []))
        if isinstance(action, get_args(plans.Definition)):
            finished(tables.define(action))  # type: ignore[arg-type]
            if isinstance(action, plans.CreateIndex):
                self.engine.sync()
                finished(tables.built(action))
            return Outcome((), 0)
        if isinstance(action, plans.Nothing | plans.Explain):
            return Outcome((), 0)
        transaction = tables.begin()
        try:
            outcome = finished(transaction.run(action, parameters))  # type: ignore[arg-type]
            transaction.commit()
        finally:
            transaction.rollback()
        return outcome

    def rows(self, text: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """The rows of a query."""
        return [tuple(row) for row in self.run(text, *parameters).rows]


def finished(steps: Generator[None, None, T]) -> T:
    """Run steps to their end."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: T = done.value
            return result
