"""A topic that names a zone is written and read there: three nodes in three zones, as processes."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from sdk.cli.runner import Cli

from support.cluster import Cluster
from support.etcd import Etcd
from support.http import Api
from support.s3 import S3
from support.waiting import poll
from topics_client import TopicConfig, TopicsClient

ZONES = {"a": "north", "b": "south", "c": "west"}
SHARDS = 6


@pytest.fixture
def cluster(tmp_path: Path, etcd: Etcd, s3: S3) -> Iterator[Cluster]:
    own = {name: {"TOPICS_CLUSTER_ZONE": zone} for name, zone in ZONES.items()}
    env = {"TOPICS_CLUSTER_LEASE_SECONDS": 2}
    with Cluster(tmp_path, etcd.address, s3.bucket(), s3.environment, env=env, own=own, shards=SHARDS) as cluster:
        yield cluster


@pytest.mark.timeout(400)
def test_a_topic_stays_in_its_zone_while_that_has_a_node(cluster: Cluster) -> None:
    a, b = cluster["a"], cluster["b"]
    cli = Cli(a.grpc_target)
    with Api(a.base) as api:
        refused = api.send("PUT", "/v0/topics/t", json={"zone": "north"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "zone_not_found")
    cli("cluster", "zone", 1, 4, "--zone", "north")

    def are_home() -> bool:
        owners = cluster.owners()
        return len(owners) == SHARDS and {owners[1], owners[4]} == {"a"}

    poll(are_home, 120, cluster.logs, pause=0.2)
    with TopicsClient(b.grpc_target) as client:
        put = client.put_topic("t", TopicConfig(durability="fsync"), partitions=4, zone="north")
        assert (put.zone, put.placement) == ("north", "")
        assert client.get_topic("t").zone == "north"
    with Api(a.base) as api:
        for number in range(40):
            reply = api.send("POST", "/v0/topics/t", json={"records": [{"data": number}], "partition": number % 4})
            assert reply.status_code == 200, reply.text

    a.kill()
    poll(lambda: len(owners := cluster.owners()) == SHARDS and "a" not in owners.values(), 60, cluster.logs, pause=0.2)

    def counts() -> list[int]:
        """The records of each partition, as node b tells."""
        found = requests.get(f"{b.base}/v0/topics/t", timeout=20)
        return [each["count"] for each in found.json().get("partitions", ())]

    poll(lambda: counts() == [10] * 4, 30, lambda: f"{counts()}", pause=0.2)
    a.start()
    poll(are_home, 120, cluster.logs, pause=0.2)
    poll(lambda: counts() == [10] * 4, 30, lambda: f"{counts()}", pause=0.2)
