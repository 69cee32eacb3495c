"""Nodes as processes, with a real etcd: kills, handovers and restarts under load, and what a single process imports."""

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from cluster.load import Load
from confluent_kafka.admin import AdminClient

from support.cluster import Cluster
from support.etcd import Etcd
from support.http import Api
from support.local_s3 import LocalS3
from topics_cluster.forward_connections import node_id
from topics_proto.v1 import admin_service_pb2, admin_service_pb2_grpc

PAUSE_SECONDS = 2.0
"""Far more than the half second of quiet cores: these tests share theirs."""


@pytest.fixture
def cluster(tmp_path: Path, etcd: Etcd) -> Iterator[Cluster]:
    """Two nodes, the second of which follows."""
    with (
        LocalS3() as store,
        Cluster(tmp_path, etcd.address, "s3://bucket/t", store.environment, nodes=2) as made,
    ):
        made.wait_for_followers(1)
        yield made


def test_a_killed_owner_is_replaced_and_comes_back_with_and_without_its_directory(cluster: Cluster) -> None:
    load = Load(cluster)
    with load.running():
        for is_kept in (True, False):
            load.wait_for_acks()
            owner, moment = cluster.owner(), time.monotonic()
            owner.kill()
            cluster.owner(other_than=owner)
            load.wait_for_acks()
            assert load.pause(moment) < PAUSE_SECONDS
            if not is_kept:
                shutil.rmtree(owner.data_dir)
            owner.start()
            cluster.wait_for_followers(1)


def test_a_handover_fails_no_call(cluster: Cluster) -> None:
    load = Load(cluster)
    with load.running():
        load.wait_for_acks()
        owner = cluster.owner()
        target = next(node for node in cluster.nodes if node is not owner)
        moment = time.monotonic()
        with grpc.insecure_channel(owner.grpc_target) as channel:
            admin = admin_service_pb2_grpc.AdminServiceStub(channel)  # type: ignore[no-untyped-call]
            admin.MoveShard(admin_service_pb2.MoveShardRequest(node=target.name), timeout=20)
        assert cluster.owner() is target
        load.wait_for_acks()
        assert load.pause(moment) < PAUSE_SECONDS
        assert [writer.calls._at for writer in load.writers] == [0, 1]  # no call was made at another node
        cluster.wait_for_followers(1)
        assert owner.metrics()["topics_cluster_handovers_total"] == 1


def test_a_stopped_owner_hands_over_and_uses_its_directory_again(cluster: Cluster) -> None:
    load = Load(cluster)
    with load.running():
        load.wait_for_acks()
        owner = cluster.owner()
        assert owner.stop() == 0
        assert cluster.owner() is not owner
        load.wait_for_acks()
        owner.start()
        cluster.wait_for_followers(1)
    assert "can't be used" not in owner.log
    assert "takes its place" not in owner.log


def test_kafka_clients_find_the_owner_at_any_node(cluster: Cluster) -> None:
    owner = cluster.owner()
    with Api(owner.base) as api:
        api.put("t", durability="fsync")
    for node in cluster.nodes:
        brokers = AdminClient({"bootstrap.servers": node.kafka_target}).list_topics(timeout=20).brokers
        assert {broker.id: broker.port for broker in brokers.values()} == {node_id(owner.name): owner.kafka_port}


def test_a_single_process_imports_nothing_of_clusters() -> None:
    program = """
import sys
import topics_cli.serve, topics_server.server, topics_server.listeners
from topics_server.settings import load
assert not load({}, {}).cluster_store
print([name for name in sys.modules if name.partition(".")[0] in {"topics_cluster", "obstore", "etcd3aio", "httpx"}])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
