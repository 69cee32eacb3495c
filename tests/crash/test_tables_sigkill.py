"""SIGKILL while statements, definitions, index builds and consumers run: rows are what their events come to, nothing
that was acknowledged is gone, and no statement is there in part.
"""

import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from support.server import ServerProcess
from support.waiting import poll
from topics_client import TopicsClient
from topics_client.errors import TopicsError
from topics_client.retry import Retry
from topics_server.verify import verify
from topics_service.engine.verify import Problem

KILLS = 3
SOAK_SECONDS = float(os.environ.get("TOPICS_SOAK_SECONDS", "0"))
LOAD_SECONDS = (0.3, 1.2)
WRITERS = 2  # of each table
GROUPS_OF_ROWS = 6
TABLES = {"disk": "disk", "synced": "fsync"}
"""Tables, and the class of each and of its topic."""
SETUP = """
CREATE NAMESPACE app;
CREATE TABLE app.{name} (
    id BIGINT PRIMARY KEY, writer BIGINT NOT NULL, part BIGINT NOT NULL, n BIGINT NOT NULL, label TEXT UNIQUE
) WITH (durability = '{durability}');
CREATE INDEX {name}_by_n ON app.{name} (n);
CREATE TOPIC app.{name}_events WITH (durability = '{durability}', partitions = 1);
"""
ROUTE = "ALTER TOPIC app.{name}_events ADD SOURCE app.{name} ON {op} WITH (payload = 'full')"


@dataclass
class Acked:
    """The acknowledged changes: of a pair of rows the number of both (None: removed), and any that was under way."""

    pairs: dict[tuple[str, int, int], int | None] = field(default_factory=dict)
    begun: dict[tuple[str, int, int], int | None] = field(default_factory=dict)
    offsets: dict[str, int] = field(default_factory=dict)
    """Of each topic the offset that was acknowledged to the consumer."""
    tried: dict[str, int] = field(default_factory=dict)
    """The offset that it asked for last."""
    statements: int = 0
    definitions: int = 0


class Load:
    """Writers of pairs of rows, a definer and a consumer, until the process is gone."""

    def __init__(self, server: ServerProcess, acked: Acked, seed: int) -> None:
        self._server = server
        self._acked = acked
        self._seed = seed
        self._stopped = threading.Event()
        self._errors: list[BaseException] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        """All of it runs within; the server dies at the end."""
        loads = [lambda name=name, each=each: self._write(name, each) for name in TABLES for each in range(WRITERS)]
        loads += [self._define, *(lambda name=name: self._consume(name) for name in TABLES)]
        threads = [threading.Thread(target=self._guarded, args=(load,), daemon=True) for load in loads]
        for thread in threads:
            thread.start()
        yield
        self._server.kill()
        self._stopped.set()
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive()
        assert not self._errors, self._errors

    def _guarded(self, load: Callable[[], None]) -> None:
        try:
            load()
        except (httpx.TransportError, TopicsError) as error:
            if self._server.alive() and not self._stopped.wait(2):
                self._errors.append(error)
        except BaseException as error:  # shown by the test
            self._errors.append(error)

    def _write(self, name: str, writer: int) -> None:
        """Insert, change and remove pairs of rows over HTTP, each pair in one statement or one transaction."""
        rng, acked = random.Random(f"{self._seed} {name} {writer}"), self._acked
        with httpx.Client(base_url=self._server.base, trust_env=False, timeout=20) as http:
            while not self._stopped.is_set():
                part = rng.randrange(GROUPS_OF_ROWS)
                pair = name, writer, part
                known, n = acked.pairs.get(pair), rng.randrange(1 << 40)
                text, params = statement(rng, name, writer, part, n, exists=known is not None)
                acked.begun[pair] = None if text.startswith("DELETE") else n
                answer = http.post("/api/sql", json={"sql": text, "params": params})
                assert answer.status_code == 200, answer.text
                acked.pairs[pair] = acked.begun.pop(pair)
                acked.statements += 1

    def _define(self) -> None:
        """Build and drop indexes, make, fill, truncate and drop tables."""
        with TopicsClient(self._server.grpc_target, retry=Retry(0)) as client:
            number = 0
            while not self._stopped.is_set():
                number += 1
                name = ("disk", "synced")[number % 2]
                client.sql("DROP TABLE IF EXISTS app.scratch")
                client.sql(f"DROP INDEX IF EXISTS app.{name}_more")
                client.sql("CREATE TABLE app.scratch (id BIGINT PRIMARY KEY, a BIGINT)")
                client.sql_many("INSERT INTO app.scratch VALUES ($1, $2)", [(i, i % 7) for i in range(1500)])
                client.sql("CREATE INDEX scratch_a ON app.scratch (a)")
                client.sql(f"CREATE INDEX {name}_more ON app.{name} (part, n)")
                client.sql("ALTER TABLE app.scratch ADD COLUMN b BIGINT DEFAULT 5")
                client.sql("TRUNCATE TABLE app.scratch")
                client.sql_many("INSERT INTO app.scratch VALUES ($1, $2, $1)", [(i, i % 7) for i in range(300)])
                self._acked.definitions += 8

    def _consume(self, name: str) -> None:
        """Acknowledge all messages, in order."""
        topic, acked, tried = f"app.{name}_events", self._acked.offsets, self._acked.tried
        with TopicsClient(self._server.grpc_target, retry=Retry(0)) as client:
            while not self._stopped.is_set():
                page = client.consume(topic, group="g", start="earliest", limit=50, wait=0.2)
                offsets = [message.offset for message in page]
                if offsets:
                    expected = tried.get(topic, -1) + 1
                    assert offsets[0] <= expected, f"messages {expected}..{offsets[0] - 1} of {topic} are left out"
                    assert offsets == list(range(offsets[0], offsets[0] + len(offsets)))
                    tried[topic] = offsets[-1]
                    acked[topic] = client.acknowledge(topic, offsets[-1], group="g")


def statement(
    rng: random.Random, name: str, writer: int, part: int, n: int, *, exists: bool
) -> tuple[str, list[int | str | None]]:
    """A statement, or a transaction, that leaves both rows of a pair with the number `n`, or none of them."""
    first = (writer * GROUPS_OF_ROWS + part) * 2
    where = f"WHERE writer = {writer} AND part = {part}"
    if not exists:
        rows = f"INSERT INTO app.{name} VALUES ($1, {writer}, {part}, $2, $3), ($4, {writer}, {part}, $2, NULL)"
        conflict = " ON CONFLICT (id) DO UPDATE SET n = excluded.n, label = excluded.label"
        return rows + conflict, [first, n, f"{name} {n}", first + 1]
    chosen = rng.random()
    if chosen < 0.3:
        return f"DELETE FROM app.{name} {where}", []
    if chosen < 0.6:
        return f"UPDATE app.{name} SET n = $1 {where}", [n]
    each = f"UPDATE app.{name} SET n = {n}, label = label WHERE id ="
    other = f"SAVEPOINT s; UPDATE app.{name} SET n = 0; ROLLBACK TO s"
    return f"BEGIN; {each} {first}; {other}; {each} {first + 1}; COMMIT", []


def check(server: ServerProcess, acked: Acked) -> None:
    """The directory is sound, then a server on it has everything that it should."""
    found: list[Problem] = []
    verify(server.data_dir, found.append, deep=True)
    assert found == []
    server.start()
    with TopicsClient(server.grpc_target) as client:
        for name in TABLES:
            rows = {row["id"]: row for row in client.sql(f"SELECT * FROM app.{name}")}
            head = check_events(client, name, rows)
            topic = f"app.{name}_events"
            check_pairs(name, rows, acked)
            by_index = {row["id"] for row in client.sql(f"SELECT id FROM app.{name} WHERE n >= 0")}
            assert by_index == rows.keys()
            for row in rows.values():
                if row["label"] is not None:
                    assert (
                        client.sql(f"SELECT id FROM app.{name} WHERE label = $1", [row["label"]]).scalar() == row["id"]
                    )
            if topic in acked.offsets:
                left = client.consume(topic, group="g", start="earliest", limit=1)
                assert acked.offsets[topic] < left.next_offset <= head + 1
        scratch = client.sql("SELECT name FROM system.tables WHERE name = 'scratch'")
        if len(scratch):
            assert client.sql("SELECT count(*) FROM app.scratch").scalar() in (0, 300, 1500)


def check_events(client: TopicsClient, name: str, rows: dict[int, dict[str, Any]]) -> int:
    """The rows are what the events come to; message ids grow. Returns the last offset."""
    folded: dict[int, dict[str, Any]] = {}
    offset, last_id = 0, -1
    while True:
        page = client.consume(f"app.{name}_events", group="check", start=offset, limit=1000)
        for message in page:
            assert message.message_id is not None
            assert int(message.message_id) > last_id
            last_id = int(message.message_id)
            row = message.value
            assert (row["id"] in folded) == (message.op != "Insert")
            if message.op == "Delete":
                del folded[row["id"]]
            else:
                folded[row["id"]] = row
        offset = page.next_offset
        if not page.has_more:
            break
    assert folded == rows
    return offset - 1


def check_pairs(name: str, rows: dict[int, dict[str, Any]], acked: Acked) -> None:
    """Each pair has the number that was acknowledged last, or that of the statement under way; never half of it."""
    for writer in range(WRITERS):
        for part in range(GROUPS_OF_ROWS):
            pair, first = (name, writer, part), (writer * GROUPS_OF_ROWS + part) * 2
            found = [rows[each]["n"] if each in rows else None for each in (first, first + 1)]
            assert found[0] == found[1], f"half of a statement: {pair} {found}"
            possible = {acked.pairs.get(pair), acked.begun.get(pair, acked.pairs.get(pair))}
            assert found[0] in possible, f"{pair} has {found[0]}, not one of {possible}"
            acked.pairs[pair] = found[0]
    for pair in [pair for pair in acked.begun if pair[0] == name]:
        del acked.begun[pair]


def run(server: ServerProcess, seed: int, kills: int) -> Acked:
    """So many kills of one directory, each followed by a comparison."""
    rng, acked = random.Random(seed), Acked()
    server.start()
    with TopicsClient(server.grpc_target) as client:
        for name, durability in TABLES.items():
            text = SETUP.format(name=name, durability=durability)
            client.sql_script(text if name == "disk" else text.replace("CREATE NAMESPACE app;", ""))
            for op in ("INSERT", "UPDATE", "DELETE"):
                client.sql(ROUTE.format(name=name, op=op))
    for number in range(kills):
        before = acked.statements
        with Load(server, acked, seed * 1000 + number).running():
            poll(lambda before=before: acked.statements > before, 20)
            time.sleep(rng.uniform(*LOAD_SECONDS))
        check(server, acked)
    return acked


@pytest.mark.timeout(120)
def test_kills_of_statements_definitions_and_consumers(make_server: Callable[..., ServerProcess]) -> None:
    acked = run(make_server(), 1, KILLS)
    assert acked.statements > 100
    assert acked.definitions
    assert acked.offsets.keys() == {f"app.{name}_events" for name in TABLES}


@pytest.mark.soak
@pytest.mark.skipif(not SOAK_SECONDS, reason="a soak: set TOPICS_SOAK_SECONDS")
@pytest.mark.timeout(0)
def test_kills_of_tables_for_long(make_server: Callable[..., ServerProcess]) -> None:
    end, seed, kills, statements = time.monotonic() + SOAK_SECONDS, time.time_ns() % 100_000, 0, 0
    while time.monotonic() < end:
        acked = run(make_server(), seed, 10)
        kills, statements, seed = kills + 10, statements + acked.statements, seed + 1
        print(f"seed {seed - 1}: {kills} kills, {statements} acknowledged statements", flush=True)
