"""The log as every reader must read it, and the promises that were made of it."""

from typing import NamedTuple

from cluster.simulation.store import NodeDisk

from support.log_model import demand
from support.trace import Trace
from topics_cluster import objects
from topics_cluster.objects import Kind, Row
from topics_service.storage.memory import MemoryBatch, MemoryStore
from topics_service.storage.store import Family


class Fact(NamedTuple):
    """A batch of the log: the epoch that it was written in, its rows, and the state of a store that ends with it."""

    epoch: int
    rows: int
    state: int


def hashed(rows: "list[Row]") -> int:
    """A hash of the rows of a batch."""
    return hash(tuple(rows))


class Oracle:
    """Knows every object of the log that was ever made, and what became of it makes no difference.

    An object that is made where one was before, in a stretch that was deleted, is none of the log.
    """

    def __init__(self, shard: int, trace: Trace) -> None:
        self.trace = trace
        self.facts: list[Fact] = []
        """The log, from ticket 1 on."""
        self.epoch = 0
        self.acknowledged = 0
        """The highest ticket that was acknowledged."""
        self._ends: dict[int, int] = {}  # the last ticket before the fence of an epoch
        self._at_fence: dict[int, int] = {}  # the highest ticket acknowledged when the fence of an epoch was made
        self._shard = shard
        self._prefix = objects.prefix(shard)
        self._objects: dict[int, bytes] = {}
        self._next = 1
        self._rows = MemoryStore()
        self._state = 0

    def made(self, name: str, data: bytes) -> None:
        """An object was made."""
        if not name.startswith(self._prefix):
            return
        number = objects.number_of(name)
        if number in self._objects:
            self.trace.meet("an object made in a deleted stretch")
            return
        self._objects[number] = data
        if number < self._next:
            self.trace.meet("an object that lands below the fence's resume")
        while self._next in self._objects:
            self._read(self._objects[self._next])

    def _read(self, data: bytes) -> None:
        header, batches = objects.decode(self._shard, self._next, data)
        if header.kind is Kind.FENCE:
            demand(header.epoch > self.epoch, f"a fence of epoch {header.epoch} in epoch {self.epoch}")
            self.epoch, self._next = header.epoch, header.resume
            self._ends[self.epoch] = len(self.facts)
            self._at_fence[self.epoch] = self.acknowledged
            self.trace.meet("a fence")
            return
        demand(header.epoch == self.epoch, f"data of epoch {header.epoch} is read as of epoch {self.epoch}")
        for batch in batches:
            found = hashed(batch.rows)
            if batch.ticket <= len(self.facts):
                demand(self.facts[batch.ticket - 1].rows == found, f"ticket {batch.ticket} is another batch")
                continue
            demand(batch.ticket == len(self.facts) + 1, f"ticket {batch.ticket} follows {len(self.facts)}")
            self._apply(batch.rows)
            self.facts.append(Fact(header.epoch, found, self._state))
        self._next += 1

    def _apply(self, rows: "list[Row]") -> None:
        """Change the rows as a store would, and the hash of all of them."""
        store, batch = self._rows, MemoryBatch()
        for op, number, key, value in rows:
            family = Family(number)
            gone = [key] if op != objects.Op.DELETE_RANGE else [each for each, _ in store.scan(family, key, value)]
            for each in gone:
                old = store.get(family, each)
                self._state ^= 0 if old is None else hash((family, each, old))
                batch.delete(family, each)
            if op == objects.Op.PUT:
                batch.put(family, key, value)
                self._state ^= hash((family, key, value))
            store.write(batch)
            batch = MemoryBatch()

    def durable(self, epoch: int) -> int:
        """The ticket up to which batches are in the log for good, for those who know of no later epoch than this."""
        return min((end for begun, end in self._ends.items() if begun > epoch), default=len(self.facts))

    def has_acknowledged(self, node: str, ticket: int, made: list[int]) -> None:
        """A node acknowledges the batches up to `ticket`, the last of which have these rows."""
        what = f"{node} acknowledges ticket {ticket}"
        demand(ticket <= len(self.facts), f"{what}, the log ends at {len(self.facts)}")
        found = [fact.rows for fact in self.facts[ticket - len(made) : ticket]]
        demand(found == made, f"{what}, and the log has other batches")
        self.acknowledged = max(self.acknowledged, ticket)
        self.trace.meet("an acknowledgement", len(made))

    def has(self, node: str, ticket: int, disk: NodeDisk) -> None:
        """A node has exactly the batches of the log up to a ticket."""
        demand(ticket <= len(self.facts), f"{node} has ticket {ticket}, the log ends at {len(self.facts)}")
        state = self.facts[ticket - 1].state if ticket else 0
        demand(disk.state() == state, f"{node} has other rows than the log up to ticket {ticket}")

    def owns(self, node: str, epoch: int, count: int) -> None:
        """A node owns, with so many batches: all that was acknowledged when its fence was made."""
        demand(epoch in self._at_fence, f"{node} owns with a fence that nobody reads")
        self.is_whole(node, count, self._at_fence[epoch])

    def is_whole(self, node: str, count: int, at_least: int) -> None:
        """A node has `count` batches, and serves: at least what had been acknowledged by some moment."""
        demand(count >= at_least, f"{node} has the batches up to {count}, and {at_least} was acknowledged")
