"""Support for tests of the data plane: batches as clients create them, and handlers on an engine that tests drive."""

import asyncio
import struct
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Self

import google_crc32c
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from support.kafka_wire import Wire
from topics_kafka.handlers import Context, ServerContext, fetch, list_offsets, produce, producer_ids
from topics_kafka.protocol import ApiKey, Message, decode_request, decode_response, encode_request, encode_response
from topics_kafka.registry import APIS
from topics_kafka.settings import KafkaSettings
from topics_service.api.access.auth import UNRESTRICTED, Principal
from topics_service.api.access.authorizer import Authorizer
from topics_service.api.catalog import uuid_of
from topics_service.api.scheduling.commit import CommitStatistics
from topics_service.api.topics import TopicsApi
from topics_service.engine.clock import Clock
from topics_service.engine.engine import Engine
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.model import (
    AppendRequest,
    Batch,
    ConfigInput,
    DeleteRequest,
    TagMatch,
)
from topics_service.statistics import KafkaStatistics
from topics_service.storage.memory import MemoryStore

START = 1_000_000
HEADER = struct.Struct(">qiibIhiqqqhii")


class FakeClock:
    """A clock that stands still until a test advances it."""

    def __init__(self, now: int = START) -> None:
        self.now = now

    def now_ms(self) -> int:
        return self.now


class Rec(NamedTuple):
    """A record as a client sees it."""

    offset: int
    key: bytes | None
    value: bytes | None
    ts: int = -1
    headers: tuple[tuple[str, bytes | None], ...] = ()


def batch(
    *values: bytes | None,
    keys: Sequence[bytes | None] | None = None,
    ts: Sequence[int] | int = START,
    headers: Sequence[tuple[str, bytes | None]] = (),
    codec: int = 0,
    producer: tuple[int, int, int] = (-1, -1, -1),
    transactional: bool = False,
) -> bytes:
    """A batch as a producer sends it; `producer` is id, epoch and first sequence number."""
    builder = DefaultRecordBatchBuilder(
        magic=2, compression_type=codec, is_transactional=transactional, producer_id=producer[0],
        producer_epoch=producer[1], base_sequence=producer[2], batch_size=1 << 30,
    )  # fmt: skip
    for i, value in enumerate(values):
        key = None if keys is None else keys[i]
        builder.append(i, ts if isinstance(ts, int) else ts[i], key, value, list(headers))
    return bytes(builder.build())


def with_fields(records: bytes, *, crc: bool = True, **fields: int) -> bytes:
    """The batch with other header fields and, unless `crc` is false, a valid checksum."""
    names = (
        "base_offset", "length", "leader_epoch", "magic", "crc", "attributes", "last_offset_delta", "base_ts", "max_ts",
        "producer_id", "producer_epoch", "base_sequence", "count",
    )  # fmt: skip
    header = dict(zip(names, HEADER.unpack_from(records), strict=True)) | fields
    out = HEADER.pack(*header.values()) + records[HEADER.size :]
    if crc:
        out = out[:17] + struct.pack(">I", google_crc32c.value(out[21:])) + out[21:]
    return out


def read_batches(records: bytes | memoryview | None) -> list[DefaultRecordBatch]:
    """The batches in the bytes of a fetch response, their checksums verified."""
    found, data, at = [], bytes(records or b""), 0
    while at < len(data):
        (length,) = struct.unpack_from(">i", data, at + 8)
        piece = data[at : at + 12 + length]
        assert struct.unpack_from(">I", piece, 17)[0] == google_crc32c.value(piece[21:]), "the checksum is right"
        found.append(DefaultRecordBatch(piece))
        at += 12 + length
    assert at == len(data), "whole batches"
    return found


def read_records(records: bytes | memoryview | None, since: int = 0) -> list[Rec]:
    """The records in those bytes from an offset on, as a consumer gives them to the application."""
    return [
        Rec(record.offset, record.key, record.value, record.timestamp, tuple(record.headers))
        for found in read_batches(records)
        if not found.is_control_batch
        for record in found
        if record.offset >= since
    ]


def position_after(records: bytes | memoryview | None, position: int) -> int:
    """The position of a consumer at `position` after these bytes."""
    for found in read_batches(records):
        last = found.base_offset + found.last_offset_delta
        position = max(position, last + 1)
    return position


class ManualCommit:
    """A fake group commit: writes become durable when a test calls `sync`, or at once if `eager`."""

    is_replicated = False

    def __init__(self) -> None:
        self.statistics = CommitStatistics()
        self.engine: Engine
        self.eager = True
        self.published = 0
        self.failed = False
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    def want(self, ticket: int) -> None:
        if self.eager and ticket > self.published:
            self.sync()

    def covers(self, ticket: int) -> bool:
        return ticket <= self.published

    async def wait(self, ticket: int) -> None:
        self.want(ticket)
        if ticket <= self.published:
            return
        if self.failed:
            raise TopicsError(Reason.INTERNAL, "the write could not be made durable")
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append((ticket, waiter))
        await waiter

    def sync(self) -> None:
        """Make all writes durable."""
        written = self.engine.writer.written
        self.engine.sync()
        self.published = written
        for ticket, waiter in self._waiting:
            if ticket <= written and not waiter.done():
                waiter.set_result(None)

    def fail(self) -> None:
        """Fail the disk."""
        self.failed = True
        self.engine.sync_failed(OSError("no"))
        for _, waiter in self._waiting:
            waiter.set_exception(TopicsError(Reason.INTERNAL, "the write could not be made durable"))


class Broker:
    """The handlers of the data plane on an engine, with shortcuts for frequent calls.

    Requests and responses go through the codec in the version that the test chooses.
    """

    def __init__(
        self, store: MemoryStore | None = None, *, settings: KafkaSettings | None = None, clock: Clock | None = None,
        **engine: Any,
    ) -> None:  # fmt: skip
        self.store = store or MemoryStore()
        self.clock = clock or FakeClock()
        self.settings = settings or KafkaSettings()
        self.options = {"boot_id": "boot-1", **engine}
        self.principal = UNRESTRICTED
        self.start()

    def start(self) -> None:
        """Start on the content of the store. Running work is lost, as by a SIGKILL."""
        self.commit = ManualCommit()
        self.engine = self.commit.engine = Engine(self.store, self.clock, **self.options)
        self.api = TopicsApi(self.engine, self.commit)  # type: ignore[arg-type]
        self.statistics = KafkaStatistics()
        self.server = ServerContext(
            apis=APIS, api=self.api, authorizer=Authorizer(), settings=self.settings,
            statistics=self.statistics, cluster_id="cluster",
        )  # fmt: skip
        self.handlers = {ApiKey.PRODUCE: produce.Produce(self.server, self.clock)}
        for module in (fetch, list_offsets, producer_ids):
            self.handlers |= module.handlers(self.server)
        self.context = self.connect()

    def restart(self) -> None:
        """Stop cleanly and start again."""
        self.engine.close()
        self.start()

    def connect(self, principal: Principal | None = None) -> Context:
        return Context(server=self.server, principal=principal or self.principal, authenticated=True)

    def put(self, topic: str = "t", partitions: int | None = None, kafka: dict[str, str] | None = None, **config: Any):
        self.engine.put_topic(topic, ConfigInput(**config), partitions, kafka)
        self.commit.sync()

    def topic_id(self, topic: str = "t"):
        return uuid_of(self.engine.catalog.topics[topic].identity.topic_id)

    def start_call(self, api: ApiKey, version: int, body: Message, context: Context | None = None) -> Any:
        """Call the handler. Returns a message, None or an awaitable."""
        frame = b"".join(encode_request(api, version, 7, "client", body))
        _, decoded = decode_request(frame)
        return self.handlers[api](context or self.context, version, decoded)

    def encoded(self, api: ApiKey, version: int, answer: Message) -> Message:
        """A response as decoded by a client of that version."""
        _, body = decode_response(api, version, b"".join(encode_response(api, version, 7, answer)))
        return body

    async def call(self, api: ApiKey, version: int, body: Message, context: Context | None = None) -> Any:
        answer = self.start_call(api, version, body, context)
        if answer is not None and not isinstance(answer, dict):
            answer = await answer
        return None if answer is None else self.encoded(api, version, answer)

    # ------------------------------------------------------------- requests

    def produce_body(
        self, records: bytes | None, topic: str = "t", partition: int = 0, *, acks: int = -1, version: int = 12,
        **more: Any,
    ) -> Message:  # fmt: skip
        named = {"topic_id": self.topic_id(topic)} if version >= 13 else {"name": topic}
        data = {**named, "partition_data": [{"index": partition, "records": records}]}
        return {"transactional_id": None, "acks": acks, "timeout": 1000, "topic_data": [data], **more}

    async def produce(self, records: bytes | None, topic: str = "t", partition: int = 0, *, version: int = 12, **more):
        """Return the answer for the only partition."""
        body = self.produce_body(records, topic, partition, version=version, **more)
        answer = await self.call(ApiKey.PRODUCE, version, body)
        return None if answer is None else answer["responses"][0]["partition_responses"][0]

    def fetch_body(
        self, offset: int = 0, topic: str = "t", partition: int = 0, *, version: int = 12, partition_max: int = 1 << 20,
        max_bytes: int = 50 << 20, max_wait: int = 0, min_bytes: int = 1, epoch: int = -1, **more: Any,
    ) -> Message:  # fmt: skip
        return self.fetch_many([(topic, partition, offset)], version, partition_max=partition_max, max_bytes=max_bytes,
                               max_wait=max_wait, min_bytes=min_bytes, epoch=epoch, **more)  # fmt: skip

    def fetch_many(
        self, targets: Iterable[tuple[str, int, int]], version: int = 12, *, partition_max: int = 1 << 20,
        max_bytes: int = 50 << 20, max_wait: int = 0, min_bytes: int = 1, epoch: int = -1, **more: Any,
    ) -> Message:  # fmt: skip
        topics: dict[str, list[Message]] = {}
        for topic, partition, offset in targets:
            topics.setdefault(topic, []).append(
                {
                    "partition": partition,
                    "fetch_offset": offset,
                    "partition_max_bytes": partition_max,
                    "current_leader_epoch": epoch,
                }
            )
        asked = [
            {("topic_id" if version >= 13 else "topic"): self.topic_id(name) if version >= 13 else name,
             "partitions": partitions}
            for name, partitions in topics.items()
        ]  # fmt: skip
        return {"max_wait": max_wait, "min_bytes": min_bytes, "max_bytes": max_bytes, "topics": asked, **more}

    async def fetch(self, offset: int = 0, topic: str = "t", partition: int = 0, *, version: int = 12, **more: Any):
        """Return the answer for the only partition."""
        body = self.fetch_body(offset, topic, partition, version=version, **more)
        answer = await self.call(ApiKey.FETCH, version, body)
        return answer["responses"][0]["partitions"][0]

    async def consume(self, topic: str = "t", start: int = 0, **more: Any) -> list[Rec]:
        """Return all records from `start` to the high watermark. Every fetch must make progress."""
        found: list[Rec] = []
        position = start
        while True:
            answer = await self.fetch(position, topic, **more)
            assert answer["error_code"] == 0, answer
            if position == answer["high_watermark"]:
                assert not answer["records"]
                return found
            found += read_records(answer["records"], position)
            after = position_after(answer["records"], position)
            assert after > position, f"a consumer at {position} gets on"
            position = after

    async def offsets(self, ts: int, topic: str = "t", partition: int = 0, version: int = 9, epoch: int = -1):
        body = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": topic, "partitions": [
            {"partition_index": partition, "current_leader_epoch": epoch, "timestamp": ts}]}]}  # fmt: skip
        answer = await self.call(ApiKey.LIST_OFFSETS, version, body)
        return answer["topics"][0]["partitions"][0]

    # ------------------------------------------------------------ other protocols

    def append(self, *datas: bytes, topic: str = "t", partition: int = 0, **columns: Any) -> int:
        """Append like HTTP and gRPC do. Returns the first seq."""
        records = Batch(datas=list(datas), **columns)
        reply, ticket = self.engine.append(AppendRequest(topic=topic, partition=partition, batch=records))
        self.commit.want(ticket)
        return reply.first_seq

    def delete(self, before_seq: int | None = None, *, tag: bytes | None = None, topic: str = "t") -> int:
        match = None if tag is None else TagMatch("Eq", tag)
        while match is not None and self.engine.index(topic):
            pass
        reply, ticket = self.engine.delete_records(DeleteRequest(topic=topic, before_seq=before_seq, match=match))
        self.commit.want(ticket)
        return reply.deleted

    def seal(self, topic: str = "t") -> None:
        """Compact all blocks, regardless of thresholds."""
        for log in self.engine.catalog.topics[topic].logs:
            log.unsealed_blocks = 1 << 30
            self.engine._touched[log.log_id] = log
        while self.engine.maintain():
            pass
        self.commit.sync()


class Remote:
    """A connection to a server, with shortcuts for frequent calls."""

    def __init__(self, port: int) -> None:
        self.wire = Wire(port)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.wire.close()

    def produce_body(self, records: bytes | None, topic: str, partition: int = 0, acks: int = -1) -> Message:
        data = {"name": topic, "partition_data": [{"index": partition, "records": records}]}
        return {"transactional_id": None, "acks": acks, "timeout": 1000, "topic_data": [data]}

    def produce(self, records: bytes | None, topic: str, partition: int = 0, acks: int = -1) -> Message:
        """Return the answer for the only partition."""
        answer = self.wire.call(ApiKey.PRODUCE, 9, **self.produce_body(records, topic, partition, acks))
        return answer["responses"][0]["partition_responses"][0]

    def fetch(
        self, offset: int, topic: str, partition: int = 0, *, max_wait: int = 0, min_bytes: int = 1,
        partition_max: int = 1 << 20,
    ) -> Message:  # fmt: skip
        """Return the answer for the only partition."""
        asked = {"partition": partition, "fetch_offset": offset, "partition_max_bytes": partition_max}
        answer = self.wire.call(
            ApiKey.FETCH, 12, max_wait=max_wait, min_bytes=min_bytes, max_bytes=50 << 20,
            topics=[{"topic": topic, "partitions": [asked]}],
        )  # fmt: skip
        return answer["responses"][0]["partitions"][0]

    def consume(self, topic: str, start: int = 0, **more: Any) -> list[Rec]:
        """All records from `start` to the high watermark."""
        found: list[Rec] = []
        position = start
        while True:
            answer = self.fetch(position, topic, **more)
            assert answer["error_code"] == 0, answer
            if position == answer["high_watermark"]:
                return found
            found += read_records(answer["records"], position)
            after = position_after(answer["records"], position)
            assert after > position, f"a consumer at {position} gets on"
            position = after

    def offset(self, ts: int, topic: str) -> tuple[int, int]:
        """Return the offset and timestamp from ListOffsets."""
        asked = {"partition_index": 0, "timestamp": ts}
        answer = self.wire.call(
            ApiKey.LIST_OFFSETS, 9, replica_id=-1, topics=[{"name": topic, "partitions": [asked]}]
        )  # fmt: skip
        found = answer["topics"][0]["partitions"][0]
        assert found["error_code"] == 0, found
        return found["offset"], found["timestamp"]
