"""Large gRPC messages and the memory for all requests: they count before they are decoded, and wait for their turn."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest

from topics_proto.v1 import topics_service_pb2 as pb
from topics_proto.v1 import topics_service_pb2_grpc
from topics_service.api import memory_wait
from topics_service.api.access.authorizer import Authorizer
from topics_service.api.access.quota import KeyLimits, Quotas
from topics_service.api.budget import MemoryBudget, Share
from topics_service.api.grpc import guard
from topics_service.api.grpc.server import GrpcServer
from topics_service.engine.model import AppendReply

MIB = 1 << 20
DATA = b'"%b"' % (b"x" * 200_000)


class Other:
    """Another request that holds memory."""

    share: Share | None = None

    def granted(self) -> None:
        """It never waits."""


@pytest.fixture
def memory() -> MemoryBudget:
    return MemoryBudget(4 * MIB)


@pytest.fixture
async def server(api: Any, memory: MemoryBudget) -> AsyncIterator[GrpcServer]:
    api.replies["append"] = AppendReply(topic="t", first_seq=1, count=1, head_seq=1, created=False, deduped=False)
    server = GrpcServer(api, host="127.0.0.1", port=0, authorizer=Authorizer(quotas=Quotas(KeyLimits(), memory=memory)))
    yield server
    await server.stop(0)


def _append(channel: grpc.aio.Channel, data: bytes = DATA) -> Any:
    request = pb.AppendRequest(topic="t")
    request.records.add(data=data)
    return topics_service_pb2_grpc.TopicsServiceStub(channel).Append(request)


async def _until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not is_so():
            await asyncio.sleep(0.005)


def _fill(memory: MemoryBudget) -> None:
    """Leave no memory, and no exception for the oldest waiter."""
    assert memory.take(Other(), memory.max_bytes)
    assert memory.take(Other(), 1)


async def test_a_large_message_waits_undecoded_until_there_is_memory(
    api: Any, channel: grpc.aio.Channel, memory: MemoryBudget, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded = []
    parsed = guard._parsed
    monkeypatch.setattr(guard, "_parsed", lambda data, parse: (decoded.append(len(data)), parsed(data, parse))[1])
    _fill(memory)
    call = _append(channel)
    await _until(lambda: memory.is_short)
    assert memory.waiting > 3 * len(DATA), "it takes a multiple of its size"
    assert await _append(channel, b"1"), "small ones do not wait"
    assert max(decoded) < 100
    memory.release(memory.max_bytes)
    assert (await call).last_seq == 1
    assert max(decoded) > len(DATA)
    await _until(lambda: memory.used == 1)


async def test_a_large_message_is_refused_when_it_waits_for_long(
    channel: grpc.aio.Channel, memory: MemoryBudget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_wait, "MEMORY_WAIT_SECONDS", 0.05)
    _fill(memory)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await _append(channel)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert (memory.used, memory.waiting) == (memory.max_bytes + 1, 0)


async def test_messages_that_wait_have_a_bound_too(channel: grpc.aio.Channel, memory: MemoryBudget) -> None:
    _fill(memory)
    calls = [_append(channel) for _ in range(12)]  # 7 of them want more than there is
    await _until(lambda: sum(call.done() for call in calls) == 12 - 7)
    assert memory.waiting < memory.max_bytes + 3 * MIB
    refused = [call for call in calls if call.done()]
    assert {await call.code() for call in refused} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
    memory.release(memory.max_bytes)
    for call in calls:
        if call not in refused:
            assert (await call).last_seq == 1


async def test_a_client_that_leaves_while_it_waits_gives_its_place_back(
    channel: grpc.aio.Channel, memory: MemoryBudget
) -> None:
    _fill(memory)
    call = _append(channel)
    await _until(lambda: memory.is_short)
    call.cancel()
    await _until(lambda: not memory.is_short)
    assert memory.used == memory.max_bytes + 1


async def test_a_large_message_that_is_none_is_told_so(channel: grpc.aio.Channel, memory: MemoryBudget) -> None:
    send = channel.unary_unary("/topics.v1.TopicsService/Append")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await send(b"\xff" * 100_000)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    await _until(lambda: memory.used == 0)
