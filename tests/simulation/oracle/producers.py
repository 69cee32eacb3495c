"""Batches of idempotent producers: each is in its topic once, however often it is sent."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from batch_support import make

from simulation.oracle.topics import History, TopicModel, back, keep, prune
from support.log_model import Rec, demand
from topics_service.engine.batches import BatchRequest
from topics_service.storage import recordbatch

if TYPE_CHECKING:
    from simulation.world import World

REMEMBERED = 5
"""Batches of a producer that the engine knows again."""


class Sent(NamedTuple):
    """A batch that was written: its first sequence number, records, first seq, and the write that brought it."""

    sequence: int
    count: int
    first_seq: int
    write: int


class Producers:
    """Every batch, checked. `sent` is as written last, by producer."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.sent: Mapping[int, tuple[Sent, ...]] = {}
        self.history: History[Mapping[int, tuple[Sent, ...]]] = [(0, {})]

    def append(self, topic: TopicModel, producer: int, sequence: int, values: Sequence[bytes]) -> int:
        """Send a batch to a topic of the class fsync without bounds; returns the ticket of the answer."""
        world, log = self._world, topic.log
        body = make(values, ts=[world.now] * len(values), producer=(producer, 0, sequence))
        header = recordbatch.check(body, max_bytes=1 << 20)
        request = BatchRequest(topic=topic.name, partition=0, header=header, body=body)
        known = self.sent.get(producer, ())
        old = next((each for each in known if each.sequence == sequence), None)
        reply, ticket = world.call(lambda: world.engine.batches.append(request))
        if old is not None:
            demand(reply.deduped, f"batch {sequence} of producer {producer} is appended again")
            demand((reply.first_seq, reply.count) == (old.first_seq, old.count), "a batch sent again has another place")
            world.owe(ticket, old.write, f"batch {sequence} of producer {producer}, again")
            world.trace.meet("a batch sent again")
            return ticket
        demand(not reply.deduped, f"batch {sequence} of producer {producer} is new, and is taken for an old one")
        state, count = log.written, len(values)
        demand(reply.first_seq == state.head + 1, f"the first seq is {reply.first_seq}, the head was {state.head}")
        demand(reply.first_seq > log.seen, f"seq {reply.first_seq} was given out before")
        ts = max(world.now, state.last_ts)
        recs = [
            Rec(reply.first_seq + i, ts, value, stored=(i + 1) * len(body) // count - i * len(body) // count)
            for i, value in enumerate(values)
        ]
        waits = log.commit(state.appended(recs, topic.config, None), world.w, world.log(topic), topic.config)
        demand(ticket >= waits, "a batch is acknowledged before readers see it")
        written = Sent(sequence, count, reply.first_seq, world.w)
        self.sent = {**self.sent, producer: (*known, written)[-REMEMBERED:]}
        keep(self.history, world.w, self.sent)
        world.owe(ticket, world.w, f"batch {sequence} of producer {producer}")
        world.trace.meet("a batch of a producer")
        return ticket

    def prune(self, synced: int) -> None:
        """See Topics."""
        prune(self.history, synced)

    def back(self, w: int) -> None:
        """After a crash: what was written then. It is durable by now."""
        self.sent = {
            producer: tuple(each._replace(write=0) for each in sent) for producer, sent in back(self.history, w).items()
        }
        self.history = [(0, self.sent)]
