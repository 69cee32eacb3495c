"""What the queue tests share: a world with one queue and short ways to claim and settle."""

from collections.abc import Iterable, Sequence
from itertools import count
from typing import Any

from engine_support import World

from topics_service.engine.model import TagMatch
from topics_service.engine.queue.jobs import (
    ClaimReply,
    ClaimRequest,
    Job,
    JobState,
    JobView,
    ListJobsRequest,
    RedriveReply,
    RedriveRequest,
    SettleReply,
    SettleRequest,
)

LEASE = 1000


class QueueWorld(World):
    """A world whose topic `q` is a queue. `work` makes jobs, `claim` and the rest act on it."""

    def __init__(self, *args: Any, **engine: Any) -> None:
        self._random = count(1)
        super().__init__(*args, **{"random": self._bytes, **engine})

    def _bytes(self, size: int) -> bytes:
        return b"".join(next(self._random).to_bytes(16, "big") for _ in range(size // 16))

    def queue(self, topic: str = "q", **config: Any) -> None:
        self.put(topic, **{"type": "queue", "lease_ms": LEASE, **config})

    def work(self, *datas: bytes | int, topic: str = "q", **append: Any) -> list[int]:
        """Append jobs; their seqs."""
        reply = self.append(*(datas or (1,)), topic=topic, **append)
        return list(range(reply.first_seq, reply.last_seq + 1))

    def try_claim(self, node: str = "w", max_jobs: int = 1, topic: str = "q", **request: Any) -> tuple[ClaimReply, int]:
        claim = ClaimRequest(topic=topic, node=node, max=max_jobs, **request)
        [reply], ticket = self.engine.queues.claim([claim])
        return reply, ticket

    def claim(self, node: str = "w", max_jobs: int = 1, topic: str = "q", **request: Any) -> list[Job]:
        return self.try_claim(node, max_jobs, topic, **request)[0].jobs

    def take(self, node: str = "w", max_jobs: int = 1, topic: str = "q", **request: Any) -> list[int]:
        """The seqs of a claim."""
        return [job.seq for job in self.claim(node, max_jobs, topic, **request)]

    def cohort(self, *requests: ClaimRequest) -> list[list[int]]:
        replies, _ = self.engine.queues.claim(list(requests))
        return [[job.seq for job in reply.jobs] for reply in replies]

    def settle(
        self,
        call: str,
        seqs: Iterable[int],
        node: str = "w",
        tokens: Sequence[str] = (),
        topic: str = "q",
        **request: Any,
    ) -> SettleReply:
        settle = SettleRequest(topic=topic, node=node, seqs=list(seqs), lease_ids=list(tokens), **request)
        reply: SettleReply = getattr(self.engine.queues.settlement, call)(settle)[0]
        return reply

    def ack(self, *seqs: int, node: str = "w", tokens: Sequence[str] = (), topic: str = "q") -> SettleReply:
        reply = self.settle("ack", seqs, node, tokens, topic)
        self.engine.sync()
        return reply

    def nack(self, *seqs: int, node: str = "w", tokens: Sequence[str] = (), **request: Any) -> SettleReply:
        return self.settle("nack", seqs, node, tokens, **request)

    def extend(self, *seqs: int, node: str = "w", tokens: Sequence[str] = (), lease_ms: int = LEASE) -> SettleReply:
        return self.settle("extend", seqs, node, tokens, lease_ms=lease_ms)

    def bury(self, topic: str = "q") -> None:
        """Let a claim find the dead letters, and nothing else."""
        assert self.take(topic=topic) == []
        self.engine.sync()

    def exhausted(self, topic: str = "q") -> list[int]:
        """The seqs of the exhausted jobs, as counted; nobody gets one."""
        found = self.listed("exhausted", topic)
        assert self.engine.queues.counters(topic).exhausted == len(found)
        assert not set(found) & {*self.listed("ready", topic), *self.listed("delayed", topic)}
        return found

    def counters(self, topic: str = "q") -> tuple[int, int, int]:
        """(ready, in_flight, dead_lettered), which the topic's state shows too."""
        found = self.engine.queues.counters(topic)
        assert self.state(topic).queue == found
        return found.ready, found.in_flight, found.dead_lettered

    def redrive(
        self, match: TagMatch | None = None, max_jobs: int = 0, topic: str = "q", start: int = 1
    ) -> RedriveReply:
        reply, _ = self.engine.queues.mover.redrive(RedriveRequest(topic=topic, match=match, max=max_jobs, start=start))
        self.engine.sync()
        return reply

    def jobs(self, state: JobState, after: int = 0, limit: int = 100, topic: str = "q") -> list[JobView]:
        request = ListJobsRequest(topic=topic, state=state, after=after, limit=limit)
        return self.engine.queues.jobs(request).jobs

    def listed(self, state: JobState, topic: str = "q") -> list[int]:
        """The seqs of all jobs in a state, page by page."""
        found: list[int] = []
        after: int | None = 0
        while after is not None:
            reply = self.engine.queues.jobs(ListJobsRequest(topic=topic, state=state, after=after, limit=2))
            found += [view.block.base_seq + view.position for view in reply.jobs]
            after = reply.next_after
        return found

    def metas(self, topic: str) -> list[bytes | None]:
        """The metas of all live records of a topic."""
        page = self.diff(topic=topic, limit=1000)
        return [
            None if part.block.metas is None else part.block.metas[i]
            for part in page.slices
            for i in range(part.start, part.stop)
        ]
