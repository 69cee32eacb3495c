"""One server and one process of every client, shared by the suites.

`TOPICS_KAFKA_PEER=host:port` runs the suites that need only Kafka against another broker. Tests of a client that can't
be run are skipped with the reason; with `TOPICS_ALL_CLIENTS=1` (CI) they fail.
"""

import os
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2]))
from support.http import Api
from support.kafka_clients import Client
from support.kafka_kinds import KINDS, WITH_ADMIN, usable
from support.server import ServerProcess

PEER = os.environ.get("TOPICS_KAFKA_PEER", "")
QUICK_GROUPS = {"TOPICS_KAFKA_INITIAL_REBALANCE_MS": 200, "TOPICS_KAFKA_CONSUMER_SESSION_TIMEOUT_MS": 8000}


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with all three protocols."""
    if PEER:
        pytest.skip("needs HTTP and gRPC, which only our server has")
    with ServerProcess(tmp_path_factory.mktemp("kafka"), env=QUICK_GROUPS, kafka=True) as server:
        yield server


@pytest.fixture(scope="session")
def bootstrap(request: pytest.FixtureRequest) -> str:
    """The address that clients connect to."""
    return PEER or f"127.0.0.1:{request.getfixturevalue('kafka').kafka_port}"


@pytest.fixture
def api(kafka: ServerProcess) -> Iterator[Api]:
    """An HTTP client of the server."""
    with Api(kafka.base) as api:
        yield api


@pytest.fixture(scope="session")
def clients(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Client]]:
    """Return the only process of a client, by name."""
    directory = tmp_path_factory.mktemp("clients")
    running: dict[str, Client] = {}

    def get(name: str) -> Client:
        if name not in running or not running[name].alive:
            running[name] = usable(name).start({"bootstrap": bootstrap}, directory)
        return running[name]

    yield get
    for client in running.values():
        client.close()


@pytest.fixture(params=list(KINDS))
def client(request: pytest.FixtureRequest, clients: Callable[[str], Client]) -> Client:
    """Every client in turn."""
    return clients(request.param)


@pytest.fixture(params=WITH_ADMIN)
def admin(request: pytest.FixtureRequest, clients: Callable[[str], Client]) -> Client:
    """Every client that can create topics, in turn."""
    return clients(request.param)


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """An unused name that contains the name of the test."""
    return f"{request.node.name.split('[')[0]}-{uuid.uuid4().hex[:8]}"[:100]


@pytest.fixture
def made(clients: Callable[[str], Client], topic: str) -> str:
    """A topic of three partitions."""
    clients("confluent-kafka").call("create_topic", topic=topic, partitions=3)
    return topic
