"""One server and one process of every client, shared by the suites.

`TOPICS_KAFKA_PEER=host:port` runs the suites that need only Kafka against another broker. `TOPICS_KAFKA_NODES=3` runs
them against a cluster of so many nodes with eight shards: one node after the other is killed before a test and comes
back a few tests later. Tests that start a server of their own are left out then. Tests of a client that can't be run
are skipped with the reason; with `TOPICS_ALL_CLIENTS=1` (CI) they fail.
"""

import itertools
import os
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2]))
from support.cluster import Cluster
from support.etcd import Etcd
from support.http import Api
from support.kafka_clients import Client
from support.kafka_kinds import KINDS, WITH_ADMIN, usable
from support.s3 import S3
from support.server import ServerProcess
from support.waiting import poll

NODES = int(os.environ.get("TOPICS_KAFKA_NODES", "0"))
TURNS = itertools.count()
PEER = os.environ.get("TOPICS_KAFKA_PEER", "")
QUICK_GROUPS = {"TOPICS_KAFKA_INITIAL_REBALANCE_MS": 200, "TOPICS_KAFKA_CONSUMER_SESSION_TIMEOUT_MS": 8000}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is not about the cluster, where the suites run against one."""
    if NODES:
        for item in items:
            names = getattr(item, "fixturenames", ())
            if "cluster" in names and ("bootstrap" not in names or "open_server" in names):
                item.add_marker(pytest.mark.skip("starts no cluster"))


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster | None]:
    """The nodes, if TOPICS_KAFKA_NODES says how many."""
    if not NODES:
        yield None
        return
    folder = tmp_path_factory.mktemp("cluster")
    with (
        S3(folder / "s3") as s3,
        Etcd(folder / "etcd") as etcd,
        Cluster(folder, etcd.address, s3.bucket(), s3.environment, nodes=NODES, env=QUICK_GROUPS, shards=8) as cluster,
    ):
        yield cluster


@pytest.fixture(autouse=True)
def kills(request: pytest.FixtureRequest, cluster: Cluster | None) -> None:
    """Kill a node that owns shards, but for that of `kafka`, before every tenth test, and start it again five later.

    Admin clients repeat no request: before their tests none is killed.
    """
    if cluster is None or request.node.path.name == "test_admin.py":
        return
    turn = next(TURNS) % 10
    if turn == 5:
        node = poll(lambda: next(filter(cluster.owned, cluster.nodes[:0:-1]), None), 60, cluster.logs)
        cluster.wait_for_followers(1)
        node.kill()
        cluster.wait_until_taken_over(node)
    elif turn == 0:
        cluster.start([each for each in cluster.nodes if not each.alive()])


@pytest.fixture(scope="session")
def kafka(cluster: Cluster | None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with all three protocols."""
    if PEER:
        pytest.skip("needs HTTP and gRPC, which only our server has")
    if cluster is not None:
        yield cluster.nodes[0]
        return
    with ServerProcess(tmp_path_factory.mktemp("kafka"), env=QUICK_GROUPS, kafka=True) as server:
        yield server


@pytest.fixture(scope="session")
def bootstrap(request: pytest.FixtureRequest, cluster: Cluster | None) -> str:
    """The address that clients connect to, or those of all nodes."""
    if cluster is not None:
        return ",".join(node.kafka_target for node in cluster.nodes)
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
