"""Pauses of the event loop: a COPY and a DELETE of a million rows, and the commits of these, one batch each."""

import asyncio
from pathlib import Path
from typing import Final

from bench.analytics import held
from bench.table import Row
from support.executor import Executor
from topics_server import collector
from topics_service.api.access.auth import UNRESTRICTED
from topics_service.api.sql.session import SqlSession, Transactions
from topics_service.storage.rocks import RocksStore

_ROWS: Final = 1_000_000
_BATCH: Final = 128
_INSERT: Final = "INSERT INTO large VALUES ($1, $2)"


def run(directory: Path) -> list[Row]:
    """Every row of pauses."""
    store = RocksStore(directory / "pauses")
    try:
        return asyncio.run(_rows(store))
    finally:
        store.close()


async def _rows(store: RocksStore) -> list[Row]:
    collector.resume()  # as in a server
    async with Executor(timeout_seconds=300, store=store) as executor:
        await executor.run("CREATE TABLE large (id BIGINT PRIMARY KEY, n BIGINT)")
        session = SqlSession(executor.sql, UNRESTRICTED, Transactions())

        async def copy() -> None:
            """The work of a COPY for what it decodes."""
            for first in range(0, _ROWS, _BATCH):
                await session.insert(_INSERT, [[at, at * 7] for at in range(first, min(first + _BATCH, _ROWS))])
                await asyncio.sleep(0)

        _, copied = await held(copy)
        _, copy_committed = await held(session.finish_batch)
        await session.execute("BEGIN")
        _, deleted = await held(lambda: session.execute("DELETE FROM large"))
        _, delete_committed = await held(lambda: session.execute("COMMIT"))
        _, counted = await held(lambda: executor.run("SELECT count(*) FROM large"))
    what = "longest pause of the event loop: "
    return [
        Row(f"{what}COPY of 1 M rows", copied * 1e3, "ms", "25"),
        Row(f"{what}the commit of that", copy_committed * 1e3, "ms", note="one batch of 1 M rows"),
        Row(f"{what}DELETE of 1 M rows", deleted * 1e3, "ms", "25"),
        Row(f"{what}the commit of that", delete_committed * 1e3, "ms", note="one batch of 1 M rows"),
        Row(f"{what}a scan of the 1 M removed rows", counted * 1e3, "ms", "25"),
    ]
