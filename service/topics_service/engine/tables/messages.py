"""Message ids of events, and the envelope of a change in the meta of its record."""

from collections.abc import Sequence
from typing import Final, Literal

import msgspec
from msgspec import Struct

from topics_service.engine.clock import Clock
from topics_service.engine.tables.model import Op, PayloadMode
from topics_service.engine.transaction import Transaction
from topics_service.storage import keys
from topics_service.storage.store import Family, Store, StoreOpenError

EPOCH_MS: Final = 1_577_836_800_000
"""2020-01-01: what the time in message ids counts from."""

LAST_ID: Final = b"last_message_id"
"""The META row of the last message id, without its node."""

_COUNTER_BITS: Final = 12
_NODE_BITS: Final = 10
_COUNTER: Final = (1 << _COUNTER_BITS) - 1


class MessageIds:
    """Snowflake ids: 41 bits of milliseconds since 2020, 10 of the node, 12 of a counter.

    Each id is above the one before it, also across restarts: the last one is stored with each commit that took some.
    Where a millisecond has no ids left, those of the next one follow.
    """

    def __init__(self, clock: Clock, node: int = 0) -> None:
        self._clock = clock
        self._node = node % (1 << _NODE_BITS) << _COUNTER_BITS
        self._last = self._stored = -1  # time and counter, without the node

    def load(self, store: Store) -> None:
        """Give ids after the last one that is stored. Raises StoreOpenError for a damaged row."""
        row = store.get(Family.META, LAST_ID)
        if row is not None:
            if len(row) != 8:
                raise StoreOpenError(f"the row {LAST_ID!r} is damaged: it has {len(row)} bytes")
            self._last = self._stored = max(self._last, keys.read_u64(row))

    def stage(self, tx: Transaction) -> None:
        """Stage the last id, if it is another one now."""
        if self._last != self._stored:
            self._stored = self._last
            tx.batch.put(Family.META, LAST_ID, keys.u64(self._last))

    def start_after(self, ts: int) -> None:
        """Give no more ids of the time `ts` (ms) or before."""
        self._last = max(self._last, ts - EPOCH_MS << _COUNTER_BITS | _COUNTER)

    def take(self, count: int) -> Sequence[int]:
        """The next ids, in order."""
        first = max(self._last + 1, self._clock.now_ms() - EPOCH_MS << _COUNTER_BITS, 0)
        self._last = first + count - 1
        shift, node, counter = _NODE_BITS + _COUNTER_BITS, self._node, _COUNTER
        if first >> _COUNTER_BITS == self._last >> _COUNTER_BITS:
            start = first >> _COUNTER_BITS << shift | node | first & counter
            return range(start, start + count)
        return [n >> _COUNTER_BITS << shift | node | n & counter for n in range(first, first + count)]

    def next(self) -> int:
        """The next id."""
        return self.take(1)[0]


class Envelope(Struct, frozen=True):
    """The part of a message's envelope that lies in the meta of its record; of a record that is no change, nothing."""

    message_id: str | None = None
    source_table: str | None = None
    op: Literal["Insert", "Update", "Delete"] | None = None
    payload_mode: Literal["Key", "Full", "Diff"] = "Full"


NO_ENVELOPE: Final = Envelope()
_decode = msgspec.json.Decoder(Envelope).decode


def envelope_of(meta: bytes | None) -> Envelope:
    """Read the envelope of a record from its meta."""
    if meta is None or b'"message_id"' not in meta:
        return NO_ENVELOPE
    try:
        return _decode(meta)
    except (msgspec.MsgspecError, ValueError):  # that of a text which is not UTF-8
        return NO_ENVELOPE


META_START: Final = b'{"message_id":"'


def meta_end(table_id: str, op: Op, mode: PayloadMode) -> bytes:
    """The rest of an event's meta, behind the message id."""
    members = {"source_table": table_id, "op": op.value, "payload_mode": mode.value}
    return b'",' + msgspec.json.encode(members)[1:]
