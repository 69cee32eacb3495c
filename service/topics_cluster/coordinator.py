"""Liveness of the nodes, and ownership of the shard as claimed: the protocol. No promise about data depends on it."""

import time
from collections.abc import AsyncIterator, Mapping
from typing import Protocol

from msgspec import Struct


class CoordinatorError(Exception):
    """The coordinator did not answer."""


class CoordinatorRefusedError(CoordinatorError):
    """The coordinator refused the credentials of this node."""


class Addresses(Struct, frozen=True, kw_only=True):
    """Addresses of a node, each as host:port; empty where it has no such port."""

    http: str
    grpc: str
    kafka: str = ""
    kafka_advertised: str = ""
    """The one for clients of Kafka; `kafka` if empty."""
    shards: str = ""
    """The one of the calls on shards; empty where the cluster has one shard."""
    postgres: str = ""


class Node(Struct, frozen=True, kw_only=True):
    """A node that lives."""

    name: str
    addresses: Addresses
    zone: str = ""
    version: str = ""
    formats: tuple[int, int] = (1, 1)
    """The oldest and the newest version of the log that it reads."""
    cluster: str = ""
    """The id of its cluster."""
    shards: int = 1
    """The number of shards that it knows the cluster to have."""
    capacity: int = 1
    """The weight of its share of the shards."""
    number: int = 0
    """Its number among the nodes, which is its broker id for Kafka."""
    warm: tuple[int, ...] = ()
    """The shards that it owns, or follows and has caught up with."""


class Owner(Struct, frozen=True, kw_only=True):
    """The owner of a shard. `epoch` is that of its fence; 0 while it still takes over."""

    node: str
    addresses: Addresses
    epoch: int


class View(Struct, frozen=True, kw_only=True):
    """All that the coordinator knows, at one revision of it."""

    revision: int
    nodes: Mapping[str, Node]
    owners: Mapping[int, Owner]
    """By shard."""
    wanted: Mapping[int, str]
    """The node that an operator wants to own a shard."""
    drained: frozenset[str] = frozenset()
    """The nodes that are to own none."""
    zones: Mapping[int, str] = {}
    """The zone that each shard prefers for its owner, of those that prefer one."""


def boottime() -> float:
    """Seconds by CLOCK_BOOTTIME, which counts while the machine sleeps and can't be set."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Session(Protocol):
    """The lease of one node: what it has put is gone when the lease ends.

    A lease that ended (the node slept, the coordinator was emptied) is followed by a new one, with the node's entry and
    without its claims: in between, another node may have owned the shard and have ended. The owner claims it again, and
    looks for a fence in the log after that, before it trusts `valid_until`.
    """

    @property
    def valid_until(self) -> float:
        """The time until which the lease holds at least, by `boottime`; counted from before its last renewal was sent.

        It has passed, and stays so, when the lease under which a shard was claimed has ended, until that shard is
        claimed again or given up.
        """
        ...

    def holds_until(self, shard: int) -> float:
        """The same for one shard, whatever becomes of the others."""
        ...

    async def register(self, node: Node) -> None:
        """Put the node's entry, in place of one that it has put before."""
        ...

    async def claim(self, shard: int, seen: Owner | None, mine: Owner) -> bool:
        """Become the owner, if the shard's entry is still `seen` (None: there is none), or `mine` already. Return
        whether it is ours."""
        ...

    async def give_up(self, shard: int, mine: Owner) -> None:
        """Remove the owner's entry if it is still `mine`."""
        ...

    async def close(self) -> None:
        """End the lease."""
        ...


class Coordinator(Protocol):
    """All calls may raise CoordinatorError."""

    async def session(self, seconds: float) -> Session:
        """Begin a lease, which is renewed until it is closed. A coordinator may grant more than `seconds`."""
        ...

    async def view(self) -> View:
        """The entries as they are now."""
        ...

    def watch(self) -> AsyncIterator[View]:
        """The entries now, and after each change. Goes on over lost connections, and is silent while the coordinator is
        away. Raises CoordinatorRefusedError."""
        ...

    async def want(self, shard: int, node: str | None) -> None:
        """Note, or forget (None), which node shall own a shard."""
        ...

    async def drain(self, node: str, *, is_drained: bool) -> None:
        """Note, or forget, that a node is to own no shard."""
        ...

    async def prefer(self, shard: int, zone: str | None) -> None:
        """Note, or forget (None), the zone that a shard prefers."""
        ...

    async def close(self) -> None:
        """Release its connections."""
        ...
