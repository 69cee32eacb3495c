"""The PostgreSQL protocol: queries by key and rows in bulk from one psycopg client, in turns with PostgreSQL itself."""

import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import psycopg

from bench import postgres
from bench.table import Row
from support.server import ServerProcess

_ROWS: Final = 10_000
_QUERIES: Final = 1500
_ROUNDS: Final = 4
_TABLE: Final = "CREATE TABLE points (id BIGINT PRIMARY KEY, author TEXT, body TEXT, visible BOOLEAN)"
_POINT: Final = "SELECT * FROM points WHERE id = %s"

Database = psycopg.Connection[Any]


def run(directory: Path) -> list[Row]:
    """Every row of the PostgreSQL protocol."""
    programs = postgres.binaries()
    note = postgres.MISSING if programs is None else ""
    with ExitStack() as stack:
        server = stack.enter_context(ServerProcess(directory / "topics", postgres=True))
        where = f"host=127.0.0.1 port={server.pg_port} user=bench"
        ours = stack.enter_context(psycopg.connect(where, autocommit=True))
        theirs: Database | None = None
        if programs is not None:
            socket = stack.enter_context(postgres.postgres_server(programs))
            theirs = stack.enter_context(psycopg.connect(socket, autocommit=True))
        databases = [each for each in (ours, theirs) if each is not None]
        for database in databases:
            database.execute(_TABLE)
        copied = [_seconds(_copy_in, database) for database in databases]
        for database in databases:
            _points(database, _QUERIES)  # warm, and prepared
        points = _in_turns(databases, lambda database: _points(database, _QUERIES))
        whole = _in_turns(databases, lambda database: [_seconds(_all, database)])
    peer = [None if theirs is None else each[1] for each in (copied, points, whole)]
    return [
        Row("PostgreSQL protocol: a row by its key, prepared: p50", points[0] * 1e6, "us", "1.5x",
            None if peer[1] is None else peer[1] * 1e6, "us PostgreSQL", note=note),
        Row("PostgreSQL protocol: COPY of 10,000 rows in", copied[0] * 1e6 / _ROWS, "us a row", "",
            None if peer[0] is None else peer[0] * 1e6 / _ROWS, "us PostgreSQL", note=note),
        Row("PostgreSQL protocol: 10,000 rows out", whole[0] * 1e6 / _ROWS, "us a row", "",
            None if peer[2] is None else peer[2] * 1e6 / _ROWS, "us PostgreSQL", note=note),
    ]  # fmt: skip


def _in_turns(databases: list[Database], measure: Callable[[Database], list[float]]) -> list[float]:
    """The median for each, measured in turns: all have the same share of what else the machine does."""
    found: list[list[float]] = [[] for _ in databases]
    for _ in range(_ROUNDS):
        for times, database in zip(found, databases, strict=True):
            times += measure(database)
    return [statistics.median(times) for times in found]


def _points(database: Database, count: int) -> list[float]:
    times, cursor = [], database.cursor()
    for number in range(count):
        begun = time.perf_counter()
        cursor.execute(_POINT, (number * 7 % _ROWS,), prepare=True)
        row = cursor.fetchone()
        times.append(time.perf_counter() - begun)
        assert row is not None
    return times


def _copy_in(database: Database) -> None:
    with database.cursor().copy("COPY points FROM STDIN") as copy:
        for number in range(_ROWS):
            copy.write_row((number, f"author {number % 100}", "some words of a message " * 3, True))


def _all(database: Database) -> None:
    assert len(database.execute("SELECT * FROM points").fetchall()) == _ROWS


def _seconds(work: Callable[[Database], None], database: Database) -> float:
    begun = time.perf_counter()
    work(database)
    return time.perf_counter() - begun
