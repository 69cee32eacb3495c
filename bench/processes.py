"""Servers of several processes over HTTP: CPU and rate beside a server without shards, and forwarded calls."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from bench.table import Row
from bench.tools import Rate, write_body, wrk
from support.server import ServerProcess

SECONDS = 4
_TOPICS: Final = 32
_ROUNDS: Final = 3
_SERVERS: Final = {"without shards": 0, "1 process": 1, "2 processes": 2}
_OVER_TOPICS: Final = f"""
local n = 0
request = function()
  n = n + 1
  return wrk.format(nil, '/v0/topics/t' .. (n % {_TOPICS}) .. '?return_seqs=false')
end
"""


class _Load(NamedTuple):
    """Writes of one kind."""

    name: str
    records: int
    connections: int


class _Cost(NamedTuple):
    """Microseconds of CPU of all processes of the server for a record, and the rate."""

    cpu: float
    rate: Rate


_LOADS: Final = (_Load("single records", 1, 64), _Load("batches of 1000", 1000, 8))


def run(directory: Path) -> list[Row]:
    """Every row: the best of several rounds, in which the servers take turns."""
    found: dict[tuple[str, str], _Cost] = {}
    for number in range(_ROUNDS):
        for name, processes in _SERVERS.items():
            env = {"TOPICS_PROCESSES": processes} if processes else {}
            with ServerProcess(directory / f"{processes}-{number}", env=env) as server:
                for load in _LOADS:
                    cost = _measure(server, load)
                    best = found.get((name, load.name))
                    if best is None or cost.cpu < best.cpu:
                        found[name, load.name] = cost
    return [row for load in _LOADS for row in _rows(load, found)]


def _rows(load: _Load, found: dict[tuple[str, str], _Cost]) -> list[Row]:
    plain, one, two = (found[name, load.name] for name in _SERVERS)
    per_second = load.records * two.rate.calls_per_second
    # Half of the topics are in the other process than the connection.
    forwarded = 2 * two.cpu - one.cpu
    where = f"{load.connections} connections, {_TOPICS} topics, 8 shards"
    return [
        Row(f"{load.name}: CPU, 1 process over without shards", one.cpu / plain.cpu, "x", "1.15x", note=where),
        Row(f"{load.name}: CPU, 2 processes over without shards", two.cpu / plain.cpu, "x", note=f"{two.cpu:.2f} us"),
        Row(f"{load.name}: CPU, forwarded over not", forwarded / one.cpu, "x", "2.0x", note="by arithmetic from these"),
        Row(
            f"{load.name}: rate, 2 processes",
            per_second,
            "rec/s",
            "",
            load.records * plain.rate.calls_per_second,
            "without shards",
            "the load generator shares the cores",
        ),
        Row(f"{load.name}: p50, 2 processes", two.rate.p50_ms, "ms", "", plain.rate.p50_ms, "without shards"),
    ]


def _measure(server: ServerProcess, load: _Load) -> _Cost:
    url, body = f"{server.base}/v0/topics/t0", write_body(load.records)
    wrk(url, body, connections=load.connections, seconds=1, lua=_OVER_TOPICS)
    before = _used(server.pid)
    rate = wrk(url, body, connections=load.connections, seconds=SECONDS, lua=_OVER_TOPICS)
    records = rate.calls_per_second * SECONDS * load.records
    return _Cost((_used(server.pid) - before) / records * 1e6, rate)


def _used(pid: int) -> float:
    """CPU seconds of a process and its children so far."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            if pid in (int(stat.parent.name), int(fields[1])):
                ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")
