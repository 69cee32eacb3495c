"""Make `data_support` importable for the tests of this folder, and start a server with a Kafka port."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from data_support import Remote

from support.http import Api
from support.server import ServerProcess


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server for this module alone."""
    with ServerProcess(tmp_path_factory.mktemp("data"), kafka=True) as process:
        yield process


@pytest.fixture
def api(server: ServerProcess) -> Iterator[Api]:
    """An HTTP client of the server."""
    with Api(server.base) as calls:
        yield calls


@pytest.fixture
def remote(server: ServerProcess) -> Iterator[Remote]:
    """A connection to its Kafka port."""
    with Remote(server.kafka_port) as connection:
        yield connection
