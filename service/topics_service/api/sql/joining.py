"""INSERTs of one row that come in the same turn of the event loop, by one statement: one transaction for them."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from topics_service.api.scheduling.batcher import WriteBatcher
from topics_service.engine.errors import TopicsError
from topics_service.engine.tables import plans
from topics_service.engine.tables.tables import Tables
from topics_service.engine.tables.types import Value

_MAX_JOINED: Final = 64


class Written(NamedTuple):
    """A row that was written, as the statement returns it, and the ticket to wait for."""

    ticket: int
    returned: Sequence[Sequence[Value]]


class _Row(NamedTuple):
    action: plans.Insert
    parameters: Sequence[Value]


class JoinedInserts:
    """Writes rows together. Where that fails, each is left to be written alone, to its own error."""

    def __init__(self, tables: Callable[[], Tables], check: Callable[[], None], writing: asyncio.Lock) -> None:
        """`check` raises the error that any write would get now, `writing` is held by those who write."""
        self._tables = tables
        self._check = check
        self._writing = writing
        self._batcher = WriteBatcher(self._write, _MAX_JOINED)
        self._slow: set[int] = set()  # tables whose last commit had to wait for an fsync

    def join(self, action: plans.Insert, parameters: Sequence[Value]) -> "asyncio.Future[Written | None] | None":
        """Write a row with others. None, returned or as the answer, means that it must be written alone."""
        if len(action.rows) != 1 or any((action.conflict, action.select, action.query)):
            return None
        linger = action.table.number in self._slow  # who waits for an fsync anyway should share it
        return self._batcher.join(id(action), _Row(action, parameters), linger=linger)

    def committed(self, action: plans.Insert, ticket: int) -> None:
        """Note whether the commit of a row that was written alone waits for an fsync."""
        if ticket:
            self._slow.add(action.table.number)
        else:
            self._slow.discard(action.table.number)

    def _write(self, key: int, rows: Sequence[_Row]) -> Sequence[Written] | None:
        if self._writing.locked():
            return None
        action = rows[0].action
        try:
            self._check()
            transaction = self._tables().begin()
            try:
                steps = transaction.run_many(action, [row.parameters for row in rows])
                while True:
                    try:
                        next(steps)  # a few rows: no other call has its turn before
                    except StopIteration as done:
                        returned: Sequence[Sequence[Value]] = done.value.rows
                        break
                ticket = transaction.commit()
            except BaseException:
                transaction.rollback()
                raise
        except TopicsError:
            return None
        self.committed(action, ticket)
        return [Written(ticket, [returned[at]] if returned else ()) for at in range(len(rows))]
