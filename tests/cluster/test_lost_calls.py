"""Calls under way at an owner that loses the shard: nobody knows whether their writes are in the log, so each door
ends them as when a server dies, and no client is told that nothing can be done."""

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from cluster.world import World, client
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from support.held_bucket import Fate, HeldBucket
from support.kafka_wire import ClosedError, Wire
from support.waiting import until
from topics_cluster import identity, objects
from topics_kafka.protocol import ApiKey
from topics_proto.v1 import topics_service_pb2 as pb
from topics_proto.v1 import topics_service_pb2_grpc, watch_service_pb2, watch_service_pb2_grpc
from topics_server.node.server import NodeServer
from topics_service.storage import recordbatch

APPEND = "/v0/topics/t"
BODY = {"records": [{"data": "late"}]}


class Losing:
    """Two nodes, the first of which owns the shard. Nothing that it writes comes to the log any more."""

    def __init__(self, world: World, bucket: HeldBucket, owner: NodeServer, other: NodeServer) -> None:
        self.owner, self.other = owner, other
        self._world, self._bucket = world, bucket
        self._held = objects.name(0, owner.statistics.shards[0].number + 1)
        bucket.fate = self._fate

    def _fate(self, name: str) -> Fate:
        is_writer = threading.current_thread().name == "log-uploader"
        is_held = is_writer and name == self._held and self.other.statistics.shards[0].role != "owning"
        return "held" if is_held else "made"

    async def lose(self) -> None:
        """Let the other node take the shard over, while the owner has a write under way; then let it know."""
        await until(lambda: self._held in self._bucket.tried)
        coordinator = self._world.coordinators["a"]
        coordinator.reachable = False
        await until(lambda: self.other.statistics.shards[0].role == "owning")
        coordinator.reachable = True
        await until(lambda: self.owner.statistics.shards[0].role == "following")

    async def records(self) -> list[Any]:
        """The content of the topic in the end."""
        async with client(self.other) as http:
            reply = (await http.post(f"{APPEND}/diff", json={"from_seq": 0})).json()
            return [record["data"] for record in reply["records"]]


@pytest.fixture
async def losing(tmp_path: Path) -> AsyncIterator[Losing]:
    world, bucket = World(tmp_path), HeldBucket()
    world.bucket = bucket
    await identity.create(bucket)
    async with world.node("a", kafka_port="0") as a, world.node("b", kafka_port="0") as b, client(a) as http:
        body = {"records": [{"data": "early"}], "config": {"durability": "fsync"}}
        assert (await http.post(APPEND, json=body)).status_code in (200, 201)
        await until(
            lambda: (
                a.statistics.shards[0].followers == 1 and a.statistics.shards[0].number == b.statistics.shards[0].number
            )
        )
        yield Losing(world, bucket, a, b)


@contextlib.asynccontextmanager
async def channel(node: NodeServer) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{node.grpc_port}") as made:
        yield made


def late_append() -> pb.AppendRequest:
    request = pb.AppendRequest(topic="t")
    request.columns.data.append(b'"late"')
    return request


async def test_a_write_over_http_breaks_off(losing: Losing) -> None:
    async with client(losing.owner) as http:
        writing = asyncio.create_task(http.post(APPEND, json=BODY))
        await losing.lose()
        with pytest.raises(httpx.RemoteProtocolError):
            await writing
    assert await losing.records() == ["early"]


async def test_a_write_over_grpc_is_unavailable_without_a_reason(losing: Losing) -> None:
    async with channel(losing.owner) as made:
        stub = topics_service_pb2_grpc.TopicsServiceStub(made)  # type: ignore[no-untyped-call]
        writing = asyncio.ensure_future(stub.Append(late_append(), timeout=20))
        await losing.lose()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await writing
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert not [name for name, _ in caught.value.trailing_metadata() or () if name == "grpc-status-details-bin"]
    assert await losing.records() == ["early"]


async def test_streams_over_grpc_are_unavailable(losing: Losing) -> None:
    async with channel(losing.owner) as made:
        stub = topics_service_pb2_grpc.TopicsServiceStub(made)  # type: ignore[no-untyped-call]
        appending = stub.AppendStream(timeout=20)
        watch = watch_service_pb2_grpc.WatchServiceStub(made)  # type: ignore[no-untyped-call]
        subscription = watch_service_pb2.WatchSubscription(topics={"t": watch_service_pb2.WatchTopic()})
        watching = watch.Watch(watch_service_pb2.WatchRequest(subscription=subscription), timeout=20)
        assert await watching.read()
        await appending.write(pb.AppendStreamRequest(request_id=1, append=late_append()))
        await losing.lose()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            assert await appending.read()
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        with contextlib.suppress(grpc.aio.AioRpcError):
            while await watching.read() is not grpc.aio.EOF:
                pass
        assert await watching.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_websocket_closes_without_an_answer(losing: Losing) -> None:
    async with connect(f"ws://127.0.0.1:{losing.owner.http_port}/v0/ws", proxy=None) as socket:
        await socket.send('{"op": "publish", "request_id": 1, "topic": "t", "records": [{"data": "late"}]}')
        await losing.lose()
        with pytest.raises(ConnectionClosed):
            raise AssertionError(await socket.recv())
    assert await losing.records() == ["early"]


async def test_a_kafka_connection_closes_without_an_answer(losing: Losing) -> None:
    batch = recordbatch.encoded(0, [int(time.time() * 1000)], recordbatch.Columns([b'"late"'], None, None, None), None)
    data = {"name": "t", "partition_data": [{"index": 0, "records": batch}]}
    body = {"transactional_id": None, "acks": -1, "timeout_ms": 60_000, "topic_data": [data]}
    wire = await asyncio.to_thread(Wire, losing.owner.kafka_port)
    with contextlib.closing(wire.socket):
        correlation = await asyncio.to_thread(wire.send, ApiKey.PRODUCE, 9, body)
        await losing.lose()
        with pytest.raises((ClosedError, ConnectionError)):
            raise AssertionError(await asyncio.to_thread(wire.receive, ApiKey.PRODUCE, 9, correlation))
    assert await losing.records() == ["early"]


@pytest.mark.parametrize("has_key", [False, True])
async def test_a_write_through_another_node_is_repeated_if_it_has_a_key(losing: Losing, has_key: bool) -> None:
    headers = {"idempotency-key": "once"} if has_key else {}
    async with client(losing.other) as http:
        writing = asyncio.create_task(http.post(APPEND, json=BODY, headers=headers))
        await losing.lose()
        if has_key:
            assert (await writing).status_code in (200, 201)
        else:
            with pytest.raises(httpx.RemoteProtocolError):
                await writing
    assert await losing.records() == (["early", "late"] if has_key else ["early"])
