"""gRPC calls through a node that does not own the shard: bytes, metadata, deadlines, status and cancellation."""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from support.forwarded import Front, Owner, fronting, never, owning
from support.waiting import until
from topics_cluster.calls import find_call
from topics_cluster.coordinator import Addresses
from topics_cluster.trust import HEADER
from topics_proto.v1 import admin_service_pb2, topics_service_pb2, watch_service_pb2
from topics_proto.v1 import topics_service_pb2 as pb
from topics_proto.v1.topics_service_pb2_grpc import TopicsServiceStub
from topics_service.api.access.auth import parse_keys
from topics_service.api.access.authorizer import Authorizer
from topics_service.api.request_context import OWNER

GET = "/topics.v1.TopicsService/GetTopic"
APPEND = "/topics.v1.TopicsService/Append"
BULK = "/topics.v1.TopicsService/BulkDiff"
STREAM = "/topics.v1.TopicsService/AppendStream"
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE

Handle = Callable[[Any, Any], Any]


class Behind(grpc.GenericRpcHandler):
    """A server that handles calls as a test wants, as bytes."""

    def __init__(self) -> None:
        self.unary: Handle = echo
        self.stream: Handle = echoes
        self.calls: list[str] = []
        self.metadata: list[tuple[str, str | bytes]] = []
        self.addresses = Addresses(http="", grpc="")

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        method = handler_call_details.method
        self.calls.append(method)
        self.metadata = [tuple(each) for each in handler_call_details.invocation_metadata or ()]
        declared = find_call(method[1:].replace("/", "."))
        assert declared is not None
        if declared.request_streams or declared.response_streams:
            return grpc.stream_stream_rpc_method_handler(self._stream)
        return grpc.unary_unary_rpc_method_handler(self._unary)

    async def _unary(self, request: bytes, context: Any) -> Any:
        return await self.unary(request, context)

    async def _stream(self, requests: Any, context: Any) -> AsyncIterator[bytes]:
        async for each in self.stream(requests, context):
            yield each


async def echo(request: bytes, context: Any) -> bytes:
    return request


async def echoes(requests: Any, context: Any) -> AsyncIterator[bytes]:
    async for request in requests:
        yield request


@asynccontextmanager
async def serving() -> AsyncIterator[Behind]:
    behind = Behind()
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1), ("grpc.so_reuseport", 0)]
    server = grpc.aio.server(options=options)
    server.add_generic_rpc_handlers((behind,))
    behind.addresses = Addresses(http="", grpc=f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")
    await server.start()
    try:
        yield behind
    finally:
        await server.stop(0)


@pytest.fixture
async def behind() -> AsyncIterator[Behind]:
    async with serving() as made:
        yield made


@pytest.fixture
async def front(behind: Behind) -> AsyncIterator[Front]:
    async with fronting(lambda: behind.addresses, hold_seconds=5) as made:
        yield made


@pytest.fixture
async def channel(front: Front) -> AsyncIterator[grpc.aio.Channel]:
    async with opened(front) as made:
        yield made


def opened(front: Front) -> Any:
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    return grpc.aio.insecure_channel(front.target, options=options)


@pytest.mark.parametrize("size", [0, 1, 1_000_000, 60_000_000])
async def test_unary_messages_of_any_size(channel: grpc.aio.Channel, size: int) -> None:
    assert await channel.unary_unary(APPEND)(b"x" * size) == b"x" * size


async def test_a_message_above_the_limit_is_refused_here(behind: Behind, channel: grpc.aio.Channel) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await channel.unary_unary(APPEND)(b"x" * 70_000_000)
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert not behind.calls


async def test_streams_of_both_sides(channel: grpc.aio.Channel) -> None:
    """Each message is passed on when it comes, in both directions."""
    call = channel.stream_stream(STREAM)()
    for n in range(5):
        await call.write(b"%d" % n)
        assert await call.read() == b"%d" % n
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF
    assert await call.code() is grpc.StatusCode.OK


async def test_a_stream_of_answers(behind: Behind, channel: grpc.aio.Channel) -> None:
    async def many(requests: Any, context: Any) -> AsyncIterator[bytes]:
        first = await anext(requests)
        for n in range(1000):
            yield first + b"%d" % n

    behind.stream = many
    call = channel.unary_stream(BULK)(b"a")
    assert [each async for each in call] == [b"a%d" % n for n in range(1000)]


async def test_metadata_both_ways(behind: Behind, channel: grpc.aio.Channel) -> None:
    async def answer(request: bytes, context: Any) -> bytes:
        await context.send_initial_metadata((("x-first", "1"), ("x-bytes-bin", b"\0\xff")))
        context.set_trailing_metadata((("x-last", "2"),))
        return b""

    async def stream(requests: Any, context: Any) -> AsyncIterator[bytes]:
        yield await answer(b"", context)

    behind.unary, behind.stream = answer, stream
    given = (("authorization", "Bearer key"), ("x-a", "1"), ("x-a", "2"), ("x-b-bin", b"\1\xfe"), (HEADER, "forged"))
    for call in (channel.unary_unary(APPEND)(b"", metadata=given), channel.unary_stream(BULK)(b"", metadata=given)):
        if hasattr(call, "read"):
            assert await call.read() == b""
        else:
            assert await call == b""
        initial = [*await call.initial_metadata()]
        assert initial == [("x-first", "1"), ("x-bytes-bin", b"\0\xff"), (OWNER, behind.addresses.grpc)]
        assert await call.code() is grpc.StatusCode.OK
        assert [*await call.trailing_metadata()] == [("x-last", "2")]
        own = [each for each in behind.metadata if each[0] not in ("user-agent", HEADER)]
        assert own == [each for each in given if each[0] != HEADER]
        (signed,) = [str(value) for name, value in behind.metadata if name == HEADER]
        assert signed.split(";")[4].startswith("127.0.0.1:")


@pytest.mark.parametrize("method", [APPEND, BULK])
async def test_the_status_and_its_details(behind: Behind, channel: grpc.aio.Channel, method: str) -> None:
    async def fail(request: Any, context: Any) -> bytes:
        await context.abort(
            grpc.StatusCode.FAILED_PRECONDITION, "no: \u00e4", (("grpc-status-details-bin", b"\x08\x09"),)
        )

    async def stream(requests: Any, context: Any) -> AsyncIterator[bytes]:
        yield b"one"
        yield await fail(None, context)

    behind.unary, behind.stream = fail, stream

    async def make() -> None:
        if method == APPEND:
            await channel.unary_unary(method)(b"")
        else:
            async for each in channel.unary_stream(method)(b""):
                assert each == b"one"

    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await make()
    error = failed.value
    assert (error.code(), error.details()) == (grpc.StatusCode.FAILED_PRECONDITION, "no: \u00e4")
    assert [*error.trailing_metadata()] == [("grpc-status-details-bin", b"\x08\x09")]
    assert (OWNER, behind.addresses.grpc) in [*error.initial_metadata()]


@pytest.mark.parametrize("method", [APPEND, BULK, STREAM])
async def test_a_deadline_and_a_cancellation_reach_the_owner(
    behind: Behind, channel: grpc.aio.Channel, method: str
) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()
    remaining: list[float | None] = []

    async def hang(request: Any, context: Any) -> bytes:
        remaining.append(context.time_remaining())
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return b""

    async def stream(requests: Any, context: Any) -> AsyncIterator[bytes]:
        yield await hang(None, context)

    behind.unary, behind.stream = hang, stream

    def start(timeout: float | None) -> Any:
        if method == APPEND:
            return channel.unary_unary(method)(b"", timeout=timeout)
        if method == BULK:
            return channel.unary_stream(method)(b"", timeout=timeout)
        return channel.stream_stream(method)(timeout=timeout)

    call = start(20.0)
    async with asyncio.timeout(10):
        await begun.wait()
        call.cancel()
        await ended.wait()
    assert remaining[0] is not None
    assert 10 < remaining[0] < 21  # gRPC sends the 20 s rounded up
    ended.clear()
    call = start(0.3)
    assert await call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    async with asyncio.timeout(10):
        await ended.wait()
    begun.clear()
    call = start(None)
    async with asyncio.timeout(10):
        await begun.wait()
    assert remaining[-1] is None
    call.cancel()


async def test_a_reader_that_is_slow_holds_the_owner(behind: Behind, channel: grpc.aio.Channel) -> None:
    sent = 0

    async def many(requests: Any, context: Any) -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(1000):
            yield b"x" * 100_000
            sent += 1

    behind.stream = many
    call = channel.unary_stream(BULK)(b"")
    await call.read()
    before = -1
    while before != sent:
        before = sent
        await asyncio.sleep(0.2)
    assert sent < 300
    count = 1
    while await call.read() is not grpc.aio.EOF:
        count += 1
    assert count == 1000


async def test_methods_that_do_not_exist(behind: Behind, channel: grpc.aio.Channel) -> None:
    for method in ("/topics.v1.TopicsService/Nothing", "/other.Service/Get"):
        assert await channel.unary_unary(method)(b"").code() is grpc.StatusCode.UNIMPLEMENTED
    assert not behind.calls


def test_every_method_is_known() -> None:
    modules = (admin_service_pb2, topics_service_pb2, watch_service_pb2)
    for module in modules:
        for service in module.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                found = find_call(method.full_name)
                assert found is not None
                assert (found.request_streams, found.response_streams) == (
                    method.client_streaming,
                    method.server_streaming,
                )


# ------------------------------------------------------------ without an owner, and between two


async def test_without_an_owner_it_is_held_then_not_ready() -> None:
    async with fronting(never, hold_seconds=0.3) as front, opened(front) as channel:
        stub: Any = TopicsServiceStub(channel)
        for make in (lambda: stub.GetTopic(pb.GetTopicRequest(topic="t")), lambda: stub.BulkDiff(pb.BulkDiffRequest())):
            began = time.monotonic()
            call = make()
            assert await call.code() is UNAVAILABLE
            assert time.monotonic() - began >= 0.3
            assert b"NOT_READY" in dict(await call.trailing_metadata())["grpc-status-details-bin"]


async def test_a_deadline_ends_the_wait_for_an_owner() -> None:
    async with fronting(never, hold_seconds=60) as front, opened(front) as channel:
        began = time.monotonic()
        call = channel.unary_unary(GET)(b"", timeout=0.3)
        assert await call.code() in (UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
        assert time.monotonic() - began < 10


async def test_a_call_waits_for_an_owner(behind: Behind) -> None:
    addresses = [Addresses(http="", grpc="127.0.0.1:1")]
    async with fronting(lambda: addresses[0], hold_seconds=20) as front, opened(front) as channel:
        call = channel.unary_unary(APPEND)(b"once")
        await asyncio.sleep(0.2)
        addresses[0] = behind.addresses
        assert await call == b"once"
    assert behind.calls == [APPEND]


async def test_a_call_that_the_owner_did_not_answer_is_repeated_if_it_may_be(behind: Behind) -> None:
    """The old owner dies with calls: reads go on at the new one, writes are unavailable."""
    async with serving() as old:
        begun = 0

        async def hang(request: Any, context: Any) -> bytes:
            nonlocal begun
            begun += 1
            await asyncio.Event().wait()
            return b""

        async def stream(requests: Any, context: Any) -> AsyncIterator[bytes]:
            yield await hang(None, context)

        old.unary, old.stream = hang, stream
        owner = [old.addresses]
        async with fronting(lambda: owner[0], hold_seconds=20) as front, opened(front) as channel:
            read, write = channel.unary_unary(GET)(b"r"), channel.unary_unary(APPEND)(b"w")
            page, stream_call = channel.unary_stream(BULK)(b"p"), channel.stream_stream(STREAM)()
            await until(lambda: begun == 4)
            owner[0] = behind.addresses
            await front.grpc.leave(old.addresses.grpc)
            assert await read == b"r"
            assert await page.read() == b"p"
            assert await write.code() is UNAVAILABLE
            assert await stream_call.code() is UNAVAILABLE
    assert sorted(behind.calls) == sorted((GET, BULK))


async def test_a_call_that_waits_for_a_connection_goes_to_the_next_owner(behind: Behind) -> None:
    """The node that it waits for is known to be lost meanwhile."""
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections, and says nothing
        owners = [f"127.0.0.1:{silent.getsockname()[1]}", behind.addresses.grpc]
        async with (
            fronting(lambda: Addresses(http="", grpc=owners[0]), hold_seconds=10) as front,
            opened(front) as channel,
        ):
            call = asyncio.ensure_future(channel.unary_unary(GET)(b"x"))
            await until(lambda: owners[0] in front.grpc._channels)
            lost = owners.pop(0)
            await front.grpc.leave(lost)
            assert await call == b"x"


async def test_a_stream_that_has_begun_is_not_repeated(behind: Behind) -> None:
    async def stream(requests: Any, context: Any) -> AsyncIterator[bytes]:
        yield b"first"
        await asyncio.Event().wait()

    behind.stream = stream
    async with fronting(lambda: behind.addresses, hold_seconds=20) as front, opened(front) as channel:
        page = channel.unary_stream(BULK)(b"p")
        assert await page.read() == b"first"
        await front.grpc.leave(behind.addresses.grpc)
        assert await page.code() is UNAVAILABLE
    assert behind.calls == [BULK]


async def test_unavailable_by_word_of_the_owner_is_not_repeated() -> None:
    """The owner's answer is the answer: repeating the call is up to the client."""
    async with serving() as behind:

        async def refuse(request: Any, context: Any) -> bytes:
            await context.abort(UNAVAILABLE, "starting", (("grpc-status-details-bin", b"\x08\x0e"),))
            return b""

        behind.unary = refuse
        async with fronting(lambda: behind.addresses, hold_seconds=20) as front, opened(front) as channel:
            assert await channel.unary_unary(GET)(b"").code() is UNAVAILABLE
        assert behind.calls == [GET]


async def test_a_forwarded_call_is_not_forwarded_again() -> None:
    old: Owner
    async with owning() as old, owning() as new:
        owner = [old]
        async with fronting(lambda: owner[0].addresses, hold_seconds=20) as front, opened(front) as channel:
            stub: Any = TopicsServiceStub(channel)
            old.has_lost = True
            put, page = stub.PutTopic(pb.PutTopicRequest(topic="t")), stub.BulkDiff(pb.BulkDiffRequest(topic="t"))
            await asyncio.sleep(0.2)
            owner[0] = new
            assert (await put).created
            with contextlib.suppress(grpc.aio.AioRpcError):  # the status comes only once all frames are read
                assert [frame async for frame in page]
            # The bulk call may overtake the creation of its topic.
            assert await page.code() in (grpc.StatusCode.OK, grpc.StatusCode.NOT_FOUND)
            assert dict(await put.initial_metadata())[OWNER] == new.addresses.grpc
    assert not old.lines
    assert [line["action"] for line in new.lines] == ["topic.put"]


async def test_the_owner_checks_the_key_and_sees_the_client() -> None:
    async with (
        owning(Authorizer(parse_keys("right"))) as owner,
        fronting(lambda: owner.addresses) as front,
        opened(front) as channel,
    ):
        stub: Any = TopicsServiceStub(channel)
        request = pb.PutTopicRequest(topic="t")
        wrong = stub.PutTopic(request, metadata=(("authorization", "Bearer wrong"),))
        assert await wrong.code() is grpc.StatusCode.UNAUTHENTICATED
        assert (
            await stub.PutTopic(request, metadata=(("authorization", "Bearer right"), ("x-request-id", "id-1")))
        ).created
        (line,) = owner.lines
        assert line["key"]
        own = await _peer_of(channel, owner)
        assert line["peer"] == own


async def _peer_of(channel: grpc.aio.Channel, owner: Owner) -> str:
    """The address of the channel's connection, as a second change of it is audited."""
    stub: Any = TopicsServiceStub(channel)
    await stub.DeleteTopic(pb.DeleteTopicRequest(topic="t"), metadata=(("authorization", "Bearer right"),))
    peer: str = owner.lines[-1]["peer"]
    return peer
