"""Rows of users in the catalog: bytes under the names of users."""

from collections.abc import Iterator
from typing import Final

from topics_service.engine.tables.catalog import USER_ROWS
from topics_service.engine.transaction import Transaction
from topics_service.engine.writer import Writer
from topics_service.storage import keys
from topics_service.storage.store import Family, StoreOpenError

_VERSION: Final = b"\x01"


def put(writer: Writer, name: str, row: bytes | None) -> int:
    """Write the row of a user, None to remove it; return the ticket to wait for."""
    key = USER_ROWS + name.encode()
    with Transaction(writer) as tx:
        if row is None:
            tx.batch.delete(Family.TABLES, key)
        else:
            tx.batch.put(Family.TABLES, key, _VERSION + row)
        tx.commit()
    return tx.ticket


def load(writer: Writer) -> Iterator[tuple[str, bytes]]:
    """Names and rows of all users. Raises StoreOpenError for a row of another version."""
    for key, value in writer.store.scan(Family.TABLES, *keys.prefix_range(USER_ROWS)):
        if value[:1] != _VERSION:
            raise StoreOpenError(f"the row of the user {key[len(USER_ROWS) :]!r} is of version {value[:1].hex()}")
        yield key[len(USER_ROWS) :].decode(), value[1:]
