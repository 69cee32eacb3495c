"""Requests and replies of queues: the plain structs that cross the engine's seam (docs/contract.md, 10)."""

from typing import Literal

from msgspec import Struct

from topics_service.engine.model import TagMatch
from topics_service.engine.queue.attempts import Attempts
from topics_service.storage.block import Block

JobState = Literal["ready", "in_flight", "delayed", "exhausted"]
NackMode = Literal["retry", "release"]


class ClaimRequest(Struct, frozen=True, kw_only=True):
    """Lease up to `max` jobs to `node`. `max` is clamped to [1, 1000]; `lease_ms` None means the queue's default,
    else it is clamped to [100, 86400000].

    `max_bytes` is of data and meta, clamped to 8 MiB, 0 for that: a reply is at most one record larger. `ack` finishes
    jobs first; that is the api's to do (`QueuesApi.claim`).
    """

    topic: str
    node: str
    max: int = 1
    lease_ms: int | None = None
    max_bytes: int = 0
    ack: "SettleRequest | None" = None


class Job(Struct, frozen=True, gc=False):
    """One leased record: position `position` of `block`. `deadline` is in ms since the epoch, still held at it.

    `deliveries` counts this one; none follows if it `is_last`. The lease id is new for each delivery: a stale one
    never matches.
    """

    block: Block
    position: int
    lease_id: str
    deadline: int
    deliveries: int
    is_last: bool = False

    @property
    def seq(self) -> int:
        """The job's seq."""
        return self.block.base_seq + self.position

    @property
    def nbytes(self) -> int:
        """The bytes of data and meta."""
        return self.block.size_at(self.position)


class ClaimReply(Struct, kw_only=True):
    """Jobs now held, ascending by seq, and how many more a claim could get after the whole pass.

    `settled` is the result of the claim's `ack`, if it had one.
    """

    topic: str
    jobs: list[Job]
    ready: int = 0
    settled: "SettleReply | None" = None


class SettleRequest(Struct, frozen=True, kw_only=True):
    """Ack, nack or extend jobs that `node` holds: 1 to 1000 seqs.

    `lease_ids` fences: empty, or one for each seq; an empty string leaves that seq to the node alone.
    `delay_ms` and `mode` are of nack (`release` takes the attempt back: it does not count), `lease_ms` of extend.
    `reasons` say why a nack gives back: empty, or a text of at most 4096 bytes for each seq, which may be empty.
    """

    topic: str
    node: str
    seqs: list[int]
    lease_ids: list[str] = []
    delay_ms: int = 0
    mode: NackMode = "retry"
    reasons: list[str] = []
    lease_ms: int = 0


class SettleReply(Struct, kw_only=True):
    """`done` is how many seqs were acked, nacked or extended; `skipped` the others, in request order.

    After a nack, `dead_lettered` jobs are not delivered again, nor are `exhausted` ones, which the dead letter topic
    refuses.
    """

    topic: str
    done: int
    skipped: list[int]
    ready: int = 0
    in_flight: int = 0
    deadlines: dict[int, int] = {}
    dead_lettered: list[int] = []
    exhausted: list[int] = []
    fsync_ms: float = 0.0


class RedriveRequest(Struct, frozen=True, kw_only=True):
    """Move the queue's dead letters back into it: those whose tag matches (None: all), in order of seq.

    At most `max`; one call moves at most 1000 (also with 0), see `Queues.redrive`. `start` is the seq in the dead
    letter topic to look from: the `resume` of the call before.
    """

    topic: str
    match: TagMatch | None = None
    max: int = 0
    start: int = 1

    def takes(self, tag: bytes | None) -> bool:
        """Return whether a dead letter with this tag is one of those."""
        match = self.match
        if match is None or tag is None:
            return match is None
        return tag == match.value if match.op == "Eq" else tag.startswith(match.value)


class RedriveReply(Struct, kw_only=True):
    """The result of a redrive. `resume` is not 0 if the call stopped at a bound: the seq to continue from."""

    topic: str
    dead_letter: str
    redriven: int
    resume: int = 0


class ListJobsRequest(Struct, frozen=True, kw_only=True):
    """Look at a queue's jobs in one state, in order of seq, without touching them. `limit` is 1..1000.

    `max_bytes` is that of a claim.
    """

    topic: str
    state: JobState
    after: int = 0
    limit: int = 100
    max_bytes: int = 0


class JobView(Struct, frozen=True, kw_only=True):
    """A job as a browser sees it; `node`, `deadline` only in flight, `ready_at` only delayed (ms). `attempts` are the
    last deliveries that failed, if a worker has said why.

    Delayed are jobs whose `delay_ms` of append or nack is not over, exhausted those that wait to become dead letters.
    """

    block: Block
    position: int
    state: JobState
    deliveries: int
    priority: int = 0
    node: str | None = None
    deadline: int | None = None
    ready_at: int | None = None
    attempts: Attempts = ()


class ListJobsReply(Struct, kw_only=True):
    """One page; `next_after` is None on the last."""

    topic: str
    jobs: list[JobView]
    next_after: int | None
