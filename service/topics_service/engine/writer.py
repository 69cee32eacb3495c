"""The only writer to the durable store: tickets, the read-only state, and waiters for an fsync."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.limits import NOWHERE, Limits
from topics_service.storage.store import Store, StoreError, StoreLostError, StoreStalledError, WriteBatch

Span = Callable[[str, dict[str, Any]], AbstractContextManager[object]]
"""Returns the context manager of a traced step, by its name and attributes; the step may add to the latter."""


@dataclass(slots=True)
class WriteStatistics:
    """Statistics of writes to the store: batches and their bytes, and batches refused for a stall."""

    batches: int = 0
    bytes: int = 0
    stalls: int = 0


class Writer:
    """Hands batches to the store and numbers them: ticket n is durable once an fsync that began after it ended.

    After the first storage failure every write is refused: data in memory can no longer become durable.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.written = 0
        self.synced = 0
        self.life = 0  # the number of unclean ends before this start, see `lives`
        self.expiry_ticket = 0  # the newest of all logs, see `Log.expiry_ticket`
        self.statistics = WriteStatistics()
        self.total_records = 0  # live records of all logs
        self.total_bytes = 0  # live record bytes of all logs, for TOPICS_MAX_TOTAL_BYTES
        self.failure: BaseException | None = None
        # Set by the composition root.
        self.request_sync: Callable[[int], None] = lambda _ticket: None
        self.on_write_failed: Callable[[BaseException], None] = lambda _error: None
        self.on_freed: Callable[[int, int | None], None] = lambda _log_id, _stop: None
        """Called with a log whose blocks below a seq were deleted, or all of its rows (None)."""
        self.span: Span | None = None
        self.merges = WeakSet[Any]()
        """Merges of tag indexes that are under way; one ends with its log."""
        self._promotions: dict[int, Callable[[int], bool]] = {}

    def check(self) -> None:
        """Raise `internal` when the server is read-only, `not_ready` when another one has the data."""
        if self.failure is not None:
            raise self._read_only()

    def begin(self) -> WriteBatch:
        """Return a batch to fill and pass to `commit`. Raises as `check`."""
        self.check()
        return self.store.batch()

    def commit(self, batch: WriteBatch) -> int:
        """Write the batch ahead and return its ticket.

        Raises `throttled` when the store stalls, and `not_ready` when another server has the data (nothing was written
        in both cases); `internal` when the store fails.
        """
        nbytes = batch.nbytes
        try:
            if self.span is None:
                self.store.write(batch)
            else:
                with self.span("topics.store.write", {"topics.batch.bytes": nbytes}):
                    self.store.write(batch)
        except StoreStalledError as error:
            self.statistics.stalls += 1
            raise TopicsError(
                Reason.THROTTLED, "the storage is catching up", {"retry_after_ms": 1000}, retry_after_ms=1000
            ) from error
        except StoreError as error:
            self.fail(error)
            if not isinstance(error, StoreLostError):
                self.on_write_failed(error)
            raise self._read_only() from error
        self.written += 1
        self.statistics.batches += 1
        self.statistics.bytes += nbytes
        return self.written

    def promote_with(self, log_id: int, promote: Callable[[int], bool]) -> None:
        """Call `promote(ticket)` after each fsync until it returns True (nothing left to promote)."""
        self._promotions[log_id] = promote

    def on_synced(self, ticket: int) -> None:
        """Publish everything up to `ticket`, which is durable now."""
        self.synced = max(self.synced, ticket)
        for log_id, promote in list(self._promotions.items()):
            if promote(self.synced):
                self._promotions.pop(log_id, None)

    def forget(self, log_id: int) -> None:
        """Stop promoting a deleted log."""
        self._promotions.pop(log_id, None)

    def fail(self, error: BaseException) -> None:
        """Go read-only. Changes that wait for an fsync are never shown."""
        if self.failure is None:
            self.failure = error
            for promote in list(self._promotions.values()):
                promote(self.synced)  # readers that wait for a loss to become durable

    def _read_only(self) -> TopicsError:
        if isinstance(self.failure, StoreLostError):
            return TopicsError(Reason.NOT_READY, "another server has the data now")
        file = self.failure.file if isinstance(self.failure, StoreError) else None
        which = "" if file is None else f": the file {file} is damaged"
        return TopicsError(
            Reason.INTERNAL, f"the server is read-only after a storage failure{which}; see the server log"
        )


class _SharedWriter(Writer):
    """Tells the other shards of a server at once of each change of `total_bytes`, which count towards one limit: also
    those by writes that are acknowledged before an fsync."""

    def __init__(self, store: Store, tell: Callable[[int], None]) -> None:
        self._total_bytes = 0
        self._tell = tell
        super().__init__(store)

    @property
    def total_bytes(self) -> int:
        """The live record bytes of all logs."""
        return self._total_bytes

    @total_bytes.setter
    def total_bytes(self, nbytes: int) -> None:
        self._total_bytes = nbytes
        self._tell(nbytes)


def writer_for(store: Store, limits: Limits) -> Writer:
    """Return the writer of an engine with these limits."""
    if not limits.max_total_bytes or limits.elsewhere is NOWHERE:
        return Writer(store)
    return _SharedWriter(store, limits.elsewhere.tell_bytes)
