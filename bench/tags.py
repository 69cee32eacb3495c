"""Tags and retention: two writers of batches of 1000, with and without tags, caps and TTLs.

Unique tags under a retention that is reached are the normal life of a log: what was indexed has to go again.
"""

import os
import random
import time
from multiprocessing import get_context
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import NamedTuple

from bench.table import Row
from bench.tools import data_of
from support.server import ServerProcess
from topics_client import NewRecord, RawJson, TopicConfig, TopicsClient

_SECONDS = 18
_WRITERS = 2
_BATCH = 1000
_TAGS = 1_000_000
_CASES = {
    "untagged": (False, TopicConfig()),
    "untagged, cap_bytes 50 MB": (False, TopicConfig(cap_bytes=50 << 20)),
    "unique tags": (True, TopicConfig()),
    "unique tags, cap_bytes 50 MB": (True, TopicConfig(cap_bytes=50 << 20)),
    "unique tags, cap_records 300 k": (True, TopicConfig(cap_records=300_000)),
    "unique tags, ttl 5 s": (True, TopicConfig(ttl_ms=5000)),
}


class _Case(NamedTuple):
    rate: float
    second_half: float
    p50_ms: float
    p99_ms: float
    cpu_us: float


def run(directory: Path) -> list[Row]:
    """A row for each kind of topic: thousand records a second, against the kind that it is to keep up with."""
    found: dict[str, _Case] = {}
    for i, (name, (tagged, config)) in enumerate(_CASES.items()):
        found[name] = _measure(directory / str(i), config, tagged=tagged)
    return [
        _row("unique tags", found, "untagged", 0.7),
        *(_row(name, found, "unique tags", 0.9) for name in list(_CASES)[3:]),
        _row("untagged, cap_bytes 50 MB", found, "untagged", 0.9),
    ]


def _row(name: str, found: dict[str, _Case], peer: str, bar: float) -> Row:
    case = found[name]
    note = (
        f"second half {case.second_half:.0f} k; p50 {case.p50_ms:.1f} ms, p99 {case.p99_ms:.0f} ms; "
        f"{case.cpu_us:.1f} us of the server's CPU a record"
    )
    return Row(f"tags: {name}", case.rate, "k rec/s", f"{bar}x", found[peer].rate, peer, note)


def _measure(directory: Path, config: TopicConfig, *, tagged: bool) -> _Case:
    context = get_context("spawn")
    barrier, results = context.Barrier(_WRITERS + 1), context.SimpleQueue()
    with ServerProcess(directory) as server:
        with TopicsClient(server.grpc_target) as client:
            for writer in range(_WRITERS):
                client.put_topic(f"topic-{writer}", config)
        writers = [
            context.Process(target=_write, args=(server.grpc_target, writer, tagged, barrier, results))
            for writer in range(_WRITERS)
        ]
        for each in writers:
            each.start()
        barrier.wait(60)
        before = _cpu_seconds(server.pid)
        took: list[tuple[float, float]] = [pair for _ in writers for pair in results.get()]
        cpu = _cpu_seconds(server.pid) - before
        for each in writers:
            each.join()
    millis = sorted(ms for _, ms in took)
    records = len(took) * _BATCH
    late = _BATCH * sum(at > _SECONDS / 2 for at, _ in took)
    return _Case(
        records / _SECONDS / 1000,
        late / (_SECONDS / 2) / 1000,
        millis[len(millis) // 2],
        millis[len(millis) * 99 // 100],
        cpu / records * 1e6,
    )


def _write(
    target: str, writer: int, tagged: bool, barrier: Barrier, results: "SimpleQueue[list[tuple[float, float]]]"
) -> None:
    """Append for `_SECONDS`; put for each batch the second at which it ended, and its milliseconds."""
    source = random.Random(writer)
    datas = [RawJson(data_of(i).encode()) for i in range(_BATCH)]

    def batch() -> list[NewRecord]:
        return [NewRecord(data, tag=f"user:{source.randrange(_TAGS)}" if tagged else None) for data in datas]

    batches = [batch() for _ in range(300)]
    took = list[tuple[float, float]]()
    with TopicsClient(target) as client:
        barrier.wait(60)
        begin = before = time.perf_counter()
        while before - begin < _SECONDS:
            client.append_many(f"topic-{writer}", batches[len(took) % len(batches)])
            now = time.perf_counter()
            took.append((now - begin, (now - before) * 1000))
            before = now
    results.put(took)


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
