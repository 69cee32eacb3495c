"""A server with the PostgreSQL protocol, for the tests of a module, and a namespace for each test.

`TOPICS_POSTGRES_PROCESSES=2` runs the suites against a server with that number of processes, `TOPICS_POSTGRES_NODES=3`
against nodes of a cluster with eight shards, of which one that does not run SQL is asked.
"""

import os
from collections.abc import Iterator
from itertools import count
from typing import Any

import psycopg
import pytest

from support.server import ServerProcess

PROCESSES = os.environ.get("TOPICS_POSTGRES_PROCESSES", "")
_NUMBERS = count(1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    env = {"TOPICS_PROCESSES": PROCESSES} if PROCESSES else {}
    with ServerProcess(tmp_path_factory.mktemp("postgres"), postgres=True, env=env) as running:
        yield running


@pytest.fixture
def namespace() -> str:
    return f"n{next(_NUMBERS)}"


@pytest.fixture
def where(server: ServerProcess, namespace: str) -> str:
    """The connection string for libpq, with a namespace of the test's own."""
    return f"host=127.0.0.1 port={server.pg_port} user=ada dbname=shop options='-c search_path={namespace}'"


@pytest.fixture
def db(where: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(where, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id BIGINT PRIMARY KEY, name TEXT, v INTEGER UNIQUE)")
        yield connection
