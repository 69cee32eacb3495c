"""Three nodes as processes with eight shards: kills, moves and the commands about them."""

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from sdk.cli.runner import Cli

from support.cluster import Cluster, Node
from support.etcd import Etcd
from support.s3 import S3
from support.waiting import poll

SHARDS = 8


@pytest.fixture(scope="module")
def cluster(s3: S3, etcd: Etcd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("shards")
    with Cluster(folder, etcd.address, s3.bucket(), s3.environment, shards=SHARDS) as cluster:
        yield cluster


def status(cluster: Cluster, node: Node) -> tuple[dict[str, dict[str, object]], dict[int, dict[str, object]]]:
    """The rows of nodes and of shards that `topics cluster status` prints."""
    rows = Cli(node.grpc_target)("cluster", "status", "--json").rows
    return {row["node"]: row for row in rows if "node" in row}, {row["shard"]: row for row in rows if "shard" in row}


def wait_until_settled(cluster: Cluster) -> None:
    """Wait until each node has its share, and each shard its follower and no other: one of before a move may stay for
    some seconds."""

    def is_in_place(row: dict[str, object]) -> bool:
        followers = row["followers"]
        assert isinstance(followers, list)
        return bool(row["owner"] and row["epoch"] and len(followers) == 1 and not row["target"])

    def is_settled() -> bool:
        node = cluster.running[0]
        nodes, shards = status(cluster, node)
        least = SHARDS // len(cluster.running)
        return (
            len(nodes) == len(cluster.running)
            and all(least <= int(str(row["owns"])) <= least + 1 for row in nodes.values())
            and all(is_in_place(row) for row in shards.values())
        )

    poll(is_settled, 120, cluster.logs, pause=0.2)


@pytest.mark.timeout(400)
def test_shards_are_placed_moved_and_taken_over(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    wait_until_settled(cluster)
    a = cluster.nodes[0]
    cli = Cli(a.grpc_target)

    nodes, shards = status(cluster, a)
    assert Counter(str(row["owner"]) for row in shards.values()) == {name: row["owns"] for name, row in nodes.items()}
    poll(lambda: all(row["behind"] in (0, None) for row in status(cluster, a)[1].values()), 30, cluster.logs, pause=0.2)
    table = cli("cluster", "status").cells
    assert table[0][:3] == ["NODE", "OWNS", "FOLLOWS"]
    assert ["SHARD", "OWNER", "EPOCH"] in [line[:3] for line in table]

    assert "the cluster has 8 shards: give --shard" in cli("cluster", "move", "b", code=2).err
    assert "there is no shard 8" in cli("cluster", "move", "--shard", 8, "b", code=1).err
    before = cluster.owners()
    assert "no node with the name 'x' lives" in cli("cluster", "move", "--shard", 1, "x", code=1).err
    assert cluster.owners() == before
    shard = next(number for number, row in shards.items() if row["owner"] == "a" and row["followers"])
    [follower] = [each["node"] for each in shards[shard]["followers"]]  # type: ignore[attr-defined]
    moved = cli("cluster", "move", "--shard", shard, follower, "--json").row
    assert (moved["node"], moved["shard"]) == (follower, shard)
    assert cluster.owners()[shard] == follower

    assert cli("cluster", "drain", "b").out.startswith("b owns no shard")
    assert "b" not in cluster.owners().values()
    assert len(cluster.owners()) == SHARDS
    assert {row["node"] for row in cli("cluster", "status", "--json").rows if row.get("drained")} == {"b"}
    assert "b" not in cluster.owners().values()
    assert cli("cluster", "undrain", "b").out == "b may own shards\n"

    told = cli("cluster", "zone", 3, 1, "--zone", "far")
    assert told.out == "shards 1, 3 prefer zone far\n"
    assert "no node lives in zone far: the shards stay elsewhere until there is one" in told.err
    assert {number for number, row in status(cluster, a)[1].items() if row["zone"] == "far"} == {1, 3}
    assert "shard 3 prefers zone far, in which no node lives" in cli("cluster", "status").err
    cleared = cli("cluster", "zone", 1, 3, "--none", "--json").row
    assert cleared == {"shards": [1, 3], "zone": None, "elsewhere": 0}
    assert all(row["zone"] is None for row in status(cluster, a)[1].values())
    assert "there is no shard 8" in cli("cluster", "zone", 8, "--none", code=1).err
    cli("cluster", "zone", 1, code=2)
    wait_until_settled(cluster)

    victim = cluster[max(Counter(cluster.owners().values()).items(), key=lambda each: each[1])[0]]
    lost = cluster.owned(victim)
    assert len(lost) == 3
    victim.kill()
    began = time.monotonic()

    cluster.wait_until_taken_over(victim)
    took = time.monotonic() - began
    with capsys.disabled():
        print(f"\n{len(lost)} shards of a killed node were taken over after {took:.2f} s")
    cluster.start([victim])
    wait_until_settled(cluster)
    assert sum(node.metrics().get("topics_cluster_refused_total", 0) for node in cluster.nodes) == 0


def test_the_last_node_is_not_drained_and_a_dry_run_moves_nothing(cluster: Cluster) -> None:
    wait_until_settled(cluster)
    cli = Cli(cluster.nodes[0].grpc_target)
    before = cluster.owners()
    assert cli("cluster", "rebalance", "--dry-run").out == "each node has its share\n"
    for name in ("a", "b"):
        cli("cluster", "drain", name)
    assert "no other node can take the shards of c" in cli("cluster", "drain", "c", code=1).err
    assert set(cluster.owners().values()) == {"c"}
    for name in ("a", "b"):
        cli("cluster", "undrain", name)
    due = cli("cluster", "rebalance", "--dry-run", "--json").rows
    assert due
    assert not any(row["moved"] for row in due)
    done = cli("cluster", "rebalance", "--json").rows
    assert all(row["moved"] for row in done)
    wait_until_settled(cluster)
    assert before.keys() == cluster.owners().keys()


def test_a_killed_node_starts_again_before_its_lease_ends(tmp_path: Path, s3: S3, etcd: Etcd) -> None:
    """Its entry is there, with the port for other nodes that it had."""
    env = {"TOPICS_CLUSTER_LEASE_SECONDS": 30}
    with Cluster(tmp_path, etcd.address, s3.bucket(), s3.environment, nodes=1, shards=2, env=env) as cluster:
        node = cluster.nodes[0]
        poll(lambda: len(cluster.owned(node)) == cluster.shards, 30, cluster.logs)
        epochs = [cluster.claimed(shard) for shard in range(cluster.shards)]
        node.kill()
        assert len(cluster.owned(node)) == cluster.shards, "the lease has ended"
        node.start()
        poll(lambda: all(cluster.claimed(shard) != epochs[shard] for shard in cluster.owned(node)), 30, cluster.logs)
