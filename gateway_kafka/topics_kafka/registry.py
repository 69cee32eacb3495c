"""The registry of the served Kafka APIs: one row per API, and the tables derived from the rows.

To serve another API, add its key to `protocol.ApiKey`, a row here, its handler to a module of `topics_kafka.handlers`,
and run `generate_schema.py`.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from topics_kafka.handlers import (
    Api,
    AuditAction,
    Handler,
    HandlerTable,
    ServerContext,
    access_admin,
    cluster_admin,
    configs,
    fetch,
    groups,
    groups_admin,
    list_offsets,
    metadata,
    offsets,
    produce,
    producer_ids,
    records_admin,
    sasl,
    topic_partitions,
    topics,
    transactions,
    versions,
)
from topics_kafka.protocol import ApiKey, Message
from topics_service.api.access.auth import Scope
from topics_service.api.access.authorizer import Rule

_NONE: Final[frozenset[Scope]] = frozenset()
_READ: Final = frozenset({Scope.READ})
_WRITE: Final = frozenset({Scope.WRITE})
_DELETE: Final = frozenset({Scope.DELETE})
_ADMIN: Final = frozenset({Scope.ADMIN})

_PUT_TOPIC: Final = AuditAction("topic.put", "topic")
_DELETE_TOPIC: Final = AuditAction("topic.delete", "topic")
_DELETE_RECORDS: Final = AuditAction("records.delete", "topic")
_DELETE_GROUP: Final = AuditAction("group.delete", "group")
_DELETE_POSITIONS: Final = AuditAction("group.delete_positions", "group", each="topics")

# Paths to error codes.
_TOPICS: Final = (("topics",),)
_PARTITIONS: Final = (("topics", "partitions"),)
_GROUPS: Final = (("groups",),)
_RESPONSES: Final = (("responses",),)
_RESULTS: Final = (("results",),)

# Metadata and the APIs that precede it need no scope, like Kafka's Describe operation, which every other permission
# implies: a producer needs them too. An API that waits (a fetch, the members of a group) takes no slot: a connection
# has at most one such request.
_ROWS: Final = (
    Api(
        ApiKey.PRODUCE,
        (3, 13),
        Rule(_WRITE, "topic"),
        produce.handlers,
        errors=(("responses", "partition_responses"),),
        # Versions 0 to 2 are advertised and refused: older librdkafka takes a server without them for one that can't
        # read compressed batches, and sends uncompressed ones (KAFKA-18659).
        advertised_since=0,
    ),
    Api(ApiKey.FETCH, (4, 17), Rule(_READ, "topic", slot=False), fetch.handlers, errors=(("responses", "partitions"),)),
    Api(ApiKey.LIST_OFFSETS, (1, 11), Rule(_READ, "topic"), list_offsets.handlers, errors=_PARTITIONS),
    # Metadata: creating missing topics also takes `write`, as an append does.
    Api(ApiKey.METADATA, (0, 13), Rule(_NONE, "topic"), metadata.handlers, errors=_TOPICS),
    # OffsetCommit: `read` of the topics as well.
    Api(ApiKey.OFFSET_COMMIT, (2, 10), Rule(_READ, "group"), offsets.handlers, errors=_PARTITIONS),
    Api(
        ApiKey.OFFSET_FETCH,
        (1, 10),
        Rule(_READ, "group"),
        offsets.handlers,
        errors=(("groups", "topics", "partitions"), ("topics", "partitions")),
    ),
    Api(ApiKey.FIND_COORDINATOR, (0, 6), Rule(_NONE, "group"), groups.handlers, errors=(("coordinators",),)),
    Api(ApiKey.JOIN_GROUP, (0, 9), Rule(_READ, "group", slot=False), groups.handlers),
    Api(ApiKey.HEARTBEAT, (0, 4), Rule(_READ, "group", slot=False), groups.handlers),
    Api(ApiKey.LEAVE_GROUP, (0, 5), Rule(_READ, "group", slot=False), groups.handlers, errors=(("members",),)),
    Api(ApiKey.SYNC_GROUP, (0, 5), Rule(_READ, "group", slot=False), groups.handlers),
    Api(ApiKey.DESCRIBE_GROUPS, (0, 6), Rule(_READ, "group"), groups_admin.handlers, errors=_GROUPS),
    # ListGroups: lists the groups within the prefixes of the key.
    Api(ApiKey.LIST_GROUPS, (0, 5), Rule(_READ), groups_admin.handlers),
    Api(ApiKey.SASL_HANDSHAKE, (0, 1), Rule(_NONE, slot=False), sasl.handlers, before_authentication=True),
    Api(ApiKey.API_VERSIONS, (0, 4), Rule(_NONE, slot=False), versions.handlers, before_authentication=True),
    Api(ApiKey.CREATE_TOPICS, (2, 7), Rule(_ADMIN, "topic"), topics.handlers, _PUT_TOPIC, errors=_TOPICS),
    Api(ApiKey.DELETE_TOPICS, (1, 6), Rule(_DELETE, "topic"), topics.handlers, _DELETE_TOPIC, errors=_RESPONSES),
    Api(
        ApiKey.DELETE_RECORDS,
        (0, 2),
        Rule(_DELETE, "topic"),
        records_admin.handlers,
        _DELETE_RECORDS,
        errors=_PARTITIONS,
    ),
    Api(ApiKey.INIT_PRODUCER_ID, (0, 5), Rule(_WRITE), producer_ids.handlers),
    Api(ApiKey.OFFSET_FOR_LEADER_EPOCH, (2, 4), Rule(_READ, "topic"), producer_ids.handlers, errors=_PARTITIONS),
    Api(ApiKey.DESCRIBE_ACLS, (1, 3), Rule(_ADMIN), access_admin.handlers),
    Api(ApiKey.CREATE_ACLS, (1, 3), Rule(_ADMIN), access_admin.handlers, errors=_RESULTS),
    Api(ApiKey.DELETE_ACLS, (1, 3), Rule(_ADMIN), access_admin.handlers, errors=(("filter_results",),)),
    Api(ApiKey.DESCRIBE_CONFIGS, (1, 4), Rule(_READ, "topic"), configs.handlers, errors=_RESULTS),
    Api(ApiKey.ALTER_CONFIGS, (0, 2), Rule(_ADMIN, "topic"), configs.handlers, _PUT_TOPIC, errors=_RESPONSES),
    Api(ApiKey.DESCRIBE_LOG_DIRS, (1, 4), Rule(_READ, "topic"), records_admin.handlers, errors=_RESULTS),
    Api(ApiKey.SASL_AUTHENTICATE, (0, 2), Rule(_NONE, slot=False), sasl.handlers, before_authentication=True),
    Api(ApiKey.CREATE_PARTITIONS, (0, 3), Rule(_ADMIN, "topic"), topics.handlers, _PUT_TOPIC, errors=_RESULTS),
    Api(ApiKey.DELETE_GROUPS, (0, 2), Rule(_DELETE, "group"), groups_admin.handlers, _DELETE_GROUP, errors=_RESULTS),
    Api(
        ApiKey.ELECT_LEADERS,
        (0, 2),
        Rule(_ADMIN, "topic"),
        cluster_admin.handlers,
        errors=(("replica_election_results", "partition_result"),),
    ),
    Api(
        ApiKey.INCREMENTAL_ALTER_CONFIGS, (0, 1), Rule(_ADMIN, "topic"), configs.handlers, _PUT_TOPIC, errors=_RESPONSES
    ),
    Api(
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        (0, 1),
        Rule(_ADMIN, "topic"),
        cluster_admin.handlers,
        errors=(("responses", "partitions"),),
    ),
    Api(ApiKey.LIST_PARTITION_REASSIGNMENTS, (0, 0), Rule(_READ), cluster_admin.handlers),
    Api(ApiKey.OFFSET_DELETE, (0, 0), Rule(_DELETE, "group"), offsets.handlers, _DELETE_POSITIONS, errors=_PARTITIONS),
    Api(ApiKey.DESCRIBE_CLIENT_QUOTAS, (0, 1), Rule(_ADMIN), access_admin.handlers),
    Api(ApiKey.ALTER_CLIENT_QUOTAS, (0, 1), Rule(_ADMIN), access_admin.handlers, errors=(("entries",),)),
    Api(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, (0, 0), Rule(_ADMIN), access_admin.handlers, errors=_RESULTS),
    Api(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, (0, 0), Rule(_ADMIN), access_admin.handlers, errors=_RESULTS),
    Api(ApiKey.DESCRIBE_QUORUM, (0, 2), Rule(_READ), cluster_admin.handlers, errors=_PARTITIONS),
    Api(ApiKey.DESCRIBE_CLUSTER, (0, 2), Rule(_NONE), metadata.handlers),
    Api(ApiKey.DESCRIBE_PRODUCERS, (0, 0), Rule(_READ, "topic"), producer_ids.handlers, errors=_PARTITIONS),
    Api(ApiKey.DESCRIBE_TRANSACTIONS, (0, 0), Rule(_READ), transactions.handlers, errors=(("transaction_states",),)),
    Api(ApiKey.LIST_TRANSACTIONS, (0, 2), Rule(_READ), transactions.handlers),
    Api(ApiKey.CONSUMER_GROUP_HEARTBEAT, (0, 1), Rule(_READ, "group", slot=False), groups.handlers),
    Api(ApiKey.CONSUMER_GROUP_DESCRIBE, (0, 1), Rule(_READ, "group"), groups_admin.handlers, errors=_GROUPS),
    Api(ApiKey.LIST_CONFIG_RESOURCES, (0, 1), Rule(_READ), configs.handlers),
    Api(ApiKey.DESCRIBE_TOPIC_PARTITIONS, (0, 0), Rule(_NONE, "topic"), topic_partitions.handlers, errors=_TOPICS),
)

APIS: Final[Mapping[int, Api]] = MappingProxyType({row.key.value: row for row in _ROWS})
"""API key -> its row."""

AUDIT_ACTIONS: Final[Mapping[int, AuditAction]] = MappingProxyType(
    {row.key.value: row.audit for row in _ROWS if row.audit is not None}
)
"""API key -> the action in the audit log and the name of its target there. APIs without one are not audited."""


def all_handlers(server: ServerContext) -> HandlerTable:
    """Create the handlers of every API for `server`."""
    table: dict[int, Handler] = {}
    for create in dict.fromkeys(row.handlers for row in _ROWS):
        table |= create(server)
    return table


def error_codes(api: int, response: Message) -> Iterator[int]:
    """The error codes other than 0 in a response of that API."""
    return APIS[api].error_codes(response)
