"""Idempotent producers: the recent batches of each in a log, so that a retry is not appended twice.

The state of a producer is a row of its log, written with the batch that changes it, so it is as durable as the batch.
Like Kafka, the last five batches of each are known, and a producer that was idle for a day is forgotten.
"""

import struct
from collections import OrderedDict
from collections.abc import Sequence
from itertools import islice
from typing import Literal, NamedTuple

from topics_service.engine.log import Log
from topics_service.engine.writer import Writer
from topics_service.storage import keys
from topics_service.storage.recordbatch import Header
from topics_service.storage.store import Family, Store, WriteBatch

_NEXT_ID = b"next_producer"
_IDS_RESERVED = 1000
_KNOWN_BATCHES = 5
_LAST_SEQUENCE = (1 << 31) - 1
_CACHED = 10_000
_IDLE_MS = 86_400_000
_LISTED = 1000
_HEAD = struct.Struct(">hqB")
_BATCH = struct.Struct(">iiQ")

SequenceFault = Literal["out_of_order", "stale_epoch"]


class SequenceError(Exception):
    """A batch does not follow the one before it: its number is not the next one, or its epoch is an old one."""

    def __init__(self, kind: SequenceFault, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Known(NamedTuple):
    """A batch that was appended: its first and last sequence number, and the seq of its first record."""

    first: int
    last: int
    seq: int


class Producer(NamedTuple):
    """The state of one producer in a log; its newest batch is the last one."""

    producer_id: int
    epoch: int
    ts: int
    batches: tuple[Known, ...]

    def find(self, header: Header) -> Known | None:
        """Return the batch if it was appended before. Raises SequenceError if it wasn't, and can't be."""
        first, last = _numbers(header)
        if header.producer_epoch < self.epoch:
            message = f"epoch {header.producer_epoch} of producer {self.producer_id} is over, it has {self.epoch}"
            raise SequenceError("stale_epoch", message)
        if header.producer_epoch > self.epoch:
            if first:
                raise SequenceError("out_of_order", f"a new epoch begins at 0, not at {first}")
            return None
        for known in self.batches:
            if (known.first, known.last) == (first, last):
                return known
        wanted = (self.batches[-1].last + 1) & _LAST_SEQUENCE
        if first != wanted:
            message = f"producer {self.producer_id} has sent {first} where {wanted} comes next"
            raise SequenceError("out_of_order", message)
        return None

    def encode(self) -> bytes:
        """The stored form."""
        batches = (_BATCH.pack(*known) for known in self.batches)
        return _HEAD.pack(self.epoch, self.ts, len(self.batches)) + b"".join(batches)


class Producers:
    """The producers of all logs: rows in the store, and recent ones also in memory."""

    def __init__(self, writer: Writer, memory: Store) -> None:
        self._writer = writer
        self._memory = memory
        self._cache: OrderedDict[tuple[int, int], Producer] = OrderedDict()
        row = writer.store.get(Family.META, _NEXT_ID)
        self._next_id = self._reserved = 1 if row is None else keys.read_u64(row)
        self._reserved_ticket = 0
        self._swept = [b"", b""]  # on disk, in memory

    def new_id(self) -> tuple[int, int]:
        """Return a new producer id, and the ticket after which it may be used."""
        if self._next_id == self._reserved:
            reserved = self._reserved + _IDS_RESERVED
            batch = self._writer.begin()
            batch.put(Family.META, _NEXT_ID, keys.u64(reserved))
            self._reserved_ticket = self._writer.commit(batch)
            self._reserved = reserved
        self._next_id += 1
        waits = self._reserved_ticket if self._reserved_ticket > self._writer.synced else 0
        return self._next_id - 1, waits

    def find(self, log: Log, producer_id: int) -> Producer | None:
        """Return the log's state of the producer."""
        key = log.log_id, producer_id
        found = self._cache.get(key)
        if found is not None:
            self._cache.move_to_end(key)
            return found
        for store in (self._memory, self._writer.store):
            row = store.get(Family.PRODUCERS, keys.pair(*key))
            if row is not None:
                return _decode(producer_id, row)
        return None

    def after(self, known: Producer | None, header: Header, seq: int, now: int) -> Producer:
        """Return the producer's state after the batch is appended at `seq`."""
        batch = Known(*_numbers(header), seq)
        batches: tuple[Known, ...] = (batch,)
        if known is not None and known.epoch == header.producer_epoch:
            batches = (*known.batches[1 - _KNOWN_BATCHES :], batch)
        return Producer(header.producer_id, header.producer_epoch, now, batches)

    def stage(self, home: WriteBatch, log: Log, producer: Producer) -> None:
        """Put the state into the batch of the records; `written` must follow."""
        home.put(Family.PRODUCERS, keys.pair(log.log_id, producer.producer_id), producer.encode())

    def written(self, log: Log, producer: Producer) -> None:
        """Apply the state, once it is written."""
        key = log.log_id, producer.producer_id
        self._cache[key] = producer
        self._cache.move_to_end(key)
        if len(self._cache) > _CACHED:
            self._cache.popitem(last=False)

    def for_log(self, log: Log) -> Sequence[Producer]:
        """Return up to 1000 of the log's producers."""
        found: dict[int, Producer] = {}
        for store in (self._memory, self._writer.store):
            for key, row in islice(store.scan(Family.PRODUCERS, *keys.log_range(log.log_id)), _LISTED):
                producer_id = keys.read_u64(key, 8)
                found.setdefault(producer_id, _decode(producer_id, row))
        return list(found.values())[:_LISTED]

    def sweep(self, now: int, max_rows: int) -> None:
        """Examine the next `max_rows` rows, on disk and in memory, and forget producers that were idle for a day."""
        for store in (self._writer.store, self._memory):
            volatile = store is self._memory
            batch, looked_at, last = store.batch(), 0, b""
            for key, row in islice(store.scan(Family.PRODUCERS, self._swept[volatile], b"\xff" * 17), max_rows):
                looked_at, last = looked_at + 1, key + b"\x00"
                if _decode(keys.read_u64(key, 8), row).ts < now - _IDLE_MS:
                    batch.delete(Family.PRODUCERS, key)
                    self._cache.pop((keys.read_u64(key), keys.read_u64(key, 8)), None)
            self._swept[volatile] = last if looked_at == max_rows else b""
            if batch.is_empty():
                continue
            if volatile:
                store.write(batch)
            else:
                self._writer.commit(batch)


def _numbers(header: Header) -> tuple[int, int]:
    """Return the first and last sequence number of a batch; they wrap around at 2^31."""
    return header.base_sequence, (header.base_sequence + header.count - 1) & _LAST_SEQUENCE


def _decode(producer_id: int, row: bytes) -> Producer:
    epoch, ts, count = _HEAD.unpack_from(row)
    batches = (Known(*_BATCH.unpack_from(row, _HEAD.size + i * _BATCH.size)) for i in range(count))
    return Producer(producer_id, epoch, ts, tuple(batches))
