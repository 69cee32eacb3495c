"""Long reads at the followers of a cluster of real processes, as Spark and the lakehouse make them."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_topics.fetch import Fetcher, Gap, SeqRange
from support.bulk import Client, check_whole
from support.cluster import Cluster, Node
from support.etcd import Etcd
from support.s3 import S3
from topics_client import Address, TopicsClient
from topics_proto.v1 import record_pb2, topics_service_pb2

LONG = b'"%b"' % (b"x" * 3000)


@pytest.fixture
def cluster(tmp_path: Path, s3: S3, etcd: Etcd) -> Iterator[Cluster]:
    with Cluster(tmp_path, etcd.address, f"{s3.bucket()}/t", s3.environment) as cluster:
        cluster.wait_for_followers(2)
        yield cluster


def reads(node: Node) -> float:
    """The long reads that the node has served as a follower."""
    return node.metrics()["topics_cluster_follower_reads_total"]


def address(node: Node) -> Address:
    return Address.parse(node.grpc_target)


def fetched(node: Node, head: int) -> list[int]:
    """All seqs of the topic, read as Spark does from the cluster of the node."""
    with TopicsClient(node.grpc_target) as client:
        topic_id = client.get_topic("t").topic_id
    with Fetcher(address(node)) as fetcher:
        found = list(fetcher.read(SeqRange("t", topic_id, 0, 1, head)))
    assert not [each for each in found if isinstance(each, Gap)]
    return [seq for batch in found if not isinstance(batch, Gap) for seq in batch["seq"].to_pylist()]


def test_what_was_acknowledged_is_at_every_follower_while_others_write(cluster: Cluster) -> None:
    owner = cluster.owner()
    followers = [node for node in cluster.nodes if node is not owner]
    stop = threading.Event()

    def write_elsewhere() -> None:
        with Client(owner.grpc_target) as other:
            while not stop.is_set():
                other.append("busy", *[LONG] * 50)

    writer = threading.Thread(target=write_elsewhere)
    writer.start()
    clients = [Client(node.grpc_target) for node in followers]
    try:
        with Client(owner.grpc_target) as at_owner:
            for number in range(60):
                tag = record_pb2.Column(shared=b"t%d" % number)
                head = at_owner.append("fresh", b"%d" % number, tag=tag)
                at = clients[number % 2]
                assert at.seqs("fresh", from_seq=head - 1, end_seq=head) == [head]
                if number % 3 == 2:
                    gone = record_pb2.TagMatch(eq=f"t{number - 1}")
                    request = topics_service_pb2.DeleteRecordsRequest(topic="fresh", match=gone)
                    at_owner.stub.DeleteRecords(request, timeout=30)
                    assert at.seqs("fresh", from_seq=head - 3) == [head - 2, head]
    finally:
        stop.set()
        writer.join(30)
        for client in clients:
            client.close()
    served = sum(map(reads, followers))
    print(f"{served:.0f} of 80 reads were served by followers")
    assert served >= 40


def test_spark_reads_from_followers_and_goes_on_when_they_or_the_owner_die(cluster: Cluster) -> None:
    owner = cluster.owner()
    follower, third = (node for node in cluster.nodes if node is not owner)
    with Client(owner.grpc_target) as at_owner:
        for _ in range(100):
            head = at_owner.append("t", *[LONG] * 100)
    assert fetched(owner, head) == list(range(1, head + 1))
    assert (reads(owner), reads(follower) + reads(third)) == (0, 1)

    with Client(follower.grpc_target) as at_follower:
        frames = at_follower.stream("t", end_seq=head, frame_bytes=1)
        begun = [next(frames)]
        owner.kill()
        new = cluster.owner(other_than=owner)
        with Client(new.grpc_target) as at_new:
            assert at_new.append("t", b"1") > head
        assert len(check_whole([*begun, *frames], 0, head)) == head
    owner.start()
    cluster.wait_for_followers(2)

    one = cluster.owner()
    with Fetcher(address(one)) as fetcher, TopicsClient(one.grpc_target) as client:
        found = iter(fetcher.read(SeqRange("t", client.get_topic("t").topic_id, 0, 1, head)))
        first = next(found)
        for node in cluster.nodes:
            if node is not one:
                node.kill()
        seqs = [seq for batch in (first, *found) if not isinstance(batch, Gap) for seq in batch["seq"].to_pylist()]
    assert seqs == list(range(1, head + 1))
