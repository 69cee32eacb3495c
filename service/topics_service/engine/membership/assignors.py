"""Assignors of `consumer` groups (KIP-848), from which members can choose.

An assignor is a pure function of the members' subscriptions, the topics, and the previous targets.
"""

import heapq
from collections.abc import Callable, Mapping
from typing import NamedTuple

from topics_service.engine.membership.members import Partition, TopicFacts


class Subscriber(NamedTuple):
    """A member with its topics. `order` sorts members where the order matters."""

    topics: frozenset[str]
    order: tuple[bool, str]


Subscribers = Mapping[str, Subscriber]
Topics = Mapping[str, TopicFacts]
Assignment = dict[str, set[Partition]]
Assignor = Callable[[Subscribers, Topics, Mapping[str, set[Partition]]], Assignment]

_MAX_PASSES = 32


def uniform(members: Subscribers, topics: Topics, before: Mapping[str, set[Partition]]) -> Assignment:
    """As many partitions for each member as for any other, moving as few as possible.

    Where members differ in their topics, no single move can make the result more even.
    """
    names = {member.topics for member in members.values()}
    if len(names) <= 1:
        return _alike(members, topics, before)
    return _mixed(members, topics, before)


def range_(members: Subscribers, topics: Topics, before: Mapping[str, set[Partition]]) -> Assignment:
    """Assign each member a run of consecutive partitions of each topic, the same one for equal topics."""
    assignment: Assignment = {member_id: set() for member_id in members}
    in_order = sorted(members, key=lambda member_id: members[member_id].order)
    by_name: dict[str, list[str]] = {}
    for member_id in in_order:
        for name in members[member_id].topics:
            by_name.setdefault(name, []).append(member_id)
    for name, subscribers in by_name.items():
        facts = topics.get(name)
        if facts is None:
            continue
        each, extra = divmod(facts.partition_count, len(subscribers))
        start = 0
        for i, member_id in enumerate(subscribers):
            stop = start + each + (i < extra)
            assignment[member_id].update((facts.topic_id, p) for p in range(start, stop))
            start = stop
    return assignment


ASSIGNORS: Mapping[str, Assignor] = {"uniform": uniform, "range": range_}
DEFAULT_ASSIGNOR = "uniform"


def _partitions(facts: TopicFacts) -> list[Partition]:
    return [(facts.topic_id, p) for p in range(facts.partition_count)]


def _alike(members: Subscribers, topics: Topics, before: Mapping[str, set[Partition]]) -> Assignment:
    """Assign partitions among members that all have the same topics."""
    if not members:
        return {}
    names = next(iter(members.values())).topics
    wanted = {part for name in sorted(names) if name in topics for part in _partitions(topics[name])}
    each, extra = divmod(len(wanted), len(members))
    kept = {member_id: sorted(before.get(member_id, set()) & wanted) for member_id in members}
    fullest_first = sorted(members, key=lambda member_id: (-len(kept[member_id]), members[member_id].order))
    assignment: Assignment = {}
    room: list[tuple[str, int]] = []
    for i, member_id in enumerate(fullest_first):
        share = each + (i < extra)
        assignment[member_id] = set(kept[member_id][:share])
        if share > len(assignment[member_id]):
            room.append((member_id, share - len(assignment[member_id])))
    free = sorted(wanted.difference(*assignment.values()), reverse=True)
    for member_id, count in room:
        for _ in range(count):
            assignment[member_id].add(free.pop())
    return assignment


def _mixed(members: Subscribers, topics: Topics, before: Mapping[str, set[Partition]]) -> Assignment:
    """For different subscriptions: members keep partitions within their share, the rest is dealt out, then evened out
    topic by topic.
    """
    assignment: Assignment = {member_id: set() for member_id in members}
    by_name: dict[str, list[str]] = {}
    for member_id in sorted(members, key=lambda member_id: members[member_id].order):
        for name in members[member_id].topics:
            if name in topics:
                by_name.setdefault(name, []).append(member_id)
    names_of = {topics[name].topic_id: name for name in by_name}
    taken: set[Partition] = set()
    for member_id, member in members.items():
        for part in before.get(member_id, ()):
            name = names_of.get(part[0], "")
            if name in member.topics and part[1] < topics[name].partition_count and part not in taken:
                assignment[member_id].add(part)
                taken.add(part)
    scarce_first = sorted(by_name, key=lambda name: (len(by_name[name]), name))
    for name in scarce_first:
        _deal([part for part in _partitions(topics[name]) if part not in taken], by_name[name], assignment)
    for _ in range(_MAX_PASSES):
        moved = [_even_out(topics[name].topic_id, by_name[name], assignment) for name in scarce_first]
        if not any(moved):
            break
    return assignment


def _deal(parts: list[Partition], subscribers: list[str], assignment: Assignment) -> None:
    """Give each partition to the subscriber that has the fewest."""
    loads = [(len(assignment[member_id]), i, member_id) for i, member_id in enumerate(subscribers)]
    heapq.heapify(loads)
    for part in parts:
        load, i, member_id = loads[0]
        assignment[member_id].add(part)
        heapq.heapreplace(loads, (load + 1, i, member_id))


def _even_out(topic_id: bytes, subscribers: list[str], assignment: Assignment) -> bool:
    """Move partitions of a topic from the fullest to the emptiest members while that helps; return if any moved."""
    movable = {m: sorted(part for part in assignment[m] if part[0] == topic_id) for m in subscribers}
    rich = [(-len(assignment[m]), i, m) for i, m in enumerate(subscribers) if movable[m]]
    poor = [(len(assignment[m]), i, m) for i, m in enumerate(subscribers)]
    heapq.heapify(rich)
    heapq.heapify(poor)
    moved = False
    while rich:
        i, giver = rich[0][1:]
        load = len(assignment[giver])
        if -rich[0][0] != load or not movable[giver]:
            heapq.heappop(rich)
            if movable[giver]:
                heapq.heappush(rich, (-load, i, giver))
            continue
        lowest, j, taker = poor[0]
        if lowest != len(assignment[taker]):
            heapq.heapreplace(poor, (len(assignment[taker]), j, taker))
            continue
        if load - lowest < 2:
            break
        part = movable[giver].pop()
        assignment[giver].remove(part)
        assignment[taker].add(part)
        movable[taker].append(part)
        moved = True
    return moved
