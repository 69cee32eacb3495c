"""Faults around three nodes with eight shards: their store, their etcd, a clock, orders and claims that are wrong.

The load writes to every shard through every node. After each test everything that was acknowledged is there once and in
order at every node, and no client has met an error but those after which a call is repeated.
"""

import contextlib
import random
import signal
import time
from collections.abc import Iterator
from typing import Final, NamedTuple

import httpx
import pytest
from cluster.clients import Calls, addresses
from cluster.load import ShardsLoad
from confluent_kafka import Producer
from sdk.cli.runner import Cli

from support.cluster import Cluster, Node
from support.etcd import Etcd
from support.http import REC, path
from support.local_s3 import Fault, LocalS3
from support.waiting import poll
from support.wall_clock import WallClock
from topics_client import Retry, TopicsClient, UnavailableError
from topics_service.engine.placement import home_of

SHARDS: Final = 8
HOUR: Final = 3_600_000
CLOCK: Final = "c"
"""The node whose wall clock tests move."""
UNOWNED: Final = 5.0
"""Seconds for which a call waits for the owner of a shard."""
SLACK: Final = 2.0
"""Seconds that the tests' machine may add."""


class Made(NamedTuple):
    cluster: Cluster
    load: ShardsLoad
    store: LocalS3
    etcd: Etcd
    clock: WallClock


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    """A cluster under load, which every test leaves whole; at the end everything is compared."""
    folder = tmp_path_factory.mktemp("shards-faults")
    clock = WallClock(folder / "clock")
    with (
        Etcd(folder / "etcd") as etcd,
        LocalS3() as store,
        Cluster(
            folder, etcd.address, "s3://bucket/t", store.environment, shards=SHARDS, own={CLOCK: dict(clock.env)}
        ) as cluster,
    ):
        cluster.wait_until_spread()
        load = ShardsLoad(cluster)
        with load.running():
            load.wait_for_acks()
            yield Made(cluster, load, store, etcd, clock)


def claims(cluster: Cluster) -> list[object]:
    """The entries of the owners of all shards, whose epochs grow with each takeover."""
    return [cluster.claimed(shard) for shard in range(SHARDS)]


@pytest.mark.parametrize(
    ("way", "seconds"),
    [
        ("refuses", 4.0),
        *(pytest.param(way, 20.0, marks=pytest.mark.soak) for way in ("refuses", "hangs")),
    ],
)
def test_a_store_that_is_away_moves_no_shard(made: Made, way: str, seconds: float) -> None:
    cluster, load, store, *_ = made
    cluster.wait_for_followers(1)
    before = claims(cluster)
    gone = time.monotonic()
    with store.away(way, seconds):
        poll(lambda: time.monotonic() > gone + seconds, seconds + 5)
    back = time.monotonic()
    load.wait_for_acks()
    assert load.pause(gone) >= seconds - 2, "something was acknowledged without a store"
    late = load.pause(gone) - (back - gone)
    print(f"all shards acknowledge {late:.2f} s after {seconds} s without a store that {way}")
    assert late < 6
    cluster.wait_for_followers(1)
    assert claims(cluster) == before


@pytest.mark.soak
def test_errors_and_lost_answers_of_the_store_beside_a_kill(made: Made) -> None:
    cluster, load, store, *_ = made
    rng = random.Random(7)

    def fault(method: str, key: str) -> Fault | None:
        if "/log/" not in key or rng.random() > 0.2:
            return None
        faults: list[Fault] = ["500", "503", "lost"] if method == "PUT" else ["500", "half"]
        return rng.choice(faults)

    cluster.wait_for_followers(1)
    store.fault = fault
    try:
        load.wait_for_acks()
        victim = cluster[cluster.owners()[0]]
        victim.kill()
        cluster.wait_until_taken_over(victim)
        load.wait_for_acks()
    finally:
        store.fault = lambda method, key: None
    victim.start()
    cluster.wait_for_followers(1)


@pytest.mark.soak
def test_all_shards_take_writes_without_etcd_and_fail_over_with_an_empty_one(made: Made) -> None:
    cluster, load, _, etcd, _ = made
    cluster.wait_for_followers(1)
    gone = time.monotonic()
    etcd.empty()
    poll(lambda: time.monotonic() > gone + 4, 10)  # longer than any lease
    load.wait_for_acks()
    pause = load.pause(gone)
    etcd.start()
    poll(lambda: len(cluster.owners()) == SHARDS, 30, lambda: f"claims of all shards: {cluster.owners()}")
    print(f"longest pause of a shard without etcd {pause:.2f} s")
    assert pause < 1 + SLACK
    cluster.wait_for_followers(1)
    victim = cluster[cluster.owners()[0]]
    victim.kill()
    cluster.wait_until_taken_over(victim)
    load.wait_for_acks()
    victim.start()


@pytest.mark.soak
def test_lives_of_a_topic_while_nodes_are_killed(made: Made) -> None:
    """Made, grown, deleted and made again, with parts in all shards; a node dies before some step of each life."""
    cluster = made.cluster
    rng = random.Random(3)
    calls = Calls(addresses(cluster), 0, 4)

    def is_gone() -> bool:
        with contextlib.suppress(httpx.TransportError), httpx.Client(base_url=calls.base, timeout=4) as http:
            return http.delete(path("lives")).status_code in (200, 404)
        calls.next_node()
        return False

    for life in range(6):
        dies = rng.choice(["made", "written", "grown", "deleted"])
        victim: Node | None = None
        for step in ("made", "written", "grown", "deleted"):
            if step == dies:
                cluster.wait_for_followers(1)
                victim = next(node for node in rng.sample(cluster.nodes, 3) if cluster.owned(node))
                victim.kill()
            if step == "made":
                calls.until_done("PUT", path("lives"), {"partition_count": SHARDS, "durability": "fsync"})
            elif step in ("written", "grown"):
                count = SHARDS if step == "written" else 2 * SHARDS
                calls.until_done("PUT", path("lives"), {"partition_count": count})
                for partition in range(count - SHARDS, count):
                    body = {"records": [{"data": life}], "partition": partition, "idempotency_key": f"{life}"}
                    calls.until_done("POST", path("lives"), body)
                for partition in range(count):
                    read = {"from_seq": 0, "partition": partition}
                    page = calls.until_done("POST", path("lives", "/diff"), read)
                    assert [record["data"] for record in page["records"]] == [life], f"partition {partition}"
            else:
                poll(is_gone, 60, cluster.logs)
        assert victim is not None
        cluster.wait_until_taken_over(victim)
        victim.start()
    calls.close()


@pytest.mark.soak
@pytest.mark.parametrize("offset_ms", [HOUR, -HOUR])
def test_a_node_whose_time_the_store_does_not_accept_gives_its_shards_up(made: Made, offset_ms: int) -> None:
    cluster, load, _, _, clock = made
    node = cluster[CLOCK]
    poll(lambda: cluster.owned(node), 60, cluster.logs)
    cluster.wait_for_followers(1)
    lost = len(cluster.owned(node))
    jumped = time.monotonic()
    clock.jump(offset_ms)
    cluster.wait_until_taken_over(node)
    load.wait_for_acks()
    print(f"{lost} shards without an acknowledgement for {load.pause(jumped):.2f} s")
    clock.jump(0)
    cluster.wait_for_followers(1)
    load.wait_for_acks()


@pytest.mark.soak
def test_a_shard_that_is_moved_to_a_node_that_has_just_died_stays(made: Made) -> None:
    """The node still lives as far as etcd knows; later it does not, and the order is refused."""
    cluster, load, *_ = made
    cluster.wait_for_followers(1)
    victim = next(node for node in reversed(cluster.nodes) if cluster.owned(node))
    asked = next(node for node in cluster.nodes if node is not victim)
    victim.kill()
    shard = next(number for number, name in cluster.owners().items() if name != victim.name)
    owner = cluster.owners()[shard]
    told = Cli(asked.grpc_target)("cluster", "move", "--shard", shard, victim.name, code=3)
    assert f"not_ready: the shard has not moved: the node {victim.name} has gone" in told.err
    cluster.wait_until_taken_over(victim)
    load.wait_for_acks()
    assert cluster.owners()[shard] == owner
    poll(lambda: not cluster.lives(victim), 20, "its lease ends")
    again = Cli(asked.grpc_target)("cluster", "move", "--shard", shard, victim.name, code=1)
    assert f"no node with the name '{victim.name}' lives" in again.err
    victim.start()
    cluster.wait_until_spread()


def test_a_claim_of_a_node_that_does_not_serve_the_shard_leads_nowhere(made: Made) -> None:
    """Each of two nodes is told that the other is the owner, or itself: calls come back, and none goes round."""
    cluster, load, *_ = made
    cluster.wait_for_followers(1)
    shard, name = next(iter(cluster.owners().items()))
    owner, others = cluster[name], [node for node in cluster.nodes if node.name != name]
    claim = cluster.claimed(shard)
    assert claim is not None
    topic = next(name for name in (f"claimed-{n}" for n in range(100)) if home_of(name, SHARDS) == shard)
    owner.signal(signal.SIGSTOP)
    try:
        for named in others:
            like = next(each for each in map(cluster.claimed, cluster.owned(named)) if each)
            cluster.forge_claim(shard, {**like, "epoch": claim["epoch"]})
            for node in others:
                found = append(node, topic)
                print(f"{node.name} asked for a shard of which {named.name} knows nothing: {found}")
                assert found.status in (0, 200, 201, 503)
                assert found.seconds < UNOWNED + SLACK
    finally:
        cluster.forge_claim(shard, None)
        owner.signal(signal.SIGCONT)
    load.wait_for_acks()
    cluster.wait_for_followers(1)


@pytest.mark.soak
def test_clients_that_know_one_node_only(made: Made) -> None:
    """It dies: one that knows nobody else gets an error to repeat, those that have learned of owners continue."""
    cluster, load, *_ = made
    cluster.wait_for_followers(1)
    node = next(each for each in reversed(cluster.nodes) if cluster.owned(each))
    topics = [f"sdk-{topic}" for topic in load.topics.values()]
    delivered: list[object] = []
    producer = Producer({"bootstrap.servers": node.kafka_target, "log_level": 0, "message.timeout.ms": 30_000})

    def produce() -> None:
        for shard, topic in load.topics.items():
            producer.produce(f"kafka-{topic}", b"%d" % shard, on_delivery=lambda error, _: delivered.append(error))
        assert producer.flush(30) == 0

    with (
        TopicsClient(node.grpc_target, timeout=3.0, retry=Retry(seconds=2)) as taught,
        TopicsClient(node.grpc_target, timeout=3.0, retry=Retry(seconds=2)) as stranger,
    ):
        for topic in topics:
            taught.append(topic, 1, idempotency_key="1")
        produce()
        node.kill()
        began = time.monotonic()
        with pytest.raises(UnavailableError) as refused:
            stranger.append(topics[0], 0)
        print(f"a client that has reached nobody: {refused.value!r} after {time.monotonic() - began:.1f} s")
        assert time.monotonic() - began < 3 + SLACK
        cluster.wait_until_taken_over(node)
        answered = 0
        for topic in topics:
            with contextlib.suppress(UnavailableError):
                taught.append(topic, 2, idempotency_key="2")
                answered += 1
        assert answered, "owners that the client knows are not asked"
        produce()
        node.start()
        for client in (stranger, taught):
            for topic in topics:
                client.append(topic, 3, idempotency_key="3")
    assert delivered == [None] * 2 * SHARDS


class Answer(NamedTuple):
    """The status, 0 for a connection that ends without an answer, and the seconds."""

    status: int
    seconds: float


def append(node: Node, topic: str) -> Answer:
    began = time.monotonic()
    try:
        with httpx.Client(base_url=node.base, timeout=30, trust_env=False) as http:
            status = http.post(path(topic), json=REC).status_code
    except httpx.TransportError:
        status = 0
    return Answer(status, time.monotonic() - began)
