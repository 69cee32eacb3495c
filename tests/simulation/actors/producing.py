"""Idempotent producers: what is not acknowledged to them they send again, also over crashes."""

from simulation.actors.base import Actor
from simulation.oracle import calls
from simulation.oracle.producers import REMEMBERED
from simulation.world import World

TOPIC = "k"
UNBOUNDED: dict[str, object] = {"durability": "fsync", "ttl_ms": 0, "cap_records": 0, "cap_bytes": 0}
Unacknowledged = tuple[int, list[bytes], int | None]
"""The first sequence number of a batch, its values, and the ticket of its answer; None: this engine was not sent it."""


class Producer(Actor):
    """Two producers of one topic, with some batches each that are not acknowledged."""

    weight = 8

    def __init__(self, world: World, seed: object) -> None:
        super().__init__(world, seed)
        self._under_way: dict[int, list[Unacknowledged]] = {7: [], 8: []}
        self._next = dict.fromkeys(self._under_way, 0)
        world.on_start.append(self._again)

    def act(self) -> None:
        """See Actor."""
        topic = self.topic(TOPIC)
        if topic is None:
            if self.world.topics.find(TOPIC) is None:
                self.tell("makes its topic")
                calls.put(self.world, TOPIC, UNBOUNDED)
            return
        producer = self.pick(*self._under_way)
        mine = self._under_way[producer]
        mine[:] = [each for each in mine if each[2] is None or each[2] > self.world.synced]
        lost = next((i for i, each in enumerate(mine) if each[2] is None), None)
        if lost is None and mine and self.chance(0.2):
            lost = self.random.randrange(len(mine))
        if lost is None and len(mine) < REMEMBERED:
            values = [b"%d-%d" % (producer, self._next[producer] + i) for i in range(self.random.randint(1, 3))]
            mine.append((self._next[producer], values, None))
            self._next[producer] += len(values)
            lost = len(mine) - 1
        if lost is None:
            return
        sequence, values, _ = mine[lost]
        self.tell(f"{producer} sends {sequence}, {len(values)} records")
        mine[lost] = sequence, values, self.world.producers.append(topic, producer, sequence, values)

    def _again(self) -> None:
        """The engine is a new one: nobody knows what it has of these."""
        self._under_way = {
            producer: [(sequence, values, None) for sequence, values, _ in mine]
            for producer, mine in self._under_way.items()
        }
