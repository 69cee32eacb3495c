"""Authorized operations of a caller, as bit sets of Kafka's ACL operations."""

from collections.abc import Mapping
from typing import Final

from topics_kafka.handlers import Context
from topics_service.api.access.auth import Scope

NOT_ASKED: Final = -(1 << 31)

_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE = 3, 4, 5, 6, 7, 8
_DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT_WRITE = 10, 11, 12

_OF_TOPIC: Final = {
    Scope.READ: (_READ, _DESCRIBE_CONFIGS),
    Scope.WRITE: (_WRITE,),
    Scope.DELETE: (_DELETE,),
    Scope.ADMIN: (_CREATE, _ALTER, _ALTER_CONFIGS),
}
_OF_CLUSTER: Final = {
    Scope.READ: (_DESCRIBE_CONFIGS,),
    Scope.WRITE: (_IDEMPOTENT_WRITE,),
    Scope.ADMIN: (_CREATE,),
}
_OF_GROUP: Final = {Scope.READ: (_READ,), Scope.DELETE: (_DELETE,)}


def on_topics(context: Context) -> int:
    """Operations allowed on a topic that the caller may access."""
    return _bits(context, _OF_TOPIC)


def on_groups(context: Context) -> int:
    """Operations allowed on a group that the caller may access."""
    return _bits(context, _OF_GROUP)


def on_cluster(context: Context) -> int:
    """Operations allowed on the cluster."""
    return _bits(context, _OF_CLUSTER)


def _bits(context: Context, operations: Mapping[Scope, tuple[int, ...]]) -> int:
    allowed = {_DESCRIBE}.union(*(operations[scope] for scope in operations if context.has_scope(scope)))
    return sum(1 << operation for operation in allowed)
