"""Three nodes with eight shards on a real S3 and etcd: pauses of each shard, and calls that are forwarded."""

import contextlib
import itertools
import signal
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import httpx
from cluster.clients import Addresses, HttpActor, addresses

from bench.cluster_shards import SHARDS, topic_of
from bench.table import Row
from support.cluster import Cluster, Node
from support.etcd import Etcd
from support.s3 import S3
from support.waiting import poll

KILLS: Final = 4
SLEEPS: Final = 2
REBALANCES: Final = 2
CALLS: Final = 500


class ShardWriter(HttpActor):
    """Appends to a topic of one shard, under a key for each call. A call that is refused for good is its failure."""

    def __init__(self, shard: int, nodes: Sequence[Addresses]) -> None:
        super().__init__(f"writer of shard {shard}", nodes, shard, 2)
        self.shard = shard
        self.times: list[float] = []

    def work(self) -> None:
        for number in itertools.count():
            if self.stopping.wait(0.01):
                return
            body = {"records": [{"data": number}], "idempotency_key": str(number), "config": {"durability": "fsync"}}
            self.calls.until_done("POST", f"/v0/topics/{topic_of(self.shard)}", body)
            self.times.append(time.monotonic())

    @property
    def done(self) -> int:
        return len(self.times)


class Load:
    """A writer for each shard, over all nodes."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.writers = [ShardWriter(shard, addresses(cluster)) for shard in range(SHARDS)]

    def wait(self, count: int = 5) -> None:
        """Wait until each has so many more acknowledgements."""
        before = [writer.done for writer in self.writers]

        def enough() -> bool:
            for writer in self.writers:
                if writer.failure is not None:
                    raise AssertionError(f"{writer.name} failed") from writer.failure
            return all(writer.done >= had + count for writer, had in zip(self.writers, before, strict=True))

        poll(enough, 60, self._cluster.logs)

    def pauses(self, moment: float, shards: Sequence[int]) -> list[float]:
        """The longest time of each of the shards without an acknowledgement since then."""
        self.wait()
        found = []
        for shard in shards:
            times = [moment, *(each for each in self.writers[shard].times if each > moment)]
            found.append(max(later - earlier for earlier, later in itertools.pairwise(times)))
        return found

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        for writer in self.writers:
            writer.start()
        yield
        for writer in self.writers:
            writer.finish()


def _victim(cluster: Cluster) -> Node:
    cluster.wait_for_followers(1)
    return max(cluster.nodes, key=lambda node: len(cluster.owned(node)))


def _pauses(cluster: Cluster) -> list[Row]:
    kills, sleeps, moves = list[float](), list[float](), list[float]()
    load = Load(cluster)
    with load.running():
        load.wait()
        for _ in range(KILLS):
            node = _victim(cluster)
            shards, moment = cluster.owned(node), time.monotonic()
            node.kill()
            cluster.wait_until_taken_over(node)
            kills += load.pauses(moment, shards)
            node.start()
        for _ in range(SLEEPS):
            node = _victim(cluster)
            for writer in load.writers:
                writer.calls.avoided = f"{node.host}:{node.http_port}"
            load.wait(2)
            shards, moment = cluster.owned(node), time.monotonic()
            node.signal(signal.SIGSTOP)
            cluster.wait_until_taken_over(node)
            sleeps += load.pauses(moment, shards)
            node.signal(signal.SIGCONT)
            for writer in load.writers:
                writer.calls.avoided = ""
        for _ in range(REBALANCES):
            moves += _rebalance(cluster, load)
    return [
        _row(f"time without acks of a shard, kill -9 of its node, most of {len(kills)}", kills, "1,000 ms"),
        _row(f"the same, by the lease only (SIGSTOP), most of {len(sleeps)}", sleeps, "3,500 ms"),
        _row(f"the same, shards that are drained from a node and come back, most of {len(moves)}", moves, "300 ms"),
    ]


def _rebalance(cluster: Cluster, load: Load) -> list[float]:
    """Drain a node and let it have its shards back: the pauses of all shards that have moved."""
    node = _victim(cluster)
    before, moment = cluster.owners(), time.monotonic()
    cluster.command("drain", node.name, "--server", node.grpc_target)
    cluster.command("undrain", node.name, "--server", node.grpc_target)
    middle = cluster.owners()
    cluster.command("rebalance", "--server", node.grpc_target)
    after = cluster.owners()
    moved = [shard for shard in before if len({before[shard], middle[shard], after[shard]}) > 1]
    return load.pauses(moment, moved)


def _row(what: str, seconds: Sequence[float], bar: str) -> Row:
    note = f"p50 {statistics.median(seconds) * 1e3:.0f} ms; a writer for each shard, over HTTP through all nodes"
    return Row(what, max(seconds) * 1e3, "ms", bar, note=note)


def _forwarding(cluster: Cluster) -> Row:
    """Reads over HTTP through a node that passes them on, above the same at the owner."""
    shard, name = next(iter(cluster.owners().items()))
    owner = cluster[name]
    other = next(node for node in cluster.nodes if node is not owner)

    def p50(node: Node) -> float:
        took = []
        with httpx.Client(base_url=node.base, trust_env=False) as client:
            for _ in range(CALLS):
                began = time.perf_counter()
                client.get(f"/v0/topics/{topic_of(shard)}").raise_for_status()
                took.append(time.perf_counter() - began)
        return statistics.median(took) * 1e3

    rounds = [(p50(owner), p50(other)) for _ in range(3)]
    direct, through = (min(each) for each in zip(*rounds, strict=True))
    note = f"p50 {through:.2f} ms through another node, {direct:.2f} at the owner; the best of {len(rounds)} rounds"
    return Row("HTTP, a read passed on, above a direct one", through - direct, "ms", "2 ms", note=note)


def run(directory: Path) -> list[Row]:
    """Every row of a cluster with several shards."""
    with (
        Etcd(directory / "etcd") as etcd,
        S3(directory / "s3") as s3,
        Cluster(directory / "nodes", etcd.address, f"{s3.bucket()}/t", s3.environment, shards=SHARDS) as cluster,
    ):
        return [*_pauses(cluster), _forwarding(cluster)]
