"""Clients of a cluster: from the node that they are given to the owner that it names, and back when the owner fails."""

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

import grpc
import pytest

from support.forwarded import Front, Owner
from support.sdk import Clients
from support.waiting import poll
from topics_client import Producer, Retry, TopicsClient
from topics_client.owners import OWNER
from topics_cluster.coordinator import Addresses
from topics_proto.v1 import topics_service_pb2 as pb

T = TypeVar("T")


class World:
    """Two nodes, of which the first owns the shard, and one that forwards, on an event loop of their own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.owner: Owner | None = None
        self.nodes: list[Owner] = []
        self.front: Front
        self.run(self._start())

    async def _start(self) -> None:
        self.nodes = [Owner(), Owner()]
        for node in self.nodes:
            await node.start()
        self.owner = self.nodes[0]
        self.front = Front(self._addresses)
        await self.front.start()

    def _addresses(self) -> Addresses:
        assert self.owner is not None
        return self.owner.addresses

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something on the nodes' loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    @property
    def forwarded(self) -> int:
        """Calls that came to the node that forwards."""
        return self.front.calls

    def fail_over(self) -> None:
        """The owner dies, and the other node takes over."""
        old, self.owner = self.nodes[0], self.nodes[1]
        self.run(old.stop())

    def close(self) -> None:
        """Stop everything."""
        self.run(self.front.stop())
        for node in self.nodes:
            self.run(node.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    try:
        yield made
    finally:
        made.close()


def is_direct(world: World, call: Callable[[], object]) -> bool:
    before = world.forwarded
    call()
    return world.forwarded == before


def test_calls_go_to_the_owner_once_it_is_known(clients: Clients, world: World) -> None:
    client = clients(world.front.target)
    client.append("t", 1)
    assert world.forwarded == 1
    poll(lambda: is_direct(world, lambda: client.append("t", 2)), what="a call that is not forwarded")
    before = world.forwarded
    for _ in range(20):
        client.append("t", 3)
    assert [record.value for record in client.read("t")][:1] == [1]
    assert world.forwarded == before


def test_a_stream_names_the_owner_too(world: World) -> None:
    with TopicsClient(world.front.target) as client:
        assert world.nodes[0]
        client.put_topic("t")
    with TopicsClient(world.front.target) as client:
        poll(lambda: is_direct(world, lambda: [*client.read("t")]), what="a read that is not forwarded")


def test_a_failover_is_no_error_for_calls_that_may_be_repeated(clients: Clients, world: World) -> None:
    client = clients(world.front.target, retry=Retry(seconds=20))
    client.append("t", 1)
    poll(lambda: is_direct(world, lambda: client.get_topic("t")))
    world.fail_over()
    client.append("t", 2, idempotency_key="k")
    before = world.forwarded
    assert before > 1
    poll(lambda: is_direct(world, lambda: client.get_topic("t")), what="the new owner")
    assert [record.value for record in client.read("t")] == [2]


def test_a_producer_goes_to_the_owner(world: World) -> None:
    with TopicsClient(world.front.target) as client, Producer(client.connection, linger_ms=0) as producer:
        numbers = itertools.count()
        poll(lambda: is_direct(world, lambda: producer.append("t", next(numbers)).result(20)))
        world.fail_over()
        delivered = [producer.append("t", next(numbers)) for _ in range(50)]
        producer.flush(30)
        assert all(each.result(1) for each in delivered)


class Namer(grpc.GenericRpcHandler):
    """A server that names another as the owner with every answer."""

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.calls = 0
        self.code: grpc.StatusCode | None = None

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        if not handler_call_details.method.startswith("/topics.v1."):
            return None
        return grpc.unary_unary_rpc_method_handler(self._answer)

    def _answer(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        self.calls += 1
        if self.owner:
            context.send_initial_metadata(((OWNER, self.owner),))
        if self.code is not None:
            context.abort(self.code, "as the test wants")
        return pb.GetTopicResponse().SerializeToString()


@pytest.fixture
def serve() -> Iterator[Callable[[Namer], str]]:
    from concurrent.futures import ThreadPoolExecutor

    servers = []

    def start(namer: Namer) -> str:
        server = grpc.server(ThreadPoolExecutor(4))
        server.add_generic_rpc_handlers((namer,))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        servers.append(server)
        return f"127.0.0.1:{port}"

    yield start
    for server in servers:
        server.stop(0).wait()


@pytest.mark.parametrize("owner", ["127.0.0.1:1", "192.0.2.1:4001", "nonsense", "a:b", ":1"])
def test_an_owner_that_can_not_be_reached_costs_no_call(
    clients: Clients, serve: Callable[[Namer], str], owner: str
) -> None:
    namer = Namer(owner)
    client = clients(serve(namer), retry=Retry(seconds=0))
    began = time.monotonic()
    for _ in range(50):
        client.get_topic("t")
    assert time.monotonic() - began < 10
    assert namer.calls == 50


def test_an_owner_that_is_unavailable_is_left_for_a_while(clients: Clients, serve: Callable[[Namer], str]) -> None:
    owner = Namer("")
    front = Namer(serve(owner))
    client = clients(serve(front), retry=Retry(seconds=20))

    def reaches_owner() -> bool:
        before = owner.calls
        client.get_topic("t")
        return owner.calls > before

    poll(reaches_owner, what="the owner")
    owner.code, before = grpc.StatusCode.UNAVAILABLE, front.calls
    client.get_topic("t")
    assert front.calls == before + 1
    owner.code = None
    for _ in range(20):
        client.get_topic("t")
    assert front.calls == before + 21


def test_an_owner_that_names_another_is_left(clients: Clients, serve: Callable[[Namer], str]) -> None:
    second = Namer("")
    first = Namer("")
    front = Namer(serve(first))
    client = clients(serve(front))
    poll(lambda: client.get_topic("t") is not None and first.calls > 0)
    first.owner = serve(second)
    poll(lambda: client.get_topic("t") is not None and second.calls > 0)
    before = first.calls
    for _ in range(10):
        client.get_topic("t")
    assert first.calls == before


def test_other_errors_do_not_change_the_route(clients: Clients, serve: Callable[[Namer], str]) -> None:
    owner = Namer("")
    front = Namer(serve(owner))
    client = clients(serve(front))
    poll(lambda: client.get_topic("t") is not None and owner.calls > 0)
    owner.code, before = grpc.StatusCode.NOT_FOUND, front.calls
    for _ in range(5):
        with pytest.raises(Exception, match="as the test wants"):
            client.get_topic("t")
    assert front.calls == before
