"""Append dedupe (docs/contract.md, 4.4): (log, key) -> the first outcome, written in the append's own batch.

The state is as durable as the topic and costs no memory. A second row, ordered by expiry, lets `purge` find due
rows without reading others.
"""

import struct

from msgspec import Struct

from topics_service.storage import keys
from topics_service.storage.store import Family, Store, WriteBatch

_ROW = struct.Struct(">QQQqQ")


class Outcome(Struct, frozen=True):
    """The outcome of the first write with a key, its time (ms), and the time at which its row expires."""

    first_seq: int
    count: int
    head_seq: int
    created_ts: int
    expires_at: int


def find(store: Store, log_id: int, key: str, now: int, window_ms: int) -> Outcome | None:
    """Return the remembered outcome if it is still inside the window (inclusive)."""
    row = store.get(Family.IDEMPOTENCY, keys.u64(log_id) + key.encode())
    if row is None:
        return None
    outcome = Outcome(*_ROW.unpack(row))
    return outcome if now - outcome.created_ts <= window_ms else None


def remember(batch: WriteBatch, log_id: int, key: str, outcome: Outcome) -> None:
    """Add the rows of a write that is being committed."""
    row_key = keys.u64(log_id) + key.encode()
    values = (outcome.first_seq, outcome.count, outcome.head_seq, outcome.created_ts, outcome.expires_at)
    batch.put(Family.IDEMPOTENCY, row_key, _ROW.pack(*values))
    batch.put(Family.IDEMPOTENCY_EXPIRY, keys.u64(outcome.expires_at) + row_key, b"")


def supersede(store: Store, batch: WriteBatch, log_id: int, key: str) -> None:
    """Add the removal of a row that the store still has of an earlier use of the key: it has a newer one elsewhere."""
    row_key = keys.u64(log_id) + key.encode()
    row = store.get(Family.IDEMPOTENCY, row_key)
    if row is not None:
        batch.delete(Family.IDEMPOTENCY, row_key)
        batch.delete(Family.IDEMPOTENCY_EXPIRY, expiry_key(row_key, row))


def expiry_key(key: bytes, row: bytes) -> bytes:
    """The key of the expiry row that belongs to a stored outcome."""
    return keys.u64(Outcome(*_ROW.unpack(row)).expires_at) + key


def purge(store: Store, batch: WriteBatch, now: int, limit: int) -> bool:
    """Add the removal of up to `limit` expired rows to the batch. True if there may be more."""
    for found, (key, _) in enumerate(store.scan(Family.IDEMPOTENCY_EXPIRY, b"", keys.u64(max(now, 0)))):
        if found == limit:
            return True
        batch.delete(Family.IDEMPOTENCY_EXPIRY, key)
        row = store.get(Family.IDEMPOTENCY, key[8:])
        if row is not None and expiry_key(key[8:], row) == key:  # not when the key was used again since
            batch.delete(Family.IDEMPOTENCY, key[8:])
    return False
