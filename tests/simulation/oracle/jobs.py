"""One queue as the contract describes it: what every job waits for, and who holds it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from simulation.oracle.topics import History, TopicModel, keep
from support.log_model import Rec
from topics_service.engine.model import TopicConfig

STAMPS = ("$dead_letter_from", "$dead_letter_deliveries", "$dead_letter_src_seq")


@dataclass(frozen=True, slots=True)
class Lease:
    """Who holds a job, under which token, up to when."""

    node: str
    token: str
    deadline: int


@dataclass(frozen=True, slots=True)
class Touched:
    """A job that was delivered: held, or given back and free at `free_at` (0: now)."""

    deliveries: int
    lease: Lease | None = None
    free_at: int = 0


@dataclass
class QueueModel:
    """`due` are delayed jobs whose time has come; `history` has the leases that are on the disk. After a start a queue
    is not `loaded` until somebody asks."""

    topic: TopicModel
    touched: dict[int, Touched] = field(default_factory=dict)
    gone: dict[int, Lease] = field(default_factory=dict)
    due: set[int] = field(default_factory=set)
    loaded: bool = True
    history: History[Mapping[int, Touched]] = field(default_factory=lambda: [(0, {})])

    @property
    def config(self) -> TopicConfig:
        """That of the topic."""
        return self.topic.config

    def refresh(self, now: int) -> None:
        """What every call does first: time passes, and the log has lost what it has lost."""
        live = self.topic.log.written.live
        if not self.loaded:  # what is gone by now is not remembered
            self.loaded, self.touched = True, {seq: job for seq, job in self.touched.items() if seq in live}
        for seq, job in list(self.touched.items()):
            if seq not in live:
                del self.touched[seq]
                if job.lease is not None:
                    self.gone[seq] = job.lease
            elif (job.lease is not None and now > job.lease.deadline) or 0 < job.free_at <= now:
                self.touched[seq] = Touched(job.deliveries)
        self.gone = {seq: lease for seq, lease in self.gone.items() if now <= lease.deadline}
        self.due.update(seq for seq, rec in live.items() if 0 < rec.ready_at <= now)

    def is_last(self, deliveries: int) -> bool:
        """Return whether no delivery follows that with this number."""
        return self.config.dead_letter is not None and 0 < self.config.max_deliveries <= deliveries

    def is_exhausted(self, seq: int) -> bool:
        """Whether it is to be a dead letter."""
        job = self.touched.get(seq)
        return job is not None and job.lease is None and not job.free_at and self.is_last(job.deliveries)

    def claimable(self) -> list[int]:
        """The jobs that anybody may have now, in the order of seqs."""
        head = self.topic.log.view.head
        found = []
        for seq, rec in self.topic.log.written.live.items():
            job = self.touched.get(seq)
            waits = (job.lease is not None or job.free_at) if job else rec.ready_at and seq not in self.due
            if seq <= head and not waits and not self.is_exhausted(seq):
                found.append(seq)
        return found

    def lease(self, seq: int) -> Lease | None:
        """The lease of a job, also of one that the log has lost."""
        job = self.touched.get(seq)
        return self.gone.get(seq) if job is None else job.lease

    def written(self, w: int) -> None:
        """Leases have changed, or which of them are on the disk, by write `w`."""
        keep(self.history, w, dict(self.touched) if self.config.leases_durable else {})


def origin(rec: Rec) -> object:
    """The queue that a dead letter came from, None if it is not one."""
    return json.loads(rec.meta or b"{}").get(STAMPS[0])


def plain(rec: Rec) -> tuple[object, ...]:
    """What a move leaves as it is."""
    meta = json.loads(rec.meta or b"{}")
    for name in STAMPS:
        meta.pop(name, None)
    return rec.data, rec.tag, rec.node, meta
