"""Fixtures of tests/spark and tests/lakehouse: their conftests name them."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import pytest

from support import spark as support_spark
from support.spark import Row, Server
from topics_client.connection import Connection

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECONDS = 180
"""What a test may take: the first one of a run also starts the session."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """More time than other tests have, unless a test says how much."""
    for item in items:
        if {"spark", "lakehouse"} & set(item.path.parts) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(SECONDS))


@pytest.fixture(scope="session")
def spark() -> "SparkSession":
    """The session of this process; see support.spark.session."""
    return support_spark.session()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of the module's own; `.url` is what clients take."""
    with Server(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture
def connection(server: Server) -> Iterator[Connection]:
    """A connection to the server."""
    with server.connect() as made:
        yield made


@pytest.fixture
def fill(connection: Connection) -> Callable[..., int]:
    """`fill(topic, n, *, first=0, tag=…, node=…, meta=…, data=…, kind="json", partition=0)`: appends, gives the last
    seq; see support.spark.fill."""
    return partial(support_spark.fill, connection)


@pytest.fixture
def rows(connection: Connection) -> Callable[..., list[Row]]:
    """`rows(topic, partition=None)`: every live record through Diff; see support.spark.rows."""
    return partial(support_spark.rows, connection)
