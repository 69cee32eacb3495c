"""Rows of the users that statements make. What they hold is the caller's."""

from collections.abc import Iterator
from typing import Final

from topics_service.engine.tables.catalog import USER_ROWS
from topics_service.engine.transaction import Transaction
from topics_service.engine.writer import Writer
from topics_service.storage import keys
from topics_service.storage.store import Family, StoreOpenError

_VERSION: Final = b"\x01"


class UserRows:
    """Users in the store, by name. Each change is a write of its own."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    def load(self) -> Iterator[bytes]:
        """The value of each row. Raises StoreOpenError, naming the row, for one of another version."""
        for key, value in self._writer.store.scan(Family.TABLES, *keys.prefix_range(USER_ROWS)):
            if value[:1] != _VERSION:
                raise StoreOpenError(f"the definition {key!r} is damaged: it is of version {value[:1].hex()}")
            yield value[1:]

    def put(self, name: str, value: bytes) -> int:
        """Write a user; return the ticket that its acknowledgement must wait for. Raises `throttled`, `internal`."""
        with Transaction(self._writer) as tx:
            tx.batch.put(Family.TABLES, USER_ROWS + name.encode(), _VERSION + value)
            return self._commit(tx)

    def remove(self, name: str) -> int:
        """Remove a user; see `put`."""
        with Transaction(self._writer) as tx:
            tx.batch.delete(Family.TABLES, USER_ROWS + name.encode())
            return self._commit(tx)

    def _commit(self, tx: Transaction) -> int:
        tx.commit()
        self._writer.request_sync(tx.ticket)
        return tx.ticket
