"""Requests and replies of members of consumer groups, and the facts that the coordinator needs.

Times are milliseconds. Topic ids are the 16 bytes that Kafka clients know a topic by. An epoch is the generation of a
classic group or the member epoch of a `consumer` group (KIP-848).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Literal, NamedTuple, Protocol

from msgspec import Struct

GroupType = Literal["classic", "consumer"]
Partition = tuple[bytes, int]  # a topic id and a partition of that topic

JOIN_EPOCH = 0
LEAVE_EPOCH = -1
STATIC_LEAVE_EPOCH = -2

MEMBER_BYTES = 1_024  # size of a member without a subscription


class GroupError(IntEnum):
    """Reasons to refuse a member: error codes of the Kafka protocol, to which clients react."""

    NONE = 0
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    UNSUPPORTED_VERSION = 35
    INVALID_REQUEST = 42
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    MEMBER_ID_REQUIRED = 79
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    INVALID_REGULAR_EXPRESSION = 128


class RefusedError(Exception):
    """A request is answered with `error` and changed nothing."""

    def __init__(self, error: GroupError, message: str = "") -> None:
        super().__init__(message or error.name)
        self.error = error
        self.message = message


class GroupSettings(Struct, frozen=True, kw_only=True):
    """Settings of groups. The first three concern classic groups, where clients choose their own timeouts."""

    initial_delay_ms: int = 3_000  # how long the first member of an empty group waits for others
    min_session_ms: int = 6_000
    max_session_ms: int = 1_800_000
    heartbeat_ms: int = 1_000  # sent to `consumer` members
    session_ms: int = 45_000  # of `consumer` members
    max_members: int = 1_000
    max_metadata_bytes: int = 1 << 20  # of one member: its subscription, and MEMBER_BYTES
    max_group_bytes: int = 32 << 20  # the same of all members of a group
    max_bytes: int = 128 << 20  # the same of all groups, with the assignments of classic ones
    max_assignment_bytes: int = 16 << 20  # of one classic group
    max_regex_chars: int = 1_024
    regex_refresh_ms: int = 1_000  # shortest time between two matches of a group's patterns
    empty_retention_ms: int = 600_000  # how long the state of a group without members is kept


class Client(NamedTuple):
    """The client behind a member, for display."""

    client_id: str = ""
    host: str = ""


class TopicFacts(NamedTuple):
    """The facts about a topic that groups need."""

    topic_id: bytes
    partition_count: int


class TopicsView(Protocol):
    """The topics as they are now. Calls are cheap but for `names`, which is for patterns."""

    def facts(self, name: str) -> TopicFacts | None:
        """The topic of that name; None if there is none that can be consumed."""
        ...

    def name_of(self, topic_id: bytes) -> str | None:
        """The name of the topic with that id."""
        ...

    def names(self) -> Iterable[str]:
        """All names for which there are facts."""
        ...


def everything(_name: str) -> bool:
    """May see every topic."""
    return True


class JoinRequest(Struct, kw_only=True):
    """Join a classic group, or take part in its rebalance.

    `protocols` are names with opaque metadata, the preferred first. With `needs_id` a member without an id is given
    one and must come again with it.
    """

    group: str
    member_id: str = ""
    instance_id: str | None = None
    session_ms: int = 45_000
    rebalance_ms: int = 60_000
    protocol_type: str = "consumer"
    protocols: Sequence[tuple[str, bytes]] = ()
    needs_id: bool = True
    can_skip_assignment: bool = True
    client: Client = Client()


class JoinedMember(NamedTuple):
    """A member as its leader sees it."""

    member_id: str
    instance_id: str | None
    metadata: bytes


class JoinReply(Struct, kw_only=True):
    """The outcome of a join. Only the leader gets `members`, and assigns partitions unless `skip_assignment`."""

    error: GroupError = GroupError.NONE
    member_id: str = ""
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: Sequence[JoinedMember] = ()


class SyncRequest(Struct, kw_only=True):
    """Ask for the member's assignment; the leader brings those of all members."""

    group: str
    member_id: str
    generation: int
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol: str | None = None
    assignments: Sequence[tuple[str, bytes]] = ()


class SyncReply(Struct, kw_only=True):
    """An assignment, opaque to us."""

    error: GroupError = GroupError.NONE
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


class Leaving(NamedTuple):
    """A member that leaves, by its id or by its instance id alone."""

    member_id: str
    instance_id: str | None = None


class PlainBeat(Struct, kw_only=True):
    """A heartbeat of a `consumer` group's member: its epoch, and the changed fields; None means unchanged.

    `epoch` 0 joins, -1 leaves, -2 leaves for a while and keeps the partitions of a static member. `owned` are the
    partitions that the member works on.
    """

    group: str
    member_id: str
    epoch: int
    instance_id: str | None = None
    rack: str | None = None
    rebalance_ms: int = -1
    names: Sequence[str] | None = None
    regex: str | None = None
    assignor: str | None = None
    owned: Sequence[Partition] | None = None
    client: Client = Client()
    makes_id: bool = True  # clients of the first version leave it to us


class Beat(PlainBeat, kw_only=True):
    """A heartbeat for the coordinator. `allowed` says which topics its patterns may find."""

    allowed: Callable[[str], bool] = everything


class BeatReply(Struct, kw_only=True):
    """The member's epoch, and its partitions by topic id where the member has to hear of them (else None)."""

    error: GroupError = GroupError.NONE
    message: str | None = None
    member_id: str = ""
    epoch: int = 0
    heartbeat_ms: int = 0
    assignment: dict[bytes, list[int]] | None = None


class MemberView(Struct, kw_only=True):
    """A member, for people and tools. `metadata` and `assigned` are the raw parts of a classic member.

    `partitions` are those that it was given and `target` those that it shall have, by topic name; None where they
    can't be known.
    """

    member_id: str
    instance_id: str | None
    client: Client
    epoch: int
    partitions: Mapping[str, Sequence[int]] | None
    metadata: bytes = b""
    assigned: bytes = b""
    target: Mapping[str, Sequence[int]] | None = None
    names: Sequence[str] = ()
    regex: str | None = None
    rack: str | None = None


class GroupView(Struct, kw_only=True):
    """A group, for people and tools. `protocol` is the assignor of a `consumer` group."""

    group: str
    type: GroupType
    state: str
    protocol_type: str
    protocol: str
    epoch: int
    assignment_epoch: int = 0
    members: Sequence[MemberView] = ()


Reply = JoinReply | SyncReply
Respond = Callable[[JoinReply], None] | Callable[[SyncReply], None]
