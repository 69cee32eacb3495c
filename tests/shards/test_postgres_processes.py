"""PostgreSQL clients of a server with several processes: any answers, and the one that runs SQL may die."""

import os
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import errors
from psycopg.pq import TransactionStatus

from support.server import ServerProcess
from support.waiting import poll

PROCESSES = 3
_NUMBER_BITS = 19


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    env = {"TOPICS_PROCESSES": PROCESSES, "TOPICS_SHARDS": PROCESSES}
    with ServerProcess(tmp_path, postgres=True, env=env) as server:
        yield server


def connected(server: ServerProcess, stack: ExitStack) -> dict[int, psycopg.Connection[Any]]:
    """A connection of each process."""
    found: dict[int, psycopg.Connection[Any]] = {}
    for _ in range(200):
        where = f"host=127.0.0.1 port={server.pg_port} user=ada"
        made = stack.enter_context(psycopg.connect(where, autocommit=True))
        found.setdefault(made.info.backend_pid >> _NUMBER_BITS, made)
        if len(found) == PROCESSES:
            break
    return found


def test_a_connection_of_any_process_works_and_survives_the_one_that_runs_sql(server: ServerProcess) -> None:
    with ExitStack() as stack:
        by_process = connected(server, stack)
        assert by_process.keys() == set(range(PROCESSES))
        by_process[1].execute("CREATE TABLE t (id BIGINT PRIMARY KEY)")
        by_process[2].execute("CREATE TABLE s (id BIGINT PRIMARY KEY)")
        with by_process[2].cursor().copy("COPY s FROM STDIN") as copy:
            for number in range(5000):
                copy.write_row((number,))
        for number, db in by_process.items():
            with db.transaction():
                db.execute("INSERT INTO t VALUES (%s)", (number,))
        for db in by_process.values():
            assert db.execute("SELECT count(*) FROM t").fetchone() == (3,)
            check_cancel(db)

        first, second = by_process[1], by_process[2]
        first.execute("BEGIN")
        first.execute("INSERT INTO t VALUES (9)")
        [pid] = re.findall(r"process 0 of 3: (\d+)", server.log)
        os.kill(int(pid), signal.SIGKILL)
        assert poll(lambda: second.execute("SELECT count(*) FROM t").fetchone(), 20, "the process again") == (3,)
        with pytest.raises(errors.SerializationFailure):
            first.execute("INSERT INTO t VALUES (10)")
        assert first.info.transaction_status is TransactionStatus.INERROR
        first.execute("ROLLBACK")
        first.execute("INSERT INTO t VALUES (11)")
        assert second.execute("SELECT id FROM t ORDER BY id").fetchall() == [(0,), (1,), (2,), (11,)]


def check_cancel(db: psycopg.Connection[Any]) -> None:
    """Cancel a statement; the requests come to any process."""
    slow = "SELECT count(*) FROM s x, s y, s z WHERE x.id + y.id * z.id = -1"
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(db.execute, slow)

        def is_over() -> bool:
            db.cancel_safe()
            return running.done()

        poll(is_over, 30, "the end of the statement")
        with pytest.raises(errors.QueryCanceled):
            running.result()
