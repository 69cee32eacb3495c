"""Clients that are given several nodes of a cluster: another one is tried when one can't be reached."""

import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from sdk.test_owner import Namer, World, serve, world

from support.sdk import Clients
from support.tls_proxy import certificate
from support.waiting import poll
from topics_client import Address, ConnectError, Producer, Retry, TopicsClient, UnavailableError

__all__ = ["serve", "world"]
DEAD = "127.0.0.1:1"
ONCE = Retry(seconds=0)


@pytest.fixture
def deaf() -> Iterator[str]:
    """An address that does not answer attempts to connect, as that of a machine that is gone."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(3):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize("among", ["{dead},{alive}", "{dead},{dead2},{alive}", "{alive},{dead}"])
def test_a_node_that_is_down_costs_no_error(clients: Clients, serve: Callable[[Namer], str], among: str) -> None:
    node = Namer("")
    client = clients(among.format(dead=DEAD, dead2="127.0.0.1:2", alive=serve(node)), retry=ONCE)
    client.get_topic("t")
    client.redrive("t")  # it must not be made twice
    assert node.calls == 2


def test_streams_begin_at_a_node_that_is_there(clients: Clients, world: World) -> None:
    client = clients([DEAD, world.front.target], retry=ONCE)
    assert client.append("t", 1).last_seq == 1
    client = clients([DEAD, world.front.target], retry=ONCE)
    assert [record.value for record in client.read("t")] == [1]


def test_a_producer_goes_to_the_next_node(world: World) -> None:
    with TopicsClient([DEAD, world.front.target]) as client, Producer(client.connection, linger_ms=0) as producer:
        assert producer.append("t", 1).result(20) == 1


def test_when_all_are_down_the_time_of_retries_bounds_the_call(clients: Clients) -> None:
    for retry in (ONCE, Retry(seconds=0.5, first_pause=0.01)):
        client = clients([DEAD, "127.0.0.1:2"], retry=retry)
        began = time.monotonic()
        with pytest.raises(UnavailableError, match=r"127\.0\.0\.1:[12]"):
            client.get_topic("t")
        assert time.monotonic() - began < 5


def test_a_node_that_does_not_answer_is_left_after_two_seconds(
    clients: Clients, serve: Callable[[Namer], str], deaf: str
) -> None:
    node = Namer("")
    client = clients(f"{deaf},{serve(node)}", retry=ONCE)
    began = time.monotonic()
    client.redrive("t")
    assert 1 < time.monotonic() - began < 8
    assert node.calls == 1


def test_a_node_that_ends_later_is_replaced_by_the_next_and_that_by_the_first(clients: Clients) -> None:
    nodes, servers, targets = [Namer(""), Namer("")], [], []

    def start(namer: Namer, target: str = "127.0.0.1:0") -> Any:
        server = grpc.server(ThreadPoolExecutor(2), options=(("grpc.so_reuseport", 0),))
        server.add_generic_rpc_handlers((namer,))
        targets.append(f"127.0.0.1:{server.add_insecure_port(target)}")
        server.start()
        return server

    servers = [start(node) for node in nodes]
    first = targets[0]
    client = clients(targets[:2], retry=Retry(seconds=20, first_pause=0.01))
    client.get_topic("t")
    servers[0].stop(0).wait()
    for _ in range(3):
        client.get_topic("t")
    assert [node.calls for node in nodes] == [1, 3]
    servers[0] = start(nodes[0], first)
    servers[1].stop(0).wait()
    client.get_topic("t")
    assert [node.calls for node in nodes] == [2, 3]
    servers[0].stop(0).wait()


def test_an_owner_is_followed_from_any_of_them(clients: Clients, serve: Callable[[Namer], str]) -> None:
    owner = Namer("")
    front = Namer(serve(owner))
    client = clients([DEAD, serve(front)], retry=ONCE)
    poll(lambda: client.get_topic("t") is not None and owner.calls > 0)
    before = front.calls
    client.redrive("t")
    assert front.calls == before


def test_an_owner_that_is_gone_costs_no_error_where_nothing_was_sent(
    clients: Clients, serve: Callable[[Namer], str]
) -> None:
    front, owner = Namer(""), Namer("")
    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((owner,))
    front.owner = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    for client in (clients(serve(front), retry=ONCE), clients([DEAD, serve(front)], retry=ONCE)):
        before = owner.calls
        poll(lambda client=client, before=before: client.get_topic("t") is not None and owner.calls > before)
        client.connection._routes._configured = next(iter(client.connection._routes._links.values()))
    server.stop(0).wait()
    before = front.calls
    client.redrive("t")  # to the owner, to the node that is down, and to the third
    assert front.calls == before + 1


def test_each_node_is_verified_by_its_own_name(clients: Clients, tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    node = Namer("")
    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((node,))
    credentials = grpc.ssl_server_credentials([(key.read_bytes(), cert.read_bytes())])
    port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    try:
        clients(f"topics+tls://{DEAD},localhost:{port}?ca={cert}", retry=ONCE).get_topic("t")
        with pytest.raises(ConnectError):
            clients(f"topics+tls://localhost:1,127.0.0.1:{port}?ca={cert}", retry=ONCE).get_topic("t")
    finally:
        server.stop(0).wait()


def test_links_to_nodes_are_closed_with_the_client(serve: Callable[[Namer], str]) -> None:
    with TopicsClient([DEAD, serve(Namer(""))], retry=ONCE) as client:
        client.get_topic("t")
        links = list(client.connection._routes._links.values())
        assert len(links) == 2
    assert all(link._is_closed for link in links)
    assert client.address == Address.parse(str(client.address))
