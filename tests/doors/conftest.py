"""Real servers, shared by the tests of a session: one as it comes, one with every limit turned down."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[1]))
from support.http import Api, ok
from support.server import ServerProcess

SMALL = {
    "TOPICS_MAX_BODY_BYTES": 4096,
    "TOPICS_MAX_BATCH_RECORDS": 3,
    "TOPICS_MAX_RECORD_BYTES": 600,
    "TOPICS_MAX_META_BYTES": 100,
    "TOPICS_MAX_TAG_BYTES": 8,
    "TOPICS_MAX_NODE_BYTES": 6,
    "TOPICS_MAX_LIMIT": 5,
    "TOPICS_MAX_TOPICS": 4,
    "TOPICS_MAX_TOTAL_BYTES": 2000,
}


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("server")) as server:
        yield server
        assert_calm(server)
        assert server.stop() == 0


@pytest.fixture(scope="session")
def small_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("small"), env=SMALL) as server:
        yield server
        assert_calm(server)


@pytest.fixture(scope="session")
def api(server: ServerProcess) -> Iterator[Api]:
    with Api(server.base) as api:
        yield api


@pytest.fixture
def small(small_server: ServerProcess) -> Iterator[Api]:
    """A client of the small server, which holds nothing at first."""
    with Api(small_server.base) as api:
        for item in api.listing()["topics"]:
            ok(api.drop(item["topic"]))
        yield api


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., ServerProcess]]:
    """Start a server of the test's own: `start(TOPICS_X=...)`."""
    started: list[ServerProcess] = []

    def start(**env: Any) -> ServerProcess:
        server = ServerProcess(tmp_path / str(len(started)), env=env)
        started.append(server)
        return server.start()

    yield start
    for server in started:
        server.kill()
        assert_calm(server)


def assert_calm(server: ServerProcess) -> None:
    """No bug was logged."""
    assert server.alive() or "Traceback" not in server.log
    for line in server.log.splitlines():
        assert " ERROR " not in line, server.log[-3000:]
        assert "Traceback" not in line, server.log[-3000:]
