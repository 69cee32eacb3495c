"""psql, psycopg and asyncpg at three nodes, of which the one that runs SQL is killed in the middle of transactions."""

import asyncio
import contextlib
import shutil
import subprocess
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest
from psycopg.pq import TransactionStatus

from support.cluster import Cluster, Node
from support.etcd import Etcd
from support.missing import without
from support.s3 import S3
from support.waiting import until

AGAIN, UNKNOWN = "40001", "40003"


def psql(node: Node, *commands: str) -> str:
    """Run psql with these commands; what it prints."""
    where = ["-h", node.host, "-p", str(node.pg_port), "-U", "ada"]
    each = [word for command in commands for word in ("-c", command)]
    done = subprocess.run(
        ["psql", *where, "-qAt", "-v", "ON_ERROR_STOP=1", *each],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


class Writer:
    """Transactions of one client, one after the other. Each writes a pair of rows: 2 n and 2 n + 1."""

    def __init__(self, number: int) -> None:
        self.next = number * 100_000
        self.committed: list[int] = []
        self.unknown: list[int] = []
        self.again = 0

    async def run(self, write: Callable[[int], Coroutine[Any, Any, None]], over: asyncio.Event) -> None:
        """Write pairs until `over`."""
        while not over.is_set():
            self.next += 1
            try:
                await write(self.next)
                self.committed.append(self.next)
            except (psycopg.Error, asyncpg.PostgresError) as error:
                if error.sqlstate == UNKNOWN:
                    self.unknown.append(self.next)
                elif error.sqlstate == AGAIN:
                    self.again += 1
                else:
                    raise


@pytest.mark.timeout(180)
async def test_clients_at_three_nodes_over_a_kill_of_the_owner(tmp_path: Path, s3: S3, etcd: Etcd) -> None:
    """Committed pairs are there, others are not, and none is half there; connections to the nodes that live stay."""
    if shutil.which("psql") is None:
        without("psql is not installed")
    async with contextlib.AsyncExitStack() as stack:
        cluster = Cluster(tmp_path / "nodes", etcd.address, s3.bucket(), s3.environment, shards=8, postgres=True)
        stack.enter_context(cluster)
        await asyncio.to_thread(cluster.wait_for_followers, 1)
        victim = cluster.owner()
        living = [node for node in cluster.nodes if node is not victim]
        for node in cluster.nodes:
            table = f"CREATE TABLE {node.name} (id BIGINT PRIMARY KEY)"
            assert await asyncio.to_thread(psql, node, table, f"INSERT INTO {node.name} VALUES (7)") == ""
        await asyncio.to_thread(
            psql,
            living[0],
            "CREATE TABLE pairs (id BIGINT PRIMARY KEY, body TEXT) WITH (durability = 'fsync')",
        )
        wheres = {node.name: f"host={node.host} port={node.pg_port} user=ada" for node in cluster.nodes}

        async def connect(node: Node, *, autocommit: bool) -> psycopg.AsyncConnection[Any]:
            made = await psycopg.AsyncConnection.connect(wheres[node.name], autocommit=autocommit)
            return await stack.enter_async_context(made)

        idle = [await connect(node, autocommit=True) for node in living]
        for db in idle:
            db.prepare_threshold = 0
            assert await (await db.execute("SELECT id FROM a WHERE id = %s", (7,))).fetchall() == [(7,)]
        waiting = [await connect(node, autocommit=False) for node in living]
        for number, db in enumerate(waiting):
            await db.execute("INSERT INTO pairs VALUES (%s, 'never')", (-1 - number,))

        over, writers, work = asyncio.Event(), list[Writer](), list[asyncio.Task[None]]()
        for number, node in enumerate(living):
            by_psycopg = await connect(node, autocommit=True)
            by_asyncpg = await asyncpg.connect(host=node.host, port=node.pg_port, user="ada", ssl=False)
            stack.push_async_callback(by_asyncpg.close)

            async def write(pair: int, db: Any = by_psycopg) -> None:
                async with db.transaction():
                    await db.execute("INSERT INTO pairs VALUES (%s, %s)", (2 * pair, "first"))
                    await db.execute("INSERT INTO pairs VALUES (%s, %s)", (2 * pair + 1, "second"))

            async def write_too(pair: int, db: Any = by_asyncpg) -> None:
                async with db.transaction():
                    await db.executemany("INSERT INTO pairs VALUES ($1, $2)", [(2 * pair, "a"), (2 * pair + 1, "b")])

            for each, what in enumerate((write, write_too), 1):
                writers.append(Writer(2 * number + each))
                work.append(asyncio.create_task(writers[-1].run(what, over)))

        async def progress() -> None:
            counts = [len(writer.committed) for writer in writers]
            await until(
                lambda: all(len(writer.committed) > count + 3 for writer, count in zip(writers, counts, strict=True)),
                60,
            )

        await progress()
        victim.kill()
        await progress()
        over.set()
        await asyncio.gather(*work)

        for db in waiting:
            with pytest.raises(psycopg.errors.SerializationFailure):
                await db.execute("INSERT INTO pairs VALUES (0, 'never')")
            assert db.info.transaction_status is TransactionStatus.INERROR
            await db.rollback()
        for db in idle:  # by the statement that was prepared at the dead node
            assert await (await db.execute("SELECT id FROM a WHERE id = %s", (7,))).fetchall() == [(7,)]

        found = [set(map(int, psql(node, "SELECT id FROM pairs").split())) for node in living]
        assert found[0] == found[1]
        pairs = {number // 2 for number in found[0]}
        assert found[0] == {each for pair in pairs for each in (2 * pair, 2 * pair + 1)}
        committed = {pair for writer in writers for pair in writer.committed}
        assert committed <= pairs <= committed | {pair for writer in writers for pair in writer.unknown}
        assert sum(writer.again + len(writer.unknown) for writer in writers) > 0, "the kill met a transaction"
