"""Placement of shards on nodes: who is to own each, who follows it, and which shard moves next. Pure functions of what
the coordinator knows, so all nodes come to the same answer.

The score of a shard at a node is that of a rendezvous hash, weighted by the node's capacity. Owners stay where they are
as long as each node has its share, rounded down or up, so a node that joins or leaves moves only shards that it gets or
had. A share is the part of all shards that the node's capacity is of all capacities.

A shard that prefers a zone is owned there as long as the zone has a node: these shards are shared by the nodes of their
zone, and all others so that each node comes as near to its share as it can.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from topics_cluster.coordinator import Node, View

_HASHES: Final = 1 << 64
_EPSILON: Final = 1e-9  # of a share that is a whole number but for rounding


class Layout(NamedTuple):
    """The node that is to own each shard, and those that are to follow it; no owner without nodes."""

    owners: Sequence[str | None]
    followers: Sequence[Sequence[str]]

    def holders(self, shard: int) -> set[str]:
        """The nodes that are to have a replica."""
        return {*self.followers[shard], *filter(None, [self.owners[shard]])}


class Move(NamedTuple):
    """A handover of one shard to a node."""

    shard: int
    node: str


def score(shard: int, node: Node) -> float:
    """The weight of a node for a shard: the highest wins, and a node of twice the capacity wins twice as often."""
    digest = hashlib.blake2b(f"{shard} {node.name}".encode(), digest_size=8).digest()
    return node.capacity / -math.log((int.from_bytes(digest, "big") + 0.5) / _HASHES)


def eligible(view: View) -> list[Node]:
    """The nodes that may get shards: those that are not drained, or all if all are."""
    nodes = [node for _, node in sorted(view.nodes.items())]
    return [node for node in nodes if node.name not in view.drained] or nodes


def lay_out(shards: int, view: View, followers: int) -> Layout:
    """Find the owner of each shard and that number of followers, as near to the present ones as the shares allow."""
    nodes = eligible(view)
    if not nodes:
        return Layout([None] * shards, [()] * shards)
    owners: dict[int, str] = {}
    for zone, preferring in _by_zone(shards, nodes, view).items():
        there = [node for node in nodes if node.zone == zone]
        owners |= _Owners(preferring, there, shares(len(preferring), there), view).found()
    free = [shard for shard in range(shards) if shard not in owners]
    owners |= _Owners(free, nodes, _rests(len(free), nodes, Counter(owners.values())), view).found()
    found = [owners[shard] for shard in range(shards)]
    return Layout(found, _followers(found, nodes, followers))


def _by_zone(shards: int, nodes: Sequence[Node], view: View) -> dict[str, list[int]]:
    """The shards that prefer each zone which has a node."""
    zones = {node.zone for node in nodes}
    found: dict[str, list[int]] = {}
    for shard, zone in sorted(view.zones.items()):
        if zone in zones and shard < shards:
            found.setdefault(zone, []).append(shard)
    return found


def holders(shard: int, view: View, layout: Layout) -> set[str]:
    """The nodes that are to have a replica of a shard now: also one that an operator wants as its owner."""
    wanted = view.wanted.get(shard)
    return layout.holders(shard) | ({wanted} if wanted is not None and wanted in view.nodes else set())


def is_spare(shard: int, name: str, view: View, layout: Layout) -> bool:
    """Return whether a node's replica of a shard is needed no more: another node owns it, and all that are to have a
    replica have caught up."""
    owner, held = view.owners.get(shard), holders(shard, view, layout)
    is_owned = owner is not None and owner.epoch > 0 and owner.node != name
    return is_owned and name not in held and all(shard in view.nodes[each].warm for each in held)


def next_move(shards: int, view: View, layout: Layout, *, is_settled: bool) -> Move | None:
    """The move whose turn it is: that of a wish, else from a drained node, else one for the balance.

    One at a time: none while a shard is between two owners. The last kind waits until the cluster is settled, with an
    owner of each shard; the others until then or until both nodes have all replicas that they are to have: a node that
    loads one answers late. The target of a move has caught up with the shard.
    """
    owners = view.owners
    if any(owner.epoch == 0 for owner in owners.values()):
        return None

    loading = {
        name
        for shard in range(shards)
        for name in holders(shard, view, layout)
        if name in view.nodes and shard not in view.nodes[name].warm
    }

    def may_get(shard: int, name: str | None) -> bool:
        if name is None or shard not in owners or owners[shard].node == name:
            return False
        is_busy = not is_settled and not loading.isdisjoint((name, owners[shard].node))
        return name in view.nodes and shard in view.nodes[name].warm and not is_busy

    for shard, name in sorted(view.wanted.items()):
        if shard < shards and may_get(shard, name):
            return Move(shard, name)
    due = [Move(shard, name) for shard, name in enumerate(layout.owners) if name is not None and may_get(shard, name)]
    drained = [move for move in due if owners[move.shard].node in view.drained and move.node not in view.drained]
    if drained:
        return drained[0]
    return due[0] if due and is_settled and all(shard in owners for shard in range(shards)) else None


def moves(shards: int, view: View, layout: Layout) -> list[Move]:
    """All moves that lead from the owners to the layout."""
    return [
        Move(shard, name)
        for shard, name in enumerate(layout.owners)
        if name is not None and shard in view.owners and view.owners[shard].node != name
    ]


def shares(shards: int, nodes: Iterable[Node]) -> dict[str, float]:
    """The number of shards that each node would have if they could be divided."""
    every = list(nodes)
    total = sum(node.capacity for node in every)
    return {node.name: shards * node.capacity / total for node in every}


def _rests(free: int, nodes: Iterable[Node], loads: Mapping[str, int]) -> dict[str, float]:
    """The rest of each node's share that free shards may take: one that has its share or more gets none of them."""
    rests = {node.name: 0.0 for node in nodes}
    rest = list(nodes)
    while free:
        each = shares(free + sum(loads[node.name] for node in rest), rest)
        filled = {name for name, share in each.items() if share < loads[name]}
        if not filled:
            return rests | {name: share - loads[name] for name, share in each.items()}
        rest = [node for node in rest if node.name not in filled]
    return rests


class _Owners:
    """A search for owners of some shards that moves as little as the shares of nodes allow."""

    def __init__(self, shards: Collection[int], nodes: Iterable[Node], shares: Mapping[str, float], view: View) -> None:
        self._nodes = {node.name: node for node in nodes}
        self._shares = shares
        self._view = view
        self._owners: dict[int, str | None] = dict.fromkeys(shards)
        self._loads = dict.fromkeys(self._nodes, 0)
        for shard in shards:
            owner = view.owners.get(shard)
            if owner is not None and owner.node in self._nodes:
                self._give(shard, owner.node)

    def found(self) -> dict[int, str]:
        """The owner of each shard."""
        for name in self._nodes:
            while self._loads[name] > math.ceil(self._shares[name] - _EPSILON):
                self._take(self._weakest(name))
        free = {shard for shard, owner in self._owners.items() if owner is None}
        while free:
            name = self._neediest()
            shard = self._best(name, free)
            free.remove(shard)
            self._give(shard, name)
        while (taker := self._short()) is not None:
            giver = max(self._nodes, key=lambda each: (self._loads[each] - self._shares[each], each))
            shard = self._weakest(giver)
            self._take(shard)
            self._give(shard, taker)
        return {shard: owner for shard, owner in self._owners.items() if owner is not None}

    def _give(self, shard: int, name: str) -> None:
        self._owners[shard] = name
        self._loads[name] += 1

    def _take(self, shard: int) -> None:
        owner = self._owners[shard]
        assert owner is not None, "only what a node has is taken"
        self._loads[owner] -= 1
        self._owners[shard] = None

    def _weakest(self, name: str) -> int:
        """The shard of a node that has least reason to be there."""
        held = [shard for shard, owner in self._owners.items() if owner == name]
        return min(held, key=lambda shard: score(shard, self._nodes[name]))

    def _neediest(self) -> str:
        """The node that lacks most of its share."""
        return max(self._nodes, key=lambda name: (self._shares[name] - self._loads[name], name))

    def _best(self, name: str, free: Collection[int]) -> int:
        """The free shard that a node is to get: one that is nowhere and it has a replica of, or its own by score."""
        node = self._nodes[name]

        def rank(shard: int) -> tuple[bool, float]:
            owner = self._view.owners.get(shard)
            is_stranded = owner is None or owner.node not in self._nodes
            return is_stranded and shard in node.warm, score(shard, node)

        return max(sorted(free), key=rank)

    def _short(self) -> str | None:
        """A node with less than its share, rounded down."""
        short = [name for name, share in self._shares.items() if self._loads[name] < math.floor(share + _EPSILON)]
        return max(short, key=lambda name: (self._shares[name] - self._loads[name], name)) if short else None


def _followers(owners: Sequence[str], nodes: Sequence[Node], count: int) -> list[list[str]]:
    """Followers of each shard: in zones that have no replica of it where there are such, then those that have room,
    then those that have caught up with it."""
    by_name = {node.name: node for node in nodes}
    room = {name: math.ceil(share - _EPSILON) for name, share in shares(count * len(owners), nodes).items()}
    loads = dict.fromkeys(by_name, 0)
    found: list[list[str]] = []
    for shard, owner in enumerate(owners):
        chosen: list[str] = []
        zones = {by_name[owner].zone}
        rest = [node for node in nodes if node.name != owner]
        while rest and len(chosen) < count:
            best = min(rest, key=lambda node: _rank(shard, node, zones, loads[node.name] < room[node.name]))
            rest.remove(best)
            chosen.append(best.name)
            zones.add(best.zone)
            loads[best.name] += 1
        found.append(chosen)
    return found


def _rank(shard: int, node: Node, zones: Collection[str], has_room: bool) -> tuple[bool, bool, bool, float]:
    return node.zone in zones, not has_room, shard not in node.warm, -score(shard, node)
