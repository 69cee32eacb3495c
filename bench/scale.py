"""What grows with the data and what must not: start-up, cost over the length of a log, deletes, memory."""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

from bench.table import Row
from bench.tools import write_body, wrk
from support.http import Api
from support.server import ServerProcess

_MANY_TOPICS = 100_000
_TOPICS, _RECORDS = 10_000, 5_000_000


def run(directory: Path) -> list[Row]:
    """Every row about size."""
    return [*_start_up(directory / "start"), *_length(directory / "length"), *_memory(directory / "memory")]


def _start_up(directory: Path) -> list[Row]:
    """10,000 topics and 5 M records: killed, started, ready."""
    with ServerProcess(directory) as server, Api(server.base) as api:
        for i in range(_TOPICS):
            assert api.append(f"small-{i:05}", i)["count"] == 1
        _grow(server, api, "big", _RECORDS)
        server.kill()
        started = time.monotonic()
        server.start()
        with Api(server.base) as restarted:
            while restarted.send("GET", "/v0/ready").status_code != 200:
                time.sleep(0.01)
        ready = time.monotonic() - started
    return [Row("ready after SIGKILL, 10,000 topics and 5 M records", ready, "s", "3 s", note="process start included")]


def _length(directory: Path) -> list[Row]:
    """The same write, read and tag delete in a log of 10 k and of 5 M records."""
    costs: dict[str, list[float]] = {}
    body = write_body(1000)
    with ServerProcess(directory) as server, Api(server.base) as api:
        for size in (10_000, _RECORDS):
            middle = _grow(server, api, "grow", size) // 2
            append = partial(api.send, "POST", "/v0/topics/grow?return_seqs=false", body)
            read = partial(api.diff, "grow", from_seq=middle, limit=1000)
            costs.setdefault("append of 1000", []).append(_median_ms(append))
            costs.setdefault("read of 1000 from the middle", []).append(_median_ms(read))
            tag = f"rare-{size}"
            for _ in range(10):
                assert api.write("grow", [{"data": 1, "tag": tag}]).status_code == 200
            started = time.perf_counter()
            assert api.send("POST", "/v0/topics/grow/delete", {"match": tag}).json()["deleted"] == 10
            costs.setdefault("delete of 10 by tag", []).append((time.perf_counter() - started) * 1e3)
    return [
        Row(
            f"{what}, log of 5 M over log of 10 k",
            costs_of[1] / costs_of[0],
            "x",
            "flat",
            note=f"{costs_of[0]:.2f} ms and {costs_of[1]:.2f} ms",
        )
        for what, costs_of in costs.items()
    ]


def _memory(directory: Path) -> list[Row]:
    """100,000 topics with a record each."""
    with ServerProcess(directory) as server, Api(server.base) as api:
        idle = _rss_mb(server)
        for i in range(_MANY_TOPICS):
            api.append(f"topic-{i:06}", i)
        full = _rss_mb(server)
    return [
        Row("RSS of an idle server", idle, "MB", "120 MB"),
        Row("RSS with 100,000 topics", full, "MB", "600 MB"),
    ]


def _grow(server: ServerProcess, api: Api, topic: str, size: int) -> int:
    """Append batches of 1000 until the topic has `size` records or a few more; returns its head."""
    body = write_body(1000)
    url = f"/v0/topics/{topic}?return_seqs=false"
    head: int = api.send("POST", url, body).json()["head_seq"]
    while head < size:
        if size - head > 500_000:
            wrk(f"{server.base}{url}", body, connections=4, seconds=1)
        head = api.send("POST", url, body).json()["head_seq"]
    return head


def _median_ms(call: Callable[[], object], times: int = 30) -> float:
    seconds = []
    for _ in range(times):
        started = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - started)
    return median(seconds) * 1e3


def _rss_mb(server: ServerProcess) -> float:
    for line in Path(f"/proc/{server.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("no VmRSS")
