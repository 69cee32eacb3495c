"""Clients of a cluster of real processes that read at followers what they have written, over kills of nodes."""

import contextlib
import itertools
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.cluster import Cluster, Node
from support.etcd import Etcd
from support.http import Api
from support.s3 import S3
from support.waiting import poll
from topics_client import NotFoundError, Retry, TopicConfig, TopicsClient
from topics_service.api.request_context import POSITION

PATIENT = Retry(seconds=60)


@pytest.fixture
def cluster(tmp_path: Path, s3: S3, etcd: Etcd) -> Iterator[Cluster]:
    with Cluster(tmp_path, etcd.address, f"{s3.bucket()}/t", s3.environment) as cluster:
        cluster.wait_for_followers(2)
        yield cluster


def targets(cluster: Cluster, first: Node) -> list[str]:
    """The addresses of all nodes."""
    return [first.grpc_target, *(node.grpc_target for node in cluster.nodes if node is not first)]


def reads(node: Node) -> float:
    """The reads that the node has answered as a follower."""
    return node.metrics()["topics_cluster_follower_reads_total"]


class Reader:
    """Writes, and at once reads what it has written at its node, in a thread until `stop`."""

    def __init__(self, cluster: Cluster, node: Node) -> None:
        self.node = node
        self.rounds = 0
        self.failure: BaseException | None = None
        self._targets = targets(cluster, node)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            with TopicsClient(self._targets, retry=PATIENT, read_from="followers") as client:
                while not self._stop.is_set():
                    self._round(client)
                    self.rounds += 1
        except BaseException as error:
            self.failure = error

    def _round(self, client: TopicsClient) -> None:
        topic, number = f"of-{self.node.name}", self.rounds
        seq = client.append(topic, number, config=TopicConfig(durability="fsync")).last_seq
        page = client.diff(topic, seq - 1)
        assert [record.value for record in page.records] == [number], f"round {number}"
        assert page.head_seq == client.get_topic(topic).head_seq == seq
        if number % 10 == 9:
            assert [record.seq for record in client.read(topic, last=3)] == [seq - 2, seq - 1, seq]
            client.delete_topic(topic)
            with pytest.raises(NotFoundError):
                client.get_topic(topic)

    def stop(self) -> None:
        """End, with the error if there was one."""
        self._stop.set()
        self._thread.join(90)
        assert not self._thread.is_alive()
        if self.failure is not None:
            raise AssertionError(f"at {self.node.name}, in round {self.rounds}") from self.failure


@pytest.mark.timeout(240)
def test_writes_are_read_at_every_node_at_once_over_kills_of_the_owner(cluster: Cluster) -> None:
    readers = [Reader(cluster, node) for node in cluster.nodes]

    def progress() -> None:
        before = [reader.rounds for reader in readers]

        def enough() -> bool:
            assert not any(reader.failure for reader in readers), [str(reader.failure) for reader in readers]
            return all(reader.rounds > had + 20 for reader, had in zip(readers, before, strict=True))

        poll(enough, 90, "rounds")

    with contextlib.ExitStack() as stack:
        for reader in readers:
            stack.callback(reader.stop)
        progress()
        served = sum(map(reads, cluster.nodes))
        assert served >= 40, served
        for _ in range(2):
            owner = cluster.owner()
            owner.kill()
            cluster.owner(other_than=owner)
            progress()
            owner.start()
            cluster.wait_for_followers(2)
        progress()
        assert sum(map(reads, cluster.running)) > 0
    print(f"{[reader.rounds for reader in readers]} rounds, {served:.0f} reads at followers before the first kill")


def test_writes_over_http_are_read_at_every_node(cluster: Cluster) -> None:
    with contextlib.ExitStack() as stack:
        apis = [stack.enter_context(Api(node.base)) for node in cluster.nodes]
        for number, (writer, reader) in zip(range(60), itertools.cycle(itertools.product(apis, apis)), strict=False):
            written = writer.send("POST", "/v0/topics/t", {"records": [{"data": number}]})
            headers = {POSITION: written.headers[POSITION]}
            page = reader.send("POST", "/v0/topics/t/diff", {"from_seq": number}, headers=headers)
            assert [record["data"] for record in page.json()["records"]] == [number]
    assert sum(map(reads, cluster.nodes)) >= 30


def test_a_client_goes_on_when_its_node_is_killed(cluster: Cluster) -> None:
    owner = cluster.owner()
    follower = next(node for node in cluster.nodes if node is not owner)
    for read_from in ("owner", "followers"):
        with TopicsClient(targets(cluster, follower), retry=PATIENT, read_from=read_from) as client:
            first = client.append("t", 1, config=TopicConfig(durability="fsync")).last_seq
            follower.kill()
            assert client.append("t", 2).last_seq == first + 1
            owner.kill()  # the owner's link is lost as well, and the configured node is away
            assert client.append("t", 3).last_seq == first + 2
            assert [record.value for record in client.read("t", first - 1)] == [1, 2, 3]
        for node in (follower, owner):
            node.start()
        cluster.wait_for_followers(2)
        owner = cluster.owner()
        follower = next(node for node in cluster.nodes if node is not owner)
