"""Messages of GroupService to the engine's structs, and its replies to messages."""

from collections.abc import Iterable
from typing import Literal

from topics_proto.v1 import group_pb2
from topics_proto.v1 import group_service_pb2 as pb
from topics_service.api.cursor import read_cursor, write_cursor
from topics_service.api.groups import ConsumeRequest
from topics_service.api.grpc.convert import checked_time, tag_match
from topics_service.engine.errors import invalid
from topics_service.engine.model import DiffRequest
from topics_service.engine.offsets.positions import (
    CommitItem,
    GroupState,
    ListGroupsReply,
    ListGroupsRequest,
    Member,
    PositionState,
    ResetRequest,
    Target,
)

_ENDS: dict[int, Literal["earliest", "latest"]] = {
    group_pb2.LOG_END_UNSPECIFIED: "earliest",
    group_pb2.LOG_END_EARLIEST: "earliest",
    group_pb2.LOG_END_LATEST: "latest",
}


def list_request(request: pb.ListGroupsRequest) -> ListGroupsRequest:
    """A listing, with its page size brought into range."""
    page_size = request.page_size if request.HasField("page_size") else 100
    return ListGroupsRequest(
        prefix=request.prefix, after=read_cursor(request.cursor), page_size=min(max(page_size, 1), 1000)
    )


def list_response(reply: ListGroupsReply) -> pb.ListGroupsResponse:
    """A page of groups."""
    groups = [
        group_pb2.GroupSummary(
            group=line.group,
            state=line.state,
            protocol_type=line.protocol_type,
            members=line.members,
            positions=line.positions,
            last_commit_ts_ms=line.last_commit_ts,
        )
        for line in reply.groups
    ]
    return pb.ListGroupsResponse(groups=groups, next_cursor=write_cursor(reply.next_after))


def state_message(state: GroupState) -> group_pb2.GroupState:
    """All about one group."""
    return group_pb2.GroupState(
        group=state.group,
        state=state.membership.state,
        protocol_type=state.membership.protocol_type,
        created_ts_ms=state.created_ts,
        last_commit_ts_ms=state.last_commit_ts,
        members=map(_member, state.membership.members),
        positions=map(position_message, state.positions),
    )


def position_message(state: PositionState) -> group_pb2.GroupPosition:
    """One position."""
    return group_pb2.GroupPosition(
        topic=state.topic,
        partition=state.partition,
        from_seq=state.from_seq,
        metadata=state.metadata,
        commit_ts_ms=state.commit_ts,
        head_seq=state.head_seq,
        earliest_seq=state.earliest_seq,
        lag=state.lag,
        leader_epoch=state.leader_epoch if state.leader_epoch >= 0 else None,
    )


def consume_request(request: pb.ConsumeRequest) -> ConsumeRequest:
    """A read from the position of a group; the engine clamps its numbers."""
    start: Literal["earliest", "latest"] | int
    if request.WhichOneof("start") == "start_from_seq":
        start = request.start_from_seq
    else:
        start = _end(request.start_at, "start_at")
    return ConsumeRequest(
        group=request.group,
        start=start,
        page=DiffRequest(
            topic=request.topic,
            partition=request.partition,
            limit=request.limit,
            nodes=tuple(node.encode() for node in request.node),
            wait_ms=request.wait_ms,
            max_batch_bytes=request.max_batch_bytes,
            filter=tag_match(request.filter, "filter") if request.HasField("filter") else None,
        ),
    )


def commit_items(request: pb.CommitPositionsRequest) -> list[CommitItem]:
    """The positions to set. Raises `invalid_request` for one without a cursor."""
    items = []
    for given in request.positions:
        if not given.HasField("from_seq"):
            raise invalid("from_seq is missing")
        items.append(CommitItem(given.topic, given.partition, given.from_seq, metadata=given.metadata))
    return items


def reset_request(request: pb.ResetPositionsRequest) -> ResetRequest:
    """A reset. Raises `invalid_request` when it does not say where to."""
    match request.WhichOneof("to"):
        case "to_end":
            return ResetRequest(group=request.group, to=_end(request.to_end, "to_end"), targets=targets(request.topics))
        case "to_from_seq":
            return ResetRequest(group=request.group, to=request.to_from_seq, targets=targets(request.topics))
        case "to_ts_ms":
            ts = checked_time(request.to_ts_ms)
            return ResetRequest(group=request.group, ts=ts, targets=targets(request.topics))
        case _:
            raise invalid("a reset needs to_end, to_from_seq or to_ts_ms")


def targets(topics: Iterable[group_pb2.TopicPartitions]) -> list[Target]:
    """The partitions that a call is about."""
    return [Target(given.topic, tuple(given.partitions)) for given in topics]


def _end(end: int, field: str) -> Literal["earliest", "latest"]:
    if end not in _ENDS:
        raise invalid(f"{field}: unknown value {end}")
    return _ENDS[end]


def _member(member: Member) -> group_pb2.GroupMember:
    assigned: dict[str, list[int]] = {}
    for topic, partition in member.partitions:
        assigned.setdefault(topic, []).append(partition)
    return group_pb2.GroupMember(
        member_id=member.member_id,
        client_id=member.client_id,
        client_host=member.client_host,
        assignment=[
            group_pb2.TopicPartitions(topic=topic, partitions=partitions) for topic, partitions in assigned.items()
        ],
    )
