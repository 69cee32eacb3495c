"""The wall clock of one node jumps or drifts while a cluster is under load, and comes back.

What depends on it: signatures between nodes, and for S3, which refuses a time that is a quarter of an hour off; `$ts`
and what runs out by it; tokens. Leases and reads don't.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import httpx
import pytest
from cluster.clients import EVENTS, JOBS
from cluster.load import Load

from support.cluster import NAMES, Cluster, Node
from support.etcd import Etcd
from support.http import REC, Api, ok, path
from support.local_s3 import LocalS3
from support.tokens import SECRET, claims, hs256
from support.waiting import poll
from support.wall_clock import WallClock

HOUR = 3_600_000
DAY = 24 * HOUR
PAUSE_SECONDS = 6.0
"""More than the 3 to 4 s in which a node without a store gives the shard up."""


class Made(NamedTuple):
    cluster: Cluster
    load: Load
    store: LocalS3
    clocks: dict[str, WallClock]

    def jump(self, node: Node, offset_ms: int) -> None:
        self.clocks[node.name].jump(offset_ms)

    def follower(self) -> Node:
        owner = self.cluster.owner()
        return next(node for node in self.cluster.nodes if node is not owner)


def clocks_of(folder: Path, nodes: int) -> tuple[dict[str, WallClock], dict[str, dict[str, object]]]:
    """A clock for each node, and the settings by which nodes have them."""
    clocks = {name: WallClock(folder / f"clock-{name}") for name in NAMES[:nodes]}
    return clocks, {name: dict(clock.env) for name, clock in clocks.items()}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, etcd: Etcd) -> Iterator[Made]:
    """A cluster under load, which every test leaves whole and in time; at the end everything is compared."""
    folder = tmp_path_factory.mktemp("clocks")
    clocks, own = clocks_of(folder, 2)
    with (
        LocalS3() as store,
        Cluster(folder, etcd.address, "s3://bucket/t", store.environment, nodes=2, own=own) as cluster,
    ):
        cluster.wait_for_followers(1)
        load = Load(cluster, with_readers=True, window_ms=DAY)
        with load.running():
            load.wait_for_acks()
            yield Made(cluster, load, store, clocks)


def is_ready(node: Node) -> bool:
    with Api(node.base) as api:
        return api.send("GET", "/v0/ready").status_code == 200


@pytest.mark.parametrize("offset_ms", [HOUR, pytest.param(-HOUR, marks=pytest.mark.soak)])
def test_an_owner_whose_time_the_store_does_not_accept_gives_the_shard_up(made: Made, offset_ms: int) -> None:
    cluster, load, *_ = made
    owner = cluster.owner()
    made.jump(owner, offset_ms)
    jumped = time.monotonic()
    later = cluster.owner(other_than=owner)
    load.wait_for_acks(5)
    print(f"{load.pause(jumped):.2f} s without an acknowledgement")
    assert load.pause(jumped) < PAUSE_SECONDS
    assert "RequestTimeTooSkewed" in owner.log
    made.jump(owner, 0)
    cluster.wait_for_followers(1, 30)
    load.wait_for_acks(5)
    assert cluster.owner() is later


@pytest.mark.parametrize("offset_ms", [-HOUR, pytest.param(HOUR, marks=pytest.mark.soak)])
def test_a_follower_whose_clock_is_an_hour_off_says_so_and_clients_leave_it(made: Made, offset_ms: int) -> None:
    cluster, load, *_ = made
    node, owner = made.follower(), cluster.owner()
    counted = node.metrics()["topics_cluster_refused_total"]
    made.jump(node, offset_ms)
    poll(lambda: not is_ready(node), 20, lambda: f"it is ready; {node.log[-1500:]}")
    with Api(node.base) as api:
        reply = api.send("POST", path(JOBS), REC)
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "not_ready")
    with grpc.insecure_channel(node.grpc_target) as channel, pytest.raises(grpc.RpcError) as refused:
        channel.unary_unary("/topics.v1.TopicsService/ListTopics")(b"", timeout=20)
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    for text in (reply.text, str(refused.value.details()), node.log):
        assert "or the clocks of the nodes differ" in text
    assert node.metrics()["topics_cluster_refused_total"] > counted
    load.wait_for_acks(5)  # at the owner
    made.jump(node, 0)
    poll(lambda: is_ready(node), 20, lambda: f"it is not ready; {node.log[-1500:]}")
    with Api(node.base) as api:
        assert api.state(EVENTS)["head_seq"]
    cluster.wait_for_followers(1, 30)
    assert cluster.owner() is owner


def test_a_clock_that_drifts_moves_nothing(made: Made) -> None:
    cluster, load, *_ = made
    owner = cluster.owner()
    before = cluster.metric("topics_cluster_takeovers_total")
    began = time.monotonic()
    for step in range(40):  # up to 24 s ahead, and back
        made.jump(owner, 1200 * min(step, 40 - step))
        load.wait_for_acks(1)
    made.jump(owner, 0)
    load.wait_for_acks(5)
    assert load.pause(began) < 1
    assert cluster.owner() is owner
    assert cluster.metric("topics_cluster_takeovers_total") == before


@pytest.mark.soak
def test_times_of_records_do_not_fall_over_a_takeover_from_a_clock_that_is_ahead(made: Made) -> None:
    """The store does not look at the time, as some don't: the owner continues."""
    cluster, load, store, _ = made
    owner, node = cluster.owner(), made.follower()
    store.checks_time = False
    with Api(owner.base) as api:
        ok(api.put("aging", durability="fsync", ttl_ms=HOUR // 2), 201)
        api.append("aging", "before")
    made.jump(owner, HOUR)
    load.wait_for_acks(5)
    with Api(owner.base) as api:
        page = api.read("aging")
        assert (page["records"], page["tombstone"]["reason"]) == ([], "ttl")
    owner.kill()
    made.jump(owner, 0)
    assert cluster.owner(other_than=owner) is node
    load.wait_for_acks(5)
    with Api(node.base) as api:
        page = api.read("aging")
        assert (page["records"], page["tombstone"]["reason"]) == ([], "ttl"), "what has expired does not come back"
        times = [record["$ts"] for record in api.read_all(EVENTS)]
    assert times == sorted(times)
    assert times[-1] >= times[0] + HOUR - 120_000, "the time of a topic stands still until the clock is there"
    owner.start()
    cluster.wait_for_followers(1, 30)


@pytest.mark.soak
def test_the_clock_of_the_owner_decides_about_tokens(tmp_path: Path, etcd: Etcd) -> None:
    clocks, own = clocks_of(tmp_path, 2)
    env = {"TOPICS_JWT_SECRET": SECRET}
    with (
        LocalS3() as store,
        Cluster(tmp_path, etcd.address, "s3://bucket/t", store.environment, nodes=2, env=env, own=own) as cluster,
    ):
        owner = cluster.owner()
        node = next(each for each in cluster.nodes if each is not owner)
        token = hs256(claims(exp=int(time.time()) + 30))

        def answer(at: Node) -> tuple[int, Any]:
            headers = {"authorization": f"Bearer {token}"}
            reply = httpx.get(f"{at.base}/v0/topics", headers=headers, timeout=20, trust_env=False)
            return reply.status_code, reply.json().get("error", {}).get("code")

        clocks[node.name].jump(50_000)  # as far as signatures allow
        assert [answer(each) for each in (owner, node)] == [(200, None)] * 2
        clocks[owner.name].jump(50_000)
        assert [answer(each) for each in (owner, node)] == [(401, "unauthorized")] * 2
