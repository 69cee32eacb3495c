"""The cost of many topics and records: start-up and memory."""

import time
from pathlib import Path

from bench import tools
from bench.length import grow
from bench.table import Row
from support.http import Api
from support.server import ServerProcess
from support.waiting import poll

_MANY_TOPICS = 100_000
_TOPICS, _RECORDS = 10_000, 5_000_000
_SECONDS = 10
_ANOTHER_TOPIC = """
made = 0
request = function()
  made = made + 1
  return wrk.format(nil, "/v0/topics/topic-" .. made)
end
"""


def run(directory: Path) -> list[Row]:
    """Every row about size."""
    return [*_start_up(directory / "start"), *_creation(directory / "creation"), *_memory(directory / "memory")]


def _start_up(directory: Path) -> list[Row]:
    """10,000 topics and 5 M records: killed, started, ready."""
    with ServerProcess(directory) as server, Api(server.base) as api:
        for i in range(_TOPICS):
            assert api.append(f"small-{i:05}", i)["count"] == 1
        grow(server, api, "big", _RECORDS)
        server.kill()
        ready = _seconds_to_ready(server)
    return [Row("ready after SIGKILL, 10,000 topics and 5 M records", ready, "s", "3 s", note="process start included")]


def _creation(directory: Path) -> list[Row]:
    """Topics that their first write makes, each another one."""
    with ServerProcess(directory) as server:
        rate = tools.wrk(f"{server.base}/", tools.write_body(1), connections=8, seconds=_SECONDS, lua=_ANOTHER_TOPIC)
    seconds = 100_000 / rate.calls_per_second
    note = f"100,000 of them in {seconds:.1f} s; p50 {rate.p50_ms:.2f} ms, p99 {rate.p99_ms:.2f} ms"
    return [Row("topics made by first writes, 8 connections", rate.calls_per_second, "topics/s", "5,000/s", note=note)]


def _memory(directory: Path) -> list[Row]:
    """100,000 topics with a record each."""
    with ServerProcess(directory) as server, Api(server.base) as api:
        idle = _rss_mb(server)
        for i in range(_MANY_TOPICS):
            api.append(f"topic-{i:06}", i)
        full = _rss_mb(server)
        server.kill()
        killed, restarted = _seconds_to_ready(server), _rss_mb(server)
        server.stop()
        stopped = _seconds_to_ready(server)
    return [
        Row("RSS of an idle server", idle, "MB", "120 MB"),
        Row("RSS with 100,000 topics", full, "MB", "600 MB"),
        Row("RSS with 100,000 topics, started again", restarted, "MB"),
        Row("ready after SIGKILL, 100,000 topics", killed, "s", "1.5 s", note="process start included"),
        Row("ready after a stop, 100,000 topics", stopped, "s", "1.5 s", note="process start included"),
    ]


def _seconds_to_ready(server: ServerProcess) -> float:
    """Start the server and wait until it is ready."""
    started = time.monotonic()
    server.start()
    with Api(server.base) as api:
        poll(lambda: api.send("GET", "/v0/ready").status_code == 200, 60)
    return time.monotonic() - started


def _rss_mb(server: ServerProcess) -> float:
    for line in Path(f"/proc/{server.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("no VmRSS")
