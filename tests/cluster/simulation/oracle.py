"""The log as every reader must read it, and the promises that were made of it."""

from typing import NamedTuple

from support.log_model import demand
from support.trace import Trace
from topics_cluster import objects
from topics_cluster.objects import Kind


class Fact(NamedTuple):
    """A batch of the log: the epoch that it was written in, and its key, which is written once."""

    epoch: int
    key: bytes


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
        self._at_fence: dict[int, int] = {}  # the highest ticket acknowledged when the fence of an epoch was made
        self._shard = shard
        self._prefix = objects.prefix(shard)
        self._objects: dict[int, bytes] = {}
        self._next = 1

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
            self._at_fence[self.epoch] = self.acknowledged
            self.trace.meet("a fence")
            return
        demand(header.epoch == self.epoch, f"data of epoch {header.epoch} is read as of epoch {self.epoch}")
        for batch in batches:
            fact = Fact(header.epoch, batch.rows[0][2])
            if batch.ticket <= len(self.facts):
                demand(self.facts[batch.ticket - 1].key == fact.key, f"ticket {batch.ticket} is another batch")
                continue
            demand(batch.ticket == len(self.facts) + 1, f"ticket {batch.ticket} follows {len(self.facts)}")
            self.facts.append(fact)
        self._next += 1

    def has_acknowledged(self, node: str, ticket: int, keys: list[bytes]) -> None:
        """A node acknowledges the batches up to `ticket`, the last of which have these keys."""
        what = f"{node} acknowledges ticket {ticket}"
        demand(ticket <= len(self.facts), f"{what}, the log ends at {len(self.facts)}")
        found = [fact.key for fact in self.facts[ticket - len(keys) : ticket]]
        demand(found == keys, f"{what} of {keys}, the log has {found}")
        self.acknowledged = max(self.acknowledged, ticket)
        self.trace.meet("an acknowledgement", len(keys))

    def has_read(self, node: str, keys: list[bytes], start: int) -> None:
        """A node has applied batches of the log, from index `start` on."""
        found = [fact.key for fact in self.facts[start : start + len(keys)]]
        demand(found == keys, f"{node} applies {keys} behind ticket {start}, the log has {found}")

    def owns(self, node: str, epoch: int, count: int) -> None:
        """A node owns, with so many batches: all that was acknowledged when its fence was made."""
        demand(epoch in self._at_fence, f"{node} owns with a fence that nobody reads")
        self.is_whole(node, count, self._at_fence[epoch])

    def is_whole(self, node: str, count: int, at_least: int) -> None:
        """A node has `count` batches, and serves: at least what had been acknowledged by some moment."""
        demand(count >= at_least, f"{node} has the batches up to {count}, and {at_least} was acknowledged")
