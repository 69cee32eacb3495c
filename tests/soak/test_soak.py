"""A server at load for minutes: what it takes stays flat, and when everybody has left nothing is left behind.

`make soak MINUTES=10` runs it for ten minutes and prints the figures; `docs/faults.md` has those of one run.
"""

import asyncio
import gc
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from soak.figures import Sample, Watchman, look, metrics, middle, quarters, save, table
from soak.kafka_load import KafkaLoad
from soak.load import Load

from support.http import Api, ok
from support.server import ServerProcess

SOAK_SECONDS = float(os.environ.get("TOPICS_SOAK_SECONDS", "0"))
SMOKE_SECONDS = 6.0
SETTLE_SECONDS = 30.0
MEMORY_BYTES = 64 << 20  # so that caches are full before the first quarter is over
# What the last quarter may have more than the second one.
MORE_RESIDENT = 0.06
MORE_FILES = 12  # tables of RocksDB come and go with compaction
MORE_THREADS = 1
MORE_DISK = 0.5
# What is allowed to stay after everybody has left: nothing of the clients.
HELD = ("topics_sse_connections", "topics_watch_streams", "topics_kafka_connections", "topics_kafka_frame_bytes",
        "topics_grpc_calls_in_flight", "topics_kafka_requests_in_flight", "topics_routers")  # fmt: skip


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    env = {"TOPICS_MEMORY_BYTES": MEMORY_BYTES, "TOPICS_KAFKA_INITIAL_REBALANCE_MS": 200}
    with ServerProcess(tmp_path / "server", env=env, kafka=True) as server:
        yield server


async def soak(server: ServerProcess, seconds: float, seed: int) -> tuple[list[Sample], dict[str, int]]:
    """Load for a time, then none: checks the leftovers. Returns the samples and what the clients did."""
    load = Load(server, seed)
    rest = look(server)
    began = time.monotonic()
    with Watchman(server) as watchman, KafkaLoad(server, seed) as kafka:
        await load.run(seconds)
    took = time.monotonic() - began
    gc.collect()  # calls that were cancelled hold on to their connection
    after = await asyncio.to_thread(settled, server, rest)
    assert after.topics == rest.topics, leftovers(rest, after)
    assert after.sessions <= load.counts["sessions"], leftovers(rest, after)
    counts = {**load.counts, **kafka.counts, "seconds": round(took)}
    return watchman.samples, counts


def settled(server: ServerProcess, rest: Sample) -> Sample:
    """The server without clients: no stream, no call, no connection."""
    end = time.monotonic() + SETTLE_SECONDS
    while True:
        after = look(server)
        held = {name: value for name, value in metrics(server).items() if name in HELD and value}
        if not held and after.sockets <= rest.sockets and after.threads <= rest.threads + MORE_THREADS:
            return after
        assert time.monotonic() < end, f"still held: {held}; {leftovers(rest, after)}"
        time.sleep(0.1)


def leftovers(before: Sample, after: Sample) -> str:
    return f"before {before}\nafter {after}"


def check_log(server: ServerProcess) -> None:
    assert "Traceback" not in server.log, server.log[-3000:]
    assert not re.search(r" (ERROR|CRITICAL) ", server.log), server.log[-3000:]


@pytest.mark.timeout(120)
async def test_a_short_load_leaves_nothing_behind(server: ServerProcess) -> None:
    _, counts = await soak(server, SMOKE_SECONDS, 1)
    for kind in ("records appended", "topics made and deleted", "routers made and deleted", "groups made and deleted",
                 "jobs acked", "pushed workers", "sse visits", "ws visits", "grpc visits", "clients that never read",
                 "Kafka records consumed", "Kafka connections that vanish"):  # fmt: skip
        assert counts.get(kind), (kind, counts)
    check_log(server)
    assert server.stop(30) == 0


@pytest.mark.soak
@pytest.mark.skipif(not SOAK_SECONDS, reason="TOPICS_SOAK_SECONDS says for how long")
@pytest.mark.timeout(0)
async def test_flat_under_load(server: ServerProcess, tmp_path: Path) -> None:
    seed = int(os.environ.get("TOPICS_SOAK_SEED", time.time_ns() % 100_000))
    samples, counts = await soak(server, SOAK_SECONDS, seed)
    save(samples, tmp_path / "samples.jsonl")
    print(f"\nTOPICS_SOAK_SEED={seed}, {counts['seconds']} s, {len(samples)} samples\n\n{table(samples)}\n")
    for kind, count in sorted(counts.items()):
        print(f"{count:>12,} {kind}")
    check_log(server)
    _, second, _, last = quarters(samples)
    for name, more in (("resident", MORE_RESIDENT), ("disk", MORE_DISK)):
        before, after = middle(second, name), middle(last, name)
        assert after <= before * (1 + more), f"{name} grew from {before:.0f} to {after:.0f}"
    for name, few in (("files", MORE_FILES), ("sockets", 6), ("threads", MORE_THREADS)):
        before, after = middle(second, name), middle(last, name)
        assert after <= before + few, f"{name} grew from {before:.0f} to {after:.0f}"
    with Api(server.base) as api:  # and it still works
        assert api.append("log-fsync", 1)["count"] == 1
        ok(api.send("GET", "/v0/ready"))
    assert server.stop(30) == 0
