"""Members of consumer groups without a network: topics, a clock that tests move, and clients that keep to the rules."""

import hashlib
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from topics_service.engine.membership.coordinator import Coordinator
from topics_service.engine.membership.members import (
    Beat,
    BeatReply,
    GroupError,
    GroupSettings,
    JoinReply,
    JoinRequest,
    Partition,
    SyncReply,
    SyncRequest,
    TopicFacts,
)

SESSION_MS = 10_000
REBALANCE_MS = 20_000


class Topics:
    """The topics of a test."""

    def __init__(self, **counts: int) -> None:
        self._facts: dict[str, TopicFacts] = {}
        self._made = 0
        for name, count in counts.items():
            self.put(name, count)

    def put(self, name: str, count: int) -> bytes:
        """Make a topic, or let it grow."""
        known = self._facts.get(name)
        if known is None:
            self._made += 1
        topic_id = known.topic_id if known else hashlib.md5(f"{name}{self._made}".encode()).digest()
        self._facts[name] = TopicFacts(topic_id, count)
        return topic_id

    def remove(self, name: str) -> None:
        self._facts.pop(name, None)

    def facts(self, name: str) -> TopicFacts | None:
        return self._facts.get(name)

    def name_of(self, topic_id: bytes) -> str | None:
        return next((name for name, facts in self._facts.items() if facts.topic_id == topic_id), None)

    def names(self) -> Iterable[str]:
        return list(self._facts)

    def partitions(self, names: Iterable[str]) -> set[Partition]:
        found = [self._facts[name] for name in names if name in self._facts]
        return {(facts.topic_id, p) for facts in found for p in range(facts.partition_count)}


class World:
    """A coordinator with its clock, its topics, and a store that outlives it."""

    def __init__(self, topics: Topics | None = None, **settings: Any) -> None:
        self.topics = topics or Topics(t=4)
        self.settings = GroupSettings(**{"min_session_ms": 100, "initial_delay_ms": 0, **settings})
        self.time = 1_000
        self.ids = 0
        self.store: dict[str, bytes] = {}
        self.groups: set[str] = set()  # that were ever admitted
        self.writes = 0
        self.coordinator = self._start()

    def _start(self) -> Coordinator:
        return Coordinator(
            self.topics, now=lambda: self.time, new_id=self._id, settings=self.settings, changed=self._changed,
            admit=self.groups.add, exists=self.groups.__contains__,
        )  # fmt: skip

    def _id(self) -> str:
        self.ids += 1
        return f"id{self.ids}"

    def _changed(self, name: str) -> None:
        self.writes += 1
        row = self.coordinator.dump(name)
        if row is None:
            self.store.pop(name, None)
        else:
            self.store[name] = row

    def restart(self) -> None:
        """What was stored is all that is left."""
        self.coordinator = self._start()
        for name, row in list(self.store.items()):
            self.coordinator.load(name, row)

    def advance(self, ms: int) -> None:
        """Let time pass; what is due on the way happens at its time."""
        until = self.time + ms
        while (due := self.coordinator.next_due()) is not None and due <= until:
            self.time = max(self.time, due)
            self.coordinator.tick(self.time)
        self.time = until

    def change_topics(self) -> None:
        self.coordinator.topics_changed()


def subscription(*topics: str, userdata: bytes = b"") -> bytes:
    """Metadata of a classic consumer."""
    names = b"".join(map(_string, topics))
    return struct.pack(">hi", 0, len(topics)) + names + struct.pack(">i", len(userdata)) + userdata


def assignment(parts: dict[str, list[int]]) -> bytes:
    """An assignment of a classic consumer."""
    text = struct.pack(">hi", 0, len(parts))
    for name, partitions in parts.items():
        text += _string(name) + struct.pack(f">i{len(partitions)}i", len(partitions), *partitions)
    return text + struct.pack(">i", 0)


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text.encode())) + text.encode()


@dataclass(eq=False)
class Classic:
    """A member of a classic group that does one step after the other, as a test says."""

    world: World
    group: str = "g"
    instance_id: str | None = None
    member_id: str = ""
    generation: int = -1
    protocols: list[tuple[str, bytes]] = field(default_factory=lambda: [("range", subscription("t"))])
    session_ms: int = SESSION_MS
    rebalance_ms: int = REBALANCE_MS
    needs_id: bool = True
    can_skip: bool = True
    protocol_type: str = "consumer"
    joins: list[JoinReply] = field(default_factory=list)
    syncs: list[SyncReply] = field(default_factory=list)

    def join(self) -> JoinReply | None:
        """Ask to join, with the id that is given if one is needed. The answer if it came at once."""
        before = len(self.joins)
        self._join()
        if len(self.joins) > before and self.joins[-1].error is GroupError.MEMBER_ID_REQUIRED:
            before = len(self.joins)
            self._join()
        return self.joins[-1] if len(self.joins) > before else None

    def _join(self) -> None:
        request = JoinRequest(
            group=self.group,
            member_id=self.member_id,
            instance_id=self.instance_id,
            session_ms=self.session_ms,
            rebalance_ms=self.rebalance_ms,
            protocol_type=self.protocol_type,
            protocols=self.protocols,
            needs_id=self.needs_id,
            can_skip_assignment=self.can_skip,
        )
        self.respond = self._joined
        self.world.coordinator.join(request, self.respond)

    def _joined(self, reply: JoinReply) -> None:
        self.joins.append(reply)
        if reply.error in (GroupError.NONE, GroupError.MEMBER_ID_REQUIRED):
            self.member_id, self.generation = reply.member_id, reply.generation

    def sync(self) -> SyncReply | None:
        """Ask for the assignment. The answer if it came at once."""
        return self.sync_with([])

    def sync_with(self, assignments: list[tuple[str, bytes]]) -> SyncReply | None:
        """The same, as the leader that brings those of all."""
        before = len(self.syncs)
        request = SyncRequest(
            group=self.group,
            member_id=self.member_id,
            generation=self.generation,
            instance_id=self.instance_id,
            assignments=assignments,
        )
        self.sync_respond = self.syncs.append
        self.world.coordinator.sync(request, self.sync_respond)
        return self.syncs[-1] if len(self.syncs) > before else None

    def beat(self) -> GroupError:
        return self.world.coordinator.heartbeat(self.group, self.member_id, self.generation, self.instance_id)

    def commit(self) -> GroupError:
        return self.world.coordinator.check_commit(self.group, self.member_id, self.generation, self.instance_id)

    @property
    def is_leader(self) -> bool:
        return bool(self.joins) and self.joins[-1].leader == self.member_id


def settle(*members: Classic) -> None:
    """Bring the members of a new generation through the round of syncs."""
    leader = next(member for member in members if member.is_leader)
    parts = [(member.member_id, member.member_id.encode()) for member in members]
    for member in members:
        if member is not leader:
            member.sync_with([])
    leader.sync_with(parts)


@dataclass(eq=False)
class Modern:
    """A member of a `consumer` group. `owned` is what it works on; `heard` when it last knew to be a member."""

    world: World
    member_id: str
    group: str = "g"
    instance_id: str | None = None
    names: list[str] | None = field(default_factory=lambda: ["t"])
    regex: str | None = None
    assignor: str | None = None
    is_chatty: bool = False  # sends everything with each heartbeat
    epoch: int = 0
    owned: set[Partition] = field(default_factory=set)
    target: set[Partition] = field(default_factory=set)
    told: set[Partition] | None = None
    heard: int = 0
    is_in_doubt: bool = False  # it has said what it works on, and got no answer
    replies: list[BeatReply] = field(default_factory=list)

    def beat(self, epoch: int | None = None, *, is_lost: bool = False, **fields: Any) -> BeatReply:
        """A heartbeat; with `is_lost` its answer does not arrive."""
        if epoch is None:
            epoch = self.epoch
        full = epoch == 0 or self.is_chatty or self.told is None
        beat = {
            "group": self.group,
            "member_id": self.member_id,
            "epoch": epoch,
            "instance_id": self.instance_id,
            "rebalance_ms": REBALANCE_MS if full else -1,
            "names": self.names if full else None,
            "regex": self.regex if full else None,
            "assignor": self.assignor if full else None,
            "owned": sorted(self.owned) if full or self.owned != self.told else None,
        }
        reply = self.world.coordinator.consumer_heartbeat(Beat(**{**beat, **fields}))
        if is_lost:
            self.told = None
            self.is_in_doubt = True
            return reply
        self.is_in_doubt = False
        self.replies.append(reply)
        if epoch < 0:
            return reply
        if reply.error:
            if reply.error in (GroupError.FENCED_MEMBER_EPOCH, GroupError.UNKNOWN_MEMBER_ID):
                self.forget()
            return reply
        self.told = set(self.owned)
        self.heard = self.world.time
        self.member_id, self.epoch = reply.member_id, reply.epoch
        if reply.assignment is not None:
            self.target = {(topic_id, p) for topic_id, parts in reply.assignment.items() for p in parts}
        return reply

    def forget(self) -> None:
        """It is no member any longer, as far as it knows."""
        self.epoch, self.owned, self.target, self.told = 0, set(), set(), None

    def apply(self) -> None:
        """Work on what it was given and on nothing else.

        In doubt it takes nothing up: the coordinator may have received its revocation long ago.
        The protocol can't tell these apart, so a client that does not keep to this may work on another's partition.
        """
        self.owned = self.owned & self.target if self.is_in_doubt else set(self.target)

    def step(self) -> BeatReply:
        """A heartbeat, and what follows from its answer."""
        reply = self.beat()
        self.apply()
        return reply

    @property
    def works_on(self) -> set[Partition]:
        """What it works on now: a client stops when its session must have ended."""
        alive = self.epoch > 0 and self.world.time < self.heard + self.world.settings.session_ms
        return self.owned if alive else set()


def until_quiet(*members: Modern, rounds: int = 12) -> None:
    """Let all members take turns."""
    for _ in range(rounds):
        for member in members:
            member.step()
        members[0].world.advance(1_000)
