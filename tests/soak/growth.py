"""The cost of a record while a log grows, of any system: rate, times of calls, CPU, bytes written, space, memory.

Each writer is a process of its own with one batch in flight. Its records are random text, so that nothing compresses
them. Another client reads pages at random places meanwhile.
"""

import math
import os
import random
import shutil
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Barrier
from pathlib import Path
from threading import BrokenBarrierError
from typing import Protocol

WRITERS = 2
"""Each with a topic of its own."""
BATCH = 1000
DATA_BYTES = 150
"""Of a record: a JSON string with its quotes."""
PAGE = 100
ROOM = 1.3
"""Times the data of the next part that has to be free as well."""

_TEXT = DATA_BYTES - 2
_LOOK_SECONDS = 0.1
_AGAIN_SECONDS = 0.1
_PATIENCE = 600.0
_MACHINE = Path("/proc/stat")


class Client(Protocol):
    """A connection to a system."""

    def batch(self, topic: int, first: int, texts: Sequence[str]) -> bytes:
        """The request that appends these texts as JSON strings; `first` is the position of the first, from 0."""

    def append(self, request: bytes) -> bool:
        """Send it and wait for its answer; False if it is refused for now."""

    def page(self, topic: int, at: int) -> None:
        """Read `PAGE` records from this position on, or the least that the system gives."""

    def close(self) -> None:
        """Close the connection."""


@dataclass(frozen=True)
class Log:
    """A system that runs: its process, where its files are, and how to connect (called in other processes)."""

    pid: int
    directory: Path
    connect: Callable[[], Client]


@dataclass(frozen=True)
class Stretch:
    """A part of a run. Bytes and space are those since the start, everything else is of this part alone."""

    given: int
    """Bytes of data."""
    written: int
    """Bytes that the process and its children wrote to files, as the kernel counts them."""
    disk: int
    resident: int
    records: int
    seconds: float
    cpu: float
    """Seconds of the process and its children."""
    others: float
    """Cores that neither the system nor its clients used, but other programs or the kernel itself."""
    refused: int
    appends: list[float] = field(repr=False)
    pages: list[float] = field(repr=False)

    @property
    def rate(self) -> float:
        """Records a second."""
        return self.records / self.seconds

    def append_ms(self, part: float) -> float:
        """The milliseconds within which this part of the appends was answered."""
        return _share(self.appends, part)

    def page_ms(self, part: float) -> float:
        """The milliseconds within which this part of the pages came."""
        return _share(self.pages, part)


HEAD = """\
| GB | k rec/s | append p50, p99 ms | CPU us/rec | written/given | space/given | page p50, p99 ms | RSS MB | others |
|---|---|---|---|---|---|---|---|---|"""


def row(part: Stretch) -> str:
    """A line of the table below `HEAD`."""
    cells = [
        f"{part.given / 1e9:.3g}",
        f"{part.rate / 1000:.0f}",
        f"{part.append_ms(0.5):.1f}, {part.append_ms(0.99):.0f}",
        f"{1e6 * part.cpu / part.records:.2f}",
        f"{part.written / part.given:.2f}",
        f"{part.disk / part.given:.2f}",
        f"{part.page_ms(0.5):.1f}, {part.page_ms(0.99):.0f}",
        f"{part.resident / 1e6:.0f}",
        f"{part.others:.1f}",
    ]
    return f"| {' | '.join(cells)} |"


def grow(
    log: Log, marks: Sequence[float], *, most_seconds: float = math.inf, spare_bytes: int = 0
) -> Iterator[Stretch]:
    """Write until all topics together hold the last mark (bytes of data); a part ends at each.

    Ends early where the next part would leave fewer than `spare_bytes` of the disk, or take longer than is left of
    `most_seconds` at the rate of the last one. Raises RuntimeError if a writer fails.
    """
    until, rate, given = time.monotonic() + most_seconds, math.inf, 0
    with closing(_Run(log, marks)) as run:
        for mark in marks:
            room = shutil.disk_usage(log.directory).free - spare_bytes
            if room < ROOM * (mark - given) or time.monotonic() + (mark - given) / rate > until:
                break
            part = run.part()
            yield part
            given, rate = part.given, part.rate * DATA_BYTES


class _Run:
    """The writers, who wait at each mark, and the reader."""

    def __init__(self, log: Log, marks: Sequence[float]) -> None:
        context = get_context("spawn")
        self._log = log
        self._barrier = context.Barrier(WRITERS + 1)
        self._heads = [context.Value("q", lock=False) for _ in range(WRITERS)]
        self._writers, self._pipes = list[BaseProcess](), list[Connection]()
        ends = [mark / WRITERS for mark in marks]
        for topic, head in enumerate(self._heads):
            ours, theirs = context.Pipe(duplex=False)
            writer = context.Process(target=_write, args=(log.connect, topic, ends, self._barrier, head, theirs))
            writer.start()
            theirs.close()
            self._writers.append(writer)
            self._pipes.append(ours)
        self._client, self._source = log.connect(), random.Random(0)
        self._start, self._records = _written(log.pid), 0

    def part(self) -> Stretch:
        """Let the writers go on to the next mark, and read until they are there."""
        self._barrier.wait(_PATIENCE)
        before, waiting = self._moment(), list(self._pipes)
        appends, pages, refused = list[float](), list[float](), 0
        while waiting:
            for pipe in wait(waiting, _LOOK_SECONDS):
                assert isinstance(pipe, Connection)
                took, again = _received(pipe)
                appends += took
                refused += again
                waiting.remove(pipe)
            pages += self._page()
        now = self._moment()
        records, seconds = sum(head.value for head in self._heads), now.at - before.at
        fresh, self._records = records - self._records, records
        others = now.machine - before.machine - (now.system - before.system) - (now.clients - before.clients)
        return Stretch(
            given=DATA_BYTES * records,
            written=_written(self._log.pid) - self._start,
            disk=_disk(self._log.directory),
            resident=_resident(self._log.pid),
            records=fresh,
            seconds=seconds,
            cpu=now.system - before.system,
            others=max(0.0, others) / seconds,
            refused=refused,
            appends=appends,
            pages=pages,
        )

    def close(self) -> None:
        """End the writers."""
        self._barrier.abort()
        self._client.close()
        for writer, pipe in zip(self._writers, self._pipes, strict=True):
            writer.join(_PATIENCE)
            pipe.close()

    def _page(self) -> list[float]:
        """The seconds of a page at a random place, if there is one."""
        topic = self._source.randrange(WRITERS)
        head = self._heads[topic].value
        if head <= PAGE:
            return []
        began = time.perf_counter()
        self._client.page(topic, self._source.randrange(head - PAGE))
        return [time.perf_counter() - began]

    def _moment(self) -> "_Moment":
        own = os.times()
        clients = own.user + own.system + sum(_cpu(writer.pid) for writer in self._writers if writer.pid is not None)
        return _Moment(time.monotonic(), _cpu(self._log.pid), clients, _busy())


def _write(
    connect: Callable[[], Client], topic: int, ends: Sequence[float], barrier: Barrier, head: "_Head", out: Connection
) -> None:
    """Append until the topic holds the bytes of each end; then send the seconds of the appends, and the refusals."""
    source = random.Random(topic)
    try:
        with closing(connect()) as client:
            for end in ends:
                barrier.wait(_PATIENCE)
                took, refused = list[float](), 0
                while head.value * DATA_BYTES < end:
                    text = b64encode(source.randbytes(_TEXT * BATCH * 3 // 4)).decode()
                    texts = [text[at : at + _TEXT] for at in range(0, _TEXT * BATCH, _TEXT)]
                    request = client.batch(topic, head.value, texts)
                    began = time.perf_counter()
                    while not client.append(request):
                        refused += 1
                        time.sleep(_AGAIN_SECONDS)
                        began = time.perf_counter()
                    took.append(time.perf_counter() - began)
                    head.value += BATCH
                out.send((took, refused))
    except BrokenBarrierError:
        pass  # the run is over
    except Exception as error:
        out.send(error)


class _Head(Protocol):
    """A number that processes share."""

    value: int


def _received(pipe: Connection) -> tuple[list[float], int]:
    try:
        told = pipe.recv()
    except EOFError:
        raise RuntimeError("a writer ended") from None
    if isinstance(told, Exception):
        raise RuntimeError("a writer failed") from told
    took, refused = told
    return took, refused


@dataclass(frozen=True)
class _Moment:
    """Seconds of processor time by then: of the system, of its clients, and of the whole machine."""

    at: float
    system: float
    clients: float
    machine: float


def _busy() -> float:
    user, nice, system, _, _, irq, softirq = map(int, _MACHINE.read_text().split(maxsplit=8)[1:8])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def _cpu(pid: int) -> float:
    """The processor time of a process and of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def _written(pid: int) -> int:
    fields = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
    return int(fields["write_bytes"])


def _resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _disk(directory: Path) -> int:
    """The bytes that the files take, as `du` counts them."""
    total = 0
    for place, _, names in os.walk(directory):
        for name in names:
            try:
                total += 512 * os.stat(os.path.join(place, name)).st_blocks
            except FileNotFoundError:
                continue  # removed since
    return total


def _share(values: list[float], part: float) -> float:
    return 1000 * sorted(values)[min(len(values) - 1, int(part * len(values)))] if values else 0.0
