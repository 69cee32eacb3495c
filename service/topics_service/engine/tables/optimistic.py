"""A transaction without the order of writes: its statements may be minutes apart, and others write in between."""

from collections.abc import Generator, Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple

from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.tables.errors import sql_error
from topics_service.engine.tables.layers import ABSENT, LayeredReader
from topics_service.engine.tables.model import Route, Table
from topics_service.engine.tables.transaction import TableTransaction
from topics_service.storage import keys
from topics_service.storage.store import Family, Reader

if TYPE_CHECKING:
    from topics_service.engine.tables.tables import Tables

CONFLICT: Final = "40001"
"""The SQLSTATE of a transaction that others were faster than."""
_KEYS_A_SLICE: Final = 128
_NUMBER_BYTES: Final = 8  # of a table, in front of the keys of its rows and index entries


class _Met(NamedTuple):
    """A table as the first statement met it: the definition, the routes, the number of its last commit."""

    table: Table
    routes: Sequence[Route]
    commit: int


class OptimisticTransaction(TableTransaction):
    """Reads what is committed, and its own changes. `validate` and then `commit` have the order of writes, no call
    between them; the statements before need none."""

    has_order: ClassVar[bool] = False

    def __init__(self, tables: "Tables") -> None:
        super().__init__(tables)
        self._met: dict[int, _Met] = {}
        self._pinned: Reader | None = None
        self._depends: set[int] = set()

    @property
    def nbytes(self) -> int:
        """The bytes of rows, index entries and events that wait for the commit."""
        return self.staged.nbytes + self.events.nbytes

    @property
    def has_changes(self) -> bool:
        """Return whether a statement has changed rows."""
        return bool(self.staged.rows)

    @property
    def ticket(self) -> int:
        """The ticket that a reply about what the statements read must wait for; 0 for none."""
        return self._tables.pending.ticket(self._met)

    def validate(self) -> Generator[None, None, None]:
        """Check in slices that no other commit has changed what this transaction changes: the rows, the holders of
        unique keys, the definitions and routes of its tables, and the tables that its changes were computed from.

        Raises `transaction_error` (40001).
        """
        self._check()
        self._tables.opened(self)  # upkeep and definitions wait
        changed = set()
        for number, met in self._met.items():
            self._check_definition(number, met)
            if self._tables.commits.get(number, 0) != met.commit:
                changed.add(number)
        for number in changed & self._depends:
            raise self._changed(number)
        if changed:
            yield from self._validate_rows(changed)
            yield from self._validate_holders(changed)

    def reader(self, table: Table) -> Reader:
        """See TableTransaction: of the moment, whatever others write while the statement runs."""
        self._meet(table)
        super().reader(table)
        base = self._pinned or self._tables.writer.store.snapshot()
        return LayeredReader(base, self.staged) if self.staged.rows else base

    def pin(self) -> None:
        """See TableTransaction."""
        self._pinned = self._tables.writer.store.snapshot()

    def unpin(self) -> None:
        """See TableTransaction."""
        self._pinned = None

    def depend(self, tables: Iterable[int]) -> None:
        """See TableTransaction: `validate` fails if another commit has touched one of them."""
        self._depends.update(tables)

    def touch(self, table: Table) -> None:
        """See TableTransaction."""
        self._meet(table)
        super().touch(table)

    # ---------------------------------------------------------------- internals

    def _meet(self, table: Table) -> None:
        met = self._met.get(table.number)
        if met is None:
            tables = self._tables
            commit = tables.commits.get(table.number, 0)
            self._met[table.number] = _Met(table, tables.newest.routes(table.number), commit)
        elif met.table is not table:
            raise _conflict(f"the definition of table {table.table_id} was changed")

    def _check_definition(self, number: int, met: _Met) -> None:
        newest = self._tables.newest
        if newest.tables.get(number) is not met.table or newest.routes(number) != met.routes:
            raise _conflict(f"the definition or a route of table {met.table.table_id} was changed")

    def _validate_rows(self, changed: set[int]) -> Generator[None, None, None]:
        get, before = self._tables.writer.store.get, self.staged.rows_before
        for count, key in enumerate(self.staged.rows, 1):
            if not count % _KEYS_A_SLICE:
                yield
            number = keys.read_u64(key[:_NUMBER_BYTES])
            if number in changed and get(Family.ROWS, key) != before.get(key):
                raise self._changed(number)

    def _validate_holders(self, changed: set[int]) -> Generator[None, None, None]:
        """Look for rows that others have given the unique keys of rows of this transaction."""
        scan, entries = self._tables.writer.store.scan, self.staged.entries
        for count, (head, key) in enumerate(self.staged.holders.items(), 1):
            if not count % _KEYS_A_SLICE:
                yield
            number = keys.read_u64(head[:_NUMBER_BYTES])
            if key is None or number not in changed:
                continue
            for entry, _ in scan(Family.INDEXES, *keys.prefix_range(head)):
                if entry != head + key[_NUMBER_BYTES:] and entries.get(entry, ABSENT) is not None:
                    raise self._changed(number)

    def _changed(self, number: int) -> TopicsError:
        return _conflict(f"another transaction changed a row of table {self._met[number].table.table_id}")


def _conflict(message: str) -> TopicsError:
    message = f"{message} since this transaction read it: run the transaction again"
    return sql_error(Reason.TRANSACTION_ERROR, message, sqlstate=CONFLICT)
