"""Clients of a cluster that go to the owners of topics, beside clients that stay at the nodes they were given.

Without owners two of three calls are forwarded. Clients and nodes share the cores, so a call costs the CPU of both.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
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
SECONDS: Final = 3.0
_WARM_SECONDS: Final = 2.5
_ROUNDS: Final = 3
_PROCESSES: Final = 2
_BATCH: Final = 100
_DATA: Final = {"id": 123456, "user": "user-12", "url": "https://example.com/some/page", "text": "lorem ipsum " * 6}


Call = Callable[[AsyncTopicsClient, str], Awaitable[object]]
CALLS: Final[dict[str, Call]] = {
    "states of topics": lambda client, topic: client.get_topic(topic),
    "appends of one record": lambda client, topic: client.append(topic, _DATA),
    f"appends of {_BATCH} records": lambda client, topic: client.append_many(topic, [_DATA] * _BATCH),
}


class Cost(NamedTuple):
    """Calls a second of all clients, and microseconds of CPU a call: of the nodes, and of the clients."""

    rate: float
    nodes: float
    clients: float


async def _call(
    kind: str, targets: Sequence[str], numbers: range, follow: bool, begin: float, end: float
) -> tuple[int, float]:
    """Make one call after the other with a client for each number, and a topic for each.

    Return the calls and the CPU seconds of this process between two moments.
    """
    count = 0
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:

        async def client(number: int) -> None:
            nonlocal count
            target = targets[number % len(targets)]
            own = await stack.enter_async_context(AsyncTopicsClient(target, follow_owners=follow))
            await own.append(f"owners-{number}", _DATA)
            while (now := time.monotonic()) < end:
                await CALLS[kind](own, f"owners-{number}")
                count += now >= begin

        for number in numbers:
            group.create_task(client(number))
        await asyncio.sleep(begin - time.monotonic())
        used = time.process_time()
        await asyncio.sleep(end - time.monotonic())
        used = time.process_time() - used
    return count, used


def _clients(
    kind: str, targets: Sequence[str], numbers: range, follow: bool, begin: float, end: float
) -> tuple[int, float]:
    return asyncio.run(_call(kind, targets, numbers, follow, begin, end))


def measure(cluster: Cluster, pool: ProcessPoolExecutor, kind: str, *, follow: bool) -> Cost:
    """The cost of one kind of calls."""
    targets = [node.grpc_target for node in cluster.nodes]
    begin = time.monotonic() + _WARM_SECONDS
    end = begin + SECONDS
    each = [range(number, CONNECTIONS, _PROCESSES) for number in range(_PROCESSES)]
    running = [pool.submit(_clients, kind, targets, numbers, follow, begin, end) for numbers in each]
    time.sleep(begin - time.monotonic())
    nodes = cpu_seconds(cluster)
    time.sleep(end - time.monotonic())
    nodes = cpu_seconds(cluster) - nodes
    found = [each.result() for each in running]
    count = sum(calls for calls, _ in found)
    return Cost(count / SECONDS, nodes / count * 1e6, sum(used for _, used in found) / count * 1e6)


def run(directory: Path) -> list[Row]:
    """Every row: the median of several rounds, in which both kinds take turns."""
    found: dict[tuple[str, bool], list[Cost]] = {(kind, follow): [] for kind in CALLS for follow in (True, False)}
    with (
        Etcd(directory / "etcd") as etcd,
        store_in_memory(directory) as environment,
        Cluster(directory / "nodes", etcd.address, "s3://bench/t", environment, shards=SHARDS) as cluster,
        ProcessPoolExecutor(_PROCESSES, mp_context=get_context("spawn")) as pool,
    ):
        cluster.wait_until_spread()
        for _ in range(_ROUNDS):
            for (kind, follow), costs in found.items():
                costs.append(measure(cluster, pool, kind, follow=follow))
    median = {key: sorted(costs)[_ROUNDS // 2] for key, costs in found.items()}
    return [_row(kind, median[kind, True], median[kind, False]) for kind in CALLS]


def _row(kind: str, aware: Cost, unaware: Cost) -> Row:
    note = (
        f"CPU a call: nodes {aware.nodes:.0f} us, clients {aware.clients:.0f} us; without owners {unaware.nodes:.0f} "
        f"and {unaware.clients:.0f} us"
    )
    what = f"{CONNECTIONS} clients that go to owners, {kind}"
    return Row(what, aware.rate, "calls/s", "1.3x", unaware.rate, "that stay at their nodes", note)
