"""The rule of each RPC and of each request of Kafka's: what it asks of its caller, once for every door."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from topics_service.api.auth import Scope
from topics_service.engine.errors import Reason, TopicsError


class Rule(NamedTuple):
    """What one RPC asks of its caller.

    `scopes` are needed all together. `field` is the request field, and the path variable, that names the topic, router
    or group called upon; empty if there is none. `slot` says that a call counts against the cap of its key, `whole`
    that it is about every topic, so that no key of some prefixes may make it.
    """

    scopes: frozenset[Scope]
    field: str = ""
    slot: bool = True
    whole: bool = False


_NONE: Final[frozenset[Scope]] = frozenset()
_READ: Final = frozenset({Scope.READ})
_WRITE: Final = frozenset({Scope.WRITE})
_DELETE: Final = frozenset({Scope.DELETE})
_ADMIN: Final = frozenset({Scope.ADMIN})

NO_ROUTE: Final = "no route"
NO_TOPIC_ROUTE: Final = "no route below a topic"
NO_ROUTER_ROUTE: Final = "no route below a router"
NO_GROUP_ROUTE: Final = "no route below a group"

PROBES: Final = frozenset({"topics.v1.AdminService.GetHealth", "topics.v1.AdminService.GetReady"})

RULES: Final[Mapping[str, Rule]] = {
    "topics.v1.TopicsService.PutTopic": Rule(_ADMIN, "topic"),
    "topics.v1.TopicsService.GetTopic": Rule(_READ, "topic"),
    "topics.v1.TopicsService.ListTopics": Rule(_READ),
    "topics.v1.TopicsService.DeleteTopic": Rule(_DELETE, "topic"),
    "topics.v1.TopicsService.Append": Rule(_WRITE, "topic"),
    "topics.v1.TopicsService.AppendStream": Rule(_WRITE),  # each batch names its topic: check_append
    "topics.v1.TopicsService.Diff": Rule(_READ, "topic"),
    "topics.v1.TopicsService.BulkDiff": Rule(_READ, "topic"),
    "topics.v1.TopicsService.LocateTime": Rule(_READ, "topic"),
    "topics.v1.TopicsService.DeleteRecords": Rule(_DELETE, "topic"),
    "topics.v1.QueueService.Claim": Rule(_READ | _WRITE, "topic"),
    "topics.v1.QueueService.Ack": Rule(_WRITE, "topic"),
    "topics.v1.QueueService.Nack": Rule(_WRITE, "topic"),
    "topics.v1.QueueService.Extend": Rule(_WRITE, "topic"),
    "topics.v1.QueueService.Work": Rule(_READ | _WRITE, "topic", slot=False),
    "topics.v1.QueueService.StopWork": Rule(_READ | _WRITE, "topic"),
    "topics.v1.QueueService.Redrive": Rule(_READ | _WRITE, "topic"),
    "topics.v1.QueueService.ListJobs": Rule(_READ, "topic"),
    "topics.v1.RouterService.PutRouter": Rule(_ADMIN, "router"),
    "topics.v1.RouterService.GetRouter": Rule(_READ, "router"),
    "topics.v1.RouterService.ListRouters": Rule(_READ),
    "topics.v1.RouterService.DeleteRouter": Rule(_DELETE, "router"),
    "topics.v1.GroupService.ListGroups": Rule(_READ),
    "topics.v1.GroupService.GetGroup": Rule(_READ, "group"),
    "topics.v1.GroupService.DeleteGroup": Rule(_DELETE, "group"),
    "topics.v1.GroupService.Consume": Rule(_READ, "group"),
    "topics.v1.GroupService.CommitPositions": Rule(_READ, "group"),
    "topics.v1.GroupService.FetchPositions": Rule(_READ, "group"),
    "topics.v1.GroupService.ResetPositions": Rule(_DELETE, "group"),
    "topics.v1.GroupService.DeletePositions": Rule(_DELETE, "group"),
    "topics.v1.WatchService.CreateWatch": Rule(_READ),
    "topics.v1.WatchService.OpenWatch": Rule(_READ, slot=False),
    "topics.v1.WatchService.Watch": Rule(_READ, slot=False),
    "topics.v1.AdminService.GetHealth": Rule(_NONE, slot=False),
    "topics.v1.AdminService.GetReady": Rule(_NONE, slot=False),
    "topics.v1.AdminService.GetMetrics": Rule(_READ),
    "topics.v1.AdminService.ListBulkReaders": Rule(_READ),
    "topics.v1.AdminService.CreateCheckpoint": Rule(_ADMIN, whole=True),
    "topics.v1.AdminService.ReleaseCheckpoint": Rule(_ADMIN, whole=True),
    # HTTP requests that will get 404 or 405, by where their path leads.
    NO_ROUTE: Rule(_NONE),
    NO_TOPIC_ROUTE: Rule(_WRITE, "topic"),
    NO_ROUTER_ROUTE: Rule(_ADMIN, "router"),
    NO_GROUP_ROUTE: Rule(_READ, "group"),
}

# The requests of Kafka clients, by API key. Names are those of topics, or of groups in the APIs of groups. Metadata and
# what comes before it take any key, as Kafka's Describe, which every other permission implies: a producer needs it
# too. What waits for others (a fetch, members of a group) takes no slot: a connection has one such request at most.
KAFKA_RULES: Final[Mapping[int, Rule]] = {
    0: Rule(_WRITE, "topic"),  # Produce
    1: Rule(_READ, "topic", slot=False),  # Fetch
    2: Rule(_READ, "topic"),  # ListOffsets
    3: Rule(_NONE, "topic"),  # Metadata; to create what is missing takes `write`, as an append does
    8: Rule(_READ, "group"),  # OffsetCommit; and `read` of the topics
    9: Rule(_READ, "group"),  # OffsetFetch
    10: Rule(_NONE, "group"),  # FindCoordinator
    11: Rule(_READ, "group", slot=False),  # JoinGroup
    12: Rule(_READ, "group", slot=False),  # Heartbeat
    13: Rule(_READ, "group", slot=False),  # LeaveGroup
    14: Rule(_READ, "group", slot=False),  # SyncGroup
    15: Rule(_READ, "group"),  # DescribeGroups
    16: Rule(_READ),  # ListGroups: those that the key may touch
    17: Rule(_NONE, slot=False),  # SaslHandshake
    18: Rule(_NONE, slot=False),  # ApiVersions
    19: Rule(_ADMIN, "topic"),  # CreateTopics
    20: Rule(_DELETE, "topic"),  # DeleteTopics
    21: Rule(_DELETE, "topic"),  # DeleteRecords
    22: Rule(_WRITE),  # InitProducerId
    23: Rule(_READ, "topic"),  # OffsetForLeaderEpoch
    32: Rule(_READ, "topic"),  # DescribeConfigs
    33: Rule(_ADMIN, "topic"),  # AlterConfigs
    35: Rule(_READ, "topic"),  # DescribeLogDirs
    36: Rule(_NONE, slot=False),  # SaslAuthenticate
    37: Rule(_ADMIN, "topic"),  # CreatePartitions
    42: Rule(_DELETE, "group"),  # DeleteGroups
    44: Rule(_ADMIN, "topic"),  # IncrementalAlterConfigs
    47: Rule(_DELETE, "group"),  # OffsetDelete
    60: Rule(_NONE),  # DescribeCluster
    61: Rule(_READ, "topic"),  # DescribeProducers
    68: Rule(_READ, "group", slot=False),  # ConsumerGroupHeartbeat
    69: Rule(_READ, "group"),  # ConsumerGroupDescribe
}


def rule_of(rpc: str) -> Rule:
    """The rule of an RPC, by its full name. One without a rule is `forbidden` to everyone."""
    rule = RULES.get(rpc)
    if rule is None:
        raise TopicsError(Reason.FORBIDDEN, f"{rpc} has no access rule")
    return rule
