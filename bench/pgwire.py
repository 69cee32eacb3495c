"""The PostgreSQL protocol: rows by key, single rows and rows in bulk from one psycopg client, in turns with PostgreSQL.

Both are on TCP. For a row by its key there is the floor as well: a server on the same event loop that only answers.
"""

import contextlib
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple

import psycopg

from bench import pgwire_floor, postgres
from bench.table import Row
from support.server import ServerProcess
from topics_service.api.sql.requests import ResultColumn
from topics_service.engine.tables.types import BIGINT, BOOLEAN, TEXT

_ROWS: Final = 10_000
_QUERIES: Final = 1500
_ROUNDS: Final = 4
_TABLE: Final = "CREATE TABLE points (id BIGINT PRIMARY KEY, author TEXT, body TEXT, visible BOOLEAN)"
_POINT: Final = "SELECT * FROM points WHERE id = %s"
_INSERT: Final = "INSERT INTO points VALUES (%s, %s, %s, %s)"
_BODY: Final = "some words of a message " * 3
_COLUMNS: Final = tuple(
    ResultColumn(name, kind) for name, kind in (("id", BIGINT), ("author", TEXT), ("body", TEXT), ("visible", BOOLEAN))
)
_PLAIN: Final = "sslmode=disable gssencmode=disable"

Connection = psycopg.Connection[Any]


class Side(NamedTuple):
    """A server, and a client of it."""

    name: str
    database: Connection
    pid: int


class Taken(NamedTuple):
    """The median of the times of one call, and the CPU of the server and of the client for each, in seconds."""

    p50: float
    server: float
    client: float


def run(directory: Path) -> list[Row]:
    """Every row of the PostgreSQL protocol."""
    programs = postgres.binaries()
    note = postgres.MISSING if programs is None else ""
    with ExitStack() as stack:
        server = stack.enter_context(ServerProcess(directory / "topics", postgres=True))
        where = f"host=127.0.0.1 port={server.pg_port} user=bench {_PLAIN}"
        sides = [Side("ours", stack.enter_context(psycopg.connect(where, autocommit=True)), server.pid)]
        if programs is not None:
            address = stack.enter_context(postgres.postgres_server(programs, tcp=True))
            theirs = stack.enter_context(psycopg.connect(f"{address} {_PLAIN}", autocommit=True))
            theirs.execute("SET synchronous_commit = off")  # ours acknowledges before the fsync as well
            sides.append(Side("PostgreSQL", theirs, theirs.info.backend_pid))
        reply = pgwire_floor.answer(_COLUMNS, (7, "author 7", _BODY, True), "SELECT 1")
        floor = stack.enter_context(pgwire_floor.answering(reply))
        where = f"host=127.0.0.1 port={floor.port} user=bench {_PLAIN}"
        answering = Side("floor", stack.enter_context(psycopg.connect(where, autocommit=True)), floor.pid)
        for side in sides:
            side.database.execute(_TABLE)
        copied = [[_seconds(_copy_in, side.database)] for side in sides]
        points = _in_turns([*sides, answering], _points)
        inserts = _in_turns(sides, _Inserts().run)
        whole = _in_turns(sides, lambda database: [_seconds(_all, database) for _ in range(3)])
    *points, least = points
    what = f"{least.server * 1e6:.0f} us where it only answers; the client's own CPU is {points[0].client * 1e6:.0f} us"
    return [
        _row("a row by its key, prepared: p50", [each.p50 for each in points], 1e6, "us", "1.5x", note),
        _row("the same where a server on this loop only answers: p50", [least.p50], 1e6, "us", "", "the floor"),
        _row("a row by its key: CPU of the server", [each.server for each in points], 1e6, "us", "", what),
        _row("INSERT of one row: p50", [each.p50 for each in inserts], 1e6, "us", "", note),
        _row("INSERT of one row: CPU of the server", [each.server for each in inserts], 1e6, "us", "", note),
        _row("COPY of 10,000 rows in", [statistics.median(each) for each in copied], 1e6 / _ROWS, "us a row", "", note),
        _row("10,000 rows out", [each.p50 for each in whole], 1e6 / _ROWS, "us a row", "", note),
    ]  # fmt: skip


def _row(what: str, seconds: Sequence[float], scale: float, unit: str, bar: str, note: str) -> Row:
    peer = seconds[1] * scale if len(seconds) == 2 else None
    return Row(f"PostgreSQL protocol: {what}", seconds[0] * scale, unit, bar, peer, f"{unit} PostgreSQL", note)


def _in_turns(sides: Sequence[Side], measure: Callable[[Connection], list[float]]) -> list[Taken]:
    """Measure each in turns, so all have the same share of what else the machine does; the first turn is to warm up."""
    times: list[list[float]] = [[] for _ in sides]
    servers, clients = [0.0] * len(sides), [0.0] * len(sides)
    for number in range(_ROUNDS + 1):
        for at, side in enumerate(sides):
            server, client = _cpu_seconds(side.pid), time.thread_time()
            taken = measure(side.database)
            if number:
                times[at] += taken
                clients[at] += time.thread_time() - client
                servers[at] += _cpu_seconds(side.pid) - server
    return [
        Taken(statistics.median(each), server / len(each), client / len(each))
        for each, server, client in zip(times, servers, clients, strict=True)
    ]


def _cpu_seconds(pid: int) -> float:
    """The CPU time of all threads of a process."""
    used = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # a thread that has ended
            used += int((task / "schedstat").read_text().split()[0])
    return used / 1e9


def _points(database: Connection) -> list[float]:
    times, cursor = [], database.cursor()
    for number in range(_QUERIES):
        begun = time.perf_counter()
        cursor.execute(_POINT, (number * 7 % _ROWS,), prepare=True)
        row = cursor.fetchone()
        times.append(time.perf_counter() - begun)
        assert row is not None
    return times


class _Inserts:
    """INSERTs of rows with keys that no one has had before."""

    def __init__(self) -> None:
        self._next = _ROWS

    def run(self, database: Connection) -> list[float]:
        times, cursor = [], database.cursor()
        for _ in range(_QUERIES):
            self._next += 1
            row = (self._next, "author 1", _BODY, True)
            begun = time.perf_counter()
            cursor.execute(_INSERT, row, prepare=True)
            times.append(time.perf_counter() - begun)
        return times


def _copy_in(database: Connection) -> None:
    with database.cursor().copy("COPY points FROM STDIN") as copy:
        for number in range(_ROWS):
            copy.write_row((number, f"author {number % 100}", _BODY, True))


def _all(database: Connection) -> None:
    assert len(database.execute("SELECT * FROM points WHERE id < 10000").fetchall()) == _ROWS


def _seconds(work: Callable[[Connection], None], database: Connection) -> float:
    begun = time.perf_counter()
    work(database)
    return time.perf_counter() - begun
