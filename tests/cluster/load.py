"""Writers over HTTP while something fails, and what they were acknowledged."""

import contextlib
import itertools
from collections.abc import Iterator

from cluster.everyone import EVENTS, JOBS, KeyedWriter, addresses

from support.cluster import Cluster, Node
from support.http import Api, ok
from support.waiting import poll


class Load:
    """Two writers over HTTP with keys, and the comparison of what they were acknowledged with what is there."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        with Api(cluster.nodes[0].base) as api:
            ok(api.put(EVENTS, durability="fsync"), 201)
            ok(api.put(JOBS, durability="fsync"), 201)
        self.writers = [KeyedWriter(number, addresses(cluster)) for number in range(2)]

    def wait_for_acks(self, count: int = 20, seconds: float = 60) -> None:
        """Wait until each writer has so many more acknowledgements."""
        before = [writer.batches for writer in self.writers]

        def enough() -> bool:
            for writer in self.writers:
                if writer.failure is not None:
                    raise AssertionError(f"{writer.name} failed") from writer.failure
            return all(writer.batches >= had + count for writer, had in zip(self.writers, before, strict=True))

        poll(enough, seconds, f"acknowledgements; {self._cluster.logs()}")

    def avoid(self, node: Node) -> None:
        """Let the writers leave a node, such as one that is to sleep: it would keep them until they time out."""
        for writer in self.writers:
            writer.calls.avoided = f"127.0.0.1:{node.http_port}"
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
        for writer in self.writers:
            writer.start()
        yield
        for writer in self.writers:
            writer.finish()
        self.check()
