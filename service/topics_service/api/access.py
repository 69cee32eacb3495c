"""Who may call what, once for every door: the rule of each RPC, and the gate that every call passes.

A door refuses a call in this order: `unauthorized` (`Gate.identify`), too many calls of one key (`Gate.slot`),
`forbidden` by scope and by name (`authorize`), and only then for whatever else is wrong with it. What depends on the
decoded request is checked by `check_put` and `check_append`.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from types import TracebackType
from typing import Any, Final, NamedTuple

from topics_service.api.access_calls import Call, Running, gone
from topics_service.api.audit import current_call
from topics_service.api.auth import ANYONE, NOBODY, KeyRing, Principal, Scope, read_bearer
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.model import AppendRequest, ConfigInput


class Rule(NamedTuple):
    """What one RPC asks of its caller.

    `scopes` are needed all together. `field` is the request field, and the path variable, that names the topic, router
    or group called upon; empty if there is none. `slot` says that a call counts against the cap of its key.
    """

    scopes: frozenset[Scope]
    field: str = ""
    slot: bool = True


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
    "topics.v1.AdminService.CreateCheckpoint": Rule(_ADMIN),
    "topics.v1.AdminService.ReleaseCheckpoint": Rule(_ADMIN),
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
        raise _forbidden(f"{rpc} has no access rule")
    return rule


class _Known:
    """The keys of a gate, and of those made of it. `principals`, by `key_id`: None for those there were at first."""

    def __init__(self, keys: KeyRing | None) -> None:
        self.keys = keys
        self.principals: Mapping[str, Principal] | None = None


class Gate:
    """Tells callers apart by their keys and counts the calls that each key has in flight.

    The keys may be exchanged while it is used: the calls of a key that goes, or that may no longer do what it could,
    are ended at once (`renew`).
    """

    def __init__(self, keys: KeyRing | None = None, *, probe_auth: bool = False, max_inflight: int = 1000) -> None:
        """`keys` None lets everyone in. `probe_auth` asks for a key on the probes too; `max_inflight` 0 is no cap."""
        self._known = _Known(keys)
        self._probe_auth = probe_auth
        self._max_inflight = max_inflight
        self._inflight: dict[str, int] = {}
        self._running = Running()
        self._cuts = False

    def identify(self, rpc: str, authorization: bytes | None) -> Principal:
        """Who calls `rpc`, by the Authorization header. Raises `unauthorized`, alike for no key and a wrong one."""
        keys = self._known.keys
        if keys is None:
            return ANYONE
        if rpc in PROBES and not self._probe_auth:
            return NOBODY
        token = read_bearer(authorization)
        principal = None if token is None else keys.find(token)
        if principal is None:
            raise TopicsError(Reason.UNAUTHORIZED, "missing or unknown API key")
        if self._cuts:
            self._running.add_task(principal)
        return principal

    def find(self, password: bytes) -> Principal | None:
        """Who has this key; everyone, whatever it is, where no key is asked for. None for an unknown key."""
        keys = self._known.keys
        return ANYONE if keys is None else keys.find(password)

    @property
    def open(self) -> bool:
        """Whether no key is asked for."""
        return self._known.keys is None

    def renew(self, keys: KeyRing, principals: Collection[Principal]) -> None:
        """Take these keys, whose owners are `principals`, in place of the old ones.

        What runs for others ends: calls within `slot` with `unauthorized`, tasks that a `cutting` gate let in by being
        cancelled.
        """
        self._known.keys = keys
        self._known.principals = {principal.key_id: principal for principal in principals}
        self._running.end_all_but(frozenset(principals))

    def knows(self, principal: Principal) -> bool:
        """Whether the key that was found to be `principal` is still good for that."""
        principals = self._known.principals
        if principals is None or not principal.key_id:
            return True
        known = principals.get(principal.key_id)
        return known is principal or known == principal

    def ends_with_key(self, principal: Principal, running: "asyncio.Future[Any]") -> None:
        """Cancel what runs for `principal` when the key goes."""
        if principal.key_id:
            self._running.add(principal, running)

    def cutting(self) -> "Gate":
        """The same gate for a door that can't tell a client why its call ends: the task is cancelled.

        That is the task that calls `identify`, which must do nothing but serve this call.
        """
        made = copy(self)
        made._cuts = True
        return made

    def slot(self, rpc: str, principal: Principal) -> AbstractContextManager[None]:
        """What a call holds while it runs: one of the key's slots, if it takes any, and that its key is good.

        Entering raises `throttled` when no slot is free, and `unauthorized` when the key has gone; leaving raises
        `unauthorized` if it went meanwhile, which ends what the task that entered waits for.
        """
        if not principal.key_id:
            return _FREE
        counts = rule_of(rpc).slot and self._max_inflight > 0
        return _Hold(self, principal, counts=counts, call=None if self._cuts else self._running.call(principal))

    def take(self, key_id: str) -> None:
        """As `acquire`, but raises `throttled` when no slot is free."""
        if not self.acquire(key_id):
            raise TopicsError(
                Reason.THROTTLED,
                "this API key has as many requests in flight as it may",
                {"limit": "max_inflight_per_key", "max": self._max_inflight},
            )

    def acquire(self, key_id: str) -> bool:
        """Take one of the key's slots, which must be released; False when none is free."""
        running = self._inflight.get(key_id, 0)
        if self._max_inflight and running >= self._max_inflight:
            return False
        self._inflight[key_id] = running + 1
        return True

    def release(self, key_id: str) -> None:
        """Give a slot back."""
        self._inflight[key_id] -= 1


class _Hold:
    """What `Gate.slot` returns. No generator: each request with a key passes this."""

    __slots__ = ("_call", "_counts", "_gate", "_principal")

    def __init__(self, gate: Gate, principal: Principal, *, counts: bool, call: Call | None) -> None:
        self._gate = gate
        self._principal = principal
        self._counts = counts
        self._call = call

    def __enter__(self) -> None:
        gate, principal, call = self._gate, self._principal, self._call
        if self._counts:
            gate.take(principal.key_id)
        if call is None:
            return
        if not gate.knows(principal):
            if self._counts:
                gate.release(principal.key_id)
            raise gone()
        call.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._counts:
            self._gate.release(self._principal.key_id)
        if self._call is not None:
            self._call.__exit__(kind, error, trace)


_FREE: Final = nullcontext()


def authorize(principal: Principal, rpc: str, name: str) -> None:
    """Raise `forbidden` unless the caller may call `rpc` upon `name`, the value of the rule's field.

    The audit log, where there is one, learns who calls, and who was refused.
    """
    call = current_call.get()
    if call is not None:
        call.principal = principal
    rule = RULES.get(rpc)
    if rule is not None and rule.scopes <= principal.scopes and (not rule.field or principal.allows_name(name)):
        return
    error = _refusal(principal, rpc)
    if call is not None:
        call.refused(rpc, name, error)
    raise error


def _refusal(principal: Principal, rpc: str) -> TopicsError:
    rule = rule_of(rpc)
    if not rule.scopes <= principal.scopes:
        missing = sorted(scope.value for scope in rule.scopes - principal.scopes)
        return _forbidden(f"the API key lacks {' and '.join(missing)} scope")
    return _forbidden("the name is outside the prefixes of the API key")


def check_names(principal: Principal, names: Iterable[str]) -> None:
    """Raise `forbidden`, with the first name at fault, unless the caller may touch every name in a request's body."""
    for name in names:
        if not principal.allows_name(name):
            raise _forbidden("a name is outside the prefixes of the API key", name)


def check_subscription(principal: Principal, keys: Iterable[str]) -> None:
    """Raise `forbidden` unless the caller may watch every topic that these names and patterns (`tenant42:*`) mean."""
    for key in keys:
        if not principal.allows_name(key.removesuffix("*")):
            raise _forbidden("a name is outside the prefixes of the API key", key)


def check_put(principal: Principal, config: ConfigInput) -> None:
    """Raise `forbidden` unless the caller may give a topic this config: jobs must not leave its names."""
    if config.dead_letter is not None:
        check_names(principal, (config.dead_letter,))
    if config.retain_until_acked_by:
        check_names(principal, config.retain_until_acked_by)


def check_append(principal: Principal, request: AppendRequest, *, exists: bool) -> None:
    """Raise `forbidden` unless the caller may make this write; the door has asked for the `write` scope.

    A config on a write to a topic that does not exist is a PutTopic: it takes the `admin` scope as well.
    """
    check_names(principal, (request.topic,))
    if request.config is None:
        return
    if not exists and not principal.allows(Scope.ADMIN):
        raise _forbidden("creating a topic with a config takes admin scope", request.topic)
    check_put(principal, request.config)


def _forbidden(message: str, topic: str | None = None) -> TopicsError:
    return TopicsError(Reason.FORBIDDEN, message, None if topic is None else {"topic": topic})
