"""`topics cluster`: what it makes, what it refuses, and what it shows of a cluster of two nodes."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import obstore
import pytest
from sdk.cli.runner import Cli, environment

from support.cluster import Cluster
from support.etcd import Etcd
from support.s3 import S3
from support.server import TOPICS, ServerProcess
from topics_client import TopicsClient

CLI = Cli()


@pytest.fixture
def env(s3: S3, etcd: Etcd) -> dict[str, str]:
    """The environment of a cluster that was not made yet."""
    return {
        **s3.environment,
        "TOPICS_CLUSTER": "new",
        "TOPICS_CLUSTER_STORE": f"{s3.bucket()}/some/where/",
        "TOPICS_CLUSTER_ETCD": etcd.address,
    }


@pytest.fixture(scope="module")
def cluster(s3: S3, etcd: Etcd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two nodes that run."""
    folder = tmp_path_factory.mktemp("cluster")
    with Cluster(folder, etcd.address, s3.bucket(), s3.environment, nodes=2) as cluster:
        cluster.wait_for_followers(1)
        yield cluster


def test_a_store_and_an_etcd_are_checked(env: dict[str, str]) -> None:
    store = env["TOPICS_CLUSTER_STORE"] + "new"
    rows = CLI("cluster", "check", "--rounds", 2, "--json", env=env).rows
    assert rows == [
        {"check": "create", "passed": True, "store": store},
        {"check": "race", "passed": True, "store": store, "rounds": 2},
        {"check": "etcd", "passed": True, "member": env["TOPICS_CLUSTER_ETCD"]},
    ]
    told = CLI("cluster", "check", "--rounds", 1, env=env | {"TOPICS_CLUSTER_ETCD": ""})
    assert told.err == "etcd was not checked: give --etcd, or set TOPICS_CLUSTER_ETCD\n"
    assert told.out.splitlines() == [
        f"{store}: a second create of an object is refused",
        f"{store}: 1 race of 8 writers had one winner each",
    ]
    told = CLI("cluster", "check", "--rounds", 1, "--etcd", "127.0.0.1:1", env=env, code=1).err
    assert told.startswith("topics cluster check: etcd 127.0.0.1:1: ")
    told = CLI("cluster", "check", env=env | {"AWS_SECRET_ACCESS_KEY": "wrong"}, code=1).err
    assert "SignatureDoesNotMatch" in told


def test_a_cluster_is_made_once(env: dict[str, str]) -> None:
    store = env["TOPICS_CLUSTER_STORE"] + "new"
    assert CLI("cluster", "init", env=env).out == f"{store} is a cluster with 8 shards\n"
    told = CLI("cluster", "init", env=env, code=1).err
    assert told == f"topics cluster init: there is a cluster at {store}\n"
    assert CLI("cluster", "init", "--cluster", "other", "--json", env=env).row["bytes"] == 0


def test_a_cluster_is_made_with_its_number_of_shards(env: dict[str, str], s3: S3) -> None:
    bucket = s3.store(env["TOPICS_CLUSTER_STORE"])
    obstore.put(bucket, f"other/s2/log/{1:020}", b"x")
    store = env["TOPICS_CLUSTER_STORE"] + "new"
    assert CLI("cluster", "init", "--shards", 3, env=env).out == f"{store} is a cluster with 3 shards\n"
    assert bytes(obstore.get(bucket, "new/cluster.json").bytes()).startswith(b'{"format":1,"shards":3,')
    told = CLI("cluster", "init", "--shards", 3, "--cluster", "other", env=env, code=1).err
    assert told.startswith("topics cluster init: shard 2 is not empty")
    assert CLI("cluster", "init", "--shards", 2, "--cluster", "other", "--json", env=env).row["shards"] == 2
    assert CLI("cluster", "init", "--shards", 1, "--cluster", "alone", env=env).out.endswith("alone is a cluster\n")
    assert "64 shards at most" in CLI("cluster", "init", "--shards", 65, env=env, code=2).err
    told = CLI("cluster", "init", "--shards", 2, "--from", "/nowhere", "--cluster", "third", env=env, code=1).err
    assert told == "topics cluster init: no data directory /nowhere\n"


def test_a_cluster_is_not_made_over_the_log_of_another(env: dict[str, str], s3: S3) -> None:
    bucket = s3.store(env["TOPICS_CLUSTER_STORE"])
    obstore.put(bucket, f"new/s0/log/{1:020}", b"x")
    told = CLI("cluster", "init", env=env, code=1).err
    assert told.startswith(f"topics cluster init: shard 0 is not empty: there is s0/log/{1:020}. Take another name")


def test_a_format_is_final_for_a_cluster_with_nodes(env: dict[str, str]) -> None:
    told = CLI("cluster", "finalize", env=env, code=1).err
    assert told == "topics cluster finalize: there is no cluster: `topics cluster init` makes one\n"
    CLI("cluster", "init", env=env)
    store = env["TOPICS_CLUSTER_STORE"] + "new"
    assert CLI("cluster", "finalize", env=env).out == f"{store}: format 1 was final before\n"
    told = CLI("cluster", "finalize", env=env | {"TOPICS_CLUSTER_ETCD": ""}, code=2).err
    assert "no etcd: give --etcd, or set TOPICS_CLUSTER_ETCD" in told


def test_a_cluster_begins_with_the_data_of_a_server(env: dict[str, str], tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "single") as server:
        with TopicsClient(server.grpc_target) as client:
            client.append_many("kept", [b"a", b"b"])
        told = CLI("cluster", "init", "--from", server.data_dir, env=env, code=1).err
        assert str(server.data_dir) in told
    row = CLI("cluster", "init", "--from", server.data_dir, "--json", env=env).row
    assert row["bytes"] > 0
    store, _, _ = env["TOPICS_CLUSTER_STORE"].rpartition("/")
    cluster = Cluster(tmp_path, env["TOPICS_CLUSTER_ETCD"], store, env, nodes=1, env={"TOPICS_CLUSTER": "new"})
    cluster.name = "new"
    with cluster, TopicsClient(cluster["a"].grpc_target) as client:
        assert [record.value for record in client.read("kept")] == [b"a", b"b"]
        assert client.append("kept", b"c").last_seq == 3


def test_words_that_make_no_sense(env: dict[str, str], tmp_path: Path) -> None:
    for given, told in (
        ({"TOPICS_CLUSTER_STORE": ""}, "no object store: give --store, or set TOPICS_CLUSTER_STORE"),
        ({"TOPICS_CLUSTER_STORE": "bucket"}, "bucket is not the URL of an object store"),
        ({"TOPICS_CLUSTER_ETCD": "there"}, "there is not a list of addresses"),
    ):
        assert told in CLI("cluster", "check", env=env | given, code=2).err
    told = CLI("cluster", "init", "--from", tmp_path / "none", env=env, code=1).err
    assert str(tmp_path / "none") in told


def test_a_node_wants_a_cluster(env: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x" * 32)
    folder = ["--data-dir", tmp_path / "data", "--cluster-secret-file", tmp_path / "secret"]
    words = [str(word) for word in (TOPICS, "serve", *folder, "--port", 0, "--grpc-port", 0)]
    done = subprocess.run(words, env=environment(None, env), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    store = f"{env['TOPICS_CLUSTER_STORE']}new"
    told = f"topics: TOPICS_CLUSTER_STORE {store}: there is no cluster: `topics cluster init` makes one"
    assert done.stderr.splitlines()[-1] == told


def test_nodes_are_shown_and_the_shard_is_moved(cluster: Cluster) -> None:
    for node in cluster.nodes:
        rows = Cli(node.grpc_target)("cluster", "status", "--json").rows
        assert [row["node"] for row in rows] == ["a", "b"]
        assert {row["node"] for row in rows if row["role"] == "owner"} == {cluster.owner().name}
        assert [row["grpc"] for row in rows] == [each.grpc_target for each in cluster.nodes]
    owner = cluster.owner()
    other = next(node for node in cluster.nodes if node is not owner)
    cli = Cli(owner.grpc_target)
    before = next(row for row in cli("cluster", "status", "--json").rows if row["role"] == "owner")
    moved = cli("cluster", "move", other.name, "--json").row
    assert moved["node"] == other.name
    assert moved["epoch"] > before["epoch"]
    assert cluster.owner() is other
    table = cli("cluster", "status").cells
    assert table[0][:4] == ["NODE", "ROLE", "EPOCH", "NUMBER"]
    assert {line[0]: line[1] for line in table[1:]}[other.name] == "owner"
    assert cli("cluster", "move", other.name).out == f"{other.name} owns the shard, epoch {moved['epoch']}\n"
    assert "no node with the name 'c' lives" in cli("cluster", "move", "c", code=1).err


def test_a_node_is_drained_where_there_is_one_shard(cluster: Cluster) -> None:
    cluster.wait_for_followers(1)
    owner = cluster.owner()
    other = next(node for node in cluster.nodes if node is not owner)
    cli = Cli(other.grpc_target)
    assert cli("cluster", "drain", owner.name, "--json").row == {"node": owner.name, "drained": True}
    assert cluster.owner() is other
    cluster.wait_for_followers(1)  # it follows all the same
    assert f"the node {owner.name} is drained" in cli("cluster", "move", owner.name, code=1).err
    assert "no other node can take the shards" in cli("cluster", "drain", other.name, code=1).err
    assert cli("cluster", "rebalance").out == "each node has its share\n"
    assert cli("cluster", "undrain", owner.name).out == f"{owner.name} may own shards\n"
    assert cluster.owner() is other, "nothing asks for another move"
    assert "no node with the name 'c' lives, or is drained" in cli("cluster", "undrain", "c", code=1).err


def test_a_server_that_is_no_node(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server:
        cli = Cli(server.grpc_target)
        for words in (("status",), ("move", "a"), ("drain", "a"), ("undrain", "a"), ("rebalance",)):
            assert "invalid_request" in cli("cluster", *words, code=1).err
