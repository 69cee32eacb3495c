"""Nodes on a network that drops packets: cut off from the store, from etcd, from each other, from clients, from all.

A packet that vanishes is not a port that refuses: nothing ends, and whoever waits has to give up. In each case nothing
acknowledged is lost or there twice, no node gives a stale read, and the pause is that of docs/cluster.md.
"""

import contextlib
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

import httpx
import pytest
from cluster.load import Load

from support.cluster import NAMES, Cluster, Node
from support.etcd import Etcd
from support.http import REC, Api
from support.local_s3 import LocalS3
from support.network import Network
from support.waiting import poll
from topics_client import TopicsClient
from topics_service.engine.placement import home_of

NODES: Final = 3
CALL_SECONDS: Final = 1.0
"""The time after which a client asks another node."""
HELD: Final = 4.0
"""Seconds for which a cut lasts that moves nothing: longer than any lease."""


class Case(NamedTuple):
    """A node, by its role; what it is cut off from; the longest time without an acknowledgement."""

    who: str
    cut_off_from: tuple[str, ...]
    pause: float
    moves: bool
    """The shard gets another owner."""


# A client's own patience comes on top where its node does not answer any more.
CASES: Final = {
    "owner from the store": Case("owner", ("store",), 4.0, moves=True),
    "owner from etcd": Case("owner", ("etcd",), 3.5, moves=True),
    "owner from store, etcd and followers": Case("owner", ("store", "etcd", "nodes"), 3.5, moves=True),
}
FURTHER: Final = {
    "owner from answers of the store": Case("owner", ("answers",), 4.0, moves=True),
    "owner from clients": Case("owner", ("clients",), CALL_SECONDS, moves=False),
    "owner from its followers": Case("owner", ("nodes",), 2 * CALL_SECONDS, moves=False),
    "owner from everything": Case("owner", ("store", "etcd", "nodes", "clients"), 3.5 + CALL_SECONDS, moves=True),
    "follower from everything": Case("follower", ("store", "etcd", "nodes", "clients"), CALL_SECONDS, moves=False),
    "follower from the store": Case("follower", ("store",), 0.0, moves=False),
    "follower from etcd": Case("follower", ("etcd",), 0.0, moves=False),
    "follower from the owner": Case("follower", ("owner",), CALL_SECONDS, moves=False),
}
SLACK: Final = 1.5
"""Seconds that the tests' machine may add."""
SHARDS: Final = 8
UNHURRIED: Final[dict[str, object]] = {"TOPICS_CLUSTER_LEASE_SECONDS": 10}
"""No lease ends because the tests' machine is busy."""
UNREACHED: Final = 5.0
"""Seconds for which a node tries to reach the owner of a shard."""


class Made(NamedTuple):
    network: Network
    cluster: Cluster
    load: Load

    def off(self, node: Node, parts: tuple[str, ...], owner: Node) -> None:
        """Cut a node off."""
        others = [each.name for each in self.cluster.nodes if each is not node]
        for part in parts:
            if part == "answers":
                self.network.cut_from(node.name, "store")
            else:
                self.network.cut(node.name, *{"nodes": others, "owner": [owner.name]}.get(part, [part]))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    """A cluster under load, which every test leaves whole; at the end everything is compared."""
    folder = tmp_path_factory.mktemp("partitions")
    with (
        Network(NAMES[:NODES]) as network,
        Etcd(folder / "etcd", host=network.hosts["etcd"]) as etcd,
        LocalS3(host=network.hosts["store"]) as store,
        Cluster(folder, etcd.address, "s3://bucket/t", store.environment, nodes=NODES, network=network) as cluster,
    ):
        cluster.wait_for_followers(NODES - 1)
        load = Load(cluster, seconds=CALL_SECONDS, with_readers=True)
        with load.running():
            yield Made(network, cluster, load)


@pytest.mark.parametrize(
    "case",
    [
        *(pytest.param(case, id=name) for name, case in CASES.items()),
        *(pytest.param(case, id=name, marks=pytest.mark.soak) for name, case in FURTHER.items()),
    ],
)
def test_a_cut_loses_nothing_and_is_as_short_as_promised(made: Made, case: Case) -> None:
    network, cluster, load = made
    load.wait_for_acks(5)
    owner = cluster.owner()
    node = owner if case.who == "owner" else next(each for each in cluster.nodes if each is not owner)
    began = time.monotonic()
    try:
        made.off(node, case.cut_off_from, owner)
        if case.moves:
            later = cluster.owner(other_than=owner)
        else:
            poll(lambda: time.monotonic() > began + HELD, HELD + 5)
            later = cluster.owner()
        load.wait_for_acks(5)
        pause = load.pause(began)
    finally:
        network.heal()
    healed = time.monotonic()
    assert (later is not owner) == case.moves
    cluster.wait_for_followers(NODES - 1, 30)
    again = time.monotonic() - healed
    load.wait_for_acks(5)
    print(f"{pause:.2f} s without an acknowledgement, all nodes together again after {again:.2f} s")
    assert cluster.owner() is later, "what comes back moves nothing"
    assert pause < case.pause + SLACK


@pytest.mark.soak
def test_a_follower_that_reaches_the_store_takes_over_from_an_owner_that_dies(made: Made) -> None:
    network, cluster, load = made
    load.wait_for_acks(5)
    owner = cluster.owner()
    cut, other = (node for node in cluster.nodes if node is not owner)
    try:
        network.cut(cut.name, "store")
        cut_at = time.monotonic()
        poll(lambda: time.monotonic() > cut_at + HELD, HELD + 5)
        began = time.monotonic()
        owner.kill()
        assert cluster.owner(other_than=owner) is other
        load.wait_for_acks(5)
        print(f"{load.pause(began):.2f} s without an acknowledgement")
        assert load.pause(began) < 0.6 + CALL_SECONDS + SLACK
    finally:
        network.heal()
        owner.start()
    cluster.wait_for_followers(NODES - 1, 30)


@pytest.mark.soak
def test_a_node_that_waits_for_the_store_stops_at_once(made: Made) -> None:
    network, cluster, load = made
    load.wait_for_acks(5)
    owner = cluster.owner()
    try:
        network.cut(owner.name, "store")
        cluster.owner(other_than=owner)
        load.wait_for_acks(5)
        asked = time.monotonic()
        assert owner.stop(30) == 0
        print(f"it stopped after {time.monotonic() - asked:.2f} s")
        assert time.monotonic() - asked < 1 + SLACK
    finally:
        network.heal()
        owner.start()
    cluster.wait_for_followers(NODES - 1, 30)


def append(node: Node, topic: str) -> tuple[int, str, float]:
    """Append a record: the status, 0 for a connection that ends without an answer, the code of an error, seconds."""
    began = time.monotonic()
    status, code = 0, ""
    with contextlib.suppress(httpx.TransportError), Api(node.base) as api:
        answer = api.write(topic, REC["records"], config={"durability": "fsync"})
        status, code = answer.status_code, answer.json().get("error", {}).get("code", "")
    return status, code, time.monotonic() - began


def test_nodes_cut_off_from_each_other_answer_for_all_shards_that_they_reach(tmp_path: Path) -> None:
    """Both still reach etcd, the store, their clients and a third node, so no shard moves."""
    topics = {home_of(name, SHARDS): name for name in (f"topic-{n}" for n in range(100))}
    with (
        Network(NAMES[:NODES]) as network,
        Etcd(tmp_path / "etcd", host=network.hosts["etcd"]) as etcd,
        LocalS3(host=network.hosts["store"]) as store,
        Cluster(
            tmp_path, etcd.address, "s3://bucket/t", store.environment, env=UNHURRIED, network=network, shards=SHARDS
        ) as cluster,
    ):
        cluster.wait_until_spread()
        with ThreadPoolExecutor(SHARDS * NODES) as threads:

            def at_all(nodes: Sequence[Node]) -> dict[tuple[str, int], tuple[int, str, float]]:
                """Append to a topic of each shard at each node, all at once."""
                asked = [(node, shard) for node in nodes for shard in topics]
                found = threads.map(lambda each: append(each[0], topics[each[1]]), asked)
                return {(node.name, shard): each for (node, shard), each in zip(asked, found, strict=True)}

            def all_work() -> bool:
                return all(status in (200, 201) for status, *_ in at_all(cluster.nodes).values())

            poll(all_work, 30, cluster.logs)
            one, other = cluster["a"], cluster["b"]
            owners = cluster.owners()
            network.cut(one.name, other.name)
            assert len({owners[shard] for shard in topics}) == NODES
            for turn in ("with calls sent to a node that has just vanished", "later"):
                found = at_all((one, other))
                print(f"{turn}: {found}")
                for (at, shard), (status, code, seconds) in found.items():
                    if {at, owners[shard]} == {one.name, other.name}:
                        assert (status, code) in ((503, "not_ready"), (0, "")), turn
                        assert seconds < UNREACHED + SLACK, turn
                    else:
                        assert status == 200, f"{turn}: {at} does not answer for shard {shard} of {owners[shard]}"
                        assert seconds < SLACK, turn
            assert all(status for status, *_ in found.values()), "calls that were not sent have an answer"
            there = next(topic for shard, topic in topics.items() if owners[shard] == other.name)
            with TopicsClient(one.grpc_target) as client:
                began = time.monotonic()
                client.append(there, {"n": 1}, idempotency_key="once")
                print(f"a client of {one.name} went to {other.name} after {time.monotonic() - began:.2f} s")
            assert cluster.owners() == owners
            network.heal()
            healed = time.monotonic()
            poll(all_work, 30, cluster.logs)
            print(f"all shards answer at all nodes {time.monotonic() - healed:.2f} s after the cut")
            assert cluster.owners() == owners
