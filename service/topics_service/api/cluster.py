"""The interface of administrators to the cluster that a server belongs to."""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct


class NodeState(Struct, frozen=True, kw_only=True):
    """A node that lives; addresses are host:port, empty where it has no such port."""

    name: str
    http: str
    grpc: str
    kafka: str
    zone: str
    version: str
    formats: tuple[int, int]
    """The oldest and the newest version of the log that it reads."""
    capacity: int
    """The weight of its share of the shards."""
    is_drained: bool
    """True for one that is to own no shard."""


class FollowerState(Struct, frozen=True, kw_only=True):
    """A node that follows a shard, and the newest object that it has applied (0: not known here)."""

    node: str
    number: int
    caught_up: bool


class ShardState(Struct, frozen=True, kw_only=True):
    """A shard: its owner ("": none) with its epoch (0 while it takes over), the newest durable object, and the nodes
    that an operator, and the placement, want as its owner ("": none). Only the owner knows where its followers are."""

    shard: int
    owner: str
    epoch: int
    number: int
    wanted: str
    target: str
    zone: str
    """The one that it prefers for its owner; empty for none."""
    followers: Sequence[FollowerState]


class ClusterState(Struct, frozen=True, kw_only=True):
    """The cluster, as `node` sees it."""

    cluster: str
    node: str
    nodes: Sequence[NodeState]
    shards: Sequence[ShardState]
    format: int
    """The version of the log that is final; 0 while the object store does not answer."""


class ClusterApi(Protocol):
    """The cluster of a node."""

    async def state(self) -> ClusterState:
        """The nodes and shards."""
        ...

    async def move(self, shard: int, node: str) -> int:
        """Hand a shard to a node; return the epoch in which that owns it.

        Raises TopicsError `invalid_request` for a shard or node that is not there, `not_ready` if it takes too long.
        """
        ...

    async def drain(self, node: str, *, is_drained: bool) -> int:
        """Let a node own no shards, or own some again; return the number of those that it owns at present.

        Raises TopicsError `invalid_request` for a node that is not there, or the only one that can own shards;
        `not_ready` if the coordinator does not answer.
        """
        ...

    async def prefer(self, shards: Sequence[int], zone: str) -> int:
        """Let shards prefer owners in a zone, or in none (""); return the number of those that have an owner elsewhere.

        Raises TopicsError `invalid_request` for a shard that is not there, or what is no name of a zone; `not_ready` if
        the coordinator does not answer.
        """
        ...
