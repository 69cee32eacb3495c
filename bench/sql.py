"""SQL: rows with one full route, over HTTP and in process, beside SQLite (WAL) and PostgreSQL with an outbox table.

Rows have 5 columns, some 120 bytes as JSON, and one secondary index. The CPU is that of the process that writes, for
PostgreSQL that of client and backend: the server's own for HTTP, where it is split into parts by running each of them
alone on the same rows. No peer waits for the disk, as a topic of the class `disk` does not.
"""

import asyncio
import json
import sqlite3
import statistics
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import msgspec
import psycopg
import uvloop

from bench import postgres
from bench.kafka_broker import cpu_seconds
from bench.queue import Connection
from bench.table import Row
from support.http import Api
from support.server import ServerProcess
from topics_gateway.sql_body import read_sql
from topics_service.api.sql.parameters import many_rows
from topics_service.engine.clock import SystemClock
from topics_service.engine.engine import Engine
from topics_service.engine.tables import plans
from topics_service.storage.memory import MemoryStore
from topics_service.storage.rocks import RocksStore
from topics_sql.reader import Reader

T = TypeVar("T")

_READER: Final = Reader()
_BATCH = 1000
_BATCHES = 60
_SINGLES = 2000
_TABLE = "CREATE TABLE b.{name} (id BIGINT PRIMARY KEY, channel BIGINT, author TEXT, body TEXT, visible BOOLEAN)"
_INSERT = "INSERT INTO b.{name} (id, channel, author, body, visible) VALUES ($1, $2, $3, $4, $5)"
_SETUP = (
    _TABLE,
    "CREATE INDEX {name}_channel ON b.{name} (channel)",
    "CREATE TOPIC b.{name}_events",
    "ALTER TOPIC b.{name}_events ADD SOURCE b.{name} ON INSERT WITH (payload = 'full')",
)


def run(directory: Path) -> list[Row]:
    """Every row of SQL."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner, ServerProcess(directory / "topics") as server:
        with Api(server.base) as api:
            for statement in _SETUP:
                answer = api.send("POST", "/api/sql", {"sql": statement.format(name="rows")})
                answer.raise_for_status()
            api.make("appends")
        over_http = runner.run(_over_http(server))
        alone = runner.run(_single(server))
    parts = _parts()
    ours, ours_one = _in_process(directory / "engine")
    theirs, theirs_one = _sqlite(directory / "sqlite.db")
    programs = postgres.binaries()
    note = postgres.MISSING if programs is None else ""
    backend, backend_one = (None, None) if programs is None else _postgres(programs)
    split = ", ".join(f"{name} {us:.1f}" for name, us in parts.items())
    return [
        Row("SQL: 1000 rows of parameters over HTTP, full route: server CPU", over_http.cpu_us, "us a row", "16",
            note=f"{over_http.rate:,.0f} rows/s; parts alone, us a row: {split}"),
        Row("SQL: 1000 rows in process, index and full route: CPU", ours, "us a row", "1.25x", theirs,
            "us SQLite + outbox"),
        Row("SQL: one row in process, index and full route: CPU", ours_one, "us", "1.3x", theirs_one,
            "us SQLite + outbox"),
        Row("SQL: 1000 rows in process, index and full route: CPU", ours, "us a row", "0.5x", backend,
            "us PostgreSQL + outbox, client and backend", note=note),
        Row("SQL: one row in process, index and full route: CPU", ours_one, "us", "", backend_one,
            "us PostgreSQL + outbox, client and backend", note=note),
        Row("SQL: one row over HTTP, full route: p50", alone.p50_ms, "ms", "0.5"),
        Row("SQL: one row over HTTP, full route: server CPU", alone.row_us, "us", "1.6x", alone.append_us,
            "us an append of /v0 of the same size"),
        Row("SQL: one row by its key over HTTP: p50", alone.select_ms, "ms", "0.3"),
    ]  # fmt: skip


class _Batches(msgspec.Struct):
    cpu_us: float
    rate: float


class _Singles(msgspec.Struct):
    p50_ms: float
    row_us: float
    append_us: float
    select_ms: float


def _row(number: int) -> list[Any]:
    return [
        number,
        number % 1000,
        f"user-{number % 997}",
        f"a message of some sixty characters, number {number:09}",
        True,
    ]


def _body(numbers: range) -> bytes:
    return json.dumps({"sql": _INSERT.format(name="rows"), "param_rows": [_row(number) for number in numbers]}).encode()


async def _over_http(server: ServerProcess) -> _Batches:
    connection = await Connection.open(server.http_port)
    bodies = [_body(range(i * _BATCH, (i + 1) * _BATCH)) for i in range(_BATCHES + 5)]
    for body in bodies[:5]:
        await connection.post("/api/sql", body)
    cpu, begun = cpu_seconds(server.pid), time.perf_counter()
    for body in bodies[5:]:
        await connection.post("/api/sql", body)
    rows = _BATCHES * _BATCH
    made = _Batches((cpu_seconds(server.pid) - cpu) / rows * 1e6, rows / (time.perf_counter() - begun))
    connection.close()
    return made


async def _single(server: ServerProcess) -> _Singles:
    connection = await Connection.open(server.http_port)
    first = 10_000_000

    async def measured(path: str, bodies: Sequence[bytes]) -> tuple[float, float]:
        """The p50 of a call in ms, and the server's CPU of one in us."""
        took = []
        cpu = cpu_seconds(server.pid)
        for body in bodies:
            begun = time.perf_counter()
            await connection.post(path, body)
            took.append(time.perf_counter() - begun)
        return statistics.median(took) * 1e3, (cpu_seconds(server.pid) - cpu) / len(bodies) * 1e6

    insert = _INSERT.format(name="rows")
    rows = [json.dumps({"sql": insert, "params": _row(first + i)}).encode() for i in range(_SINGLES)]
    names = ("id", "channel", "author", "body", "visible")
    records = [
        json.dumps({"records": [{"data": dict(zip(names, _row(i), strict=True)), "tag": str(i)}]}).encode()
        for i in range(_SINGLES)
    ]
    select = "SELECT * FROM b.rows WHERE id = $1"
    queries = [json.dumps({"sql": select, "params": [i * 7 % (_BATCHES * _BATCH)]}).encode() for i in range(_SINGLES)]
    for path, bodies in (("/api/sql", rows[:50]), ("/v0/topics/appends", records[:50]), ("/api/sql", queries[:50])):
        await measured(path, bodies)
    p50, row_us = await measured("/api/sql", rows[50:])
    _, append_us = await measured("/v0/topics/appends", records[50:])
    select_ms, _ = await measured("/api/sql", queries[50:])
    connection.close()
    return _Singles(p50, row_us, append_us, select_ms)


def _parts() -> dict[str, float]:
    """CPU of the parts of a batch that are not the engine, in us a row."""
    body = _body(range(_BATCH))
    request, _ = read_sql(body)
    assert request.param_rows is not None
    rows, types = request.param_rows, _set_up(Engine(MemoryStore(), SystemClock())).parameters
    return {
        "JSON": _cpu(lambda: read_sql(body), 50) / _BATCH,
        "parameters": _cpu(lambda: many_rows(rows, types), 50) / _BATCH,
    }


def _cpu(work: Callable[[], object], times: int) -> float:
    begun = time.process_time()
    for _ in range(times):
        work()
    return (time.process_time() - begun) / times * 1e6


def _run(steps: Generator[None, None, T]) -> T:
    """Run to the end at once."""
    try:
        while True:
            next(steps)
    except StopIteration as done:
        result: T = done.value
        return result


def _plan(engine: Engine, text: str) -> plans.Plan:
    (statement,) = _READER.parse(text)
    return _READER.bind(statement, engine.tables.newest, "default")


def _set_up(engine: Engine) -> plans.Plan:
    for statement in _SETUP:
        definition = cast("plans.Definition", _plan(engine, statement.format(name="rows")).action)
        _run(engine.tables.define(definition))
        engine.sync()
        if isinstance(definition, plans.CreateIndex):
            _run(engine.tables.built(definition))
            engine.sync()
    return _plan(engine, _INSERT.format(name="rows"))


def _in_process(directory: Path) -> tuple[float, float]:
    """CPU of a row in a batch, and of one alone, in us."""
    store = RocksStore(directory)
    engine = Engine(store, SystemClock())
    insert = cast("plans.Insert", _set_up(engine).action)

    def write(rows: Sequence[Sequence[Any]]) -> None:
        transaction = engine.tables.begin()
        _run(transaction.run_many(insert, rows))
        if transaction.commit():  # now and then, for the counter of the topic
            engine.sync()

    made = _measured(write)
    engine.close()
    store.close()
    return made


def _sqlite(path: Path) -> tuple[float, float]:
    """The same in SQLite: the row, its index, and a row of an outbox table in one transaction."""
    database = sqlite3.connect(path, isolation_level=None)
    for statement in (
        "PRAGMA journal_mode = WAL",
        "PRAGMA synchronous = NORMAL",
        "CREATE TABLE rows (id INTEGER PRIMARY KEY, channel INTEGER, author TEXT, body TEXT, visible INTEGER)",
        "CREATE INDEX rows_channel ON rows (channel)",
        "CREATE TABLE outbox (id INTEGER PRIMARY KEY AUTOINCREMENT, payload TEXT)",
    ):
        database.execute(statement)
    encode = msgspec.json.encode
    names = ("id", "channel", "author", "body", "visible")

    def write(rows: Sequence[Sequence[Any]]) -> None:
        database.execute("BEGIN")
        database.executemany("INSERT INTO rows VALUES (?, ?, ?, ?, ?)", rows)
        events = [(encode(dict(zip(names, row, strict=True))).decode(),) for row in rows]
        database.executemany("INSERT INTO outbox (payload) VALUES (?)", events)
        database.execute("COMMIT")

    many, one = _measured(write)
    database.close()
    return many, one


def _postgres(programs: Path) -> tuple[float, float]:
    """The same in PostgreSQL, each transaction in the pipelines of its driver."""
    with postgres.postgres_server(programs) as where, psycopg.connect(where, autocommit=True) as database:
        for statement in (
            "SET synchronous_commit = off",
            "CREATE TABLE rows (id BIGINT PRIMARY KEY, channel BIGINT, author TEXT, body TEXT, visible BOOLEAN)",
            "CREATE INDEX rows_channel ON rows (channel)",
            "CREATE TABLE outbox (id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, payload TEXT)",
        ):
            database.execute(statement)
        encode = msgspec.json.encode
        names = ("id", "channel", "author", "body", "visible")
        cursor = database.cursor()

        def write(rows: Sequence[Sequence[Any]]) -> None:
            events = [(encode(dict(zip(names, row, strict=True))).decode(),) for row in rows]
            with database.pipeline(), database.transaction():
                cursor.executemany("INSERT INTO rows VALUES (%s, %s, %s, %s, %s)", rows)
                cursor.executemany("INSERT INTO outbox (payload) VALUES (%s)", events)

        pid = database.info.backend_pid
        return _measured(write, lambda: cpu_seconds(pid))


def _measured(
    write: Callable[[Sequence[Sequence[Any]]], None], others: Callable[[], float] = lambda: 0.0
) -> tuple[float, float]:
    """CPU of a row in a batch, and of one alone, in us; `others` gives that of another process in seconds."""

    def cpu() -> float:
        return time.process_time() + others()

    batches = [[_row(i * _BATCH + j) for j in range(_BATCH)] for i in range(_BATCHES)]
    singles = [[_row(10_000_000 + i)] for i in range(_SINGLES)]
    for batch in batches[:5]:
        write(batch)
    begun = cpu()
    for batch in batches[5:]:
        write(batch)
    many = (cpu() - begun) / ((_BATCHES - 5) * _BATCH) * 1e6
    begun = cpu()
    for single in singles:
        write(single)
    return many, (cpu() - begun) / _SINGLES * 1e6
