"""Changes of one or more logs, and other rows, in one atomic write."""

from types import TracebackType
from typing import Protocol, Self

from topics_service.engine.writer import Writer


class Change(Protocol):
    """The changes of a log in a transaction."""

    def publish(self, ticket: int) -> int:
        """Publish the write `ticket`, at once or after an fsync; return the ticket to wait for."""
        ...

    def undo(self) -> None:
        """Clean up at the end of the transaction, with or without a write."""
        ...


class LogChange(Change, Protocol):
    """A change that is published by the durability class of a log; with `hold` after an fsync in any class."""

    hold: bool

    @property
    def waits(self) -> bool:
        """Return whether it will be published after an fsync."""
        ...


class Transaction:
    """Stage changes, then `commit`. Without a commit nothing is written.

        with Transaction(writer) as tx:
            first_seq = log.append(tx, s, records, config, now)
            tx.batch.put(family, key, value)
            ticket = tx.commit()

    Each log may be staged once. Its state must not change between staging and commit.
    """

    __slots__ = ("_changes", "_logs", "_writer", "batch", "ticket")

    def __init__(self, writer: Writer) -> None:
        """Begin a transaction. Raises `internal` when the server is read-only."""
        self._writer = writer
        self.batch = writer.begin()
        self._changes: list[Change] = []
        self._logs: list[LogChange] = []
        self.ticket = 0
        """The ticket of the write itself, in every durability class; 0 before `commit`."""

    def stage(self, change: Change) -> None:
        """Add a change whose rows are in the batch."""
        self._changes.append(change)

    def stage_log(self, change: LogChange) -> None:
        """Add the change of a log."""
        self._changes.append(change)
        self._logs.append(change)

    def join(self, *, hold: bool) -> bool:
        """Publish all staged logs together: after an fsync with `hold`, or if one of them waits for it anyway.

        Return whether they will wait. Call it once everything is staged.
        """
        if not hold and not any(change.waits for change in self._logs):
            return False
        for change in self._logs:
            change.hold = True
        return True

    def commit(self) -> int:
        """Write everything; return the ticket that the acknowledgement must wait for, 0 for none.

        Raises `throttled` when the store stalls and `internal` when it fails; nothing has happened then.
        """
        self.ticket = self._writer.written if self.batch.is_empty() else self._writer.commit(self.batch)
        waits = 0
        for change in self._changes:
            waits = max(waits, change.publish(self.ticket))
        return waits

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for change in self._changes:
            change.undo()
