"""A transaction over tables: statements that stage, and one commit of rows, index entries and events."""

from collections.abc import Generator, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, Protocol

from topics_service.engine.errors import Reason
from topics_service.engine.tables import plans
from topics_service.engine.tables.errors import sql_error
from topics_service.engine.tables.layers import LayeredReader
from topics_service.engine.tables.model import Op, Table
from topics_service.engine.tables.outcomes import Outcome
from topics_service.engine.tables.runtime import Row, TableRuntime
from topics_service.engine.tables.staging import Clash, Mark, Staged
from topics_service.engine.tables.types import Value
from topics_service.engine.transaction import Transaction
from topics_service.storage import keys
from topics_service.storage.store import Family, Reader

if TYPE_CHECKING:
    from topics_service.engine.tables.tables import Tables

MAX_SAVEPOINTS: Final = 16
_NO_SAVEPOINT: Final = "3B001"
_FINISHED: Final = "25P01"

Steps = Generator[None, None, Outcome]


class Events(Protocol):
    """The events of a transaction: `routing.Events`."""

    @property
    def nbytes(self) -> int:
        """The bytes of the payloads so far."""
        ...

    def change(self, table: Table, op: Op, new: Row | None, old: Row | None) -> None:
        """Add the events of a change."""
        ...

    def mark(self) -> Any:
        """The events so far."""
        ...

    def reset(self, mark: Any) -> None:
        """Forget the events since the mark."""
        ...

    def stage(self, tx: Transaction, now: int) -> bool:
        """Stage one append for each log."""
        ...


class _Savepoint(NamedTuple):
    name: str
    staged: Mark
    events: Any


class TableTransaction:
    """One or more statements, written together by `commit` or not at all.

    A transaction that changes rows has the order of writes from `begin` to its end: the caller lets no other begin
    and no definition run meanwhile. `run` yields between its slices, where other work may run, reads of tables too.
    """

    has_order: ClassVar[bool] = True
    """It has the order of writes while its statements run."""

    def __init__(self, tables: "Tables") -> None:
        self.staged = Staged(tables.writer.store)
        self.events: Events = tables.collect()
        self._tables = tables
        self._now_us = tables.clock.now_ms() * 1000  # `now()`: one moment for the whole transaction
        self._touched: dict[int, Table] = {}
        """Tables that were read or changed."""
        self._savepoints: list[_Savepoint] = []
        self._is_failed = False
        self._is_over = False

    @property
    def is_open(self) -> bool:
        """Return whether it was neither committed nor rolled back."""
        return not self._is_over

    # ---------------------------------------------------------------- statements

    def run(self, action: plans.Select | plans.Change, parameters: Sequence[Value] = ()) -> Steps:
        """Run a statement in slices; it sees the changes of those before it.

        After an error the transaction can only be rolled back, as a whole or to a savepoint: `transaction_error`.
        Raises `not_null_violation`, `check_violation`, `unique_violation`, `result_too_large`, the errors of
        expressions and of routes.
        """
        return self.run_many(action, (parameters,))

    def run_many(self, action: plans.Select | plans.Change, rows: Sequence[Sequence[Value]]) -> Steps:
        """Run a statement for each of these rows of parameters, in order; the outcome is that of all. See `run`."""
        self._check()
        statement = self._tables.compiled(action)
        self._is_failed = True  # until it is done
        outcome = yield from self._tables.at(self._now_us, statement.run(self, rows))
        self._is_failed = False
        return outcome

    def savepoint(self, name: str) -> None:
        """Remember the changes so far; a name may be used again. Raises `result_too_large` for too many."""
        self._check()
        if len(self._savepoints) == MAX_SAVEPOINTS:
            raise sql_error(Reason.RESULT_TOO_LARGE, f"a transaction has at most {MAX_SAVEPOINTS} savepoints")
        self._savepoints.append(_Savepoint(name, self.staged.mark(), self.events.mark()))

    def rollback_to(self, name: str) -> None:
        """Forget the changes since a savepoint, which stays. Raises `transaction_error` (3B001)."""
        self._check(failed=True)
        at = self._find(name)
        del self._savepoints[at + 1 :]
        self.staged.reset(self._savepoints[at].staged)
        self.events.reset(self._savepoints[at].events)
        self._is_failed = False

    def release(self, name: str) -> None:
        """Forget a savepoint and those after it, and keep the changes. Raises `transaction_error` (3B001)."""
        self._check()
        del self._savepoints[self._find(name) :]

    def commit(self) -> int:
        """Write everything; return the ticket that the acknowledgement must wait for, 0 for none.

        Raises `throttled`, `topic_full` and others of the events' topics, `internal`: nothing was written then, and
        the transaction is over.
        """
        self._check()
        self._is_over = True
        tables, staged = self._tables, self.staged
        if not staged.rows:
            return tables.pending.ticket(self._touched)
        tables.pending.check()
        with Transaction(tables.writer) as tx:
            tx.batch.apply(Family.ROWS, staged.rows)
            tx.batch.apply(Family.INDEXES, staged.entries)
            logs = tables.changes.logs
            logged = (
                tables.changes.stage(tx, staged.rows, staged.rows_before)
                if logs and not logs.keys().isdisjoint(self._touched)
                else None
            )
            waits = self.events.stage(tx, tables.clock.now_ms())
            for table in self._touched.values():
                waits = waits or table.durability == "fsync"
            # Readers go by definitions that are durable: an index that was dropped has no entries of newer rows.
            waits = waits or bool(tables.pending.ticket(self._touched)) or tables.catalog.is_ahead(self._touched)
            waits = tx.join(hold=waits)
            tx.commit()
        tables.last_commit += 1
        for number in self._touched:
            tables.commits[number] = tables.last_commit
        if tables.on_rows is not None:
            tables.on_rows(self._touched, staged.rows)
        if logged is not None:
            logged.written()
            if not waits:
                logged.show()
        if waits:
            tables.pending.add(
                tx.ticket,
                self._touched,
                {key: staged.rows_before.get(key) for key in staged.rows},
                {key: staged.entries_before.get(key) for key in staged.entries},
                None if logged is None else logged.show,
            )
        return tx.ticket if waits else 0

    def rollback(self) -> None:
        """Forget everything. May be called more than once, and after an error of `commit`."""
        self._is_over = True

    # ------------------------------------------------------------------- reading

    def reader(self, table: Table) -> Reader:
        """The rows of a table as they are for the next statement, until it is done."""
        self._touched[table.number] = table
        store = self._tables.writer.store
        return LayeredReader(store, self.staged) if self.staged.rows else store

    # ------------------------------------------------------------------- changing

    def insert(self, runtime: TableRuntime, row: Row) -> Clash | None:
        """Insert a row that passed its checks; if another has one of its unique keys nothing happens."""
        clash = self.staged.insert(runtime, row)
        if clash is None and runtime.is_routed:
            self.events.change(runtime.table, Op.INSERT, row, None)
        return clash

    def update(self, runtime: TableRuntime, key: bytes, stored: bytes, old: Row, new: Row) -> None:
        """Change a row, if it is another one then (D11). Raises the errors of its checks and unique keys."""
        if new == old:
            return
        runtime.check(new)
        for index in runtime.unique:
            head = index.head(new)
            holder = self.staged.holder(runtime, index, head, new)
            if holder is not None and holder != key:
                raise runtime.taken(index, new)
        self.staged.replace(runtime, key, stored, old, new)
        if runtime.is_routed:
            self.events.change(runtime.table, Op.UPDATE, new, old)

    def delete(self, runtime: TableRuntime, key: bytes, stored: bytes, row: Row) -> None:
        """Remove a row."""
        self.staged.remove(runtime, key, stored, row)
        if runtime.is_routed:
            self.events.change(runtime.table, Op.DELETE, None, row)

    @property
    def now_us(self) -> int:
        """The time of the transaction, in microseconds since 1970."""
        return self._now_us

    def pin(self) -> None:
        """Let `reader` give the rows as they are now, until `unpin`: there is no other writer here."""

    def unpin(self) -> None:
        """Let `reader` give the newest rows again."""

    def depend(self, tables: Iterable[int]) -> None:
        """Note tables that the changes depend on as a whole: there is no other writer here."""

    def own_keys(self, table: Table) -> Sequence[bytes]:
        """The keys of the rows of a table that were changed, in order."""
        return self.staged.keys(Family.ROWS, *keys.prefix_range(keys.u64(table.number)))

    def touch(self, table: Table) -> None:
        """Note that a statement changes the table."""
        self._touched[table.number] = table

    # ---------------------------------------------------------------- internals

    def _check(self, *, failed: bool = False) -> None:
        if self._is_over:
            raise sql_error(Reason.TRANSACTION_ERROR, "the transaction is over", sqlstate=_FINISHED)
        if self._is_failed and not failed:
            message = "a statement of the transaction failed: roll it back, as a whole or to a savepoint"
            raise sql_error(Reason.TRANSACTION_ERROR, message)

    def _find(self, name: str) -> int:
        for at in range(len(self._savepoints) - 1, -1, -1):
            if self._savepoints[at].name == name:
                return at
        raise sql_error(Reason.TRANSACTION_ERROR, f'there is no savepoint "{name}"', sqlstate=_NO_SAVEPOINT)


class NoEvents:
    """Implements Events where there are no routes."""

    nbytes = 0

    def change(self, table: Table, op: Op, new: Row | None, old: Row | None) -> None:
        """See Events."""

    def mark(self) -> None:
        """See Events."""

    def reset(self, mark: None) -> None:
        """See Events."""

    def stage(self, tx: Transaction, now: int) -> bool:
        """See Events."""
        return False
