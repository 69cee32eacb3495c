"""Traffic of one kind that never changes, and what each tenth of the time costs the server.

A queue with one producer and eight workers; a router between two topics with caps; two groups that consume and commit
on a topic with a cap, one of which its retention waits for. A producer never runs further ahead than `AHEAD` records:
the work is the same at every moment. Where the machine is busy with other things a record takes longer, of the server
and of these clients alike: what counts is the server's CPU per record over theirs.
"""

import asyncio
import os
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from soak.figures import resident_of, size_of
from soak.load import Connection

from support.server import ServerProcess

BATCH = 500
AHEAD = 5000
CAP = 100_000
WORKERS = 8
CLAIM = 50
TENTHS = 10
_TICKS = os.sysconf("SC_CLK_TCK")
_PAUSE_SECONDS = 0.002


@dataclass(frozen=True)
class Slice:
    """A tenth of the time: records done by second, CPU by record in us, bytes."""

    until: float
    rate: float
    loop: float
    """Of the server's event loop."""
    others: float
    """Of its other threads."""
    clients: float
    resident: int
    disk: int

    @property
    def relative(self) -> float:
        """CPU of the loop over that of the clients: both take longer for the same where others use the machine."""
        return self.loop / self.clients


class Steady(ABC):
    """One kind of traffic until `stop`. `made` and `done` count records; subclasses say what is done."""

    NAME = ""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self.made = self.done = 0
        self._over = asyncio.Event()

    @abstractmethod
    async def prepare(self, connection: Connection) -> None:
        """Create what the traffic needs."""

    @abstractmethod
    def parts(self) -> list[Awaitable[None]]:
        """The clients beside the producer."""

    async def run(self, seconds: float) -> list[Slice]:
        """Run for a time, in tenths."""
        async with self._connected() as connection:
            await self.prepare(connection)
        clients = [asyncio.ensure_future(part) for part in (self._produce(), *self.parts())]
        slices = [await self._slice(n, seconds / TENTHS) for n in range(TENTHS)]
        self._over.set()
        await asyncio.gather(*clients)
        return slices

    async def _slice(self, number: int, seconds: float) -> Slice:
        pid, done, began, before = self._server.pid, self.done, time.monotonic(), self._cpu()
        await asyncio.sleep(seconds)
        records, took = max(1, self.done - done), time.monotonic() - began
        loop, others, clients = (1e6 * (now - then) / records for now, then in zip(self._cpu(), before, strict=True))
        disk = size_of(self._server.data_dir)
        return Slice((number + 1) * seconds, records / took, loop, others, clients, resident_of(pid), disk)

    def _cpu(self) -> tuple[float, float, float]:
        """Seconds of processor time: of the server's first thread, its others, and this process."""
        return (*_cpu(self._server.pid), time.process_time())

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Connection]:
        async with Connection.open(self._server.http_port) as connection:
            yield connection

    async def _produce(self) -> None:
        path = f"/v0/topics/{self.NAME}?return_seqs=false"
        async with self._connected() as connection:
            while not self._over.is_set():
                if self.made - self.done > AHEAD:
                    await asyncio.sleep(_PAUSE_SECONDS)
                    continue
                records = [_record(number) for number in range(self.made, self.made + BATCH)]
                await connection.call("POST", path, {"records": records})
                self.made += BATCH

    async def _repeat(self, step: Callable[[Connection], Awaitable[bool]]) -> None:
        """Repeat a step, with a pause after one that found nothing."""
        async with self._connected() as connection:
            while not self._over.is_set():
                if not await step(connection):
                    await asyncio.sleep(_PAUSE_SECONDS)


class QueueLoad(Steady):
    """Workers claim 50 jobs at a time; their acks ride on the next claim."""

    NAME = "jobs"

    async def prepare(self, connection: Connection) -> None:
        await connection.call("PUT", "/v0/topics/jobs", {"type": "queue"})

    def parts(self) -> list[Awaitable[None]]:
        return [self._repeat(self._worker(number)) for number in range(WORKERS)]

    def _worker(self, number: int) -> Callable[[Connection], Awaitable[bool]]:
        held: list[int] = []

        async def step(connection: Connection) -> bool:
            claim = {"node": f"w{number}", "max": CLAIM, **({"ack": {"seqs": held}} if held else {})}
            found = await connection.call("POST", "/v0/topics/jobs/claim", claim)
            self.done += found.get("acked", 0)
            held[:] = (job["$seq"] for job in found["claimed"])
            return bool(held)

        return step


class RouterLoad(Steady):
    """A reader follows the destination, so that a record is done when its copy was read."""

    NAME = "source"

    async def prepare(self, connection: Connection) -> None:
        for topic in ("source", "copies"):
            await connection.call("PUT", f"/v0/topics/{topic}", {"cap_records": CAP})
        await connection.call("PUT", "/v0/routers/r", {"source": "source", "dest": "copies"})

    def parts(self) -> list[Awaitable[None]]:
        return [self._repeat(self._read)]

    async def _read(self, connection: Connection) -> bool:
        page = await connection.call("POST", "/v0/topics/copies/diff", {"from_seq": self.done, "limit": 1000})
        assert page["tombstone"] is None, page["tombstone"]
        self.done = page["next_from_seq"]
        return bool(page["records"])


class GroupLoad(Steady):
    """Both groups read page by page and commit each page; a record is done when the slower one has it."""

    NAME = "events"

    async def prepare(self, connection: Connection) -> None:
        config = {"cap_records": CAP, "retain_until_acked_by": ["g0"]}
        await connection.call("PUT", "/v0/topics/events", config)
        self._positions = [0, 0]

    def parts(self) -> list[Awaitable[None]]:
        return [self._repeat(self._consumer(number)) for number in range(2)]

    def _consumer(self, number: int) -> Callable[[Connection], Awaitable[bool]]:
        async def step(connection: Connection) -> bool:
            path = f"/v0/groups/g{number}"
            page = await connection.call("POST", f"{path}/consume", {"topic": "events", "limit": BATCH})
            assert page["tombstone"] is None, page["tombstone"]
            if page["records"]:
                position = page["next_from_seq"]
                await connection.call("POST", f"{path}/commit", {"topic": "events", "from_seq": position})
                self._positions[number] = position
                self.done = min(self._positions)
            return bool(page["records"])

        return step


LOADS = {"queue": QueueLoad, "router": RouterLoad, "groups": GroupLoad}


def table(slices: Sequence[Slice]) -> str:
    """The tenths as a table."""
    lines = ["| until | records/s | CPU of the loop, us/record | other threads | clients | RSS, MiB | disk, MiB |"]
    lines.append("|---|---|---|---|---|---|---|")
    for each in slices:
        costs = f"{each.loop:.2f} | {each.others:.2f} | {each.clients:.2f}"
        sizes = f"{each.resident / 2**20:.0f} | {each.disk / 2**20:.0f}"
        lines.append(f"| {each.until:.0f} s | {each.rate:,.0f} | {costs} | {sizes} |")
    return "\n".join(lines)


def growth_of_cpu(slices: Sequence[Slice]) -> float:
    """The median cost of the last three tenths over that of the three after the first, in which caches fill."""
    first, last = (median(each.relative for each in part) for part in (slices[1:4], slices[-3:]))
    return last / first


def growth_of_resident(slices: Sequence[Slice]) -> float:
    """The peak of the second half over that of the first: memtables fill and are flushed."""
    middle = len(slices) // 2
    first, last = (max(each.resident for each in part) for part in (slices[:middle], slices[middle:]))
    return last / first


def _record(number: int) -> dict[str, object]:
    return {"data": {"id": number, "kind": "created", "text": f"{number:032x}" * 3}, "tag": f"t{number}"}


def _cpu(pid: int) -> tuple[float, float]:
    """Seconds of processor time: of the first thread, which is the event loop's, and of all others."""
    loop = others = 0.0
    for task in os.listdir(f"/proc/{pid}/task"):
        try:
            fields = Path(f"/proc/{pid}/task/{task}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        used = (int(fields[11]) + int(fields[12])) / _TICKS
        if int(task) == pid:
            loop += used
        else:
            others += used
    return loop, others
