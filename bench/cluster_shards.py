"""Clusters with eight shards on one node and on four: CPU for a record, and calls that another node passes on."""

import asyncio
import os
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import grpc

from bench.table import Row
from support.cluster import Cluster, Node
from support.etcd import Etcd
from support.local_s3 import LocalS3
from support.waiting import poll
from topics_proto.v1 import topics_service_pb2 as pb
from topics_service.engine.placement import home_of

SHARDS: Final = 8
NODES: Final = (1, 4)
SECONDS: Final = 4.0
_ROUNDS: Final = 3
_CALLS: Final = 400
_RECORD: Final = b'{"id":123456,"user":"user-12","url":"https://example.com/some/page","n":1.5,"text":"%s"}' % (
    b"lorem" * 12
)
_TICK: Final = os.sysconf("SC_CLK_TCK")


def topic_of(shard: int) -> str:
    """A topic whose only partition is in the shard."""
    return next(name for name in (f"t{number}" for number in range(1000)) if home_of(name, SHARDS) == shard)


def owners(cluster: Cluster) -> dict[int, Node]:
    """The owner of each shard, once each node has its share."""

    def found() -> dict[int, Node] | None:
        claims = {shard: cluster.claimed(shard) for shard in range(SHARDS)}
        if any(claim is None or not claim["epoch"] for claim in claims.values()):
            return None
        nodes = {shard: cluster[claim["node"]] for shard, claim in claims.items() if claim is not None}
        return nodes if len({*nodes.values()}) == len(cluster.nodes) else None

    spread = poll(found, 90, lambda: f"owners; {cluster.logs()}", pause=0.2)
    assert spread is not None
    return spread


async def _append(cluster: Cluster, spread: dict[int, Node]) -> float:
    """Microseconds of CPU of all nodes for a record, in batches of 1000 that go to owners."""
    count = 0
    async with AsyncExitStack() as stack:
        channels = {
            node: await stack.enter_async_context(grpc.aio.insecure_channel(node.grpc_target)) for node in cluster.nodes
        }

        async def write(shard: int, end: float) -> None:
            nonlocal count
            request = pb.AppendRequest(topic=topic_of(shard))
            request.columns.data.extend([_RECORD] * 1000)
            message = request.SerializeToString()
            call = channels[spread[shard]].unary_unary("/topics.v1.TopicsService/Append")
            while time.perf_counter() < end:
                await call(message)
                count += 1000

        await asyncio.gather(*(write(shard, time.perf_counter() + 1) for shard in range(SHARDS)))
        count, used = 0, cpu_seconds(cluster)
        await asyncio.gather(*(write(shard, time.perf_counter() + SECONDS) for shard in range(SHARDS)))
        return (cpu_seconds(cluster) - used) / count * 1e6


async def _p50_ms(target: str, topic: str) -> float:
    """The median time of an append of one record, one after the other."""
    request = pb.AppendRequest(topic=topic)
    request.columns.data.append(_RECORD)
    message, took = request.SerializeToString(), list[float]()
    async with grpc.aio.insecure_channel(target) as channel:
        call = channel.unary_unary("/topics.v1.TopicsService/Append")
        for _ in range(_CALLS):
            began = time.perf_counter()
            await call(message)
            took.append(time.perf_counter() - began)
    return sorted(took)[_CALLS // 2] * 1e3


def cpu_seconds(cluster: Cluster, *, without: Node | None = None) -> float:
    """CPU seconds of all running nodes so far, but for one."""
    ticks = 0
    for node in cluster.running:
        if node is without:
            continue
        fields = Path(f"/proc/{node.pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / _TICK


def run(directory: Path) -> list[Row]:
    """Every row: the best of several rounds, in which the clusters take turns."""
    cost: dict[int, float] = {}
    direct, passed_on = list[float](), list[float]()
    with Etcd(directory / "etcd") as etcd, LocalS3() as store:
        for number in range(_ROUNDS):
            for nodes in NODES:
                cluster = Cluster(
                    directory / f"{nodes}-{number}",
                    etcd.address,
                    "s3://bench",
                    store.environment,
                    nodes=nodes,
                    shards=SHARDS,
                )
                with cluster:
                    spread = owners(cluster)
                    found = asyncio.run(_append(cluster, spread))
                    cost[nodes] = min(found, cost.get(nodes, found))
                    if nodes > 1:
                        other = next(node for node in cluster.nodes if node is not spread[0])
                        direct.append(asyncio.run(_p50_ms(spread[0].grpc_target, topic_of(0))))
                        passed_on.append(asyncio.run(_p50_ms(other.grpc_target, topic_of(0))))
    one, four = (cost[nodes] for nodes in NODES)
    where = (
        f"batches of 1000 to owners, {SHARDS} shards, one in flight for each; {four:.2f} us over {one:.2f} us a record"
    )
    return [
        Row("CPU of 4 nodes over that of 1, followers with it", four / one, "x", "1.15x", note=where),
        Row("one record through another node, p50", min(passed_on), "ms", "", min(direct), "at the owner"),
        Row("the same above direct", min(passed_on) - min(direct), "ms", "2 ms"),
    ]
