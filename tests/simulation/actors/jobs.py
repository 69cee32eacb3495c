"""Those who make jobs, and the workers."""

from simulation.actors.base import QUEUES, Actor, Writing
from simulation.oracle import calls
from topics_service.engine.model import TagMatch
from topics_service.engine.queue.jobs import Job


class Boss(Writing):
    """Makes jobs with delays and priorities."""

    weight = 7
    prefix = b"j"

    def act(self) -> None:
        """See Actor."""
        topic = self.topic(*QUEUES)
        if topic is None or topic.config.type != "queue":
            return
        recs, priority, delay = self.records(3), self.pick(0, 0, 1, 9), self.pick(0, 0, 0, 50, 500)
        self.tell(f"{topic.name} {[rec.data.decode() for rec in recs]} priority {priority} delay {delay}")
        calls.append(self.world, topic.name, recs, priority=priority, delay_ms=delay)


class Worker(Actor):
    """Two workers: each claims, and settles what it has, or what it once had, or what others have."""

    weight = 24

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self.hands: dict[str, list[tuple[str, Job]]] = {"w1": [], "w2": []}

    def act(self) -> None:
        """See Actor."""
        topic = self.topic(*QUEUES)
        if topic is None or topic.config.type != "queue":
            return
        node = self.pick(*self.hands)
        mine = [job for name, job in self.hands[node] if name == topic.name]
        if not mine or self.chance(0.35):
            most, lease_ms = self.random.randint(1, 4), self.pick(None, 100, 700)
            self.tell(f"{node} claims {most} of {topic.name} for {lease_ms}")
            claims = [(node, most, lease_ms)]
            if self.chance(0.2):
                claims.append((self.pick(*self.hands), 2, lease_ms))
            replies = self.world.queues.claim(topic, *claims)
            for (name, _, _), reply in zip(claims, replies, strict=True):
                self.world.trace.tell(f"  {name} {[(job.seq, job.deliveries) for job in reply.jobs]}")
                self.hands[name] = (self.hands[name] + [(topic.name, job) for job in reply.jobs])[-20:]
            return
        jobs = self.random.sample(mine, min(len(mine), self.random.randint(1, 3)))
        jobs += [job for job in mine[-2:] if job not in jobs and self.chance(0.5)]
        if self.chance(0.05):
            held = {job.seq: job.lease_id for job in jobs}
            self.tell(f"{node} loses its connection to {topic.name} with {sorted(held)}")
            self.world.queues.release(topic, held)
            return
        call = self.pick("ack", "ack", "nack", "nack", "extend")
        who = node if self.chance(0.95) else self.pick(*self.hands)
        tokens = [self._token(topic.name, job) for job in jobs] if self.chance(0.7) else []
        seqs, delay, released = [job.seq for job in jobs], self.pick(0, 0, 50), self.chance(0.2)
        reasons = ["boom"] * len(seqs) if self.chance(0.5) else []
        self.tell(f"{who} {call}s {seqs} of {topic.name} tokens {bool(tokens)} delay {delay} released {released}")
        self.world.queues.settle(
            call, topic, who, seqs, tokens, delay_ms=delay, lease_ms=self.pick(100, 1500), released=released,
            reasons=reasons,
        )  # fmt: skip
        if self.chance(0.7):  # else it may settle them once more
            self.hands[node] = [(name, job) for name, job in self.hands[node] if job not in jobs]

    def _token(self, topic: str, job: Job) -> str:
        """The job's token, or one of an earlier delivery."""
        known = [
            old.lease_id for hand in self.hands.values() for name, old in hand if (name, old.seq) == (topic, job.seq)
        ]
        return self.random.choice(known) if known and self.chance(0.3) else job.lease_id


class Redriver(Actor):
    """Gives dead letters another chance."""

    weight = 2

    def act(self) -> None:
        """See Actor."""
        topic = self.topic(*QUEUES)
        if topic is not None and topic.config.type == "queue":
            most = self.random.randint(1, 4)
            match = TagMatch(self.pick("Eq", "Glob"), b"a") if self.chance(0.3) else None
            self.tell(f"{topic.name} {most} {match}")
            self.world.queues.redrive(topic, most, match)
