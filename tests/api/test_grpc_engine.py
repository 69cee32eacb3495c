"""TopicsService over a real socket, in front of the real engine on a store in memory."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from topics_proto.v1 import record_pb2, topic_pb2, topics_service_pb2_grpc
from topics_proto.v1 import topics_service_pb2 as pb
from topics_service.api.grpc.server import GrpcServer
from topics_service.api.scheduling.commit import GroupCommit
from topics_service.api.topics import TopicsApi
from topics_service.engine.clock import SystemClock
from topics_service.engine.engine import Engine
from topics_service.engine.limits import Limits
from topics_service.storage.memory import MemoryStore

FSYNC = topic_pb2.TopicConfig(durability=topic_pb2.DURABILITY_FSYNC)


class CountingEngine(Engine):
    """An engine that knows how many reads are parked, and says when that changes."""

    parked = 0
    changed: asyncio.Event

    def park(self, name: str, wake: Any, partition: int = 0) -> Any:
        inner = super().park(name, wake, partition)
        self._count(1)
        engine = self

        class Counted:
            def leave(self) -> None:
                inner.leave()
                engine._count(-1)

        return Counted()

    def _count(self, step: int) -> None:
        self.parked += step
        self.changed.set()

    async def wait_until_parked(self, count: int) -> None:
        async with asyncio.timeout(10):
            while self.parked != count:
                self.changed.clear()
                await self.changed.wait()


@pytest.fixture
async def engine() -> CountingEngine:
    engine = CountingEngine(MemoryStore(), SystemClock(), limits=Limits(max_topics=3))
    engine.changed = asyncio.Event()
    return engine


@pytest.fixture
async def topics(engine: CountingEngine) -> AsyncIterator[Any]:
    commit = GroupCommit.for_engine(engine)
    server = GrpcServer(TopicsApi(engine, commit), host="127.0.0.1", port=0)
    port = await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield topics_service_pb2_grpc.TopicsServiceStub(channel)
    await server.stop(0)
    commit.stop()


def _append(topic: str, *datas: bytes, **fields: Any) -> pb.AppendRequest:
    return pb.AppendRequest(topic=topic, records=[record_pb2.AppendRecord(data=data) for data in datas], **fields)


async def _refused(call: Any) -> tuple[grpc.StatusCode, str, dict[str, str]]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    status = await rpc_status.aio.from_call(call)
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    return caught.value.code(), info.reason, dict(info.metadata)


async def test_the_life_of_a_topic(topics: Any) -> None:
    put = await topics.PutTopic(pb.PutTopicRequest(topic="t", config=topic_pb2.TopicConfig(ttl_ms=60_000)))
    assert (put.created, put.config.ttl_ms, put.epoch, len(put.topic_id)) == (True, 60_000, 1, 30)
    again = await topics.PutTopic(pb.PutTopicRequest(topic="t"))
    assert (again.created, again.config.ttl_ms, again.topic_id) == (False, 0, put.topic_id)
    appended = await topics.Append(_append("t", b"1", b'{"a": 1.0}', node="n"))
    assert (appended.first_seq, appended.last_seq, list(appended.seqs)) == (1, 2, [1, 2])
    assert not appended.created
    state = (await topics.GetTopic(pb.GetTopicRequest(topic="t"))).state
    assert (state.head_seq, state.next_seq, state.count, state.bytes) == (2, 3, 2, 11)
    listed = await topics.ListTopics(pb.ListTopicsRequest(prefix="t"))
    assert [(topic.topic, topic.topic_id) for topic in listed.topics] == [("t", put.topic_id)]
    deleted = await topics.DeleteRecords(pb.DeleteRecordsRequest(topic="t", before_seq=2))
    assert (deleted.deleted, deleted.earliest_seq, deleted.count) == (1, 2, 1)
    refused = await _refused(topics.DeleteTopic(pb.DeleteTopicRequest(topic="t", if_empty=True)))
    assert refused == (grpc.StatusCode.FAILED_PRECONDITION, "TOPIC_NOT_EMPTY", {"topic": "t", "count": "1"})
    assert (await topics.DeleteTopic(pb.DeleteTopicRequest(topic="t"))).deleted
    assert not (await topics.DeleteTopic(pb.DeleteTopicRequest(topic="t"))).deleted


@pytest.mark.parametrize("durability", list(topic_pb2.Durability.values())[1:])
async def test_records_come_back_as_they_were_sent(topics: Any, durability: Any) -> None:
    rows = [
        record_pb2.AppendRecord(data=b' {"b": 1,  "a": 2e0} '),
        record_pb2.AppendRecord(data=b"\x00\xff", kind=record_pb2.RECORD_KIND_BINARY, tag="x", node=""),
        record_pb2.AppendRecord(data=b"null", meta=b'{"k":"v"}', tag=""),
    ]
    request = pb.AppendRequest(topic="t", records=rows, config=topic_pb2.TopicConfig(durability=durability))
    performance = (await topics.Append(request)).performance
    assert (performance.fsync_ms > 0) == (durability == topic_pb2.DURABILITY_FSYNC)
    assert performance.HasField("fsync_ms")
    page = await topics.Diff(pb.DiffRequest(topic="t", include_tags=True))
    assert [record.data for record in page.records] == [b'{"b": 1,  "a": 2e0}', b"\x00\xff", b"null"]
    assert [record.kind for record in page.records] == [1, 2, 1]
    assert [record.HasField("tag") for record in page.records] == [False, True, True]
    assert [record.HasField("node") for record in page.records] == [False, True, False]
    assert page.records[2].meta == b'{"k":"v"}'
    assert (page.next_from_seq, page.caught_up, page.performance.records_scanned) == (3, True, 3)
    bare = await topics.Diff(pb.DiffRequest(topic="t", from_seq=1, include_meta=False))
    assert [(r.seq, r.HasField("tag"), r.meta) for r in bare.records] == [(2, False, b""), (3, False, b"")]


async def test_a_retry_is_deduped(topics: Any) -> None:
    request = _append("t", b"1", b"2", idempotency_key="")
    first = await topics.Append(request)
    second = await topics.Append(request)
    assert (first.created, first.deduped, second.created, second.deduped) == (True, False, False, True)
    assert list(second.seqs) == list(first.seqs)
    assert not second.performance.HasField("fsync_ms")


async def test_every_number_may_be_huge(topics: Any) -> None:
    maximum = 2**64 - 1
    config = topic_pb2.TopicConfig(
        ttl_ms=maximum,
        cap_records=maximum,
        cap_bytes=maximum,
        max_deliveries=maximum,
        lease_ms=maximum,
        priority=2**31 - 1,
    )
    put = await topics.PutTopic(pb.PutTopicRequest(topic="t", config=config))
    assert (put.config.ttl_ms, put.config.priority) == (maximum, 1000)
    await topics.Append(_append("t", b"1"))
    page = await topics.Diff(pb.DiffRequest(topic="t", limit=2**32 - 1, wait_ms=maximum, max_batch_bytes=maximum))
    assert len(page.records) == 1
    page = await topics.Diff(pb.DiffRequest(topic="t", from_seq=maximum))
    assert page.tombstone.reason == record_pb2.GAP_REASON_RECREATED
    deleted = await topics.DeleteRecords(pb.DeleteRecordsRequest(topic="t", before_seq=maximum))
    assert (deleted.deleted, deleted.earliest_seq) == (1, 2)


async def test_an_idempotency_window_may_be_huge(topics: Any) -> None:
    config = topic_pb2.TopicConfig(idempotency_window_ms=2**64 - 1)
    request = _append("t", b"1", idempotency_key="k", config=config)
    assert not (await topics.Append(request)).deduped
    assert (await topics.Append(request)).deduped


async def test_paging_by_cursor(topics: Any) -> None:
    for name in ("b", "a", "c"):
        await topics.PutTopic(pb.PutTopicRequest(topic=name))
    first = await topics.ListTopics(pb.ListTopicsRequest(page_size=2))
    rest = await topics.ListTopics(pb.ListTopicsRequest(page_size=2, cursor=first.next_cursor))
    assert [topic.topic for page in (first, rest) for topic in page.topics] == ["a", "b", "c"]
    assert rest.next_cursor == ""
    call = topics.PutTopic(pb.PutTopicRequest(topic="d"))
    refused = await _refused(call)
    assert refused == (grpc.StatusCode.RESOURCE_EXHAUSTED, "THROTTLED", {"limit": "max_topics", "max": "3"})


async def test_a_tombstone(topics: Any) -> None:
    await topics.Append(_append("t", b"1", b"2", b"3", config=topic_pb2.TopicConfig(cap_records=1)))
    page = await topics.Diff(pb.DiffRequest(topic="t"))
    lost = page.tombstone
    assert (lost.gap_from, lost.gap_to, lost.reason) == (1, 2, record_pb2.GAP_REASON_CAP)
    assert [record.data for record in page.records] == [b"3"]


async def test_delete_by_tag(topics: Any) -> None:
    rows = [record_pb2.AppendRecord(data=b"1", tag=tag) for tag in ("a:1", "a:2", "b", "a:*")]
    await topics.Append(pb.AppendRequest(topic="t", records=rows))
    match = record_pb2.TagMatch(eq="a:*")
    assert (await topics.DeleteRecords(pb.DeleteRecordsRequest(topic="t", match=match))).deleted == 1
    match = record_pb2.TagMatch(prefix="a:")
    assert (await topics.DeleteRecords(pb.DeleteRecordsRequest(topic="t", match=match))).deleted == 2
    refused = await _refused(topics.DeleteRecords(pb.DeleteRecordsRequest(topic="t")))
    assert refused[:2] == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST")


async def test_refusals(topics: Any) -> None:
    invalid, missing = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND
    big = b'"' + b"x" * (1 << 20) + b'"'
    for call, code, reason in (
        (topics.GetTopic(pb.GetTopicRequest(topic="no")), missing, "TOPIC_NOT_FOUND"),
        (topics.Diff(pb.DiffRequest(topic="")), missing, "TOPIC_NOT_FOUND"),
        (topics.Append(_append("no", b"1", create=False)), missing, "TOPIC_NOT_FOUND"),
        (topics.Append(_append("no")), invalid, "INVALID_REQUEST"),
        (topics.Append(_append("no", b"{")), invalid, "INVALID_REQUEST"),
        (topics.Append(_append("a/b", b"1")), invalid, "INVALID_REQUEST"),
        (topics.Append(_append("no", b"1", node="x" * 129)), invalid, "INVALID_REQUEST"),
        (topics.Append(_append("no", b"1", idempotency_key="x" * 257)), invalid, "INVALID_REQUEST"),
        (topics.Append(_append("no", big)), invalid, "RECORD_TOO_LARGE"),
        (topics.Append(_append("no", *[b"1"] * 10_001)), invalid, "BATCH_TOO_LARGE"),
    ):
        assert (await _refused(call))[:2] == (code, reason)
    assert not (await topics.ListTopics(pb.ListTopicsRequest())).topics


async def test_a_page_fits_what_clients_take_by_default(topics: Any) -> None:
    rows = [
        record_pb2.AppendRecord(data=b'"%b"' % (b"x" * 1000), meta=b'{"k":1}', tag="t" * 256, node="n" * 128)
    ] * 1000
    for _ in range(2):
        await topics.Append(pb.AppendRequest(topic="t", records=rows))
    page = await topics.Diff(pb.DiffRequest(topic="t", limit=1000, include_tags=True))
    assert 0 < page.ByteSize() < 4 << 20


async def test_an_append_ends_a_long_poll(topics: Any, engine: CountingEngine) -> None:
    await topics.Append(_append("t", b"1", config=FSYNC))
    poll = asyncio.ensure_future(_await(topics.Diff(pb.DiffRequest(topic="t", from_seq=1, wait_ms=30_000))))
    await engine.wait_until_parked(1)
    await topics.Append(_append("t", b"2"))
    page = await asyncio.wait_for(poll, 10)
    assert [record.data for record in page.records] == [b"2"]
    await engine.wait_until_parked(0)


async def test_a_deleted_topic_ends_a_long_poll(topics: Any, engine: CountingEngine) -> None:
    await topics.PutTopic(pb.PutTopicRequest(topic="t"))
    call = topics.Diff(pb.DiffRequest(topic="t", wait_ms=30_000))
    poll = asyncio.ensure_future(_refused(call))
    await engine.wait_until_parked(1)
    await topics.DeleteTopic(pb.DeleteTopicRequest(topic="t"))
    assert (await asyncio.wait_for(poll, 10))[1] == "TOPIC_NOT_FOUND"
    await engine.wait_until_parked(0)


async def test_deadlines_and_cancellation_leave_no_waiter(topics: Any, engine: CountingEngine) -> None:
    await topics.PutTopic(pb.PutTopicRequest(topic="t"))
    request = pb.DiffRequest(topic="t", wait_ms=30_000)
    cancelled = [topics.Diff(request) for _ in range(10)]
    waits = [asyncio.ensure_future(_await(call)) for call in cancelled]
    await engine.wait_until_parked(10)
    for call in cancelled:
        call.cancel()
    await engine.wait_until_parked(0)
    outcomes = await asyncio.gather(*waits, return_exceptions=True)
    assert all(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await topics.Diff(request, timeout=0.1)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await engine.wait_until_parked(0)


async def test_a_poll_that_gets_nothing_answers_empty(topics: Any) -> None:
    await topics.PutTopic(pb.PutTopicRequest(topic="t"))
    page = await topics.Diff(pb.DiffRequest(topic="t", wait_ms=1))
    assert (len(page.records), page.caught_up) == (0, True)


async def _await(call: Any) -> Any:
    return await call
