"""Writes beside definitions: tables, routes and topics change under them, and rows stay the fold of their events."""

import random
import threading
from collections.abc import Callable, Iterator

import httpx
import pytest

from support.http import Api
from support.server import ServerProcess
from support.sql import Sql, payload

ROUNDS = 15
Step = Callable[[Sql, random.Random], Iterator[httpx.Response]]


def upsert(sql: Sql, choice: random.Random) -> Iterator[httpx.Response]:
    row = choice.randrange(200), choice.randrange(9)
    yield sql.send("INSERT INTO beside.t VALUES ($1, $2) ON CONFLICT (id) DO UPDATE SET d = EXCLUDED.d", *row)


def insert(sql: Sql, choice: random.Random) -> Iterator[httpx.Response]:
    yield sql.send("INSERT INTO beside.t (id, d) VALUES ($1, $2)", choice.randrange(200), 1)


def delete(sql: Sql, choice: random.Random) -> Iterator[httpx.Response]:
    yield sql.send(f"DELETE FROM beside.t WHERE id % 20 = {choice.randrange(20)}")


def define(sql: Sql, choice: random.Random) -> Iterator[httpx.Response]:
    yield sql.send("CREATE TOPIC IF NOT EXISTS beside.other ALIAS beside.nick")
    yield sql.send("ALTER TOPIC beside.other ADD SOURCE beside.t ON INSERT WHERE d > 3")
    yield sql.send("ALTER TOPIC beside.nick ADD SOURCE beside.t ON DELETE")
    yield sql.send("ALTER TOPIC beside.other DROP SOURCE beside.t ON DELETE")


def drop(sql: Sql, choice: random.Random) -> Iterator[httpx.Response]:
    yield sql.api.drop("beside.other")


def alter(sql: Sql, choice: random.Random) -> Iterator[httpx.Response]:
    yield sql.send("ALTER TABLE beside.t ADD COLUMN e INT DEFAULT 5")
    yield sql.send("ALTER TABLE beside.t DROP COLUMN e")


def consume(sql: Sql, choice: random.Random) -> Iterator[httpx.Response]:
    yield sql.post("consume", topic="beside.nick", group_id=f"g{choice.randrange(3)}", timeout_seconds=0)
    yield sql.post("ack", topic="beside.other", group_id=f"g{choice.randrange(3)}", upto_offset=choice.randrange(3))


ALLOWED = {"topic_not_found", "already_exists", "unique_violation", "route_not_found", "invalid_request"}


@pytest.mark.parametrize("durability", ["disk", "fsync"])
def test_rows_are_the_fold_of_their_events_beside_definitions(server: ServerProcess, durability: str) -> None:
    refused: set[str] = set()

    def run(step: Step, seed: int) -> None:
        choice = random.Random(seed)
        with Api(server.base) as api:
            for _ in range(ROUNDS):
                for response in step(Sql(api), choice):
                    if response.status_code >= 400:
                        refused.add(response.json()["error"]["code"])

    with Api(server.base) as api:
        sql = Sql(api)
        sql.results(
            "CREATE TABLE beside.t (id INT PRIMARY KEY, d INT); "
            f"CREATE TOPIC beside.all PARTITIONS 2 WITH (durability = '{durability}');"
            + "".join(
                f"ALTER TOPIC beside.all ADD SOURCE beside.t ON {op} WITH (payload = 'full');"
                for op in ("INSERT", "UPDATE", "DELETE")
            )
        )
        steps: list[Step] = [upsert, upsert, insert, insert, delete, define, drop, alter, consume]
        threads = [threading.Thread(target=run, args=(step, seed)) for seed, step in enumerate(steps)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert refused <= ALLOWED
        rows = {row["id"]: row["d"] for row in sql.rows("SELECT id, d FROM beside.t")}
        folded: dict[int, int] = {}
        ids: list[str] = []
        for partition in (0, 1):
            for message in sql.consume("beside.all", "fold", partition_id=partition)["messages"]:
                change = payload(message)
                ids.append(message["message_id"])
                if message["op"] == "Delete":
                    assert folded.pop(change["id"]) == change["d"]
                else:
                    assert (message["op"] == "Insert") == (change["id"] not in folded)
                    folded[change["id"]] = change["d"]
        assert folded == rows
        assert len(set(ids)) == len(ids) > 0
        sql.results("DROP TABLE beside.t CASCADE; DROP TOPIC beside.all; DROP TOPIC IF EXISTS beside.other")
