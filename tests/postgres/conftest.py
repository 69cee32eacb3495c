"""A server with the PostgreSQL protocol, for the tests of a module, and a namespace for each test.

`TOPICS_POSTGRES_PROCESSES=2` runs the suites against a server with that number of processes, `TOPICS_POSTGRES_NODES=3`
against nodes of a cluster with eight shards, of which one that does not run SQL is asked.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest

from support.cluster import Cluster
from support.etcd import Etcd
from support.s3 import S3
from support.server import ServerProcess

NODES = int(os.environ.get("TOPICS_POSTGRES_NODES", "0"))
PROCESSES = os.environ.get("TOPICS_POSTGRES_PROCESSES", "")
_NUMBERS = count(1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("postgres")
    if NODES:
        with cluster(folder) as node:
            yield node
        return
    env = {"TOPICS_PROCESSES": PROCESSES} if PROCESSES else {}
    with ServerProcess(folder, postgres=True, env=env) as running:
        yield running


@contextmanager
def cluster(folder: Path) -> Iterator[ServerProcess]:
    """A node of a cluster that does not run SQL."""
    with (
        S3(folder / "s3") as s3,
        Etcd(folder / "etcd") as etcd,
        Cluster(
            folder / "nodes", etcd.address, s3.bucket(), s3.environment, nodes=NODES, shards=8, postgres=True
        ) as nodes,
    ):
        nodes.wait_until_spread()
        yield next(node for node in nodes.nodes if node is not nodes.owner())


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
