"""A consumer group and its committed positions: requests, replies and rows.

A position is the cursor of a reader: `from_seq` N says that everything up to seq N is dealt with. It is the `from_seq`
of a diff, and the offset that Kafka clients commit. Those may commit beyond the head: the number is kept, and wherever
the position is used it counts as the head, until the log has grown past it.
"""

import struct
from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

import msgspec
from msgspec import Struct

from topics_service.engine.errors import TopicsError, invalid
from topics_service.engine.topic import Topic
from topics_service.storage import keys

MAX_METADATA = 4096  # bytes; UTF-16 units for Kafka clients
EMPTY = "Empty"

_KEY = struct.Struct(">QQI")
_POSITION = struct.Struct("<BQiq")
_VERSION = 1
_MAX_POSITION = (1 << 63) - 1  # the maximum of Kafka's offsets
_ROW_KIND = b"\x00"
_STATE_KIND = b"\x01"
_MIRROR_KIND = b"\x02"


class CommitItem(NamedTuple):
    """One position to commit. `leader_epoch` and `metadata` are the client's and are only kept for it."""

    topic: str
    partition: int
    from_seq: int
    leader_epoch: int = -1
    metadata: str = ""


class Target(NamedTuple):
    """Partitions of one topic; none named means all that it has."""

    topic: str
    partitions: tuple[int, ...] = ()


class Position(Struct, frozen=True):
    """A committed position, and when it was committed (ms)."""

    from_seq: int
    leader_epoch: int = -1
    metadata: str = ""
    ts: int = 0

    def encode(self) -> bytes:
        """The stored form."""
        return _POSITION.pack(_VERSION, self.from_seq, self.leader_epoch, self.ts) + self.metadata.encode()


class Place(NamedTuple):
    """A partition of one life of a topic, whichever shard it is in."""

    topic: str
    topic_id: str
    partition: int


class HeldPosition(NamedTuple):
    """A position of a group, and the partition that it is in."""

    place: Place
    position: Position


class PositionState(Struct, kw_only=True):
    """A position, as it was committed, with the state of its partition. For `lag` see `lag_of`."""

    topic: str
    partition: int
    from_seq: int
    leader_epoch: int
    metadata: str
    commit_ts: int
    head_seq: int
    earliest_seq: int
    lag: int


class Member(Struct, frozen=True, kw_only=True):
    """A member of a group, as its coordinator knows it, with the partitions that it was given."""

    member_id: str
    client_id: str = ""
    client_host: str = ""
    partitions: tuple[tuple[str, int], ...] = ()


class Membership(Struct, frozen=True, kw_only=True):
    """The membership of a group. `state` is a word of the Kafka protocol, such as `Stable`."""

    state: str = EMPTY
    protocol_type: str = ""
    members: Sequence[Member] = ()


class Coordinator(Protocol):
    """The keeper of group memberships. It calls `Groups.create` before a group has its first one."""

    def is_empty(self, group: str) -> bool:
        """Return whether the group has no members; called often."""
        ...

    def membership(self, group: str) -> Membership:
        """Return the members of the group."""
        ...


class NoCoordinator:
    """A coordinator without members: every group is empty."""

    def is_empty(self, group: str) -> bool:
        """See Coordinator."""
        return True

    def membership(self, group: str) -> Membership:
        """See Coordinator."""
        return Membership()


class GroupSummary(Struct, kw_only=True):
    """A line of a listing. `last_commit_ts` is None if nothing is known to have been committed."""

    group: str
    state: str
    protocol_type: str
    members: int
    positions: int
    last_commit_ts: int | None


class GroupState(Struct, kw_only=True):
    """All about one group."""

    group: str
    created_ts: int
    last_commit_ts: int | None
    membership: Membership
    positions: list[PositionState]


class ListGroupsRequest(Struct, kw_only=True):
    """A page of groups in name order. `after` is the last name of the page before; `page_size` is 1..1000."""

    prefix: str = ""
    after: str | None = None
    page_size: int = 100


class ListGroupsReply(Struct, kw_only=True):
    """Groups in name order; `next_after` is None on the last page."""

    groups: list[GroupSummary]
    next_after: str | None


class ResetRequest(Struct, kw_only=True):
    """Move positions: `to` an end of the log or a cursor, or to before the first record of time `ts` (ms) or later.

    Exactly one of the two is given. No `targets`: wherever the group has a position.
    """

    group: str
    to: Literal["earliest", "latest"] | int | None = None
    ts: int | None = None
    targets: Sequence[Target] = ()


class DeleteGroupReply(Struct, kw_only=True):
    """`deleted` is False when there was no such group."""

    group: str
    deleted: bool


class GroupRow(Struct, kw_only=True, array_like=True):
    """The stored row of a group, without its positions. New fields go to the end, with a default.

    `active_ts` is when it was last seen in use, roughly: by its members or by readers that commit nothing.
    """

    version: int = _VERSION
    name: str
    created_ts: int
    active_ts: int

    def encode(self) -> bytes:
        """The stored form."""
        return msgspec.msgpack.encode(self)


decode_row = msgspec.msgpack.Decoder(GroupRow).decode


class Group:
    """A group in memory: its positions by topic and partition, and when it was used last.

    A *mirror* stands for a group of another shard: it has what that has let go of in the partitions that are here.
    """

    __slots__ = (
        "active_ts",
        "created_ts",
        "is_mirror",
        "last_commit_ts",
        "name",
        "number",
        "positions",
        "size",
        "stored_ts",
    )

    def __init__(self, number: int, name: str, created_ts: int, active_ts: int, *, is_mirror: bool = False) -> None:
        self.is_mirror = is_mirror
        self.number = number
        self.name = name
        self.created_ts = created_ts
        self.active_ts = active_ts
        self.stored_ts = active_ts  # as a restart would find it
        self.positions: dict[Topic, dict[int, Position]] = {}
        self.size = 0  # how many positions
        self.last_commit_ts: int | None = None

    def position(self, topic: Topic, partition: int) -> Position | None:
        """The committed position, if there is one."""
        return self.positions.get(topic, {}).get(partition)

    def put(self, topic: Topic, partition: int, position: Position) -> None:
        """Set a position."""
        held = self.positions.setdefault(topic, {})
        self.size += partition not in held
        held[partition] = position
        self.active_ts = max(self.active_ts, position.ts)
        self.stored_ts = max(self.stored_ts, position.ts)
        self.last_commit_ts = max(self.last_commit_ts or 0, position.ts)

    def drop(self, topic: Topic, partition: int) -> None:
        """Forget a position that is there."""
        held = self.positions[topic]
        del held[partition]
        self.size -= 1
        if not held:
            del self.positions[topic]

    def drop_topic(self, topic: Topic) -> None:
        """Forget the positions in a topic."""
        self.size -= len(self.positions.pop(topic, {}))

    def row(self) -> tuple[bytes, bytes]:
        """Key and value of the group's own row."""
        row = GroupRow(name=self.name, created_ts=self.created_ts, active_ts=self.active_ts)
        return (mirror_key if self.is_mirror else row_key)(self.number), row.encode()


def check_item(item: CommitItem, head: int, *, kafka: bool) -> None:
    """Raise `invalid_request` unless the position can be committed in a partition with this head; see `commit`."""
    if item.from_seq < 0 or (item.from_seq > head and not kafka):
        raise beyond_head(item.topic, item.partition, item.from_seq, head)
    size = len(item.metadata.encode("utf-16-le")) // 2 if kafka else len(item.metadata.encode())
    if size > MAX_METADATA:
        raise invalid(
            f"the metadata of a position has at most {MAX_METADATA} bytes",
            {"topic": item.topic, "partition": item.partition, "limit": "max_metadata_bytes", "max": MAX_METADATA},
        )


def check_reset(request: ResetRequest) -> None:
    """Raise `invalid_request` unless the request says, once, where to."""
    if (request.to is None) == (request.ts is None):
        raise invalid("exactly one of to and ts must be given")


def beyond_head(topic: str, partition: int, from_seq: int, head: int) -> TopicsError:
    """A cursor that no position can have: 400 `invalid_request`."""
    detail = {"topic": topic, "partition": partition, "from_seq": from_seq, "head_seq": head}
    return invalid(f"from_seq must be from 0 to the head, which is at {head}", detail)


def state_of(place: Place, position: Position, earliest: int, head: int) -> PositionState:
    """A position, with the state of its partition."""
    return PositionState(
        topic=place.topic,
        partition=place.partition,
        from_seq=position.from_seq,
        leader_epoch=position.leader_epoch,
        metadata=position.metadata,
        commit_ts=position.ts,
        head_seq=head,
        earliest_seq=earliest,
        lag=lag_of(position.from_seq, head),
    )


def lag_of(from_seq: int, head: int) -> int:
    """The seqs between a position and the head, as in a diff; none where it is beyond."""
    return max(0, head - from_seq)


def row_key(number: int) -> bytes:
    """The key of a group's own row."""
    return keys.u64(number) + _ROW_KIND


def mirror_key(number: int) -> bytes:
    """The key of the row of a mirror."""
    return keys.u64(number) + _MIRROR_KIND


def state_key(number: int) -> bytes:
    """The key of the coordinator's state of a group."""
    return keys.u64(number) + _STATE_KIND


def is_group_row(key: bytes) -> bool:
    """Return whether this is the key of a group's own row."""
    return key[8:] == _ROW_KIND


def is_mirror_row(key: bytes) -> bool:
    """Return whether this is the key of a mirror's row."""
    return key[8:] == _MIRROR_KIND


def position_key(group: int, topic: int, partition: int) -> bytes:
    """The key of a position, by the numbers of group and topic."""
    return _KEY.pack(group, topic, partition)


def topic_range(group: int, topic: int) -> tuple[bytes, bytes]:
    """The key range of a group's positions in one topic."""
    return keys.pair(group, topic), keys.pair(group, topic + 1)


def read_position_key(key: bytes) -> tuple[int, int, int]:
    """The numbers of group and topic, and the partition. Raises struct.error for a key of another length."""
    group, topic, partition = _KEY.unpack(key)
    return group, topic, partition


def decode_position(row: bytes) -> Position:
    """A position from its row. Raises ValueError or struct.error for a row that can't be one."""
    version, from_seq, leader_epoch, ts = _POSITION.unpack_from(row)
    if version != _VERSION:
        raise ValueError(f"position row of version {version}")
    if from_seq > _MAX_POSITION:
        raise ValueError(f"a position at {from_seq}")
    return Position(from_seq, leader_epoch, row[_POSITION.size :].decode(), ts)
