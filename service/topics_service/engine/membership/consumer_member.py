"""A member of a `consumer` group: its subscription, its partitions, and those that it still has to revoke."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from topics_service.engine.membership.members import MEMBER_BYTES, Beat, Client, Partition
from topics_service.engine.membership.subscriptions import Matches, Pattern
from topics_service.engine.membership.timers import Alarm

_NAME_BYTES = 64  # overhead of a name

LEFT = -2  # the epoch of a static member that is away


@dataclass(slots=True, eq=False)
class ConsumerMember:
    """A member. `assigned` are the partitions it may work on, with the epoch each was granted at.

    `revoking` are those whose revocation it has not confirmed; it owns them until then.
    `matched` are the topics that `regex` found; `allowed` is None until the member is heard of.
    `packed` is the stored form as long as it holds, for the sake of groups of many members.
    """

    member_id: str
    session: Alarm
    revocation: Alarm
    instance_id: str | None = None
    rack: str | None = None
    client: Client = field(default_factory=Client)
    rebalance_ms: int = 0
    names: frozenset[str] = frozenset()
    regex: str | None = None
    pattern: Pattern | None = None
    matched: frozenset[str] = frozenset()
    allowed: Callable[[str], bool] | None = None
    assignor: str | None = None
    epoch: int = 0
    previous: int = 0
    assigned: dict[Partition, int] = field(default_factory=dict)
    revoking: set[Partition] = field(default_factory=set)
    packed: bytes | None = None
    weight: int = 0

    @property
    def topics(self) -> frozenset[str]:
        """All topics that it subscribes to."""
        return self.names | self.matched if self.matched and self.names else self.matched or self.names

    @property
    def size(self) -> int:
        """See Weighed."""
        return size_of(self.names)

    def update(self, beat: Beat, pattern: Pattern | None) -> bool:
        """Take over the heartbeat's fields; whether the subscription has changed. `pattern` is the beat's, compiled."""
        self.client, self.allowed = beat.client, beat.allowed
        if beat.rebalance_ms != -1:
            self.rebalance_ms = beat.rebalance_ms
        if beat.rack is not None:
            self.rack = beat.rack
        if beat.assignor is not None:
            self.assignor = beat.assignor
        before = self.names, self.regex
        if beat.names is not None:
            self.names = frozenset(beat.names)
        if beat.regex is not None:
            self.regex = beat.regex or None
        if beat.regex is not None:
            self.pattern = pattern
            if self.regex is None:
                self.matched = frozenset()
        return before != (self.names, self.regex)

    def match(self, matches: Matches, version: int) -> bool:
        """Find the topics of the pattern in this version of the topics; whether they have changed."""
        if self.pattern is None or self.allowed is None:
            return False
        before = self.matched
        self.matched = matches.for_pattern(self.regex or "", self.pattern, self.allowed, version)
        self.packed = self.packed if before == self.matched else None
        return before != self.matched


def size_of(names: Iterable[str]) -> int:
    """Return the size that a subscription to these topics counts for."""
    return MEMBER_BYTES + sum(len(name) + _NAME_BYTES for name in names)


def by_topic(parts: Iterable[Partition]) -> dict[bytes, list[int]]:
    """Partitions in order, by the ids of their topics."""
    found: dict[bytes, list[int]] = {}
    for topic_id, partition in sorted(parts):
        found.setdefault(topic_id, []).append(partition)
    return found
