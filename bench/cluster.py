"""A cluster on a real S3 and a real etcd, on the same cores, beside a single process in the same run.

The store of 20 ms is an S3 server in memory that answers each request so much later, to stand for one
across a network.
"""

import asyncio
import contextlib
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import grpc
import obstore
from cluster.load import Load

from bench.table import Row
from support.cluster import Cluster, Node
from support.etcd import Etcd
from support.local_s3 import LocalS3
from support.s3 import S3
from support.server import DIE_WITH_US, ServerProcess
from support.waiting import poll
from topics_proto.v1 import topics_service_pb2 as pb

SECONDS = 4.0
KILLS, SLEEPS, HANDOVERS = 20, 3, 10
STORE_MS = 20
_RECORD = (
    b'{"id":123456,"user":"user-12","url":"https://example.com/some/page","n":1.5,"text":"lorem ipsum dolor sit amet'
)
_RECORD += b' consectetur adipiscing elit sed do"}'
_TICK = os.sysconf("SC_CLK_TCK")


class Measured(NamedTuple):
    """Appends of one kind: records a second, latency of a call, and CPU of the server for a record."""

    rate: float
    p50_ms: float
    p99_ms: float
    cpu_us: float


async def _append(target: str, pid: int, records: int, in_flight: int) -> Measured:
    """Append batches of so many records with so many calls in flight."""
    request = pb.AppendRequest(topic=f"bench-{records}")
    request.columns.data.extend(_RECORD for _ in range(records))
    request.config.durable = True
    message, took = request.SerializeToString(), list[float]()
    async with grpc.aio.insecure_channel(target) as channel:
        call = channel.unary_unary("/topics.v1.TopicsService/Append")
        await call(message)

        async def write(end: float) -> None:
            while (began := time.perf_counter()) < end:
                await call(message)
                took.append(time.perf_counter() - began)

        cpu, began = _cpu_seconds(pid), time.perf_counter()
        await asyncio.gather(*(write(began + SECONDS) for _ in range(in_flight)))
        seconds, cpu = time.perf_counter() - began, _cpu_seconds(pid) - cpu
    took.sort()
    count = len(took) * records
    return Measured(count / seconds, took[len(took) // 2] * 1e3, took[int(len(took) * 0.99)] * 1e3, cpu / count * 1e6)


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICK


CASES = {
    "1000": (1000, 1),
    "1000, 16 in flight": (1000, 16),
    "1": (1, 1),
    "1, 4 in flight": (1, 4),
    "1, 64 in flight": (1, 64),
}


def _all_cases(server: ServerProcess) -> dict[str, Measured]:
    return {name: asyncio.run(_append(server.grpc_target, server.pid, *case)) for name, case in CASES.items()}


def _writes(store: str, cluster: Cluster, single: dict[str, Measured], bars: dict[str, str]) -> list[Row]:
    """Rows of one store: every case at the owner, with what it needs of the store."""
    owner = cluster.owner()
    rows = []
    for name, case in CASES.items():
        objects = owner.metrics()["topics_cluster_put_seconds_count"]
        found = asyncio.run(_append(owner.grpc_target, owner.pid, *case))
        objects = (owner.metrics()["topics_cluster_put_seconds_count"] - objects) / SECONDS
        alone = single[name]
        note = (
            f"ack p50 {found.p50_ms:.1f} ms, p99 {found.p99_ms:.1f} (one process {alone.p50_ms:.1f}, "
            f"{alone.p99_ms:.1f}); "
            f"{objects:.0f} objects/s; {found.cpu_us:.1f} us of CPU a record, {found.cpu_us / alone.cpu_us:.2f}x"
        )
        what = f"cluster on {store}, appends of {name}"
        rows.append(Row(what, found.rate, "rec/s", bars.get(name, ""), alone.rate, "one process, fsync", note))
    return rows


def _put_ms(s3: S3, bucket: str) -> float:
    """The p50 of a create of 150 kB by itself."""
    store, body, took = s3.store(bucket), _RECORD * 1000, []
    for number in range(60):
        began = time.perf_counter()
        obstore.put(store, f"alone/{number}", body, mode="create")
        took.append(time.perf_counter() - began)
    return statistics.median(took) * 1e3


def _rss_mb(node: Node) -> float:
    return node.metrics()["topics_process_resident_memory_bytes"] / 1e6


def _pauses(cluster: Cluster, load: Load) -> list[Row]:
    """Time without an acknowledgement, of writers over all nodes: kills, sleeps and handovers of the owner."""
    kills, sleeps, moves = list[float](), list[float](), list[float]()
    with load.running():
        for _ in range(KILLS):
            load.wait_for_acks(10)
            cluster.wait_for_followers(1)
            owner, moment = cluster.owner(), time.monotonic()
            owner.kill()
            cluster.owner(other_than=owner)
            load.wait_for_acks(10)
            kills.append(load.pause(moment))
            owner.spawn()
        for _ in range(SLEEPS):
            cluster.wait_for_followers(2)
            owner = cluster.owner()
            load.avoid(owner)
            moment = time.monotonic()
            owner.signal(signal.SIGSTOP)
            cluster.owner(other_than=owner)
            load.wait_for_acks(10)
            sleeps.append(load.pause(moment))
            owner.signal(signal.SIGCONT)
        for number in range(HANDOVERS):
            cluster.wait_for_followers(2)
            owner = cluster.owner()
            to = next(node for node in cluster.nodes if node is not owner)
            moment = time.monotonic()
            cluster.command("move", to.name, "--server", owner.grpc_target)
            poll(lambda to=to: cluster.owner() is to, 30, f"handover {number}")
            load.wait_for_acks(10)
            moves.append(load.pause(moment))
    return [
        Row(f"longest time without an ack, kill -9 of the owner, p95 of {KILLS}", _p95(kills), "ms", "500 ms",
            note=f"p50 {statistics.median(kills) * 1e3:.0f} ms; 2 writers over HTTP, through any node"),
        Row(f"the same, by the lease only (SIGSTOP), most of {SLEEPS}", max(sleeps) * 1e3, "ms", "3,500 ms"),
        Row(f"the same, handover, p95 of {HANDOVERS}", _p95(moves), "ms", "200 ms",
            note=f"p50 {statistics.median(moves) * 1e3:.0f} ms"),
    ]  # fmt: skip


def _p95(seconds: Sequence[float]) -> float:
    return sorted(seconds)[int(len(seconds) * 0.95) - (len(seconds) % 20 == 0)] * 1e3


@contextlib.contextmanager
def store_in_memory(directory: Path, delay_ms: int = 0) -> Iterator[dict[str, str]]:
    """An S3 server in memory, in a process of its own; yields the environment by which nodes find it."""
    file = directory / "store"
    command = [*DIE_WITH_US, sys.executable, "-m", "support.local_s3", str(file), str(delay_ms / 1000)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        poll(lambda: file.exists() and file.read_text(), 20, "the store in memory")
        yield {**LocalS3.environment_of(file.read_text())}
    finally:
        process.kill()
        process.wait(10)


def _forwarding(cluster: Cluster) -> Row:
    """A read over gRPC through a follower, above the same at the owner."""
    owner = cluster.owner()
    follower = next(node for node in cluster.nodes if node is not owner)
    message = pb.GetTopicRequest(topic="bench-1").SerializeToString()

    async def p50(target: str) -> float:
        async with grpc.aio.insecure_channel(target) as channel:
            call, took = channel.unary_unary("/topics.v1.TopicsService/GetTopic"), []
            for _ in range(500):
                began = time.perf_counter()
                await call(message)
                took.append(time.perf_counter() - began)
        return statistics.median(took) * 1e3

    direct, through = asyncio.run(p50(owner.grpc_target)), asyncio.run(p50(follower.grpc_target))
    note = f"p50 {through:.2f} ms through a follower, {direct:.2f} at the owner"
    return Row("cluster, a call passed on, above a direct one", through - direct, "ms", "2 ms", note=note)


def _idle(cluster: Cluster) -> Row:
    owner = cluster.owner()
    before = owner.metrics()["topics_cluster_put_seconds_count"]
    time.sleep(5)
    made = owner.metrics()["topics_cluster_put_seconds_count"] - before
    return Row("cluster, objects put in 5 s without writes", made, "objects", "0")


def run(directory: Path) -> list[Row]:
    """Every row of a cluster."""
    with ServerProcess(directory / "single") as server:
        single = _all_cases(server)
    with Etcd(directory / "etcd") as etcd:
        with S3(directory / "s3") as s3:
            bucket = s3.bucket()
            with Cluster(directory / "weed", etcd.address, f"{bucket}/t", s3.environment) as cluster:
                put = _put_ms(s3, bucket)
                bars = {"1000, 16 in flight": "110 k rec/s", "1, 4 in flight": "40 objects/s"}
                rows = _writes("SeaweedFS", cluster, single, bars)
                rows.append(
                    Row("SeaweedFS, create of 150 kB by itself, p50", put, "ms", note="ack p50 at most 3 ms above")
                )
                rows.append(Row("cluster, RSS of the owner after that", _rss_mb(cluster.owner()), "MB", "250 MB"))
                rows += [_forwarding(cluster), _idle(cluster), *_pauses(cluster, Load(cluster))]
        with (
            store_in_memory(directory, STORE_MS) as environment,
            Cluster(directory / "slow", etcd.address, "s3://bucket/t", environment, nodes=2) as cluster,
        ):
            bars = {
                "1000, 16 in flight": "200 k rec/s",
                "1, 4 in flight": "40 objects/s",
                "1, 64 in flight": "p50 55 ms, 50 objects/s",
            }
            rows += _writes(f"a store of {STORE_MS} ms", cluster, single, bars)
    return rows
