"""A server with the PostgreSQL protocol, for the tests of a module, and a namespace for each test."""

from collections.abc import Iterator
from itertools import count
from typing import Any

import psycopg
import pytest

from support.server import ServerProcess

_NUMBERS = count(1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("postgres"), postgres=True) as running:
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
