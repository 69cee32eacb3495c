"""Access rules: the scopes and names that each RPC requires, for HTTP and gRPC alike."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from topics_service.api.access.auth import Scope
from topics_service.engine.errors import Reason, TopicsError


class Rule(NamedTuple):
    """Requirements of one RPC.

    All `scopes` are required. `field` is the request field, and the path variable, that names the topic, router or
    group; empty if there is none. `slot`: the call counts against the in-flight limit of its key. `whole`: the call
    spans all topics, so keys with a prefix restriction may not make it.
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
    "topics.v1.SqlService.Execute": Rule(_NONE),  # the executor asks `roles` for each statement
    "topics.v1.SqlService.Subscribe": Rule(_NONE, slot=False),  # `LiveApi` asks `roles` for the query
    "topics.v1.SqlService.Consume": Rule(_READ),  # topic and group: `sql.consume`
    "topics.v1.SqlService.Ack": Rule(_READ),
    "topics.v1.AdminService.GetHealth": Rule(_NONE, slot=False),
    "topics.v1.AdminService.GetReady": Rule(_NONE, slot=False),
    "topics.v1.AdminService.GetMetrics": Rule(_READ),
    "topics.v1.AdminService.ListBulkReaders": Rule(_READ),
    "topics.v1.AdminService.CreateCheckpoint": Rule(_ADMIN, whole=True),
    "topics.v1.AdminService.ReleaseCheckpoint": Rule(_ADMIN, whole=True),
    "topics.v1.AdminService.GetCluster": Rule(_READ),
    "topics.v1.AdminService.MoveShard": Rule(_ADMIN, whole=True),
    "topics.v1.AdminService.DrainNode": Rule(_ADMIN, whole=True),
    "topics.v1.AdminService.SetShardZone": Rule(_ADMIN, whole=True),
    # HTTP requests that will get 404 or 405, by where their path leads.
    NO_ROUTE: Rule(_NONE),
    NO_TOPIC_ROUTE: Rule(_WRITE, "topic"),
    NO_ROUTER_ROUTE: Rule(_ADMIN, "router"),
    NO_GROUP_ROUTE: Rule(_READ, "group"),
}


def rule_of(rpc: str) -> Rule:
    """The rule of an RPC, by its full name. One without a rule is `forbidden` to everyone."""
    rule = RULES.get(rpc)
    if rule is None:
        raise TopicsError(Reason.FORBIDDEN, f"{rpc} has no access rule")
    return rule
