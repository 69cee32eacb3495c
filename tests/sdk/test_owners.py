"""Clients of a cluster with several shards: each topic's calls go to its owner, which is learned from answers."""

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from sdk.worker_queues import make_queue, running

from support.sdk import Clients
from support.tls_proxy import certificate
from support.two_nodes import AT_FIRST, AT_SECOND, Node, TwoNodes
from support.waiting import poll
from topics_client import AsyncTopicsClient, NotFoundError, Producer, Retry, TopicConfig, TopicsClient, UnavailableError
from topics_client import owners as owners_module
from topics_client import routes as routes_module
from topics_client.owners import EVERYTHING, Hints, key_of
from topics_client.routes import Link, Routes
from topics_proto.v1 import group_service_pb2, sql_service_pb2, watch_service_pb2
from topics_proto.v1 import topics_service_pb2 as pb
from topics_service.api.access.auth import parse_keys
from topics_service.api.access.authorizer import Authorizer

ONCE = Retry(seconds=0)


@pytest.fixture
def nodes() -> Iterator[TwoNodes]:
    with TwoNodes() as both:
        yield both


def reaches(node: Node, call: Callable[[], object]) -> bool:
    """Make a call; return whether it came to the node."""
    before = node.calls.total()
    call()
    return node.calls.total() > before


def test_each_topic_is_called_at_its_owner(clients: Clients, nodes: TwoNodes) -> None:
    client = clients(nodes.first.target)
    here, there = AT_FIRST[0], AT_SECOND[0]
    assert reaches(nodes.first, lambda: client.append(there, 1)), "nothing is known yet"
    client.append(here, 1)
    poll(lambda: not reaches(nodes.first, lambda: client.append(there, 2)), what="a call that is not forwarded")
    before = nodes.first.calls.total()
    for _ in range(20):
        client.append(there, 3)
        client.get_topic(there)
    assert len([*client.read(there)]) > 20
    assert nodes.first.calls.total() == before
    at_second = nodes.second.calls.total()
    for _ in range(20):
        client.append(here, 2)
        assert {record.topic for record in client.read(here)} == {here}
    assert nodes.second.calls.total() == at_second, "topics of the first node stay there"


def test_a_read_teaches_the_owner(clients: Clients, nodes: TwoNodes) -> None:
    there = AT_SECOND[0]
    clients(nodes.second.target).append(there, 1)
    client = clients(nodes.first.target)
    poll(lambda: not reaches(nodes.first, lambda: [*client.read(there)]), what="a read that is not forwarded")


def test_an_error_teaches_the_owner(clients: Clients, nodes: TwoNodes) -> None:
    client = clients(nodes.first.target)

    def missing() -> None:
        with pytest.raises(NotFoundError):
            client.get_topic(AT_SECOND[0])

    poll(lambda: not reaches(nodes.first, missing), what="a call that is not forwarded")


def test_a_partition_has_an_owner_of_its_own(clients: Clients, nodes: TwoNodes) -> None:
    client, topic = clients(nodes.first.target), AT_FIRST[0]
    client.put_topic(topic, TopicConfig(), partitions=2)
    poll(lambda: not reaches(nodes.first, lambda: client.append(topic, 1, partition=1)))
    before = nodes.second.calls.total()
    assert reaches(nodes.first, lambda: client.append(topic, 1, partition=0))
    assert nodes.second.calls.total() == before


def test_the_owner_dies(clients: Clients, nodes: TwoNodes) -> None:
    client, there = clients(nodes.first.target, retry=Retry(seconds=20)), AT_SECOND[0]
    client.append(there, 1)
    poll(lambda: not reaches(nodes.first, lambda: client.append(there, 1)))
    nodes.kill_second()
    began = time.monotonic()
    client.append(there, 2, idempotency_key="k")
    assert time.monotonic() - began < 5
    assert [record.value for record in client.read(there)].count(2) == 1


def test_a_call_that_may_not_be_repeated_goes_back_to_the_seed(clients: Clients, nodes: TwoNodes) -> None:
    """Nothing was sent to the owner that is gone."""
    client, there = clients(nodes.first.target, retry=ONCE), AT_SECOND[0]
    client.put_topic(there, TopicConfig(type="queue", max_deliveries=1, dead_letter=AT_SECOND[1]))
    poll(lambda: not reaches(nodes.first, lambda: client.get_topic(there)))
    nodes.kill_second()
    assert client.redrive(there) == 0
    assert nodes.first.calls["Redrive"] == 1


def test_a_topic_that_moved_is_called_at_its_new_owner(clients: Clients, nodes: TwoNodes) -> None:
    client, there = clients(nodes.first.target), AT_SECOND[0]
    client.append(there, 1)
    poll(lambda: not reaches(nodes.first, lambda: client.append(there, 1)))
    nodes.move(1, nodes.second, nodes.first)
    assert reaches(nodes.second, lambda: client.append(there, 2)), "it forwards, and names the new owner"
    poll(lambda: not reaches(nodes.second, lambda: client.append(there, 3)), what="a call at the new owner")


def test_a_shard_that_is_away_drops_the_hint_but_not_the_node(clients: Clients, nodes: TwoNodes) -> None:
    client, (one, other) = clients(nodes.first.target, retry=ONCE), AT_SECOND[:2]
    for topic in (one, other):
        client.append(topic, 1)
    poll(lambda: not reaches(nodes.first, lambda: [client.append(topic, 1) for topic in (one, other)]))
    routes = client.connection._routes
    shard = nodes.second.local.pop(1)
    nodes.second.owners[1] = nodes.second.channel  # where it is not either
    with pytest.raises(UnavailableError) as away:
        client.append(one, 2)
    assert away.value.reason == "not_ready"
    assert not routes._hints.is_avoided(nodes.second.target)
    nodes.second.local[1] = shard
    assert not reaches(nodes.first, lambda: client.append(other, 2)), "the node itself is well"


def test_an_owner_that_can_not_be_reached_costs_no_call(clients: Clients, nodes: TwoNodes) -> None:
    there = AT_SECOND[0]
    with ExitStack() as stack:
        deaf = deaf_address(stack)
        for address in (deaf, "127.0.0.1:1", "192.0.2.1:4001", "nonsense", ":1"):
            nodes.first.channel.address = address
            client = clients(nodes.first.target, retry=ONCE)
            began = time.monotonic()
            for _ in range(50):
                client.append(there, 1)
            assert time.monotonic() - began < 5
    assert not nodes.second.calls


def deaf_address(stack: ExitStack) -> str:
    """An address that does not answer attempts to connect, as that of a machine behind a firewall."""
    listener = stack.enter_context(socket.socket())
    listener.bind(("127.0.0.1", 0))
    listener.listen(0)
    for _ in range(3):
        waiting = stack.enter_context(socket.socket())
        waiting.setblocking(False)
        waiting.connect_ex(listener.getsockname())
    return f"127.0.0.1:{listener.getsockname()[1]}"


def test_an_owner_that_can_not_be_reached_is_avoided_for_a_while(
    clients: Clients, nodes: TwoNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes_module, "CONNECT_SECONDS", 0.2)
    monkeypatch.setattr(owners_module, "AVOID_SECONDS", 0.5)
    there = AT_SECOND[0]
    nodes.first.channel.address = "127.0.0.1:1"
    client = clients(nodes.first.target)

    def is_avoided() -> bool:
        client.append(there, 1)
        return client.connection._routes._hints.is_avoided("127.0.0.1:1")

    poll(is_avoided, what="that the node is avoided")
    assert not client.connection._routes._owners, "the channel is closed"
    nodes.first.channel.address = nodes.second.target
    poll(lambda: not reaches(nodes.first, lambda: client.append(there, 1)), what="a call at the owner")


def test_owners_are_not_followed_if_the_client_says_so(clients: Clients, nodes: TwoNodes) -> None:
    client = clients(nodes.first.target, follow_owners=False)
    for _ in range(20):
        client.append(AT_SECOND[0], 1)
    assert not nodes.second.calls
    assert not client.connection._routes._owners


async def test_owners_are_not_followed_if_the_asyncio_client_says_so(nodes: TwoNodes) -> None:
    async with AsyncTopicsClient(nodes.first.target, follow_owners=False) as client:
        for _ in range(20):
            await client.append(AT_SECOND[0], 1)
        async with client.producer(linger_ms=0) as producer:
            await producer.append(AT_SECOND[0], 2)
    assert not nodes.second.calls


def test_a_producer_sends_each_topic_to_its_owner(nodes: TwoNodes) -> None:
    topics = [AT_FIRST[0], AT_SECOND[0], AT_FIRST[1], AT_SECOND[1]]
    with TopicsClient(nodes.first.target) as client, Producer(client.connection, linger_ms=0) as producer:

        def round_is_direct() -> bool:
            before = nodes.first.calls.total(), nodes.second.calls.total()
            for topic in topics:
                producer.append(topic, 1).result(20)
            return (nodes.first.calls.total(), nodes.second.calls.total()) == (before[0] + 2, before[1] + 2)

        poll(round_is_direct, what="a round of which nothing is forwarded")
        nodes.kill_second()
        delivered = [producer.append(topic, 2) for topic in topics * 20]
        producer.flush(30)
        assert all(each.result(1) for each in delivered)


def test_a_worker_goes_to_the_owner_of_its_queue(nodes: TwoNodes) -> None:
    queue, done = AT_SECOND[0], list[Any]()
    with TopicsClient(nodes.first.target) as client:
        make_queue(client.connection, queue, 100)
        poll(lambda: not reaches(nodes.first, lambda: client.get_topic(queue)))
        before = nodes.first.calls.total()
        with running(client.connection, queue, lambda job: done.append(job.value), concurrency=4):
            poll(lambda: len(done) == 100, what="all jobs")
    assert nodes.first.calls.total() == before
    assert nodes.second.calls["Work"] == 1


def test_another_owner_gets_the_key_over_tls(clients: Clients, tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    credentials = grpc.ssl_server_credentials([(key.read_bytes(), cert.read_bytes())])
    with TwoNodes(Authorizer(parse_keys("the-key")), credentials) as nodes:
        client = clients(f"topics+tls://the-key@{nodes.first.target}?ca={cert}")
        there = AT_SECOND[0]
        poll(lambda: not reaches(nodes.first, lambda: client.append(there, 1)), what="a call at the owner")
        assert nodes.second.calls["Append"]


# ------------------------------------------------------------------- bounds


class FakeLink(Link):
    """A link that is connected as the test wants."""

    is_connected = True

    def is_ready(self) -> bool:
        return self.is_connected

    def _close(self) -> None:
        pass


def routes_of(*, follow_owners: bool = True) -> tuple[Routes, list[FakeLink]]:
    """Routes of one configured node, and all their links."""
    from topics_client.address import Address

    made: list[FakeLink] = []

    def connect(address: Address) -> Link:
        made.append(FakeLink(address, None))
        return made[-1]

    return Routes(Address.parse("seed:1"), connect, follow_owners=follow_owners), made


def named(owner: str) -> tuple[tuple[str, str], ...]:
    return ((owners_module.OWNER, owner),)


def test_hints_are_bounded_and_those_in_use_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owners_module, "MAX_HINTS", 100)
    hints = Hints()
    for number in range(1000):
        hints.learn((f"t{number}", 0, ""), "a:1")
        assert hints.find(("t0", 0, "")) == "a:1"
        assert len(hints) <= 100
    assert hints.find(("t500", 0, "")) == ""
    assert hints.find(("t999", 0, "")) == "a:1"


def test_avoided_nodes_are_bounded() -> None:
    hints = Hints()
    for number in range(1000):
        hints.avoid(f"a:{number}")
    assert len(hints._avoided) <= 64
    assert hints.is_avoided("a:999")


def test_links_to_owners_are_bounded() -> None:
    routes, made = routes_of()
    for number in range(100):
        key = (f"t{number}", 0, "")
        routes.answered(key, (), named(f"owner:{number + 1}"))
        link, is_owner = routes.begin(key)
        if is_owner:
            assert link.address.port == number + 1
        open_now = [link for link in made if not link._is_closed]
        assert len(open_now) <= 33
    assert len(made) == 33, "while calls run on all of them, no other is made"
    for link in made[1:]:
        routes.end(link)
    routes.answered(("new", 0, ""), (), named("owner:500"))
    assert routes.begin(("new", 0, ""))[0].address.port == 500
    assert all(link._is_closed for link in made[1:33]), "those without a call make room"
    routes.close()
    assert all(link._is_closed for link in made)


def test_links_that_are_not_used_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    routes, made = routes_of()
    for topic, owner in (("used", "a:1"), ("idle", "b:1"), ("streamed", "c:1")):
        routes.answered((topic, 0, ""), (), named(owner))
        link, _ = routes.begin((topic, 0, ""))
        if topic != "streamed":
            routes.end(link)
    later = time.monotonic() + 400
    monkeypatch.setattr(time, "monotonic", lambda: later)
    made[1].used = later
    routes.begin(("used", 0, ""))
    routes.begin(("used", 0, ""))
    assert [link._is_closed for link in made] == [False, False, True, False]
    assert routes.begin(("idle", 0, "")) == (made[0], False), "the seed names the owner again"


def test_a_link_that_failed_is_closed_when_its_calls_have_ended() -> None:
    routes, made = routes_of()
    key = ("t", 0, "")
    routes.answered(key, (), named("a:1"))
    stream, _ = routes.begin(key)
    call, _ = routes.begin(key)
    routes.failed(call, key, grpc.StatusCode.UNAVAILABLE)
    routes.end(call)
    assert not stream._is_closed
    assert routes.begin(key) == (made[0], False)
    routes.end(stream)
    routes.begin(key)
    assert stream._is_closed


def test_a_client_that_calls_rarely_finds_the_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    routes, made = routes_of()
    monkeypatch.setattr(FakeLink, "is_connected", False)
    key, now = ("t", 0, ""), time.monotonic()
    routes.answered(key, (), named("a:1"))
    monkeypatch.setattr(FakeLink, "is_connected", True)  # the connection began with the answer
    monkeypatch.setattr(time, "monotonic", lambda: now + 100)
    assert routes.begin(key) == (made[1], True)
    monkeypatch.setattr(FakeLink, "is_connected", False)  # the server has closed it, as one that was idle
    monkeypatch.setattr(time, "monotonic", lambda: now + 200)
    assert routes.begin(key) == (made[0], False)
    assert not routes._hints.is_avoided("a:1"), "it may take a moment to connect again"


def test_a_client_of_one_dead_node_calls_an_owner_that_it_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    routes, made = routes_of()
    key, other = ("t", 0, ""), ("other", 0, "")
    routes.answered(key, (), named("a:1"))
    assert routes.begin(other) == (made[0], False)
    routes.failed(made[0], other, grpc.StatusCode.UNAVAILABLE, "not_ready")
    assert routes.begin(other) == (made[0], False), "the node is there, and says what the shard is"
    routes.failed(made[0], other, grpc.StatusCode.UNAVAILABLE)
    assert routes.begin(other) == (made[1], True)
    assert routes.current() is made[1]
    routes.failed(made[1], other, grpc.StatusCode.UNAVAILABLE)
    assert routes.begin(other) == (made[0], False), "no other is left"
    routes.answered(key, (), named("b:1"))
    assert routes.begin(other) == (made[2], True)
    monkeypatch.setattr(FakeLink, "is_connected", False)
    assert routes.begin(other) == (made[0], False)
    monkeypatch.setattr(FakeLink, "is_connected", True)
    later = time.monotonic() + 31
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert routes.begin(other) == (made[0], False), "it may be back"
    assert routes.begin(key) == (made[2], True)


@pytest.mark.parametrize(("reason", "is_avoided"), [("not_ready", False), ("shutting_down", True), ("", True)], ids=str)
def test_what_an_owner_says_that_is_not_available(reason: str, is_avoided: bool) -> None:
    routes, made = routes_of()
    one, other = ("one", 0, ""), ("other", 0, "")
    for key in (one, other):
        routes.answered(key, (), named("a:1"))
    routes.failed(made[1], one, grpc.StatusCode.UNAVAILABLE, reason)
    assert routes.begin(one) == (made[0], False)
    assert routes.begin(other) == ((made[0], False) if is_avoided else (made[1], True))
    routes, made = routes_of()
    routes.answered(one, named("a:1"))
    routes.failed(made[1], one, grpc.StatusCode.UNAVAILABLE, reason)
    assert routes.begin(one) == (made[0], False), "the owner of everything"


def test_the_owner_of_everything_is_that_of_initial_metadata() -> None:
    routes, _ = routes_of()
    routes.answered(("t", 0, ""), named("all:1"), ())
    assert routes.begin(("other", 3, ""))[0].address.target == "all:1"
    assert routes.begin(EVERYTHING)[0].address.target == "all:1"
    routes.answered(("t", 0, ""), (), named("one:1"))
    assert routes.begin(("t", 0, ""))[0].address.target == "one:1"
    routes.answered(EVERYTHING, (), named("list:1"))
    assert routes.begin(EVERYTHING)[0].address.target == "all:1", "calls without a name have no owner of their own"


def test_keys() -> None:
    assert key_of(pb.AppendRequest(topic="t", partition=2)) == ("t", 2, "")
    assert key_of(pb.GetTopicRequest(topic="t")) == key_of(pb.DiffRequest(topic="t")) == ("t", 0, "")
    assert key_of(group_service_pb2.GetGroupRequest(group="g")) == ("", 0, "g")
    assert key_of(group_service_pb2.ConsumeRequest(group="g", topic="t", partition=1)) == ("t", 1, "g")
    assert key_of(sql_service_pb2.SqlServiceConsumeRequest(topic="t", group_id="g")) == ("t", 0, "g")
    assert key_of(pb.ListTopicsRequest(prefix="t")) == key_of(None) == EVERYTHING
    assert key_of(watch_service_pb2.WatchRequest()) == EVERYTHING
    sql = key_of(sql_service_pb2.ExecuteRequest(sql="SELECT 1"))
    assert sql == key_of(sql_service_pb2.ExecuteRequest(sql="SELECT 2"))
    assert sql != EVERYTHING
