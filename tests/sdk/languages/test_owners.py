"""Each client of a cluster: calls go to the owner that an answer named for their topic, and back when it is gone."""

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from sdk.languages.test_behaviours import SECONDS, Driver, command, go_driver, language

from support.tls_proxy import certificate
from support.two_nodes import AT_FIRST, AT_SECOND, Node, TwoNodes
from support.waiting import poll
from topics_client import TopicConfig, TopicsClient
from topics_service.api.access.auth import parse_keys
from topics_service.api.access.authorizer import Authorizer

__all__ = ["command", "go_driver", "language"]

THERE = AT_SECOND[0]
NOWHERE = "127.0.0.1:1"

pytestmark = [
    pytest.mark.timeout(300),  # the first one builds grpc in Go
    pytest.mark.parametrize("language", ["python", "go", "node"], indirect=True),  # browsers are always forwarded
]

Start = Callable[..., Driver]


@pytest.fixture
def nodes() -> Iterator[TwoNodes]:
    with TwoNodes() as both:
        yield both


@pytest.fixture
def start(command: list[str]) -> Iterator[Start]:
    """Starts a driver at an address: the operation, its arguments, and `env`."""
    with ExitStack() as stack:

        def start(address: str, operation: str, *, env: dict[str, str] | None = None, **ask: Any) -> Driver:
            everything = {"TOPICS_ADDRESS": address} | (env or {})
            return stack.enter_context(Driver([*command, operation, json.dumps(ask)], everything))

        yield start


def appends(node: Node) -> int:
    return node.calls["Append"]


def stored(driver: Driver) -> list[int]:
    """The places of all that was produced, in order."""
    driver.end()
    [seqs] = driver.having("stored")
    return list(seqs)


def test_calls_go_to_the_owner(start: Start, nodes: TwoNodes) -> None:
    driver = start(nodes.first.target, "produce", topic=THERE, count=80, pause_ms=20)
    assert stored(driver) == [*range(1, 81)]
    assert 1 <= appends(nodes.first) < 40, "the first one is forwarded"
    assert appends(nodes.second) > 40


def test_topics_of_the_node_stay_there(start: Start, nodes: TwoNodes) -> None:
    stored(start(nodes.first.target, "produce", topic=AT_FIRST[0], count=40, pause_ms=10))
    assert not nodes.second.calls


def test_the_owner_dies(start: Start, nodes: TwoNodes) -> None:
    driver = start(nodes.first.target, "produce", topic=THERE, count=200, pause_ms=20)
    poll(lambda: appends(nodes.second) > 10, SECONDS, what="calls at the owner")
    before = appends(nodes.first)
    nodes.kill_second()
    seqs = stored(driver)
    assert len(set(seqs)) == 200
    assert seqs == sorted(seqs)
    assert appends(nodes.first) > before


def test_a_topic_that_moved_is_found_again(start: Start, nodes: TwoNodes) -> None:
    driver = start(nodes.first.target, "produce", topic=THERE, count=200, pause_ms=20)
    poll(lambda: appends(nodes.second) > 10, SECONDS, what="calls at the owner")
    before = appends(nodes.second)
    nodes.move(1, nodes.second, nodes.first)
    assert stored(driver) == [*range(1, 201)]
    assert appends(nodes.second) - before < 100, "the old owner names the new one"


def test_an_owner_that_can_not_be_reached_costs_no_call(start: Start, nodes: TwoNodes) -> None:
    with socket.socket() as listener, ExitStack() as waiting:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(3):  # its queue is full: attempts to connect get no answer
            each = waiting.enter_context(socket.socket())
            each.setblocking(False)
            each.connect_ex(listener.getsockname())
        for owner in (f"127.0.0.1:{listener.getsockname()[1]}", NOWHERE, "nonsense"):
            nodes.first.channel.address = owner
            before, began = appends(nodes.first), time.monotonic()
            stored(start(nodes.first.target, "produce", topic=THERE, count=100, pause_ms=1))
            assert appends(nodes.first) > before
            assert time.monotonic() - began < 15
    assert not nodes.second.calls


def test_owners_are_not_followed_if_the_client_says_so(start: Start, nodes: TwoNodes) -> None:
    stored(start(nodes.first.target, "produce", topic=THERE, count=40, pause_ms=10, env={"TOPICS_STAY": "1"}))
    assert not nodes.second.calls


def test_a_worker_settles_its_jobs_at_the_owner(start: Start, nodes: TwoNodes) -> None:
    with TopicsClient(nodes.second.target) as client:
        client.put_topic(THERE, TopicConfig(type="queue"))
        client.append_many(THERE, list(range(200)))
    driver = start(nodes.first.target, "work", queue=THERE, concurrency=2, busy_ms=10)
    driver.until("done", 200)
    [acked] = [line["acked"] for line in driver.stop() if "acked" in line]
    assert acked == 200
    assert nodes.second.calls["Ack"] > nodes.first.calls["Ack"]


# ------------------------------------------------------------------- several nodes


def test_a_node_that_is_down_costs_no_error(start: Start, nodes: TwoNodes) -> None:
    address = f"{NOWHERE},127.0.0.1:2,{nodes.first.target}"
    assert stored(start(address, "produce", topic=AT_FIRST[0], count=5, pause_ms=5)) == [1, 2, 3, 4, 5]
    assert appends(nodes.first)


def test_the_next_node_takes_the_place_of_one_that_dies(start: Start, nodes: TwoNodes) -> None:
    address = f"{nodes.second.target},{nodes.first.target}"
    driver = start(address, "produce", topic=AT_FIRST[0], count=200, pause_ms=20, env={"TOPICS_STAY": "1"})
    poll(lambda: appends(nodes.second) > 10, SECONDS, what="calls at the first node of the address")
    assert not nodes.first.calls
    nodes.kill_second()
    assert stored(driver) == [*range(1, 201)]
    assert appends(nodes.first)


def test_an_owner_that_is_a_given_node_is_followed_too(start: Start, nodes: TwoNodes) -> None:
    address = f"{nodes.first.target},{nodes.second.target}"
    assert stored(start(address, "produce", topic=THERE, count=80, pause_ms=20)) == [*range(1, 81)]
    assert appends(nodes.second) > 20


def test_an_owner_gets_the_key_over_tls(start: Start, language: str, tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    credentials = grpc.ssl_server_credentials([(key.read_bytes(), cert.read_bytes())])
    with TwoNodes(Authorizer(parse_keys("the-key")), credentials) as nodes:
        address = {"python": f"topics+tls://{nodes.first.target}?ca={cert}", "node": f"https://{nodes.first.target}"}
        driver = start(
            address.get(language, nodes.first.target),
            "produce",
            topic=THERE,
            count=80,
            pause_ms=20,
            env={"TOPICS_KEY": "the-key", "TOPICS_CA": str(cert)},
        )
        assert stored(driver) == [*range(1, 81)]
        assert appends(nodes.second) > 20
