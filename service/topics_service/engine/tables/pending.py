"""Commits that are written and not durable yet, as readers must not see them: with what was there before."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.tables.layers import ABSENT, Absent, KeyOrder
from topics_service.engine.writer import Writer
from topics_service.storage.store import Family

MAX_BYTES: Final = 256 << 20
"""The bytes of changes that may wait for an fsync; beyond them writes are refused."""
_ROW_BYTES: Final = 200
_WAITING: Final = 1 << 63  # what the writer knows pending commits by; no log has this id

Before = dict[bytes, bytes | None]


class Pending:
    """Commits in their order. Of a table, all after one that waits wait as well."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._commits: deque[_Commit] = deque()
        self._of_table: dict[int, tuple[_Commit, ...]] = {}
        self.nbytes = 0

    def check(self) -> None:
        """Raise `throttled` when too much waits for an fsync."""
        if self.nbytes > MAX_BYTES:
            raise TopicsError(
                Reason.THROTTLED, "too many changes of tables wait for an fsync", {"retry_after_ms": 100},
                retry_after_ms=100,
            )  # fmt: skip

    def ticket(self, tables: Iterable[int]) -> int:
        """The ticket that a reply about the newest rows of tables must wait for; 0 if they are durable."""
        if not self._commits:
            return 0
        return max((self._of_table[table][-1].ticket for table in tables if table in self._of_table), default=0)

    def add(
        self,
        ticket: int,
        tables: Iterable[int],
        rows: Before,
        entries: Before,
        shown: Callable[[], None] | None = None,
    ) -> None:
        """Add a commit, with the values that were there before it of all rows and index entries that it changed;
        `shown` is called when readers see it."""
        commit = _Commit(ticket, tuple(tables), rows, entries, shown)
        self._commits.append(commit)
        self.nbytes += commit.nbytes
        for table in commit.tables:
            self._of_table[table] = (*self._of_table.get(table, ()), commit)
        self._writer.promote_with(_WAITING, self._promote)
        self._writer.request_sync(ticket)

    def layer(self, table: int) -> "PendingLayer | None":
        """Older values that readers of a table see in front of the store; it never changes. None for none."""
        commits = self._of_table.get(table)
        return None if commits is None else PendingLayer(commits)

    def _promote(self, synced: int) -> bool:
        while self._commits and self._commits[0].ticket <= synced:
            commit = self._commits.popleft()
            self.nbytes -= commit.nbytes
            for table in commit.tables:
                left = self._of_table[table][1:]
                if left:
                    self._of_table[table] = left
                else:
                    del self._of_table[table]
            if commit.shown is not None:
                commit.shown()
        return not self._commits


class _Commit:
    """The values that were there before a commit."""

    __slots__ = ("before", "nbytes", "orders", "shown", "tables", "ticket")

    def __init__(
        self, ticket: int, tables: tuple[int, ...], rows: Before, entries: Before, shown: Callable[[], None] | None
    ) -> None:
        self.shown = shown
        self.ticket = ticket
        self.tables = tables
        self.before = {Family.ROWS: rows, Family.INDEXES: entries}
        self.orders = {family: KeyOrder(before) for family, before in self.before.items()}
        self.nbytes = sum(
            _ROW_BYTES + len(key) + len(value or b"") for each in (rows, entries) for key, value in each.items()
        )


class PendingLayer:
    """Implements Layer: of a key, the value before the first commit that changed it."""

    def __init__(self, commits: Sequence[_Commit]) -> None:
        self._commits = commits

    def find(self, family: Family, key: bytes) -> bytes | Absent | None:
        """See Layer."""
        for commit in self._commits:
            before = commit.before[family]
            if key in before:
                return before[key]
        return ABSENT

    def keys(self, family: Family, start: bytes, stop: bytes) -> Sequence[bytes]:
        """See Layer."""
        found = [key for commit in self._commits for key in commit.orders[family].between(start, stop)]
        return sorted(set(found)) if len(self._commits) > 1 else found
