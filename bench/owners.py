"""Clients of a cluster that go to the owners of topics, beside clients that stay at the nodes they were given.

Without owners two of three calls are forwarded. Clients and nodes share the cores, so a record costs the CPU of both.
"""

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AsyncExitStack
from multiprocessing import get_context
from pathlib import Path
from typing import Final, NamedTuple

from bench.cluster import store_in_memory
from bench.cluster_shards import SHARDS, cpu_seconds
from bench.table import Row
from support.cluster import Cluster
from support.etcd import Etcd
from topics_client import AsyncTopicsClient

CONNECTIONS: Final = 64
SECONDS: Final = 5.0
_WARM_SECONDS: Final = 4.0
_ROUNDS: Final = 3
_PROCESSES: Final = 2
_DATA: Final = {"id": 123456, "user": "user-12", "url": "https://example.com/some/page", "text": "lorem ipsum " * 6}


class Cost(NamedTuple):
    """Records a second of all clients, and microseconds of CPU a record: of the nodes, and of the clients."""

    rate: float
    nodes: float
    clients: float

    @property
    def cpu(self) -> float:
        """Of both."""
        return self.nodes + self.clients


async def _write(targets: Sequence[str], numbers: range, follow: bool, begin: float, end: float) -> tuple[int, float]:
    """Append one record after the other with a client for each number, and one topic for each.

    Return the records and the CPU seconds of this process between two moments.
    """
    count = 0
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:

        async def client(number: int) -> None:
            nonlocal count
            target = targets[number % len(targets)]
            own = await stack.enter_async_context(AsyncTopicsClient(target, follow_owners=follow))
            while (now := time.monotonic()) < end:
                await own.append(f"owners-{number}", _DATA)
                count += now >= begin

        for number in numbers:
            group.create_task(client(number))
        await asyncio.sleep(begin - time.monotonic())
        used = time.process_time()
        await asyncio.sleep(end - time.monotonic())
        used = time.process_time() - used
    return count, used


def _clients(targets: Sequence[str], numbers: range, follow: bool, begin: float, end: float) -> tuple[int, float]:
    return asyncio.run(_write(targets, numbers, follow, begin, end))


def measure(cluster: Cluster, pool: ProcessPoolExecutor, *, follow: bool) -> Cost:
    """The cost of one kind of clients."""
    targets = [node.grpc_target for node in cluster.nodes]
    begin = time.monotonic() + _WARM_SECONDS
    end = begin + SECONDS
    each = [range(number, CONNECTIONS, _PROCESSES) for number in range(_PROCESSES)]
    running = [pool.submit(_clients, targets, numbers, follow, begin, end) for numbers in each]
    time.sleep(begin - time.monotonic())
    nodes = cpu_seconds(cluster)
    time.sleep(end - time.monotonic())
    nodes = cpu_seconds(cluster) - nodes
    found = [each.result() for each in running]
    count = sum(records for records, _ in found)
    return Cost(count / SECONDS, nodes / count * 1e6, sum(used for _, used in found) / count * 1e6)


def run(directory: Path) -> list[Row]:
    """Every row: the median of several rounds, in which both kinds take turns."""
    found: dict[bool, list[Cost]] = {True: [], False: []}
    with (
        Etcd(directory / "etcd") as etcd,
        store_in_memory(directory) as environment,
        Cluster(directory / "nodes", etcd.address, "s3://bench/t", environment, shards=SHARDS) as cluster,
        ProcessPoolExecutor(_PROCESSES, mp_context=get_context("spawn")) as pool,
    ):
        cluster.wait_until_spread()
        for _ in range(_ROUNDS):
            for follow, costs in found.items():
                costs.append(measure(cluster, pool, follow=follow))
    aware, unaware = (sorted(costs)[_ROUNDS // 2] for costs in found.values())
    note = (
        f"nodes {aware.nodes:.0f} us, clients {aware.clients:.0f} us; without owners {unaware.nodes:.0f} and "
        f"{unaware.clients:.0f} us; single records"
    )
    where = "clients that stay at their nodes"
    return [
        Row(f"clients that go to owners, {CONNECTIONS} connections", aware.rate, "rec/s", "1.3x", unaware.rate, where),
        Row("the same, CPU of nodes and clients a record", aware.cpu, "us", "", unaware.cpu, where, note),
    ]
