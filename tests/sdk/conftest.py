"""A server, and both clients of it."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.sdk import Clients
from support.server import ServerProcess
from topics_client import Retry, TopicsClient

_names = itertools.count(1)


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that tests only ask; each takes topics of its own (`name`)."""
    with ServerProcess(tmp_path_factory.mktemp("shared")) as process:
        yield process


@pytest.fixture(params=["sync", "async"])
def clients(request: pytest.FixtureRequest) -> Iterator[Clients]:
    """Makes clients of either kind."""
    made = Clients(request.param)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def client(clients: Clients, shared: ServerProcess) -> TopicsClient:
    """A client of either kind that waits two seconds for a server that is away."""
    return clients(shared.grpc_target, retry=Retry(seconds=2))


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """The name of a topic that no other test has."""
    return f"t{next(_names)}.{request.node.originalname[:60]}"


@pytest.fixture
def restarted(tmp_path: Path) -> Iterator[Callable[[], ServerProcess]]:
    """A server on a port that stays: each call kills what runs and gives one that runs on the same data."""
    running: list[ServerProcess] = []

    def start() -> ServerProcess:
        env = {}
        if running:
            running[-1].kill()
            env["TOPICS_GRPC_PORT"] = running[-1].grpc_target.rpartition(":")[2]
        running.append(ServerProcess(tmp_path, data_dir=tmp_path / "data", env=env).start())
        return running[-1]

    yield start
    for server in running:
        server.kill()
