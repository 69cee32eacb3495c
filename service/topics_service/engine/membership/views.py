"""Views of groups for people and tools: the members and their assignments."""

from collections.abc import Iterable

from topics_service.engine.membership.classic import COMPLETING, STABLE, ClassicGroup
from topics_service.engine.membership.classic_member import ClassicMember
from topics_service.engine.membership.consumer import ConsumerGroup
from topics_service.engine.membership.consumer_member import ConsumerMember, by_topic
from topics_service.engine.membership.members import GroupView, MemberView, Partition, TopicsView
from topics_service.engine.membership.subscriptions import consumer_assignment
from topics_service.engine.offsets.positions import Member, Membership


def view_of(group: ClassicGroup | ConsumerGroup, topics: TopicsView) -> GroupView:
    """All about a group's members."""
    if isinstance(group, ClassicGroup):
        return GroupView(
            group=group.name,
            type="classic",
            state=group.state,
            protocol_type=group.protocol_type,
            protocol=group.protocol or "",
            epoch=group.generation,
            members=[_classic_member(group, member) for member in group.members.values()],
        )
    return GroupView(
        group=group.name,
        type="consumer",
        state=group.state,
        protocol_type="consumer",
        protocol=group.assignor,
        epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        members=[_consumer_member(group, member, topics) for member in group.members.values()],
    )


def membership_of(view: GroupView) -> Membership:
    """Return the same for protocols other than Kafka."""
    return Membership(
        state=view.state,
        protocol_type=view.protocol_type,
        members=[
            Member(
                member_id=member.member_id,
                client_id=member.client.client_id,
                client_host=member.client.host,
                partitions=tuple((name, p) for name, parts in (member.partitions or {}).items() for p in parts),
            )
            for member in view.members
        ],
    )


def _classic_member(group: ClassicGroup, member: ClassicMember) -> MemberView:
    is_known = group.protocol_type == "consumer"
    has_protocol = group.state in (COMPLETING, STABLE)
    return MemberView(
        member_id=member.member_id,
        instance_id=member.instance_id,
        client=member.client,
        epoch=group.generation,
        partitions=consumer_assignment(member.assignment) if is_known else None,
        metadata=member.protocols.get(group.protocol or "", b"") if has_protocol else b"",
        assigned=member.assignment,
    )


def _consumer_member(group: ConsumerGroup, member: ConsumerMember, topics: TopicsView) -> MemberView:
    return MemberView(
        member_id=member.member_id,
        instance_id=member.instance_id,
        client=member.client,
        epoch=member.epoch,
        partitions=_by_name(member.assigned, topics),
        target=_by_name(group.target.get(member.member_id, ()), topics),
        names=sorted(member.names),
        regex=member.regex,
        rack=member.rack,
    )


def _by_name(parts: Iterable[Partition], topics: TopicsView) -> dict[str, list[int]]:
    """Partitions by the names of their topics, without deleted topics."""
    found: dict[str, list[int]] = {}
    for topic_id, partitions in by_topic(parts).items():
        name = topics.name_of(topic_id)
        if name is not None:
            found[name] = partitions
    return found
