"""Writers over HTTP while something fails, and what they were acknowledged; readers that look for it meanwhile."""

import contextlib
import itertools
from collections.abc import Iterator, Sequence

from cluster.clients import EVENTS, JOBS, Addresses, HttpActor, KeyedWriter, addresses

from support.cluster import Cluster, Node
from support.http import Api, ok, path
from support.waiting import poll


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
        found = [0.0]
        for writer in self.writers:
            times = [moment, *(each for each in writer.times if each > moment)]
            found += [later - earlier for earlier, later in itertools.pairwise(times)]
        return max(found)

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
