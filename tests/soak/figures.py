"""What a server process takes while it works, sampled every second, and the table that comes of it."""

import json
import os
import re
import threading
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Self

from support.server import ServerProcess

PERIOD_SECONDS = 1.0
QUARTERS = 4


@dataclass(frozen=True)
class Sample:
    """One look at the process. Sizes in bytes, lag in ms, `at` in seconds since the start of the load."""

    at: float
    resident: int
    files: int
    """Descriptors of all kinds."""
    sockets: int
    """Those of them that are sockets."""
    threads: int
    disk: int
    lag: float
    topics: int
    routers: int
    streams: int
    """Open streams of every kind."""
    sessions: int
    frames: int
    """Batches written to the log since the start."""
    cpu: float
    """Seconds of processor time since the start."""


def look(server: ServerProcess, at: float = 0.0) -> Sample:
    """Measure once."""
    pid = server.pid
    now = metrics(server)
    links = descriptors(pid)
    return Sample(
        at=at,
        resident=resident_of(pid),
        files=len(links),
        sockets=sum(link.startswith("socket:") for link in links),
        threads=len(os.listdir(f"/proc/{pid}/task")),
        disk=size_of(server.data_dir),
        lag=now["topics_event_loop_lag_ms"],
        topics=int(now["topics_topics"]),
        routers=int(now["topics_routers"]),
        streams=int(now["topics_sse_connections"]),
        sessions=int(now["topics_watch_sessions"]),
        frames=int(now["topics_wal_frames_total"]),
        cpu=_cpu_seconds(pid),
    )


def resident_of(pid: int) -> int:
    """The bytes of a process in memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def descriptors(pid: int) -> list[str]:
    """What the descriptors of a process stand for."""
    links = []
    for entry in os.scandir(f"/proc/{pid}/fd"):
        try:
            links.append(os.readlink(entry.path))
        except FileNotFoundError:
            continue  # closed since
    return links


def metrics(server: ServerProcess) -> dict[str, float]:
    """The metrics that have no labels."""
    with urllib.request.urlopen(f"{server.base}/v0/metrics", timeout=30) as reply:
        text = reply.read().decode()
    return {name: float(value) for name, value in re.findall(r"^(topics_\w+) (\S+)$", text, re.MULTILINE)}


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def size_of(directory: Path) -> int:
    """The bytes of the files in a directory and below it."""
    total = 0
    for place, _, names in os.walk(directory):
        for name in names:
            try:
                total += os.stat(os.path.join(place, name)).st_size
            except FileNotFoundError:
                continue  # compacted away since
    return total


@dataclass
class Watchman:
    """Samples a server while the block runs."""

    server: ServerProcess
    samples: list[Sample] = field(default_factory=list)

    def __enter__(self) -> Self:
        self._over = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        began = time.monotonic()
        try:
            while not self._over.wait(PERIOD_SECONDS):
                self.samples.append(look(self.server, time.monotonic() - began))
        except BaseException as error:
            self._failure = error


def quarters(samples: Sequence[Sample]) -> list[list[Sample]]:
    """The samples by quarter of the time that they cover."""
    end = samples[-1].at
    found: list[list[Sample]] = [[] for _ in range(QUARTERS)]
    for sample in samples:
        found[min(QUARTERS - 1, int(sample.at / end * QUARTERS))].append(sample)
    return found


def middle(samples: Sequence[Sample], name: str) -> float:
    """The median of one figure: what comes and goes within seconds does not count."""
    return float(median(getattr(sample, name) for sample in samples))


def table(samples: Sequence[Sample]) -> str:
    """Medians by quarter, and the highest of all."""
    rows = [
        ("RSS, MiB", "resident", 1 << 20),
        ("descriptors", "files", 1),
        ("of them sockets", "sockets", 1),
        ("threads", "threads", 1),
        ("disk, MiB", "disk", 1 << 20),
        ("loop lag, ms", "lag", 1),
        ("topics", "topics", 1),
        ("routers", "routers", 1),
        ("open streams", "streams", 1),
        ("watch sessions", "sessions", 1),
    ]
    parts = quarters(samples)
    lines = [f"| {'median of a quarter':20} | 1st | 2nd | 3rd | 4th | highest |", "|---|---|---|---|---|---|"]
    for title, name, unit in rows:
        cells = [f"{middle(part, name) / unit:.1f}" for part in parts]
        highest = max(getattr(sample, name) for sample in samples) / unit
        lines.append(f"| {title:20} | {' | '.join(cells)} | {highest:.1f} |")
    rates = [f"{(part[-1].frames - part[0].frames) / (part[-1].at - part[0].at):.0f}" for part in parts]
    lines.append(f"| {'writes to the log /s':20} | {' | '.join(rates)} | |")
    costs = [f"{1e3 * (part[-1].cpu - part[0].cpu) / (part[-1].frames - part[0].frames):.2f}" for part in parts]
    lines.append(f"| {'CPU, ms per write':20} | {' | '.join(costs)} | |")
    return "\n".join(lines)


def save(samples: Sequence[Sample], path: Path) -> None:
    """Every sample as a line of JSON, for plots."""
    with path.open("w") as out:
        for sample in samples:
            line: dict[str, Any] = sample.__dict__
            out.write(json.dumps(line) + "\n")
