"""AppendStream over a socket, on the real engine and store: order, shared fsyncs, refusals in the middle, its end."""

import asyncio
import resource
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from support.grpc_on_engine import GrpcService, column, open_service
from support.waiting import until
from topics_proto.v1 import errors_pb2, record_pb2, topic_pb2
from topics_proto.v1 import topics_service_pb2 as pb
from topics_service.api.access.auth import parse_keys
from topics_service.api.access.authorizer import Authorizer
from topics_service.engine.limits import Limits

FSYNC = topic_pb2.TopicConfig(durability=topic_pb2.DURABILITY_FSYNC)
METHOD = "/topics.v1.TopicsService/AppendStream"


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[GrpcService]:
    async with open_service(tmp_path / "data", limits=Limits(max_topics=20)) as service:
        yield service


def _batch(number: int, topic: str = "t", *datas: bytes, **fields: Any) -> pb.AppendStreamRequest:
    columns = record_pb2.ColumnBatch(data=datas or [b"%d" % number])
    return pb.AppendStreamRequest(request_id=number, append=pb.AppendRequest(topic=topic, columns=columns, **fields))


async def _acks(call: Any, count: int) -> list[pb.AppendAck]:
    acks: list[pb.AppendAck] = []
    while len(acks) < count:
        message = await asyncio.wait_for(call.read(), 20)
        assert message is not grpc.aio.EOF
        assert message.acks
        acks += message.acks
    assert len(acks) == count
    return acks


async def _end(call: Any) -> tuple[list[pb.AppendAck], grpc.StatusCode, str]:
    """The remaining acks, and the end of the stream."""
    acks: list[pb.AppendAck] = []
    try:
        while (message := await asyncio.wait_for(call.read(), 20)) is not grpc.aio.EOF:
            acks += message.acks
    except grpc.aio.AioRpcError:
        pass
    code = await call.code()
    status = await rpc_status.aio.from_call(call)
    info = error_details_pb2.ErrorInfo()
    if status is not None:
        assert status.details[0].Unpack(info)
    return acks, code, info.reason


async def test_acks_come_in_order_with_their_seqs(service: GrpcService) -> None:
    call = service.stub.AppendStream()
    for number in range(200):
        await call.write(_batch(number, f"t{number % 3}", b"1", b"2", return_seqs=number % 2 == 1))
    await call.done_writing()
    acks, code, _ = await _end(call)
    assert code is grpc.StatusCode.OK
    assert [ack.request_id for ack in acks] == list(range(200))
    heads = {"t0": 0, "t1": 0, "t2": 0}
    for number, ack in enumerate(acks):
        topic, reply = f"t{number % 3}", ack.appended
        first = heads[topic] + 1
        heads[topic] += 2
        assert (reply.topic, reply.first_seq, reply.last_seq, reply.count) == (topic, first, first + 1, 2)
        assert list(reply.seqs) == ([first, first + 1] if number % 2 else [])
        assert reply.created == (number < 3)
        assert reply.performance.server_total_ms > 0


async def test_pipelined_batches_share_fsyncs(service: GrpcService) -> None:
    await service.stub.PutTopic(pb.PutTopicRequest(topic="t", config=FSYNC))
    before, written = service.store.syncs, service.engine.writer.written
    service.store.gate.clear()
    call = service.stub.AppendStream()
    for number in range(64):
        await call.write(_batch(number))
    await until(lambda: service.engine.writer.written == written + 64)
    state = (await service.stub.GetTopic(pb.GetTopicRequest(topic="t"))).state
    assert state.head_seq == 0, "not visible before it is durable"
    service.store.gate.set()
    acks = await _acks(call, 64)
    assert [ack.appended.last_seq for ack in acks] == list(range(1, 65))
    assert service.store.syncs - before <= 2
    assert all(ack.appended.performance.fsync_ms > 0 for ack in acks)
    await call.done_writing()
    assert (await _end(call))[:2] == ([], grpc.StatusCode.OK)


@pytest.mark.parametrize(("size", "ahead"), [(1, 64), (1 << 20, 16)])
async def test_no_more_than_the_window_is_taken_in(service: GrpcService, size: int, ahead: int) -> None:
    await service.stub.PutTopic(pb.PutTopicRequest(topic="t", config=FSYNC))
    written = service.engine.writer.written
    service.store.gate.clear()
    call = service.stub.AppendStream()
    data = b"1" if size == 1 else b'"%b"' % (b"x" * (size - 2))
    writes = asyncio.create_task(_write_all(call, [_batch(number, "t", data) for number in range(80)]))
    await until(lambda: service.engine.writer.written >= written + ahead)
    for _ in range(50):  # the server had its chances to take more
        await service.stub.LocateTime(pb.LocateTimeRequest(topic="t"))
    assert service.engine.writer.written == written + ahead
    service.store.gate.set()
    assert [ack.request_id for ack in await _acks(call, 80)] == list(range(80))
    await writes
    await call.done_writing()
    assert (await _end(call))[1] is grpc.StatusCode.OK


async def _write_all(call: Any, requests: list[pb.AppendStreamRequest]) -> None:
    for request in requests:
        await call.write(request)


async def test_a_refused_batch_does_not_stop_the_others(service: GrpcService) -> None:
    call = service.stub.AppendStream()
    requests = [
        _batch(1),
        _batch(2, "t", b"{"),
        _batch(3, "missing", create=False),
        _batch(4, "t", b"1", records=[record_pb2.AppendRecord(data=b"1")]),
        _batch(5, "a/b"),
        pb.AppendStreamRequest(request_id=6),
        pb.AppendStreamRequest(request_id=7, append=pb.AppendRequest(topic="t")),
        _batch(8, "t", b"1", partition=3),
        *[_batch(9 + n, f"new-{n}") for n in range(20)],
        _batch(30),
    ]
    for request in requests:
        await call.write(request)
    acks = await _acks(call, len(requests))
    names = [errors_pb2.ErrorReason.Name(ack.error.reason)[13:] if ack.HasField("error") else "" for ack in acks]
    assert names == [
        "", "INVALID_REQUEST", "TOPIC_NOT_FOUND", "INVALID_REQUEST", "INVALID_REQUEST", "INVALID_REQUEST",
        "INVALID_REQUEST", "PARTITION_NOT_FOUND", *[""] * 19, "THROTTLED", "",
    ]  # fmt: skip
    assert "columns.data[0]" in acks[1].error.message
    assert dict(acks[2].error.detail) == {"topic": "missing"}
    assert not acks[2].error.HasField("retry_after_ms")
    assert dict(acks[7].error.detail) == {"topic": "t", "partition": "3", "partition_count": "1"}
    throttled = acks[27].error
    assert dict(throttled.detail) == {"limit": "max_topics", "max": "20"}
    assert throttled.retry_after_ms == 1000
    assert (acks[0].appended.last_seq, acks[28].appended.last_seq) == (1, 2)
    await call.done_writing()
    assert (await _end(call))[1] is grpc.StatusCode.OK


async def test_retries_are_deduped(service: GrpcService) -> None:
    call = service.stub.AppendStream()
    for number in range(3):
        await call.write(_batch(number, "t", b"1", idempotency_key="k"))
    await call.done_writing()
    acks, _, _ = await _end(call)
    assert [(ack.appended.first_seq, ack.appended.deduped) for ack in acks] == [(1, False), (1, True), (1, True)]


async def test_records_come_back_as_they_were_sent(service: GrpcService) -> None:
    call = service.stub.AppendStream()
    large = b'"%b"' % (b"x" * ((1 << 20) - 2))
    columns = record_pb2.ColumnBatch(
        data=[large, b"\x00\xff", b"null"],
        kinds=b"\1\2\1",
        tag=column(b"a", None, b""),
        node=record_pb2.Column(shared=b"n"),
        meta=column(None, b'{"k":1}', None),
    )
    await call.write(pb.AppendStreamRequest(append=pb.AppendRequest(topic="t", columns=columns)))
    await call.done_writing()
    assert (await _end(call))[1] is grpc.StatusCode.OK
    first = await service.stub.Diff(pb.DiffRequest(topic="t", include_tags=True, max_batch_bytes=4))
    rest = await service.stub.Diff(pb.DiffRequest(topic="t", include_tags=True, from_seq=1))
    got = [*first.records, *rest.records]
    assert [record.data for record in got] == [large, b"\x00\xff", b"null"]
    assert [record.kind for record in got] == [1, 2, 1]
    assert [record.tag if record.HasField("tag") else None for record in got] == ["a", None, ""]
    assert [record.node for record in got] == ["n"] * 3
    assert [record.meta for record in got] == [b"", b'{"k":1}', b""]


async def test_a_stream_without_a_batch(service: GrpcService) -> None:
    call = service.stub.AppendStream()
    await call.done_writing()
    assert await _end(call) == ([], grpc.StatusCode.OK, "")


async def test_a_message_that_does_not_parse_ends_the_stream_after_the_acks(service: GrpcService) -> None:
    async with grpc.aio.insecure_channel(service.address) as channel:
        call = channel.stream_stream(METHOD, response_deserializer=pb.AppendStreamResponse.FromString)()
        await call.write(_batch(1).SerializeToString())
        await call.write(b"\xff")
        acks, code, reason = await _end(call)
        assert [ack.request_id for ack in acks] == [1]
        assert (code, reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST")


async def test_cancelling_leaves_nothing_behind(service: GrpcService) -> None:
    await service.stub.PutTopic(pb.PutTopicRequest(topic="t", config=FSYNC))
    service.store.gate.clear()
    calls = [service.stub.AppendStream() for _ in range(10)]
    for call in calls:
        await call.write(_batch(1))
    await until(lambda: len(service.api._waiting) == 10)
    for call in calls:
        call.cancel()
    await until(lambda: not service.api._waiting)
    service.store.gate.set()
    await service.stub.Append(pb.AppendRequest(topic="t", records=[record_pb2.AppendRecord(data=b"1")]))
    # `open_service` looks for tasks


async def test_a_client_that_goes_away_leaves_nothing_behind(service: GrpcService) -> None:
    async with grpc.aio.insecure_channel(service.address) as channel:
        call = channel.stream_stream(METHOD, pb.AppendStreamRequest.SerializeToString)()
        await call.write(_batch(1))
        await call.read()
        await until(lambda: service.api._waiting)
    await until(lambda: not service.api._waiting)


async def test_a_drain_acknowledges_what_was_taken_in(service: GrpcService) -> None:
    await service.stub.PutTopic(pb.PutTopicRequest(topic="t", config=FSYNC))
    idle = service.stub.AppendStream()
    await idle.write(_batch(0, "other"))
    await _acks(idle, 1)
    written = service.engine.writer.written
    service.store.gate.clear()
    call = service.stub.AppendStream()
    for number in range(10):
        await call.write(_batch(number))
    await until(lambda: service.engine.writer.written == written + 10)
    service.api.drain()
    ending = asyncio.create_task(_end(call))
    assert await _end(idle) == ([], grpc.StatusCode.UNAVAILABLE, "SHUTTING_DOWN")
    service.store.gate.set()
    acks, code, reason = await ending
    assert [ack.appended.last_seq for ack in acks] == list(range(1, 11))
    assert (code, reason) == (grpc.StatusCode.UNAVAILABLE, "SHUTTING_DOWN")


async def test_a_failed_fsync_is_told_batch_by_batch(service: GrpcService, monkeypatch: pytest.MonkeyPatch) -> None:
    await service.stub.PutTopic(pb.PutTopicRequest(topic="t", config=FSYNC))
    monkeypatch.setattr(service.commit, "_sync", _fail)
    call = service.stub.AppendStream()
    for number in range(3):
        await call.write(_batch(number))
    acks = await _acks(call, 3)
    assert [ack.error.reason for ack in acks] == [errors_pb2.ERROR_REASON_INTERNAL] * 3
    await call.done_writing()
    assert (await _end(call))[1] is grpc.StatusCode.OK


def _fail() -> None:
    raise OSError("the disk is gone")


async def test_each_batch_meets_the_key(tmp_path: Path) -> None:
    keys = parse_keys("writer:w:a|b,reader:r")
    async with open_service(tmp_path / "data", authorizer=Authorizer(keys)) as service:
        call = service.stub.AppendStream(metadata=[("authorization", "Bearer writer")])
        requests = [_batch(1, "a"), _batch(2, "c"), _batch(3, "b"), _batch(4, "a2", config=FSYNC)]
        for request in requests:
            await call.write(request)
        acks = await _acks(call, 4)
        assert [ack.error.reason for ack in acks] == [0, errors_pb2.ERROR_REASON_FORBIDDEN] * 2
        assert dict(acks[1].error.detail) == {"topic": "c"}
        await call.done_writing()
        assert (await _end(call))[1] is grpc.StatusCode.OK
        refused = service.stub.AppendStream(metadata=[("authorization", "Bearer reader")])
        assert await _end(refused) == ([], grpc.StatusCode.PERMISSION_DENIED, "FORBIDDEN")
        assert await _end(service.stub.AppendStream()) == ([], grpc.StatusCode.UNAUTHENTICATED, "UNAUTHORIZED")


async def test_a_client_that_reads_no_acks_is_held_and_costs_no_memory(service: GrpcService) -> None:
    await service.stub.PutTopic(pb.PutTopicRequest(topic="t"))
    call = service.stub.AppendStream()
    request = _batch(0, "t", *[b"1"] * 1000, return_seqs=True)
    await call.write(request)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    sent = 1

    async def write() -> None:
        nonlocal sent
        while sent < 20_000:
            await call.write(request)
            sent += 1

    writes = asyncio.create_task(write())
    seen = -1
    while seen != service.engine.writer.written:  # until the server stands still
        seen = service.engine.writer.written
        for _ in range(200):
            await service.stub.LocateTime(pb.LocateTimeRequest(topic="t"))
    assert sent < 20_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10  # in KiB
    call.cancel()
    await asyncio.wait((writes,))
    assert writes.cancelled() or writes.exception() is not None
