"""Kafka's ACL operations: which ones a scope allows, and those of a caller as bit sets."""

from collections.abc import Collection, Mapping
from enum import IntEnum
from typing import Final

from topics_kafka.handlers import Context
from topics_service.api.access.auth import Scope

NOT_ASKED: Final = -(1 << 31)


class Operation(IntEnum):
    """Kafka's operations, as far as a scope allows them; ANY is that of filters."""

    ANY = 1
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


class ResourceType(IntEnum):
    """Kafka's types of resources that have operations; ANY is that of filters."""

    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4


_ALLOWED: Final[Mapping[ResourceType, Mapping[Scope, tuple[Operation, ...]]]] = {
    ResourceType.TOPIC: {
        Scope.READ: (Operation.READ, Operation.DESCRIBE_CONFIGS),
        Scope.WRITE: (Operation.WRITE,),
        Scope.DELETE: (Operation.DELETE,),
        Scope.ADMIN: (Operation.CREATE, Operation.ALTER, Operation.ALTER_CONFIGS),
    },
    ResourceType.GROUP: {Scope.READ: (Operation.READ,), Scope.DELETE: (Operation.DELETE,)},
    ResourceType.CLUSTER: {
        Scope.READ: (Operation.DESCRIBE_CONFIGS,),
        Scope.WRITE: (Operation.IDEMPOTENT_WRITE,),
        Scope.ADMIN: (Operation.CREATE, Operation.ALTER),
    },
}


def allowed(kind: ResourceType, scopes: Collection[Scope]) -> list[Operation]:
    """Operations that these scopes allow on a resource that the caller may access, in order; each implies DESCRIBE."""
    found = {operation for scope in scopes for operation in _ALLOWED[kind].get(scope, ())}
    return sorted(found | {Operation.DESCRIBE}) if found else []


def on_topics(context: Context) -> int:
    """Operations allowed on a topic that the caller may access."""
    return _bits(ResourceType.TOPIC, context)


def on_groups(context: Context) -> int:
    """Operations allowed on a group that the caller may access."""
    return _bits(ResourceType.GROUP, context)


def on_cluster(context: Context) -> int:
    """Operations allowed on the cluster."""
    return _bits(ResourceType.CLUSTER, context)


def _bits(kind: ResourceType, context: Context) -> int:
    operations = allowed(kind, context.principal.scopes) or (Operation.DESCRIBE,)
    return sum(1 << operation for operation in operations)
