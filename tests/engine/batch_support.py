"""Batches as Kafka clients make them, and a world that appends and fetches them."""

from collections.abc import Iterable, Sequence

from aiokafka.record.default_records import DefaultRecordBatchBuilder
from queue_support import QueueWorld
from router_support import RouterWorld

from topics_service.engine.batches import BatchReply, BatchRequest, FetchReply, FetchRequest
from topics_service.storage import recordbatch

KafkaRecord = tuple[bytes | None, bytes | None]
BASE_TS = 900_000


def make(
    values: Iterable[bytes | KafkaRecord | None],
    *,
    ts: Sequence[int] | None = None,
    codec: int = 0,
    producer: tuple[int, int, int] = (-1, -1, -1),
    headers: Sequence[tuple[str, bytes | None]] = (),
) -> bytes:
    """One batch of values, or of (key, value)s; `producer` is its id, epoch and first sequence number."""
    builder = DefaultRecordBatchBuilder(2, codec, 0, *producer, 1 << 24)
    for i, given in enumerate(values):
        key, value = given if isinstance(given, tuple) else (None, given)
        builder.append(i, BASE_TS if ts is None else ts[i], key, value, list(headers))
    return bytes(builder.build())


class BatchWorld(QueueWorld, RouterWorld):
    """A world that speaks in batches, too."""

    def produce(
        self,
        *values: bytes | KafkaRecord | None,
        topic: str = "t",
        partition: int = 0,
        sync: bool = True,
        ts: Sequence[int] | None = None,
        codec: int = 0,
        producer: tuple[int, int, int] = (-1, -1, -1),
        headers: Sequence[tuple[str, bytes | None]] = (),
    ) -> BatchReply:
        """Append one batch."""
        body = make(values, ts=ts, codec=codec, producer=producer, headers=headers)
        header = recordbatch.check(body, max_bytes=1 << 30)
        request = BatchRequest(topic=topic, partition=partition, header=header, body=body)
        reply, _ = self.engine.batches.append(request)
        if sync:
            self.engine.sync()
        return reply

    def fetch(self, from_seq: int = 0, *, topic: str = "t", partition: int = 0, max_bytes: int = 1 << 20) -> FetchReply:
        request = FetchRequest(topic=topic, partition=partition, from_seq=from_seq, max_bytes=max_bytes)
        return self.engine.batches.fetch(request)

    def fetched(self, topic: str = "t", *, max_bytes: int = 1 << 20) -> list[int]:
        """The seqs of the live records that a reader from the first offset on gets, reply by reply."""
        found: list[int] = []
        cursor = self.fetch(topic=topic).earliest_seq - 1
        while True:
            reply = self.fetch(cursor, topic=topic, max_bytes=max_bytes)
            assert not reply.lost
            for part in reply.parts:
                live = (part.block.base_seq + i for i in range(part.start, part.stop) if i not in part.dead)
                found += [seq for seq in live if seq > cursor]
            if reply.next_from_seq == reply.head_seq:
                return found
            assert reply.next_from_seq > cursor, "a reader gets on"
            cursor = reply.next_from_seq
