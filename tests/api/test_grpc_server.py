"""The gRPC API over a real socket, in front of a fake api."""

import asyncio
import logging
import socket
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_status import rpc_status

from topics_proto.v1 import (
    admin_service_pb2,
    admin_service_pb2_grpc,
    record_pb2,
    topics_service_pb2_grpc,
    watch_service_pb2,
    watch_service_pb2_grpc,
)
from topics_proto.v1 import topics_service_pb2 as pb
from topics_service.api.access.authorizer import Authorizer
from topics_service.api.grpc.guard import Guard
from topics_service.api.grpc.server import SERVICE_NAMES, GrpcServer
from topics_service.engine.errors import Reason, TopicsError, topic_not_found
from topics_service.engine.model import AppendReply, ReadyState

Channel = grpc.aio.Channel
APPENDED = AppendReply(topic="t", first_seq=1, count=2, head_seq=2, created=True, deduped=False)


def _topics(channel: Channel) -> Any:
    return topics_service_pb2_grpc.TopicsServiceStub(channel)


async def _error(call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


async def _info(call: Any) -> error_details_pb2.ErrorInfo:
    status = await rpc_status.aio.from_call(call)
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    return info


async def test_append_and_its_timing(api: Any, channel: Channel) -> None:
    api.replies["append"] = APPENDED
    rows = [record_pb2.AppendRecord(data=b"1"), record_pb2.AppendRecord(data=b"2", tag="x")]
    response = await _topics(channel).Append(pb.AppendRequest(topic="t", records=rows))
    assert list(response.seqs) == [1, 2]
    assert response.performance.server_total_ms > 0
    response = await _topics(channel).Append(pb.AppendRequest(topic="t", records=rows, return_seqs=False))
    assert list(response.seqs) == []
    (name, (request,), _) = api.calls[0]
    assert (name, request.topic, request.batch.tags) == ("append", "t", [None, b"x"])


@pytest.mark.parametrize(("asked", "given"), [({}, True), ({"touch": False}, False), ({"touch": True}, True)])
async def test_touch_is_true_unless_said(api: Any, channel: Channel, asked: dict[str, bool], given: bool) -> None:
    api.replies["get_topic"] = topic_not_found("t")
    await _error(_topics(channel).GetTopic(pb.GetTopicRequest(topic="t", **asked)))
    assert api.calls == [("get_topic", ("t",), {"touch": given, "partition": 0})]


async def test_error_details(api: Any, channel: Channel) -> None:
    api.replies["get_topic"] = topic_not_found("nope")
    call = _topics(channel).GetTopic(pb.GetTopicRequest(topic="nope"))
    error = await _error(call)
    assert (error.code(), error.details()) == (grpc.StatusCode.NOT_FOUND, 'topic "nope" does not exist')
    info = await _info(call)
    assert (info.reason, info.domain, dict(info.metadata)) == ("TOPIC_NOT_FOUND", "topics", {"topic": "nope"})


async def test_retry_info(api: Any, channel: Channel) -> None:
    api.replies["delete_topic"] = TopicsError(Reason.THROTTLED, "busy", {"limit": "max_topics", "max": 3})
    call = _topics(channel).DeleteTopic(pb.DeleteTopicRequest(topic="t"))
    assert (await _error(call)).code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    status = await rpc_status.aio.from_call(call)
    retry = error_details_pb2.RetryInfo()
    assert status.details[1].Unpack(retry)
    assert retry.retry_delay.ToMilliseconds() == 1000


async def test_an_error_with_a_huge_name_still_arrives(api: Any, channel: Channel) -> None:
    name = "é" * 100_000
    api.replies["get_topic"] = topic_not_found(name)
    call = _topics(channel).GetTopic(pb.GetTopicRequest(topic=name))
    assert (await _error(call)).code() is grpc.StatusCode.NOT_FOUND
    assert (await _info(call)).reason == "TOPIC_NOT_FOUND"


async def test_a_bug_is_internal_logged_once_and_not_shown(
    api: Any, channel: Channel, caplog: pytest.LogCaptureFixture
) -> None:
    api.replies["put_topic"] = ZeroDivisionError("secret")
    call = _topics(channel).PutTopic(pb.PutTopicRequest(topic="t"))
    error = await _error(call)
    assert (error.code(), error.details()) == (grpc.StatusCode.INTERNAL, "internal error")
    assert "secret" not in str(error.trailing_metadata())
    assert (await _info(call)).reason == "INTERNAL"
    (record,) = [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert record.name == "topics.grpc"
    assert record.exc_info is not None


async def test_invalid_json(channel: Channel, caplog: pytest.LogCaptureFixture) -> None:
    rows = [record_pb2.AppendRecord(data=b"1"), record_pb2.AppendRecord(data=b"{oops}")]
    call = _topics(channel).Append(pb.AppendRequest(topic="t", records=rows))
    error = await _error(call)
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "records[1].data" in (error.details() or "")
    assert (await _info(call)).reason == "INVALID_REQUEST"
    assert not caplog.records


@pytest.mark.parametrize("garbage", [b"\xff\xff", b"\x0a\x02\xff\xfe"], ids=["wire", "utf-8"])
async def test_a_request_that_is_no_message(channel: Channel, garbage: bytes, caplog: pytest.LogCaptureFixture) -> None:
    call = channel.unary_unary("/topics.v1.TopicsService/Append")(garbage)
    assert (await _error(call)).code() is grpc.StatusCode.INVALID_ARGUMENT
    assert (await _info(call)).reason == "INVALID_REQUEST"
    assert not caplog.records


async def test_oversized_message(channel: Channel) -> None:
    request = pb.AppendRequest(topic="t", records=[record_pb2.AppendRecord(data=b"1" * (1 << 20))])
    error = await _error(_topics(channel).Append(request))
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_deadline_ends_a_long_poll(api: Any, channel: Channel) -> None:
    call = _topics(channel).Diff(pb.DiffRequest(topic="t", wait_ms=30_000), timeout=0.1)
    error = await _error(call)
    assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await asyncio.wait_for(api.left.wait(), 20)


async def test_cancelling_a_long_poll_cancels_the_handler(
    api: Any, channel: Channel, caplog: pytest.LogCaptureFixture
) -> None:
    call = _topics(channel).Diff(pb.DiffRequest(topic="t", wait_ms=30_000))
    waiting = asyncio.ensure_future(_wait(call))
    await asyncio.wait_for(api.parked.wait(), 20)
    call.cancel()
    await waiting
    await asyncio.wait_for(api.left.wait(), 20)
    assert not caplog.records


async def _wait(call: Any) -> None:
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_a_client_that_goes_away_cancels_the_handler(api: Any, server: GrpcServer) -> None:
    port = await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = _topics(channel).Diff(pb.DiffRequest(topic="t", wait_ms=30_000))
        waiting = asyncio.ensure_future(_wait(call))
        await asyncio.wait_for(api.parked.wait(), 20)
    await waiting
    await asyncio.wait_for(api.left.wait(), 20)


async def test_stop_cancels_what_outlives_the_grace(api: Any, server: GrpcServer, channel: Channel) -> None:
    call = _topics(channel).Diff(pb.DiffRequest(topic="t", wait_ms=30_000))
    waiting = asyncio.ensure_future(_error(call))
    await asyncio.wait_for(api.parked.wait(), 20)
    await asyncio.wait_for(server.stop(0.01), 20)
    assert api.left.is_set()
    assert (await waiting).code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


async def test_health_follows_set_serving(server: GrpcServer, channel: Channel) -> None:
    health = health_pb2_grpc.HealthStub(channel)
    for name in ("", *SERVICE_NAMES):
        reply = await health.Check(health_pb2.HealthCheckRequest(service=name))
        assert reply.status == health_pb2.HealthCheckResponse.SERVING
    updates = health.Watch(health_pb2.HealthCheckRequest(service=SERVICE_NAMES[0]))
    assert (await updates.read()).status == health_pb2.HealthCheckResponse.SERVING
    server.set_serving(False)
    assert (await updates.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
    reply = await health.Check(health_pb2.HealthCheckRequest())
    assert reply.status == health_pb2.HealthCheckResponse.NOT_SERVING
    error = await _error(health.Check(health_pb2.HealthCheckRequest(service="other")))
    assert error.code() is grpc.StatusCode.NOT_FOUND
    unknown = await health.Watch(health_pb2.HealthCheckRequest(service="other")).read()
    assert unknown.status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
    listed = (await health.List(health_pb2.HealthListRequest())).statuses
    assert set(listed) == {"", *SERVICE_NAMES}


async def test_a_health_watcher_does_not_hold_up_stop(server: GrpcServer, channel: Channel) -> None:
    updates = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
    await updates.read()
    await asyncio.wait_for(server.stop(60), 10)
    assert (await updates.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
    assert (await _error(updates.read())).code() is grpc.StatusCode.UNAVAILABLE


async def test_reflection_lists_every_service(channel: Channel) -> None:
    call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo()
    await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
    listed = {service.name for service in (await call.read()).list_services_response.service}
    assert listed == {*SERVICE_NAMES, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}
    await call.write(reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICE_NAMES[0]))
    assert (await call.read()).file_descriptor_response.file_descriptor_proto
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF


async def test_a_method_without_a_handler_is_unimplemented(caplog: pytest.LogCaptureFixture) -> None:
    server = grpc.aio.server(interceptors=[Guard(Authorizer())])
    watch_service_pb2_grpc.add_WatchServiceServicer_to_server(watch_service_pb2_grpc.WatchServiceServicer(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        watches = watch_service_pb2_grpc.WatchServiceStub(channel)
        for call in (
            watches.CreateWatch(watch_service_pb2.CreateWatchRequest()),
            watches.Watch(watch_service_pb2.WatchRequest()).read(),
        ):
            assert (await _error(call)).code() is grpc.StatusCode.UNIMPLEMENTED
    await server.stop(0)
    assert not caplog.records


async def test_what_does_not_exist_is_unimplemented(channel: Channel, caplog: pytest.LogCaptureFixture) -> None:
    for method in ("/topics.v1.TopicsService/NoSuchCall", "/topics.v1.WatchService/NoSuchCall", "/other.Service/Call"):
        assert (await _error(channel.unary_unary(method)(b""))).code() is grpc.StatusCode.UNIMPLEMENTED
    assert not caplog.records


async def test_health_and_ready(api: Any, channel: Channel) -> None:
    admin = admin_service_pb2_grpc.AdminServiceStub(channel)
    reply = await admin.GetHealth(admin_service_pb2.GetHealthRequest())
    assert (reply.status, reply.version) == ("ok", "0.1.0")
    ready = await admin.GetReady(admin_service_pb2.GetReadyRequest())
    assert ready == admin_service_pb2.GetReadyResponse(status="ready", wal_replay_complete=True, topics=7)


@pytest.mark.parametrize(
    ("state", "reason"),
    [("not_ready", "NOT_READY"), ("read_only", "NOT_READY"), ("shutting_down", "SHUTTING_DOWN")],
)
async def test_not_ready(api: Any, channel: Channel, state: str, reason: str) -> None:
    api.state = ReadyState(ready=False, reason=state, topics=0, replay_progress=0.25)
    call = admin_service_pb2_grpc.AdminServiceStub(channel).GetReady(admin_service_pb2.GetReadyRequest())
    assert (await _error(call)).code() is grpc.StatusCode.UNAVAILABLE
    info = await _info(call)
    assert (info.reason, info.metadata["replay_progress"]) == (reason, "0.25")


async def test_a_taken_port_fails(api: Any, server: GrpcServer) -> None:
    port = await server.start()
    second = GrpcServer(api, host="127.0.0.1", port=port)
    with pytest.raises(OSError, match=f"127.0.0.1:{port}"):
        await second.start()
    await second.stop(0)
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(OSError, match="Address already in use"):
        await GrpcServer(api, host="127.0.0.1", port=other.getsockname()[1]).start()
