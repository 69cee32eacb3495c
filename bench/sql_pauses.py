"""Pauses of the event loop: a COPY and a DELETE of a million rows, and the commits of these, one batch each."""

import asyncio
from pathlib import Path
from typing import Final

from bench.analytics import Held, held, of_loop
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

        copied = await held(copy)
        copy_committed = await held(session.finish_batch)
        await session.execute("BEGIN")
        deleted = await held(lambda: session.execute("DELETE FROM large"))
        delete_committed = await held(lambda: session.execute("COMMIT"))
        counted = await held(lambda: executor.run("SELECT count(*) FROM large"))
    batch = "one batch of 1 M rows"
    return [
        _row("COPY of 1 M rows", copied, "25"),
        _row("the commit of that", copy_committed, "", batch),
        _row("DELETE of 1 M rows", deleted, "25"),
        _row("the commit of that", delete_committed, "", batch),
        _row("a scan of what is left of 1 M removed rows", counted, "25"),
    ]


def _row(what: str, found: Held, bar: str, note: str = "") -> Row:
    notes = ", ".join(filter(None, (note, of_loop(found))))
    return Row(f"longest pause of the event loop: {what}", found.longest * 1e3, "ms", bar, note=notes)
