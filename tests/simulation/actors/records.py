"""Writers and readers, and those who make, change and delete topics."""

from simulation.actors.base import LOGS, NAMES, QUEUES, Actor, Writing
from simulation.oracle import calls, reading
from topics_service.engine.model import TagMatch

DURABILITIES = ("fsync", "fsync", "disk", "disk", "memory", "ephemeral")


class Writer(Writing):
    """Appends to any topic, which comes to be by that, and often with a key that was used before."""

    weight = 26

    def act(self) -> None:
        """See Actor."""
        name = self.pick(*LOGS, *LOGS, *LOGS, "p", "p", *QUEUES)
        topic = self.world.topics.find(name)
        partition = 0 if topic is None else self.partition(topic)
        key = self.pick("k1", "k2", "k3") if self.chance(0.4) else None
        recs = self.records(4)
        self.tell(f"{name}/{partition} {[rec.data.decode() for rec in recs]} key {key}")
        reply = calls.append(self.world, name, recs, partition=partition, key=key)
        self.world.trace.tell(f"  seqs {reply.first_seq}..{reply.last_seq} head {reply.head_seq} {reply.deduped}")


class Configurer(Actor):
    """Makes topics, changes their caps, classes and groups, adds partitions."""

    weight = 5

    def act(self) -> None:
        """See Actor."""
        self.configure(self.pick(*NAMES))

    def configure(self, name: str) -> None:
        """Make or change this one."""
        given: dict[str, object] = {
            "durability": self.pick(*DURABILITIES),
            "ttl_ms": self.pick(0, 0, 200, 2000),
            "cap_records": self.pick(0, 4, 8, 12, 30),
            "cap_bytes": self.pick(0, 0, 0, 90),
            "discard": self.pick("old", "old", "old", "reject"),
            "idempotency_window_ms": self.pick(100, 2000, 120_000),
            "dedupe_node": self.pick(True, False),
        }
        if self.chance(0.3):
            given["retain_until_acked_by"] = self.pick(("g",), ("g", "h"))
        if name in QUEUES:
            given |= {
                "type": "queue",
                "lease_ms": self.pick(100, 1000),
                "max_deliveries": self.pick(0, 1, 2),
                "dead_letter": self.pick(None, "dead", "dead"),
                "leases_durable": self.pick(True, False),
            }
        elif name == "dead" and self.chance(0.5):
            given |= {"discard": "reject", "cap_records": 4}
        partitions = self.pick(None, 1, 2, 3) if name == "p" else None
        self.tell(f"{name} {given} {partitions}")
        calls.put(self.world, name, given, partitions)


class Deleter(Actor):
    """Deletes records by seq and by tag."""

    weight = 5

    def act(self) -> None:
        """See Actor."""
        topic = self.topic(*NAMES)
        if topic is None:
            return
        partition = self.partition(topic)
        view = topic.logs[partition].view
        before = self.random.randint(max(0, view.head - 12), view.head + 2) if self.chance(0.6) else None
        match = TagMatch(self.pick("Eq", "Glob"), self.pick(b"a", b"ab", b"b", b""))
        chosen = match if before is None or self.chance(0.3) else None
        self.tell(f"{topic.name}/{partition} before {before} match {chosen}")
        calls.delete(self.world, topic, partition, before, chosen)


class Reaper(Actor):
    """Deletes topics."""

    weight = 1

    def act(self) -> None:
        """See Actor."""
        name = self.pick(*NAMES)
        self.tell(name)
        calls.delete_topic(self.world, name)


class Reader(Actor):
    """Some readers with cursors, which they keep over crashes, and pages of all kinds."""

    weight = 12

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self.cursors: dict[tuple[str, int, int], int] = {}

    def act(self) -> None:
        """See Actor."""
        topic = self.topic()
        if topic is None:
            return
        partition = self.partition(topic)
        if self.chance(0.15):
            self.tell(f"{topic.name}/{partition} from some point on")
            if self.chance(0.5):
                reading.diff_from(self.world, topic, partition, ts=self.world.now - self.pick(0, 1, 60, 150, 2000))
            else:
                reading.diff_from(self.world, topic, partition, last=self.random.randrange(12))
            return
        place = (topic.name, partition, self.random.randrange(3))
        cursor = self.cursors.get(place, 0)
        match = TagMatch(self.pick("Eq", "Glob"), self.pick(b"a", b"b")) if self.chance(0.2) else None
        nodes = (b"n1",) if self.chance(0.1) else ()
        limit, most = self.random.randint(1, 6), self.pick(1, 30, 1 << 20)
        self.tell(f"{topic.name}/{partition} after {cursor} limit {limit} bytes {most} match {match}")
        page = reading.diff(
            self.world, topic, partition, cursor, limit=limit, max_bytes=most, match=match, nodes=nodes
        )  # fmt: skip
        self.cursors[place] = page.next_from_seq
        self.world.trace.tell(f"  up to {page.next_from_seq} of {page.head_seq}")
        self.world.trace.meet("a page read")
