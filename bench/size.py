"""A log that grows to many GB: ours, an older version of it, Kafka and Redis, one after the other on the same records.

It takes half an hour and the disk space of its size, so it runs only when it is named, and writes its own part of the
page and its chart: `make bench ONLY=size SIZE_GB=50`. BEFORE is the `topics` command of an older version.
"""

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic
from redis import Redis
from soak.growth import BATCH, HEAD, WRITERS, Log, Stretch, grow, row
from soak.growth_clients import HttpClient, KafkaClient, RedisClient

from bench.kafka_broker import MISSING, fetched, kafka_broker
from bench.plot import Line, stacked
from bench.table import PAGE, Row, put, where
from bench.tools import redis_server
from support.http import Api, ok
from support.server import TOPICS, ServerProcess

_SIZE_GB = float(os.environ.get("TOPICS_SIZE_GB", "6"))
_BEFORE = os.environ.get("TOPICS_BEFORE", "")
_MINUTES = float(os.environ.get("TOPICS_SIZE_MINUTES", "60"))
"""The longest that one system is filled."""
_SPARE_BYTES = 10 << 30
"""Of the disk, which stay free."""
_MARKS_GB = (1, 2, 4, 8, 12, 16, 20, 30, 40, 50)
_BEFORE_GB, _REDIS_GB = 20, 8
"""Limits of the older version, and of a log that is in memory."""
_PLOT = PAGE.with_name("benchmarks-size.svg")


@dataclass(frozen=True)
class _System:
    name: str
    start: Callable[[Path], AbstractContextManager[Log]]
    most_gb: float
    note: Callable[[Path], str] = lambda _: ""
    """The statistics of the system itself, as found in its directory."""


@dataclass(frozen=True)
class _Filled:
    parts: list[Stretch]
    note: str

    @property
    def last(self) -> Stretch:
        return self.parts[-1]

    @property
    def table(self) -> str:
        refused = sum(part.refused for part in self.parts)
        told = f"Refused for now (429): {refused}." if refused else ""
        below = " ".join(filter(None, [told, self.note]))
        return "\n".join([HEAD, *map(row, self.parts)]) + (f"\n\n{below}" if below else "")


def run(directory: Path) -> list[Row]:
    """Fill each system; write the tables and the chart; return rows of what size does to ours and to Kafka."""
    systems = [_System("topics", partial(_topics, TOPICS), _SIZE_GB, _of_rocksdb)]
    if _BEFORE:
        systems.append(_System("topics, the version before", partial(_topics, Path(_BEFORE)), _BEFORE_GB, _of_rocksdb))
    if fetched():
        systems.append(_System("Kafka", _kafka, _SIZE_GB))
    else:
        print(f"Kafka is {MISSING}")
    systems.append(_System("Redis", _redis, _REDIS_GB))
    found = dict[str, _Filled]()
    for i, system in enumerate(systems):
        found[system.name] = _fill(system, directory / str(i))
        tables = [f"**{name}**\n\n{filled.table}" for name, filled in found.items()]
        put("size", "\n\n".join([where(), *tables]))
        _draw(found)
    return _rows(found["topics"], found.get("Kafka"))


def _fill(system: _System, directory: Path) -> _Filled:
    """Fill a system as far as it goes, and remove what it wrote."""
    most = min(_SIZE_GB, system.most_gb)
    marks = [1e9 * mark for mark in (*(mark for mark in _MARKS_GB if mark < most), most)]
    print(f"\n{system.name}\n\n{HEAD}", flush=True)
    parts = list[Stretch]()
    with system.start(directory) as log:
        for part in grow(log, marks, most_seconds=60 * _MINUTES, spare_bytes=_SPARE_BYTES):
            print(row(part), flush=True)
            parts.append(part)
        filled = _Filled(parts, system.note(log.directory))
    shutil.rmtree(directory)
    print(filled.note)
    return filled


def _of_rocksdb(directory: Path) -> str:
    """Its last statistics, which it writes to its own log every ten minutes, if it has come to that."""
    text = "".join(file.read_text(errors="replace") for file in sorted(directory.glob("LOG*"), key=_changed))
    last = text.rpartition("DUMPING STATS")[2]
    given = re.search(r"^Cumulative writes: .* ingest: ([\d.]+) GB", last, re.MULTILINE)
    if given is None or not float(given[1]):
        return ""
    written = re.findall(r"^Cumulative (?:WAL: .* written:|compaction:) ([\d.]+) GB", last, re.MULTILINE)
    return f"By RocksDB's statistics: {sum(map(float, written)) / float(given[1]):.2f} written/given at {given[1]} GiB."


def _changed(file: Path) -> float:
    return file.stat().st_mtime


@contextlib.contextmanager
def _topics(program: Path, directory: Path) -> Iterator[Log]:
    with ServerProcess(directory, program=program) as server:
        with Api(server.base) as api:
            for topic in range(WRITERS):
                ok(api.put(f"t{topic}"), 201)
        yield Log(server.pid, server.data_dir, partial(HttpClient, server.http_port))


@contextlib.contextmanager
def _kafka(directory: Path) -> Iterator[Log]:
    with kafka_broker(directory) as broker:
        _create(broker.port)
        yield Log(broker.pid, directory / "logs", partial(KafkaClient, broker.port))


def _create(port: int) -> None:
    admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{port}"})
    for made in admin.create_topics([NewTopic(f"t{topic}", 1, 1) for topic in range(WRITERS)]).values():
        made.result(30)


@contextlib.contextmanager
def _redis(directory: Path) -> Iterator[Log]:
    directory.mkdir()
    with redis_server(directory, "everysec") as port:
        with Redis(port=port) as client:
            pid = client.info("server")["process_id"]
        yield Log(pid, directory, partial(RedisClient, port))


def _draw(found: dict[str, _Filled]) -> None:
    """A panel for each figure, a line for each system."""

    def lines(figure: Callable[[Stretch], float]) -> list[Line]:
        return [
            Line(name, [(part.given / 1e9, figure(part)) for part in filled.parts]) for name, filled in found.items()
        ]

    panels = {
        "thousand records a second, over GB of data": lines(lambda part: part.rate / 1000),
        f"p99 of an append of {BATCH}, ms": lines(lambda part: part.append_ms(0.99)),
        "bytes written for each byte of data": lines(lambda part: part.written / part.given),
        "bytes on disk for each byte of data": lines(lambda part: part.disk / part.given),
    }
    _PLOT.write_text(stacked(panels))


def _rows(ours: _Filled, peer: _Filled | None) -> list[Row]:
    def line(what: str, unit: str, bar: str, figure: Callable[[_Filled], float]) -> Row:
        theirs = figure(peer) if peer else None
        return Row(f"size: {what}", figure(ours), unit, bar, theirs, "Kafka" if peer else "")

    return [
        line("rate at the end", "rec/s", "", lambda filled: filled.last.rate),
        line("rate at the end over that of the first part", "x", "0.85x", lambda f: f.last.rate / f.parts[0].rate),
        line("bytes written over given", "x", "2.6x", lambda filled: filled.last.written / filled.last.given),
        line("append p99 at the end", "ms", "", lambda filled: filled.last.append_ms(0.99)),
        line("page of 100 at a random place, p99", "ms", "20 ms", lambda f: max(p.page_ms(0.99) for p in f.parts)),
    ]
