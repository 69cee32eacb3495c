"""The format of the log: which version is written, when a later one becomes final, and who is refused then."""

import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import obstore
import pytest
from cluster.load import ShardsLoad

from support.cluster import Cluster, Node
from support.etcd import Etcd
from support.s3 import S3
from support.server import StartFailedError
from support.waiting import poll
from topics_client import TopicsClient
from topics_cluster import coordinator, formats, objects
from topics_cluster.coordinator import Addresses
from topics_cluster.formats import FormatError
from topics_cluster.memory import MemoryBucket
from topics_cluster.objects import HEADER_BYTES

TWO = range(1, 3)
SHARDS = 8
_VERSION_AT = 8  # behind the magic


def node(name: str, reads: range) -> coordinator.Node:
    addresses = Addresses(http="a:1", grpc="a:2")
    return coordinator.Node(name=name, addresses=addresses, version="9.9", formats=(reads[0], reads[-1]))


def living(*moments: list[coordinator.Node]) -> Callable[[], Awaitable[list[coordinator.Node]]]:
    """The nodes that live, at each look; the last stay."""
    left = list(moments)

    async def nodes() -> list[coordinator.Node]:
        return left.pop(0) if len(left) > 1 else left[0]

    return nodes


async def test_the_first_version_is_final_until_a_later_one_is(monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = MemoryBucket()
    assert await formats.written(bucket) == 1
    assert await formats.finalize(bucket, living([])) == 1
    monkeypatch.setattr(objects, "READABLE", TWO)
    assert await formats.written(bucket) == 1
    assert await formats.finalize(bucket, living([node("a", TWO), node("b", range(2, 9))])) == 2
    assert await formats.written(bucket) == await formats.finalize(bucket, living([])) == 2


async def test_nodes_that_do_not_read_a_version_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = MemoryBucket()
    monkeypatch.setattr(objects, "READABLE", TWO)
    nodes = [node("c", range(1, 2)), node("b", TWO), node("a", range(3, 5))]
    with pytest.raises(FormatError, match=r"format 2 can't be read by a \(9\.9\), c \(9\.9\): upgrade all nodes first"):
        await formats.finalize(bucket, living(nodes))
    with pytest.raises(FormatError, match="no node lives"):
        await formats.finalize(bucket, living([]))
    assert await formats.final(bucket) == 1
    with pytest.raises(FormatError, match=r"format 2 is final, and can't be read by a .*, c .*, which has just joined"):
        await formats.finalize(bucket, living([node("b", TWO)], nodes))
    assert await formats.final(bucket) == 2


@pytest.mark.parametrize(("readable", "told"), [(range(1, 2), "reads 1: use a later one"),
                                               (range(3, 6), "reads 3 to 5: use a former one")])  # fmt: skip
async def test_a_release_that_does_not_write_the_final_version_is_refused(
    monkeypatch: pytest.MonkeyPatch, readable: range, told: str
) -> None:
    bucket = MemoryBucket()
    monkeypatch.setattr(objects, "READABLE", TWO)
    await formats.finalize(bucket, living([node("a", TWO)]))
    monkeypatch.setattr(objects, "READABLE", readable)
    for refused in (formats.written(bucket), formats.finalize(bucket, living([node("a", readable)]))):
        with pytest.raises(FormatError, match=f"the cluster's log has format 2, this version of topics {told}"):
            await refused


def later_release(folder: Path) -> Path:
    """The command of a release that reads versions 1 and 2."""
    later = folder / "topics-of-a-later-release"
    later.write_text(
        f"#!{sys.executable}\nimport sys\nfrom topics_cli import main\nfrom topics_cluster import objects\n"
        "objects.READABLE = range(1, 3)\nsys.exit(main())\n"
    )
    later.chmod(0o755)
    return later


def test_a_rolling_upgrade_the_way_back_and_the_end_of_it(s3: S3, etcd: Etcd, tmp_path: Path) -> None:
    """A release that reads version 2 writes version 1 until all nodes are of it and the operator says so."""
    later = later_release(tmp_path)
    store = s3.bucket()
    cluster = Cluster(tmp_path, etcd.address, store, s3.environment, nodes=2)
    former = cluster["a"]._program
    written: list[bytes] = []

    def write() -> int:
        """Append through the owner, read at every node, and return the version of the newest object with data."""
        with TopicsClient(cluster.owner().grpc_target) as client:
            written.append(b"%d" % len(written))
            client.append("kept", written[-1])
        for each in cluster.running:
            with TopicsClient(each.grpc_target) as client:
                assert [record.value for record in client.read("kept")] == written
        return versions()[-1]

    def versions() -> list[int]:
        """Those of all objects of the log with data."""
        found = s3.store(f"{store}/{cluster.name}")
        names = sorted(entry["path"] for page in obstore.list(found, "s0/log/") for entry in page)
        contents = [bytes(obstore.get(found, name).bytes()) for name in names]
        return [content[_VERSION_AT] for content in contents if len(content) > HEADER_BYTES]

    def change(changed: Node, program: Path) -> None:
        """Restart a node with another release, and let it own the shard."""
        changed.stop()
        changed.use(program)
        changed.start()
        cluster.wait_for_followers(1)
        move(changed)

    def move(to: Node) -> None:
        if cluster.owner() is not to:
            cluster.command("move", to.name, "--server", to.grpc_target)

    with cluster:
        assert write() == 1
        told = cluster.command("finalize", check=False, program=later)
        assert (told.returncode, "can't be read by a (" in told.stderr) == (1, True)
        change(cluster["b"], later)
        assert cluster.owner() is cluster["b"]
        assert write() == 1, "the former release has to read it"
        assert "can't be read by a (" in cluster.command("finalize", check=False, program=later).stderr
        change(cluster["b"], former)
        assert write() == 1, "the way back"
        for each in cluster.nodes:
            change(each, later)
            assert write() == 1
        rows = [json.loads(line) for line in cluster.command("status", "--json", *at(cluster)).stdout.splitlines()]
        assert [(row["formats"], row["format"]) for row in rows] == [("1-2", 1)] * 2
        assert "the log has format 1, all nodes read 2" in cluster.command("status", *at(cluster)).stderr
        told = cluster.command("finalize", program=later)
        assert told.stdout.endswith(": format 2 is final, new owners write it\n")
        assert write() == 1, "an owner writes one format"
        move(next(each for each in cluster.nodes if each is not cluster.owner()))
        assert write() == 2
        follower = next(each for each in cluster.nodes if each is not cluster.owner())
        follower.stop()
        follower.use(former)
        with pytest.raises(StartFailedError, match="the cluster's log has format 2, this version of topics reads 1"):
            follower.start()
        follower.use(later)
        follower.start()
        assert write() == 2
        assert json.loads(cluster.command("finalize", "--json", program=later).stdout)["before"] == 2
        assert sorted(versions()) == versions()


def at(cluster: Cluster) -> tuple[str, str]:
    return "--server", cluster.owner().grpc_target


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_nodes_of_two_releases_share_eight_shards(s3: S3, etcd: Etcd, tmp_path: Path) -> None:
    """Under load, node by node: shards of each release are written and read through nodes of the other."""
    later, store = later_release(tmp_path), s3.bucket()
    with Cluster(tmp_path, etcd.address, store, s3.environment, shards=SHARDS) as cluster:
        former = cluster["a"]._program
        cluster.wait_until_spread()
        load = ShardsLoad(cluster)

        def versions() -> set[int]:
            """Those of the newest object with data of each log."""
            found, newest = s3.store(f"{store}/{cluster.name}"), set[int]()
            for shard in range(SHARDS):
                names = sorted(entry["path"] for page in obstore.list(found, f"s{shard}/log/") for entry in page)
                contents = (bytes(obstore.get(found, name).bytes()) for name in reversed(names))
                newest.add(next(content[_VERSION_AT] for content in contents if len(content) > HEADER_BYTES))
            return newest

        def change(node: Node, program: Path) -> None:
            cluster.wait_for_followers(1)
            assert node.stop() == 0
            load.wait_for_acks()
            node.use(program)
            node.start()
            poll(lambda: cluster.owned(node), 60, cluster.logs)
            load.wait_for_acks()
            load.compare()

        with load.running():
            load.wait_for_acks()
            for node, program in (("b", later), ("b", former), ("b", later), ("a", later)):
                change(cluster[node], program)
            assert "can't be read by c (" in cluster.command("finalize", check=False, program=later).stderr
            assert versions() == {1}, "a node of the former release has to read them"
            change(cluster["c"], later)
            cluster.command("finalize", program=later)
            for each in cluster.nodes:
                change(each, later)
            load.wait_for_acks()
            assert versions() == {2}
