"""What actors share."""

from random import Random
from typing import TypeVar

from simulation.oracle.topics import TopicModel
from simulation.world import World
from support.log_model import Rec

T = TypeVar("T")
LOGS = ("a", "b", "c")
QUEUES = ("q", "jobs")
NAMES = (*LOGS, "p", *QUEUES, "dead")
TAGS = (None, b"a", b"ab", b"b", b"")
NODES = (None, None, b"n1", b"n2")
METAS = (None, None, b"{}", b'{"m":1}', b'{"m":"x","_topics_router":0}')


class Actor:
    """`weight` says how often it has its turn beside the others."""

    weight = 1

    def __init__(self, world: World, seed: object) -> None:
        self.world = world
        self.random = Random(f"{seed} {type(self).__name__}")

    def act(self) -> None:
        """Do one thing. Raises RefusedError and CrashError as the engine's calls do."""
        raise NotImplementedError

    def tell(self, text: str) -> None:
        """A line of the trace, about what is done now."""
        self.world.trace.tell(f"{type(self).__name__.lower()} {text}")

    def chance(self, part: float) -> bool:
        """True so often."""
        return self.random.random() < part

    def pick(self, *choices: T) -> T:
        """One of these."""
        return self.random.choice(choices)

    def topic(self, *names: str) -> TopicModel | None:
        """A topic that readers see, of these names or any."""
        found = [topic for topic in self.world.visible() if not names or topic.name in names]
        return self.random.choice(found) if found else None

    def partition(self, topic: TopicModel) -> int:
        """One of its partitions."""
        return self.random.randrange(len(topic.logs))


class Writing(Actor):
    """Has records to write, no two of the same data."""

    prefix = b"w"

    def __init__(self, world: World, seed: object) -> None:
        super().__init__(world, seed)
        self._serial = 0

    def records(self, most: int) -> list[Rec]:
        """Up to so many new ones."""
        made = []
        for _ in range(self.random.randint(1, most)):
            self._serial += 1
            data = self.prefix + str(self._serial).encode()
            data = data.ljust(self.random.randint(1, 16), b".")
            made.append(Rec(0, 0, data, self.pick(*METAS), self.pick(*TAGS), self.pick(*NODES)))
        return made
