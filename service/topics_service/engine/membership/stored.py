"""The stored form of a group's membership: the row that `Coordinator.dump` makes and `Coordinator.load` reads.

A classic group is stored when its members get their assignments, so that they keep these after a restart.
"""

import msgspec
from msgspec import Raw, Struct

from topics_service.engine.membership.classic import STABLE, ClassicGroup
from topics_service.engine.membership.consumer import ConsumerGroup
from topics_service.engine.membership.consumer_member import ConsumerMember, by_topic
from topics_service.engine.membership.members import Client, Partition, RefusedError, TopicFacts
from topics_service.engine.membership.runtime import Runtime
from topics_service.engine.membership.subscriptions import compile_pattern

_VERSION = 1


class _Classic(Struct, array_like=True, tag="classic"):
    version: int
    generation: int
    protocol_type: str
    protocol: str | None
    leader: str | None
    is_stable: bool
    members: list["_ClassicMember"]


class _ClassicMember(Struct, array_like=True):
    member_id: str
    instance_id: str | None
    client: Client
    session_ms: int
    rebalance_ms: int
    protocols: dict[str, bytes]
    assignment: bytes


class _Consumer(Struct, array_like=True, tag="consumer"):
    version: int
    epoch: int
    target_epoch: int
    assignor: str
    topics: dict[str, tuple[bytes, int]]
    members: list[Raw]  # of _ConsumerMember
    matched: list[tuple[list[str], list[str]]]  # topics that patterns match, and the members that have these


class _ConsumerMember(Struct, array_like=True):
    member_id: str
    instance_id: str | None
    rack: str | None
    client: Client
    rebalance_ms: int
    names: list[str]
    regex: str | None
    assignor: str | None
    epoch: int
    previous: int
    assigned: list[tuple[int, dict[bytes, list[int]]]]  # by the epoch of the grant
    revoking: dict[bytes, list[int]]
    target: dict[bytes, list[int]]


_decoder = msgspec.msgpack.Decoder(_Classic | _Consumer)
_member_decoder = msgspec.msgpack.Decoder(_ConsumerMember)


def dump(group: ClassicGroup | ConsumerGroup) -> bytes:
    """The row of a group."""
    if isinstance(group, ClassicGroup):
        return _dump_classic(group)
    matched: dict[frozenset[str], list[str]] = {}
    for member in group.members.values():
        if member.matched:
            matched.setdefault(member.matched, []).append(member.member_id)
    row = _Consumer(
        version=_VERSION,
        epoch=group.epoch,
        target_epoch=group.target_epoch,
        assignor=group.assignor,
        topics={name: (facts.topic_id, facts.partition_count) for name, facts in group.topics.items()},
        members=[Raw(_packed(group, member)) for member in group.members.values()],
        matched=[(sorted(names), members) for names, members in matched.items()],
    )
    return msgspec.msgpack.encode(row)


def load(name: str, row: bytes, runtime: Runtime) -> ClassicGroup | ConsumerGroup:
    """The group of a row; sessions begin now. Raises ValueError if the row can't be read."""
    try:
        stored = _decoder.decode(row)
        if stored.version != _VERSION:
            raise ValueError(f"it is of version {stored.version}")
        group = _classic(name, stored, runtime) if isinstance(stored, _Classic) else _consumer(name, stored, runtime)
    except (msgspec.MsgspecError, ValueError) as error:
        raise ValueError(f"the stored state of group {name} can't be read: {error}") from error
    group.is_stored = True
    return group


def _dump_classic(group: ClassicGroup) -> bytes:
    row = _Classic(
        version=_VERSION,
        generation=group.generation,
        protocol_type=group.protocol_type,
        protocol=group.protocol,
        leader=group.leader,
        is_stable=group.state == STABLE,
        members=[
            _ClassicMember(
                member_id=member.member_id,
                instance_id=member.instance_id,
                client=member.client,
                session_ms=member.session_ms,
                rebalance_ms=member.rebalance_ms,
                protocols=member.protocols,
                assignment=member.assignment,
            )
            for member in group.members.values()
        ],
    )
    return msgspec.msgpack.encode(row)


def _classic(name: str, stored: _Classic, runtime: Runtime) -> ClassicGroup:
    group = ClassicGroup(name, runtime)
    group.generation, group.leader = stored.generation, stored.leader
    group.protocol_type, group.protocol = stored.protocol_type, stored.protocol
    for each in stored.members:
        member = group.enter(each.member_id, each.instance_id)
        member.client = each.client
        member.session_ms, member.rebalance_ms = each.session_ms, each.rebalance_ms
        member.protocols, member.assignment = each.protocols, each.assignment
        member.knows_id = True
        runtime.weigh(member)
        member.session.set(runtime.now() + member.session_ms)
    group.resume(is_stable=stored.is_stable)
    return group


def _packed(group: ConsumerGroup, member: ConsumerMember) -> bytes:
    if member.packed is None:
        member.packed = msgspec.msgpack.encode(_consumer_member(group, member))
    return member.packed


def _consumer_member(group: ConsumerGroup, member: ConsumerMember) -> _ConsumerMember:
    grants: dict[int, list[Partition]] = {}
    for part, epoch in member.assigned.items():
        grants.setdefault(epoch, []).append(part)
    return _ConsumerMember(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack=member.rack,
        client=member.client,
        rebalance_ms=member.rebalance_ms,
        names=sorted(member.names),
        regex=member.regex,
        assignor=member.assignor,
        epoch=member.epoch,
        previous=member.previous,
        assigned=[(epoch, by_topic(parts)) for epoch, parts in grants.items()],
        revoking=by_topic(member.revoking),
        target=by_topic(group.target.get(member.member_id, ())),
    )


def _consumer(name: str, stored: _Consumer, runtime: Runtime) -> ConsumerGroup:
    group = ConsumerGroup(name, runtime)
    group.epoch, group.target_epoch, group.assignor = stored.epoch, stored.target_epoch, stored.assignor
    group.topics = {name: TopicFacts(*facts) for name, facts in stored.topics.items()}
    matched = {
        member_id: names for names, ids in ((frozenset(n), ids) for n, ids in stored.matched) for member_id in ids
    }
    for raw in stored.members:
        each = _member_decoder.decode(raw)
        member = group.enter(each.member_id, each.instance_id)
        member.rack, member.client, member.rebalance_ms = each.rack, each.client, each.rebalance_ms
        member.names, member.regex = frozenset(each.names), each.regex
        member.matched = matched.get(each.member_id, frozenset())
        runtime.weigh(member)
        member.assignor, member.epoch, member.previous = each.assignor, each.epoch, each.previous
        member.assigned = {part: epoch for epoch, parts in each.assigned for part in _parts(parts)}
        member.revoking = set(_parts(each.revoking))
        group.target[member.member_id] = set(_parts(each.target))
        for part in member.assigned.keys() | member.revoking:
            group.owners[part] = member.member_id
        if member.regex is not None:
            _compile(member, runtime)
        member.session.set(runtime.now() + runtime.settings.session_ms)
        if member.revoking:
            member.revocation.set(runtime.now() + member.rebalance_ms)
    return group


def _compile(member: ConsumerMember, runtime: Runtime) -> None:
    """Without its pattern, as when google-re2 is missing by now, the member keeps the topics it had."""
    try:
        member.pattern = compile_pattern(member.regex or "", runtime.settings.max_regex_chars)
    except RefusedError:
        member.pattern = None


def _parts(topics: dict[bytes, list[int]]) -> list[Partition]:
    return [(topic_id, partition) for topic_id, partitions in topics.items() for partition in partitions]
