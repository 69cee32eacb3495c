"""A delivered, unfinished job, and the row that `leases_durable` keeps of it over a restart (docs/contract.md, 10).

Rows of Family.LEASES, by log id and seq. The row of seq 0 is the queue's own: it is kept whatever `leases_durable` is.
"""

import re
import struct
from collections.abc import Iterator

from msgspec import Struct

from topics_service.engine.queue import attempts
from topics_service.engine.queue.attempts import Attempts
from topics_service.storage import keys
from topics_service.storage.store import Family, Store

_TOKEN = re.compile(r"lease_[0-9a-fA-F]{1,64}", re.ASCII)
_PREFIX = "lease_"
_TOKEN_BYTES = 16
_ROW = struct.Struct("<BQIB16s")  # kind, deadline, deliveries, priority, token; then the node
_QUEUE_ROW = struct.Struct("<BQQ")  # version, dead_lettered, cursor
_HELD, _GIVEN_BACK = 1, 2
_WITH_ATTEMPTS = 16  # added to the kind: the node is behind its length (2 bytes), and the attempts behind it
_VERSION = 1


class Delivery(Struct, gc=False):
    """A delivered job that is not done.

    Held by `node` under `lease_id` up to and including `deadline` (ms); or given back (`node` None), and then
    `deadline` is when it can be claimed again, 0 for now.
    """

    node: str | None
    lease_id: str
    deadline: int
    deliveries: int
    priority: int
    attempts: Attempts = ()

    def held_by(self, node: str, lease_id: str) -> bool:
        """Return whether `node` holds the job, under this token if one is given."""
        return self.node == node and (not lease_id or self.lease_id == lease_id)


def is_token(text: str) -> bool:
    """Return whether `text` has the form of a lease id, ours or that of another server of the contract."""
    return _TOKEN.fullmatch(text) is not None


def tokens(random: bytes) -> list[str]:
    """Lease ids, one for each 16 random bytes."""
    text = random.hex()
    return [_PREFIX + text[at : at + 2 * _TOKEN_BYTES] for at in range(0, len(text), 2 * _TOKEN_BYTES)]


def key(log_id: int, seq: int) -> bytes:
    """The key of a job's row; seq 0 for the queue's own."""
    return keys.pair(log_id, seq)


def job_range(log_id: int) -> tuple[bytes, bytes]:
    """The range [start, stop) of the rows of all jobs of a queue."""
    return keys.pair(log_id, 1), keys.u64(log_id + 1)


def scan(store: Store, log_id: int) -> Iterator[tuple[int, bytes]]:
    """The rows of a queue's jobs, by seq."""
    for row_key, row in store.scan(Family.LEASES, *job_range(log_id)):
        yield keys.read_u64(row_key, 8), row


def encode(delivery: Delivery) -> bytes:
    """The stored form of a delivery."""
    held = delivery.node is not None
    token = bytes.fromhex(delivery.lease_id[len(_PREFIX) :]) if held else b""
    kind, node = _HELD if held else _GIVEN_BACK, (delivery.node or "").encode()
    if delivery.attempts:
        kind |= _WITH_ATTEMPTS
        node = len(node).to_bytes(2, "little") + node + attempts.encode(delivery.attempts)
    return _ROW.pack(kind, delivery.deadline, delivery.deliveries, delivery.priority, token) + node


def decode(row: bytes) -> Delivery:
    """Decode a delivery. An unreadable one becomes a returned job, as if every lease of it had expired."""
    try:
        return parse(row)
    except ValueError:
        return Delivery(None, "", 0, 0, 0)


def parse(row: bytes) -> Delivery:
    """A delivery from its stored form. Raises ValueError."""
    try:
        kind, deadline, deliveries, priority, token = _ROW.unpack_from(row)
    except struct.error as error:
        raise ValueError(f"a lease of {len(row)} bytes") from error
    node, history = row[_ROW.size :], Attempts()
    if kind & _WITH_ATTEMPTS:
        stop = 2 + int.from_bytes(node[:2], "little")
        node, history = node[2:stop], attempts.decode(node[stop:])
    held = kind & ~_WITH_ATTEMPTS == _HELD
    if not held and kind & ~_WITH_ATTEMPTS != _GIVEN_BACK:
        raise ValueError(f"a lease of kind {kind}")
    return Delivery(
        node.decode() if held else None, _PREFIX + token.hex() if held else "", deadline, deliveries, priority, history
    )


def encode_queue(dead_lettered: int, cursor: int) -> bytes:
    """The stored form of a queue's own row: jobs dead-lettered ever, and the next seq that was never leased."""
    return _QUEUE_ROW.pack(_VERSION, dead_lettered, cursor)


def decode_queue(row: bytes | None) -> tuple[int, int]:
    """(dead_lettered, cursor) from the stored form; zeros for none. Raises ValueError for a row of another version."""
    if row is None:
        return 0, 0
    try:
        version, dead_lettered, cursor = _QUEUE_ROW.unpack(row)
    except struct.error as error:
        raise ValueError(f"queue row of {len(row)} bytes") from error
    if version != _VERSION:
        raise ValueError(f"queue row of version {version}")
    return dead_lettered, cursor
