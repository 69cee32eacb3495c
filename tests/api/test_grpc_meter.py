"""GetMetrics, and the counting of calls over a real socket."""

import asyncio
import json
from typing import Any

import grpc
import pytest

from topics_proto.v1 import admin_service_pb2 as pb
from topics_proto.v1 import admin_service_pb2_grpc, topics_service_pb2, topics_service_pb2_grpc, watch_service_pb2
from topics_proto.v1.watch_service_pb2_grpc import WatchServiceStub
from topics_service.engine.errors import topic_not_found
from topics_service.engine.model import ReadyState

Channel = grpc.aio.Channel


async def failed(call: Any) -> None:
    with pytest.raises((grpc.aio.AioRpcError, asyncio.CancelledError)):
        await call


async def counted(api: Any, calls: int) -> dict[tuple[str, str], int]:
    """How many calls ended, by RPC and code, once `calls` have: a client may hear of the end before it is counted."""
    finished = api.metrics.grpc.finished
    while sum(histogram.count for histogram in finished.values()) < calls:
        await asyncio.sleep(0)
    assert api.metrics.grpc.in_flight == 0
    return {key: histogram.count for key, histogram in finished.items()}


async def test_both_formats(api: Any, channel: Channel) -> None:
    api.state = ReadyState(ready=False, reason="shutting_down", topics=0, replay_progress=1.0)
    admin = admin_service_pb2_grpc.AdminServiceStub(channel)
    for asked in (pb.METRICS_FORMAT_UNSPECIFIED, pb.METRICS_FORMAT_TEXT):
        reply = await admin.GetMetrics(pb.GetMetricsRequest(format=asked))
        assert reply.content_type == "text/plain; version=0.0.4"
        assert b"\ntopics_grpc_calls_in_flight 1.0\n" in reply.body
    reply = await admin.GetMetrics(pb.GetMetricsRequest(format=pb.METRICS_FORMAT_JSON))
    assert reply.content_type == "application/json"
    assert json.loads(reply.body)["topics"] == 0


async def test_calls_are_counted_by_code(api: Any, channel: Channel) -> None:
    topics = topics_service_pb2_grpc.TopicsServiceStub(channel)
    await admin_service_pb2_grpc.AdminServiceStub(channel).GetHealth(pb.GetHealthRequest())
    api.replies["get_topic"] = topic_not_found("t")
    for _ in range(2):
        await failed(topics.GetTopic(topics_service_pb2.GetTopicRequest(topic="t")))
    api.replies["get_topic"] = ValueError("a bug")
    await failed(topics.GetTopic(topics_service_pb2.GetTopicRequest(topic="t")))
    bad = watch_service_pb2.WatchSubscription(consistency=99)
    await failed(WatchServiceStub(channel).Watch(watch_service_pb2.WatchRequest(subscription=bad)).read())
    await failed(channel.unary_unary("/topics.v1.TopicsService/NoSuchCall")(b""))
    await failed(channel.unary_unary("/other.Service/Call")(b""))
    assert await counted(api, 5) == {
        ("AdminService.GetHealth", "OK"): 1,
        ("TopicsService.GetTopic", "NOT_FOUND"): 2,
        ("TopicsService.GetTopic", "INTERNAL"): 1,
        ("WatchService.Watch", "INVALID_ARGUMENT"): 1,
    }


async def test_a_call_that_is_cancelled(api: Any, channel: Channel) -> None:
    request = topics_service_pb2.DiffRequest(topic="t", wait_ms=60_000)
    call = topics_service_pb2_grpc.TopicsServiceStub(channel).Diff(request)
    waiting = asyncio.create_task(failed(call))
    await asyncio.wait_for(api.parked.wait(), 10)
    assert api.metrics.grpc.in_flight == 1
    call.cancel()
    await waiting
    assert await counted(api, 1) == {("TopicsService.Diff", "CANCELLED"): 1}
