"""A member of a classic group, as the group's state machine keeps it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from topics_service.engine.membership.members import MEMBER_BYTES, Client, JoinReply, JoinRequest, SyncReply
from topics_service.engine.membership.subscriptions import consumer_topics
from topics_service.engine.membership.timers import Alarm

JoinRespond = Callable[[JoinReply], None]
SyncRespond = Callable[[SyncReply], None]


@dataclass(slots=True, eq=False)
class ClassicMember:
    """A member. `join` and `sync` are held answers; `joined` says that it takes part in the next generation.

    `knows_id` says that the client may know the member's id, so that it can come back with it.
    """

    member_id: str
    session: Alarm
    instance_id: str | None = None
    client: Client = field(default_factory=Client)
    session_ms: int = 0
    rebalance_ms: int = 0
    protocols: dict[str, bytes] = field(default_factory=dict)
    assignment: bytes = b""
    joined: bool = False
    knows_id: bool = False
    join: JoinRespond | None = None
    sync: SyncRespond | None = None
    weight: int = 0

    @property
    def size(self) -> int:
        """See Weighed."""
        return size_of(self.protocols.items()) + len(self.assignment)

    def update(self, request: JoinRequest) -> None:
        """Take over the member's report."""
        self.client = request.client
        self.session_ms, self.rebalance_ms = request.session_ms, request.rebalance_ms
        self.protocols = dict(request.protocols)


def size_of(protocols: Iterable[tuple[str, bytes]]) -> int:
    """Return the size that the protocols of a member count for."""
    return MEMBER_BYTES + sum(len(name) + len(metadata) for name, metadata in protocols)


def subscription(protocol_type: str, protocols: dict[str, bytes]) -> list[tuple[str, object]]:
    """The part in which two static members must agree for one to replace the other without a rebalance.

    For consumers it is the topics: other parts, such as owned partitions, differ after a restart.
    """
    if protocol_type != "consumer":
        return list(protocols.items())
    return [(name, sorted(consumer_topics(metadata) or ()) or metadata) for name, metadata in protocols.items()]
