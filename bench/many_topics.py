"""A hundred thousand topics in a cluster: listings and takeovers, with all of them in one shard and over eight."""

import asyncio
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AsyncExitStack
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple

import grpc
import httpx

from bench.cluster_shards import SHARDS, cpu_seconds
from bench.shard_pauses import Load
from bench.table import Row
from support.cluster import Cluster, Node
from support.etcd import Etcd
from support.s3 import S3
from topics_proto.v1 import topics_service_pb2 as pb
from topics_service.engine.placement import home_of

TOPICS: Final = 100_000
KILLS: Final = 3
PAGES: Final = (100, 1000)
_MAKERS: Final = 400
"""Calls in flight at each node."""
_QUIET_SECONDS: Final = 3.0
_PROBE_SECONDS: Final = 0.01
_MS: Final = 1e3
_US: Final = 1e6


class Listing(NamedTuple):
    """A listing of all topics: time and CPU of all nodes for a topic, in microseconds, less what they take idle."""

    wall: float
    cpu: float


class Taking(NamedTuple):
    """A takeover of all shards of a node: their number and topics, and CPU of the other nodes until they serve them."""

    shards: int
    topics: int
    cpu: float


class Measured(NamedTuple):
    """Everything of one cluster."""

    created: float
    listings: Mapping[int, Listing]
    quiet: list[Taking]
    pauses: list[float]
    listed: list[float]
    rss: float


async def create(cluster: Cluster, first: int, count: int) -> None:
    """Make topics of one record each, at the owners of their shards."""
    owners = cluster.owners()
    numbers: dict[str, list[int]] = {}
    for number in range(first, first + count):
        numbers.setdefault(owners[home_of(name_of(number), cluster.shards)], []).append(number)
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        for node, own in numbers.items():
            channel = await stack.enter_async_context(grpc.aio.insecure_channel(cluster[node].grpc_target))
            left = iter(own)
            for _ in range(_MAKERS):
                group.create_task(_make(channel, left))


async def _make(channel: grpc.aio.Channel, numbers: Iterator[int]) -> None:
    call = channel.unary_unary("/topics.v1.TopicsService/Append")
    for number in numbers:
        request = pb.AppendRequest(topic=name_of(number))
        request.columns.data.append(b'{"n":%d}' % number)
        await call(request.SerializeToString())


def name_of(number: int) -> str:
    """The name of a topic."""
    return f"many-{number:06}"


def pages(client: httpx.Client, size: int) -> Iterator[list[str]]:
    """The names of each page of a listing."""
    cursor = ""
    while True:
        reply = client.get("/v0/topics", params={"page_size": size, "prefix": "many-", "cursor": cursor})
        reply.raise_for_status()
        found = reply.json()
        yield [topic["topic"] for topic in found["topics"]]
        cursor = found.get("next_cursor", "")
        if not cursor:
            return


def _client(node: Node) -> httpx.Client:
    return httpx.Client(base_url=node.base, timeout=20, trust_env=False)


def _listing(cluster: Cluster, node: Node, size: int) -> Listing:
    """All topics through one node, which has to name each once."""
    idle = cpu_seconds(cluster)
    time.sleep(_QUIET_SECONDS)
    idle = (cpu_seconds(cluster) - idle) / _QUIET_SECONDS
    with _client(node) as client:
        next(pages(client, size))
        used, began = cpu_seconds(cluster), time.perf_counter()
        names = [*chain.from_iterable(pages(client, size))]
        wall, used = time.perf_counter() - began, cpu_seconds(cluster) - used
    used -= idle * wall
    assert names == [name_of(number) for number in range(TOPICS)], f"{len(names)} topics are listed"
    return Listing(wall / TOPICS * _US, used / TOPICS * _US)


def _listed(node: Node, moment: float) -> float:
    """Seconds from the moment until a node has listed a page, which needs all shards."""
    with _client(node) as client:
        while True:
            reply = client.get("/v0/topics", params={"page_size": PAGES[0], "prefix": "many-"})
            if reply.status_code == httpx.codes.OK:
                assert len(reply.json()["topics"]) == PAGES[0]
                return time.monotonic() - moment
            time.sleep(_PROBE_SECONDS)


def _victim(cluster: Cluster) -> tuple[Node, Node]:
    """The node with most shards, and another one."""
    cluster.wait_for_followers(1)
    victim = max(cluster.nodes, key=lambda node: len(cluster.owned(node)))
    return victim, next(node for node in cluster.nodes if node is not victim)


def _quiet(cluster: Cluster, topics: Mapping[int, int]) -> Taking:
    """A kill without any load."""
    victim, _ = _victim(cluster)
    time.sleep(_QUIET_SECONDS)
    shards, before = cluster.owned(victim), cpu_seconds(cluster, without=victim)
    victim.kill()
    cluster.wait_until_taken_over(victim)
    used = cpu_seconds(cluster) - before
    victim.start()
    return Taking(len(shards), sum(topics[shard] for shard in shards), used)


def _loaded(cluster: Cluster) -> tuple[list[float], list[float]]:
    """Kills under a writer for each shard: the time of each shard without acknowledgements, and until a page came."""
    pauses, listed = list[float](), list[float]()
    load = Load(cluster)
    with load.running():
        load.wait()
        for _ in range(KILLS):
            victim, other = _victim(cluster)
            shards, moment = cluster.owned(victim), time.monotonic()
            victim.kill()
            listed.append(_listed(other, moment))
            cluster.wait_until_taken_over(victim)
            pauses += load.pauses(moment, shards)
            victim.start()
    return pauses, listed


def measure(cluster: Cluster) -> Measured:
    """Make the topics, and measure everything with them."""
    if cluster.shards > 1:
        cluster.wait_until_spread()
    else:
        cluster.wait_for_followers(1)
    began = time.perf_counter()
    asyncio.run(create(cluster, 0, TOPICS))
    created = time.perf_counter() - began
    topics = dict.fromkeys(range(cluster.shards), 0)
    for number in range(TOPICS):
        topics[home_of(name_of(number), cluster.shards)] += 1
    cluster.wait_for_followers(1)
    time.sleep(_QUIET_SECONDS)
    node = cluster[cluster.owners()[0]]
    listings = {size: _listing(cluster, node, size) for size in PAGES}
    rss = max(each.metrics()["topics_process_resident_memory_bytes"] for each in cluster.nodes) / 1e6
    quiet = [_quiet(cluster, topics) for _ in range(KILLS)]
    return Measured(created, listings, quiet, *_loaded(cluster), rss)


def run(directory: Path) -> list[Row]:
    """Every row, the cluster of one shard beside that of eight."""
    found: dict[int, Measured] = {}
    with Etcd(directory / "etcd") as etcd, S3(directory / "s3") as s3:
        for shards in (1, SHARDS):
            with Cluster(
                directory / f"{shards}",
                etcd.address,
                f"{s3.bucket()}/t",
                s3.environment,
                shards=shards,
                env={"TOPICS_MAX_TOPICS": 2 * TOPICS},
            ) as cluster:
                found[shards] = measure(cluster)
    return rows(found[1], found[SHARDS])


def rows(one: Measured, many: Measured) -> list[Row]:
    """The rows, of one shard and of several."""

    def row(what: str, unit: str, bar: str, ours: float, peer: float, note: str = "") -> Row:
        return Row(what, ours, unit, bar, peer, "in one shard", note)

    def taking(found: Measured) -> float:
        return sum(each.cpu for each in found.quiet) / sum(each.shards for each in found.quiet) * _MS

    def per_topic(found: Measured) -> float:
        return sum(each.cpu for each in found.quiet) / sum(each.topics for each in found.quiet) * _US

    note = f"p50 {_p50(many.pauses):.0f} ms, {_p50(one.pauses):.0f} with one shard; a writer for each shard"
    return [
        row(f"{TOPICS:,} topics over {SHARDS} shards, until made", "s", "", many.created, one.created),
        *(
            row(
                f"listing in pages of {size}, CPU of all nodes a topic",
                "us",
                "2x",
                many.listings[size].cpu,
                one.listings[size].cpu,
                f"time {many.listings[size].wall:.1f} us a topic, {one.listings[size].wall:.1f} with one shard",
            )
            for size in PAGES
        ),
        row("takeover of a shard, CPU of the other nodes", "ms", "", taking(many), taking(one),
            f"{per_topic(many):.1f} us a topic, {per_topic(one):.1f} with one shard"),
        row("time without acks of a shard, kill -9 of its node, most", "ms", "1,000 ms", _most(many.pauses),
            _most(one.pauses), note),
        row("the same kills, until a page is listed, most", "ms", "1,000 ms", _most(many.listed), _most(one.listed)),
        row("memory of a node, most", "MB", "", many.rss, one.rss),
    ]  # fmt: skip


def _most(seconds: Iterable[float]) -> float:
    return max(seconds) * _MS


def _p50(seconds: Iterable[float]) -> float:
    return statistics.median(seconds) * _MS
