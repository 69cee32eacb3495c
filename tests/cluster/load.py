"""Writers over HTTP while something fails, and what they were acknowledged; readers that look for it meanwhile."""

import contextlib
import itertools
import time
from collections.abc import Iterator, Sequence

from cluster.clients import EVENTS, JOBS, Addresses, Calls, HttpActor, KeyedWriter, addresses

from support.cluster import Cluster, Node
from support.http import Api, ok, path
from support.waiting import poll
from topics_service.engine.placement import home_of


class Reader(HttpActor):
    """Reads EVENTS at one node: everything that was acknowledged before a read begins has to be in its answer."""

    def __init__(self, node: Addresses, writers: Sequence[KeyedWriter], seconds: float) -> None:
        super().__init__(f"reader at {node.http}", [node], 0, seconds)
        self._writers = writers
        self.reads = 0

    def work(self) -> None:
        while not self.stopping.wait(0.01):
            seq = 3 * sum(writer.batches for writer in self._writers)
            reply = self.calls.once("POST", path(EVENTS, "/diff"), {"from_seq": max(0, seq - 1), "limit": 1})
            if reply is not None:
                assert not seq or reply["records"], f"a stale read: {seq} was acknowledged, and {reply} is there"
                self.reads += 1

    @property
    def done(self) -> int:
        return self.reads


class Load:
    """Two writers over HTTP with keys, and the comparison of what they were acknowledged with what is there."""

    def __init__(
        self, cluster: Cluster, *, seconds: float = 20, with_readers: bool = False, window_ms: int = 120_000
    ) -> None:
        """A call that takes longer than `seconds` is given up. With readers there is one at each node. `window_ms` is
        the time for which keys are known."""
        self._cluster = cluster
        with Api(cluster.nodes[0].base) as api:
            for name in (EVENTS, JOBS):
                ok(api.put(name, durability="fsync", idempotency_window_ms=window_ms), 201)
        nodes = addresses(cluster)
        self.writers = [KeyedWriter(number, nodes, seconds) for number in range(2)]
        self.readers = [Reader(node, self.writers, seconds) for node in nodes] if with_readers else []

    def wait_for_acks(self, count: int = 20, seconds: float = 60) -> None:
        """Wait until each writer has so many more acknowledgements."""
        before = [writer.batches for writer in self.writers]

        def enough() -> bool:
            for actor in (*self.writers, *self.readers):
                if actor.failure is not None:
                    raise AssertionError(f"{actor.name} failed") from actor.failure
            return all(writer.batches >= had + count for writer, had in zip(self.writers, before, strict=True))

        poll(enough, seconds, lambda: f"acknowledgements; {self._cluster.logs()}")

    def avoid(self, node: Node) -> None:
        """Let the writers leave a node, such as one that is to sleep: it would keep them until they time out."""
        for writer in self.writers:
            writer.calls.avoided = f"{node.host}:{node.http_port}"
        self.wait_for_acks(2)

    def pause(self, moment: float) -> float:
        """The longest time between two acknowledgements of a writer behind `moment`."""
        return longest_pause(self.writers, moment)

    def check(self) -> None:
        """Everything that was acknowledged is there once and in order, at every running node."""
        for node in self._cluster.running:
            with Api(node.base) as api:
                events = [record["data"] for record in api.read_all(EVENTS)]
            for writer in self.writers:
                mine = [data["n"] for data in events if data["writer"] == writer.number]
                assert mine == list(range(3 * writer.batches)), f"{writer.name} at {node.name}"

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        actors = (*self.writers, *self.readers)
        for actor in actors:
            actor.start()
        yield
        for actor in actors:
            actor.finish()
        self.check()


def longest_pause(writers: "Sequence[KeyedWriter | TopicWriter]", moment: float) -> float:
    """The longest time between two acknowledgements of one of them behind `moment`, in seconds."""
    found = [0.0]
    for writer in writers:
        times = [moment, *(each for each in writer.times if each > moment)]
        found += [later - earlier for earlier, later in itertools.pairwise(times)]
    return max(found)


class TopicWriter(HttpActor):
    """Appends numbers to one topic, each under a key of its own."""

    writes = True

    def __init__(self, topic: str, nodes: Sequence[Addresses], first: int, seconds: float) -> None:
        super().__init__(f"writer of {topic}", nodes, first, seconds)
        self.topic = topic
        self.sent = 0
        self.times: list[float] = []
        """Of each acknowledgement, by the monotonic clock."""

    def work(self) -> None:
        while not self.stopping.wait(0.02):
            body = {"records": [{"data": self.sent}], "idempotency_key": str(self.sent)}
            self.calls.until_done("POST", path(self.topic), body)
            self.sent += 1
            self.times.append(time.monotonic())

    @property
    def done(self) -> int:
        return self.sent


class ShardsLoad:
    """A writer over HTTP for each shard, in turn at all nodes, and the comparison with what is there."""

    def __init__(self, cluster: Cluster, *, seconds: float = 4, prefix: str = "topic-") -> None:
        """A call that takes longer than `seconds` is given up. Names of topics begin with `prefix`."""
        self._cluster = cluster
        self.topics = {home_of(name, cluster.shards): name for name in (f"{prefix}{n}" for n in range(100))}
        """One of each shard."""
        nodes = addresses(cluster)
        calls = Calls(nodes, 0, seconds)
        for name in self.topics.values():
            calls.until_done("PUT", path(name), {"durability": "fsync", "idempotency_window_ms": 600_000})
        calls.close()
        self.writers = [
            TopicWriter(topic, nodes, shard % len(nodes), seconds) for shard, topic in sorted(self.topics.items())
        ]

    def wait_for_acks(self, count: int = 3, seconds: float = 60) -> None:
        """Wait until the writer of each shard has so many more acknowledgements."""
        before = [writer.sent for writer in self.writers]

        def enough() -> bool:
            for writer in self.writers:
                if writer.failure is not None:
                    raise AssertionError(f"{writer.name} failed") from writer.failure
            return all(writer.sent >= had + count for writer, had in zip(self.writers, before, strict=True))

        poll(enough, seconds, lambda: f"acknowledgements; {[w.sent for w in self.writers]}; {self._cluster.logs()}")

    def pause(self, moment: float) -> float:
        """The longest time between two acknowledgements of a shard behind `moment`."""
        return longest_pause(self.writers, moment)

    def compare(self) -> None:
        """Every node shows what was acknowledged to now, while more is written."""
        sent = [writer.sent for writer in self.writers]
        for node in self._cluster.running:
            with Api(node.base) as api:
                for writer, count in zip(self.writers, sent, strict=True):
                    found = [record["data"] for record in api.read_all(writer.topic)]
                    assert found == list(range(len(found))), f"{writer.topic} at {node.name}"
                    assert len(found) >= count, f"{writer.topic} at {node.name}"

    def check(self, cluster: Cluster | None = None) -> None:
        """Everything that was acknowledged is there once and in order, at every running node."""
        for node in (cluster or self._cluster).running:
            with Api(node.base) as api:
                for writer in self.writers:
                    found = [record["data"] for record in api.read_all(writer.topic)]
                    assert found == list(range(writer.sent)), f"{writer.topic} at {node.name}"

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        for writer in self.writers:
            writer.start()
        yield
        for writer in self.writers:
            writer.finish()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """All writers; the block ends with the comparison."""
        with self.writing():
            yield
        self.check()
