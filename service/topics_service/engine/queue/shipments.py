"""Jobs on their way to a topic in another shard: dead letters, and those that a redrive brings back.

A shipment leaves its topic in the write that puts it in the outbox, and stays there until the other shard has it. That
one remembers in its inbox how much of it has come, in the write that appends it, for as long as it is in the outbox. So
none is lost and none comes twice, whatever ends in between. A seq leaves a topic once: the first one of a shipment, and
the topic's id, are its key.
"""

import struct
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta, Struct

from topics_service.engine import config
from topics_service.engine.capacity import Capacity
from topics_service.engine.catalog import Catalog
from topics_service.engine.clock import Clock
from topics_service.engine.errors import Reason, TopicsError, invalid, topic_not_found
from topics_service.engine.model import Batch, ConfigInput
from topics_service.engine.queue import deadletters
from topics_service.engine.queue.moves import column, first_of, kinds_of
from topics_service.engine.stored_logs import DAMAGE, damaged
from topics_service.engine.topic import Topic
from topics_service.engine.transaction import Transaction
from topics_service.engine.writer import Writer
from topics_service.storage import keys
from topics_service.storage.store import Family, WriteBatch

_OUTBOX: Final = b"outbox\x00"
_INBOX: Final = b"inbox\x00"
_ARRIVED: Final = struct.Struct(">BIIQ")  # version, letters that have come, the shard that they come from, time in ms
_VERSION: Final = 1
REMEMBERED_MS: Final = 600_000
"""The time for which an arrival is remembered at least: a call that was given up may still be on its way."""


class Letter(Struct, frozen=True, array_like=True):
    """A record of a shipment. It was `seq` in the topic that it left."""

    seq: Annotated[int, Meta(ge=0)]
    data: bytes
    tag: bytes | None
    node: bytes | None
    meta: bytes | None
    kind: Annotated[int, Meta(ge=0, le=255)]


class Shipment(Struct, frozen=True, array_like=True):
    """Jobs that leave the topic `source` together for `dest`, which is made if it is missing and may be.

    `shard` is the one that they leave. The jobs of a redrive lose what a dead letter has in its meta.
    """

    source: str
    topic_id: str
    shard: int
    dest: str
    may_create: bool
    is_redrive: bool
    letters: Annotated[list[Letter], Meta(min_length=1)]

    @property
    def key(self) -> bytes:
        """The identity of a shipment, which no other one ever has."""
        return self.topic_id.encode() + b"\x00" + keys.u64(self.letters[0].seq)


class Arrival(NamedTuple):
    """The row of the inbox for a shipment."""

    letters: int
    shard: int
    ts: int


_decode = msgspec.msgpack.Decoder(Shipment).decode


class Shipments:
    """The outbox and the inbox of one shard."""

    def __init__(self, catalog: Catalog, writer: Writer, clock: Clock, capacity: Capacity) -> None:
        self.waiting: dict[str, int] = {}
        """The letters in the outbox, by the id of the topic that they have left."""
        self._catalog = catalog
        self._writer = writer
        self._clock = clock
        self._capacity = capacity

    def load(self) -> None:
        """Count what is in the outbox after a start. Raises StoreOpenError for a damaged row."""
        for shipment in self.outbox():
            self.left(shipment)

    @property
    def written(self) -> int:
        """The ticket of the last write: what is in the outbox is durable after it."""
        return self._writer.written

    # ------------------------------------------------------------------- outbox

    def outbox(self) -> Iterator[Shipment]:
        """All shipments that are not known to have come. Raises StoreOpenError for a damaged row."""
        for key, value in self._writer.store.scan(Family.META, *keys.prefix_range(_OUTBOX)):
            try:
                shipment = _decode(value)
            except DAMAGE as error:
                raise damaged(f"the shipment {key[len(_OUTBOX) :].hex()}", error) from error
            yield shipment

    def stage(self, batch: WriteBatch, shipment: Shipment) -> None:
        """Put a shipment in the outbox; `left` follows the commit."""
        batch.put(Family.META, _OUTBOX + shipment.key, msgspec.msgpack.encode(shipment))

    def left(self, shipment: Shipment) -> None:
        """Count a shipment."""
        topic_id = shipment.topic_id
        self.waiting[topic_id] = self.waiting.get(topic_id, 0) + len(shipment.letters)

    def remove(self, shipment: Shipment) -> int:
        """Remove a shipment that has come; return the ticket of the write."""
        batch = self._writer.begin()
        batch.delete(Family.META, _OUTBOX + shipment.key)
        ticket = self._writer.commit(batch)
        self._removed(shipment)
        return ticket

    def underway(self, shipments: Sequence[bytes]) -> list[bytes]:
        """Those of the keys that are in the outbox."""
        store = self._writer.store
        return [key for key in shipments if store.get(Family.META, _OUTBOX + key) is not None]

    # -------------------------------------------------------------------- inbox

    def room(self, name: str, sizes: Sequence[int], *, may_create: bool) -> int:
        """The number of records with these sizes, from the first on, that the topic would take now.

        Raises the error that refuses the first.
        """
        self._writer.check()
        topic = self._catalog.find(name)
        if topic is None:
            _check_creation(name, may_create=may_create)
            self._catalog.check_capacity(1)
            return len(sizes)
        if not self._capacity.is_checked(topic):
            return len(sizes)
        s, count = topic.log.begin(topic.config, self._clock.now_ms()), len(sizes)
        while True:
            try:
                self._capacity.check(topic, s, count, sum(sizes[:count]))
            except TopicsError:
                if count == 1:
                    raise
                count = (count + 1) // 2
            else:
                return count

    def receive(self, shipment: Shipment) -> tuple[int, int, Topic]:
        """Append what has not come yet, as far as there is room.

        Returns how many of the letters are here, the ticket after which that is durable and visible, and the topic.
        Raises the error that refuses the first; `topic_not_found` if there is no such topic and it may not be made.
        """
        key = _INBOX + shipment.key
        row = self._writer.store.get(Family.META, key)
        before = 0 if row is None else _arrival(row).letters
        letters, now = shipment.letters[before:], self._clock.now_ms()
        topic = self._catalog.find(shipment.dest)
        if topic is None or topic.is_part:
            if shipment.is_redrive:
                raise topic_not_found(shipment.dest)
            _check_creation(shipment.dest, may_create=shipment.may_create)
            topic = self._catalog.create(shipment.dest, config.resolve(shipment.dest, ConfigInput()))
        if not letters:
            return before, self._writer.written, topic
        batch = _batch(letters, is_redrive=shipment.is_redrive)
        sizes = [len(each.data) + len(each.meta or b"") for each in letters]
        count = self.room(topic.name, sizes, may_create=False)
        batch = batch if count == len(letters) else first_of(batch, count)
        with Transaction(self._writer) as tx:
            topic.log.append(tx, topic.log.begin(topic.config, now), batch, topic.config, now)
            arrived = _ARRIVED.pack(_VERSION, before + count, shipment.shard, now)
            tx.batch.put(Family.META, key, arrived)
            tx.commit()
        return before + count, max(tx.ticket, self._catalog.unsynced(topic)), topic

    def arrivals(self, after: bytes, limit: int) -> list[tuple[bytes, Arrival]]:
        """Up to `limit` shipments that have come, wholly or in part, by their keys."""
        start, stop = keys.prefix_range(_INBOX)
        rows = self._writer.store.scan(Family.META, _INBOX + after + b"\x00" if after else start, stop)
        return [(key[len(_INBOX) :], _arrival(value)) for key, value in islice(rows, limit)]

    def forget(self, shipments: Sequence[bytes]) -> None:
        """Forget the arrivals of shipments that no outbox has any more."""
        batch = self._writer.begin()
        for key in shipments:
            batch.delete(Family.META, _INBOX + key)
        if not batch.is_empty():
            self._writer.commit(batch)

    def take_back(self, shipment: Shipment) -> int:
        """Put jobs of a redrive whose queue is gone back to the dead letters; return the ticket of the write.

        They are gone with a topic that is gone, too.
        """
        topic, now = self._catalog.find(shipment.source), self._clock.now_ms()
        if topic is None or topic.topic_id != shipment.topic_id:
            return self.remove(shipment)
        with Transaction(self._writer) as tx:
            batch = _batch(shipment.letters, is_redrive=False)
            topic.log.append(tx, topic.log.begin(topic.config, now), batch, topic.config, now)
            tx.batch.delete(Family.META, _OUTBOX + shipment.key)
            tx.commit()
        self._removed(shipment)
        return tx.ticket

    def _removed(self, shipment: Shipment) -> None:
        left = self.waiting.pop(shipment.topic_id, 0) - len(shipment.letters)
        if left > 0:
            self.waiting[shipment.topic_id] = left


def letters_of(batch: Batch, seqs: Sequence[int]) -> list[Letter]:
    """The records of a batch, which have left a log where they had these seqs."""
    return [
        Letter(
            seq,
            bytes(batch.datas[i]),
            None if batch.tags is None else batch.tags[i],
            None if batch.nodes is None else batch.nodes[i],
            None if batch.metas is None else batch.metas[i],
            0 if batch.kinds is None else batch.kinds[i],
        )
        for i, seq in enumerate(seqs)
    ]


def _batch(letters: Sequence[Letter], *, is_redrive: bool) -> Batch:
    metas = [deadletters.strip(each.meta) if is_redrive else each.meta for each in letters]
    return Batch(
        datas=[each.data for each in letters],
        tags=column([each.tag for each in letters]),
        nodes=column([each.node for each in letters]),
        metas=column(metas),
        kinds=kinds_of(bytes(each.kind for each in letters)),
    )


def _arrival(row: bytes) -> Arrival:
    if len(row) != _ARRIVED.size or row[0] != _VERSION:
        raise TopicsError(Reason.INTERNAL, "a row of the inbox is damaged")
    return Arrival(*_ARRIVED.unpack(row)[1:])


def _check_creation(name: str, *, may_create: bool) -> None:
    if not may_create:
        raise invalid(f'the dead letter topic "{name}" does not exist and auto_create is off')
