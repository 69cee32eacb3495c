"""Connections of PostgreSQL clients at nodes with several shards, within one event loop, while SQL's shard moves."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest
from cluster.world import World, world_of
from psycopg import errors
from psycopg.pq import TransactionStatus

from support.waiting import until
from topics_cluster import identity
from topics_server.node.server import NodeServer
from topics_service.engine.placement import SQL_SHARD

Connection = psycopg.AsyncConnection[Any]


class Nodes:
    """Three nodes, and connections to each."""

    def __init__(self, world: World, nodes: dict[str, NodeServer]) -> None:
        self.world = world
        self.nodes = nodes
        self.stack = AsyncExitStack()

    async def connect(self, name: str, *, autocommit: bool = True) -> Connection:
        """Connect to a node."""
        where = f"host=127.0.0.1 port={self.nodes[name].pg_port} user=ada"
        made = await psycopg.AsyncConnection.connect(where, autocommit=autocommit)
        return await self.stack.enter_async_context(made)

    async def connect_again(self, name: str) -> Connection:
        """Connect to a node, as soon as it takes connections."""
        async with asyncio.timeout(20):
            while True:
                with contextlib.suppress(psycopg.OperationalError):
                    return await self.connect(name)
                await asyncio.sleep(0.01)

    def owner(self) -> str:
        """The name of the node that runs SQL."""
        owner = self.world.entries.view().owners.get(SQL_SHARD)
        return "" if owner is None or not owner.epoch else owner.node

    async def move(self) -> None:
        """Move SQL's shard to another node."""
        former = self.owner()
        to = next(name for name, node in self.world.entries.view().nodes.items()
                  if name != former and SQL_SHARD in node.warm)  # fmt: skip
        await self.world.coordinators[former].want(SQL_SHARD, to)
        await until(lambda: self.owner() == to)

    def held(self) -> int:
        """The sessions that the owner has of all nodes."""
        running: Any = self.nodes[self.owner()]._running
        return int(running.shards[SQL_SHARD].place.term.core.api.metrics.sql.sessions)

    def statistics(self, name: str) -> Any:
        """Figures of the protocol at a node."""
        running: Any = self.nodes[name]._running
        return running._composition.api.metrics.postgres


@pytest.fixture
async def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Nodes]:
    world = await world_of(3, tmp_path, monkeypatch)
    made = {name: world.node(name, pg_port="0", sql_statement_timeout=20.0) for name in "abc"}
    try:
        for node in made.values():
            await node.__aenter__()
        nodes = Nodes(world, made)
        await until(lambda: bool(nodes.owner()))
        async with nodes.stack:
            yield nodes
    finally:
        await asyncio.gather(*(node.__aexit__(None, None, None) for node in made.values()))


def others(nodes: Nodes) -> list[str]:
    return [name for name in nodes.nodes if name != nodes.owner()]


async def fetched(db: Connection, sql: str, *params: Any) -> list[tuple[Any, ...]]:
    return await (await db.execute(sql, params or None)).fetchall()


async def test_a_connection_at_any_node_works_and_survives_moves(nodes: Nodes) -> None:
    """Everything in one cluster: a new one costs some seconds."""
    await every_node_serves(nodes)
    await a_cancel_request_at_another_node_is_passed_on(nodes)
    await a_move_ends_transactions_and_nothing_else(nodes)
    await a_statement_waits_for_a_move(nodes)


async def every_node_serves(nodes: Nodes) -> None:
    for name in "abc":
        db = await nodes.connect(name)
        await db.execute(f"CREATE TABLE {name} (id BIGINT PRIMARY KEY, body TEXT)")
        async with db.cursor().copy(f"COPY {name} FROM STDIN") as copy:
            for number in range(3000):
                await copy.write_row((number, f"body {number}"))
        assert await fetched(db, f"SELECT count(*) FROM {name}") == [(3000,)]
    joined = "SELECT b.id, c.body FROM a JOIN b ON b.id = a.id JOIN c ON c.id = a.id WHERE a.id = %s"
    for name in "abc":
        db = await nodes.connect(name)
        assert await fetched(db, joined, 7) == [(7, "body 7")]
        assert [row[0] for row in await fetched(db, "SELECT id FROM a ORDER BY id")] == list(range(3000))
        with pytest.raises(errors.UndefinedColumn) as caught:
            await db.execute("SELECT id, nope FROM a")
        assert caught.value.diag.statement_position == "12"
    assert nodes.held() == 0


async def a_cancel_request_at_another_node_is_passed_on(nodes: Nodes) -> None:
    """The key is sent to each of the other nodes in turn, once to the owner of SQL's shard."""
    for at in (nodes.owner(), others(nodes)[0]):
        with socket.create_connection(("127.0.0.1", nodes.nodes[at].pg_port)) as raw:
            raw.setblocking(False)
            key = await begun(raw)
            for other in nodes.nodes:
                if other == at:
                    continue
                await sent(raw, b"Q", b"SELECT count(*) FROM a x, a y, a z WHERE x.id + y.id * z.id = -1\0")
                answer = asyncio.create_task(received(raw))
                while not answer.done():
                    await cancel(nodes.nodes[other].pg_port, key)
                    await asyncio.wait((answer,), timeout=0.2)
                assert b"C57014" in answer.result()
            assert nodes.statistics(other).passed_on > 0
            await cancel(nodes.nodes[other].pg_port, key[:4] + bytes(4))
            await sent(raw, b"Q", b"SELECT 1\0")
            assert b"SELECT 1\0" in await received(raw)


async def begun(raw: socket.socket) -> bytes:
    """Begin a session; return its key."""
    body = b"user\0ada\0\0"
    await asyncio.get_running_loop().sock_sendall(raw, struct.pack(">II", len(body) + 8, 3 << 16) + body)
    found = await received(raw)
    at = found.index(b"K\0\0\0\x0c") + 5
    return found[at : at + 8]


async def sent(raw: socket.socket, kind: bytes, body: bytes) -> None:
    await asyncio.get_running_loop().sock_sendall(raw, kind + struct.pack(">I", len(body) + 4) + body)


async def received(raw: socket.socket) -> bytes:
    """Everything up to ReadyForQuery."""
    found = b""
    while not found.endswith(b"Z\0\0\0\5I"):
        data = await asyncio.get_running_loop().sock_recv(raw, 1 << 16)
        assert data, found
        found += data
    return found


async def cancel(port: int, key: bytes) -> None:
    """Send a cancel request, and wait until the server has dealt with it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(struct.pack(">II", 16, 80877102) + key)
    assert await reader.read() == b""
    writer.close()


async def a_move_ends_transactions_and_nothing_else(nodes: Nodes) -> None:
    first, second = others(nodes)
    owner = nodes.owner()
    idle = [await nodes.connect(name) for name in "abc"]
    for db in idle:
        db.prepare_threshold = 0
        assert await fetched(db, "SELECT body FROM a WHERE id = %s", 1) == [("body 1",)]
    changing = [await nodes.connect(name, autocommit=False) for name in (owner, first)]
    for number, db in enumerate(changing):
        await db.execute("UPDATE a SET body = %s WHERE id = %s", ("changed", number))
    reading = await nodes.connect(second, autocommit=False)
    await reading.execute("SELECT id FROM a")
    assert nodes.held() == 3
    await nodes.move()
    for db in changing:
        with pytest.raises(errors.SerializationFailure):
            await db.execute("UPDATE a SET body = 'again' WHERE id = 9")
        assert db.info.transaction_status is TransactionStatus.INERROR
        await db.rollback()
        await db.execute("UPDATE a SET body = 'second' WHERE id = 9")
        await db.rollback()
    with pytest.raises(errors.SerializationFailure):
        await reading.commit()
    for db in idle:  # by the statement that was prepared at the former owner
        assert await fetched(db, "SELECT body FROM a WHERE id = %s", 1) == [("body 1",)]
    assert nodes.statistics(first).lost["transaction"] == 1
    assert nodes.held() == 0


async def more(done: list[int]) -> None:
    """Return when there are more."""
    count = len(done)
    await until(lambda: len(done) > count + 30)


async def a_statement_waits_for_a_move(nodes: Nodes) -> None:
    """Each single statement succeeds once, or says that its outcome is unknown."""
    done = list[int]()
    unknown = list[int]()
    over = asyncio.Event()

    async def write(db: Connection, start: int) -> None:
        number = start
        while not over.is_set():
            number += 1
            try:
                await db.execute("INSERT INTO b VALUES (%s, 'new')", (number,))
                done.append(number)
            except errors.StatementCompletionUnknown:
                unknown.append(number)

    async def read(db: Connection) -> None:
        while not over.is_set():
            assert await fetched(db, "SELECT body FROM b WHERE id = 1") == [("body 1",)]

    work = [
        asyncio.create_task(write(await nodes.connect(name), 10_000 * place)) for place, name in enumerate("abc", 1)
    ]
    work += [asyncio.create_task(read(await nodes.connect(name))) for name in "abc"]
    for _ in range(2):
        await more(done)
        await nodes.move()
        await more(done)
    over.set()
    await asyncio.gather(*work)
    found = {row[0] for row in await fetched(await nodes.connect("a"), "SELECT id FROM b WHERE id >= 10000")}
    assert found >= set(done)
    assert found <= {*done, *unknown}


async def test_with_one_shard_connections_are_passed_on_to_its_owner(tmp_path: Path) -> None:
    world = World(tmp_path)
    await identity.create(world.bucket, 1)
    async with world.node("a", pg_port="0") as first, world.node("b", pg_port="0") as second:
        nodes = Nodes(world, {"a": first, "b": second})
        async with nodes.stack:
            await until(lambda: bool(nodes.owner()))
            changing = await nodes.connect(others(nodes)[0], autocommit=False)
            await changing.execute("CREATE TABLE t (id BIGINT PRIMARY KEY)")
            await changing.commit()
            await changing.execute("INSERT INTO t VALUES (1)")
            assert nodes.held() == 1
            owner, other = nodes.owner(), others(nodes)[0]
            await until(lambda: world.entries.view().nodes[other].warm)
            await world.coordinators[owner].want(SQL_SHARD, other)
            await until(lambda: nodes.owner() == other)
            with pytest.raises(psycopg.OperationalError):
                await changing.execute("INSERT INTO t VALUES (2)")
            for name in "ab":
                db = await nodes.connect_again(name)
                assert await fetched(db, "SELECT count(*) FROM t") == [(0,)]
