"""Types that the handlers of Kafka's APIs share: a row of the registry, the context of the server and of a connection.

A module of handlers has `handlers(server) -> HandlerTable`, which rows of `topics_kafka.registry` name. A handler
is called with the connection's context, the request's version and its decoded body, and returns one of:

- a message: the response body, sent at once. Members missing in the version are omitted, absent ones get the schema's
  default;
- None: no response is ever sent (Produce with acks=0);
- an awaitable of either: sent when it is done, cancelled when the connection is lost. Requests of a connection are
  answered in order and one at a time, except Produce: the next one is accepted while earlier ones wait.

Handlers report refusals in the response, with `errors.error_of`. An exception that leaves a handler is a bug: it is
logged and counted, and closes the connection.
"""

import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from uuid import UUID
from weakref import WeakValueDictionary

from topics_kafka.brokers import BrokerView, BrokerViews, OneBroker
from topics_kafka.protocol import ApiKey, ErrorCode, Message
from topics_kafka.settings import KafkaSettings
from topics_net.loop_budget import LoopBudget
from topics_net.rate_limited_logger import RateLimitedLogger
from topics_service.api.access.auth import ANONYMOUS, Principal, Scope
from topics_service.api.access.authorizer import Authorizer, Rule
from topics_service.api.access.scram import Exchange
from topics_service.api.access.users import UserRow
from topics_service.api.budget import Share
from topics_service.api.catalog import Catalog, TopicView
from topics_service.api.kafka import Broker, Brokers, KafkaShards
from topics_service.api.membership import Members
from topics_service.api.topics import TopicsApi
from topics_service.engine.placement import home_of, shards_of
from topics_service.statistics import KafkaStatistics

TELLING_SECONDS: Final = 1.0
"""Time in which a client learns of a shard's new leader."""

Answer = Message | None | Awaitable[Message | None]
Handler = Callable[["Context", int, Message], Answer]
HandlerTable = Mapping[int, Handler]


class AuditAction(NamedTuple):
    """The entry of an API in the audit log: `target` is the member that names the topic or group.

    The call of the API writes it, and a refusal for lack of access is read from the response. With `each`, the name of
    an array whose members succeed or fail alone, the outcome of the request is read from there as well.
    """

    action: str
    target: str
    each: str = ""


@dataclass(frozen=True, slots=True)
class Api:
    """One Kafka API.

    `versions` are the first and the last that are served. `rule` says what a caller needs; its names are those of
    topics, or of groups in the APIs of groups. `handlers` creates the handlers of the API's module, `audit` is the
    entry of a change in the audit log. `errors` are paths to the arrays, one inside the other, whose members have
    error codes; the versions of one API may name them differently.
    """

    key: ApiKey
    versions: tuple[int, int]
    rule: Rule
    handlers: Callable[["ServerContext"], HandlerTable]
    audit: AuditAction | None = None
    errors: tuple[tuple[str, ...], ...] = ()
    advertised_since: int | None = None
    """The first version that ApiVersions lists, if that is not the first that is served."""
    before_authentication: bool = False
    name: str = field(init=False)
    """The name in metrics and log lines: that of Kafka's documentation."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.key.name.title().replace("_", ""))

    @property
    def advertised(self) -> tuple[int, int]:
        """The first and the last version that ApiVersions lists."""
        first, last = self.versions
        return first if self.advertised_since is None else self.advertised_since, last

    def error_codes(self, response: Message) -> Iterator[int]:
        """The error codes other than 0 in a response: its own, and those of its topics, partitions and so on."""
        code = response.get("error_code")
        if code:
            yield code
        for path in self.errors:
            yield from _error_codes_in(response, path)


def _error_codes_in(message: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[int]:
    for entry in message.get(path[0]) or ():
        code = entry.get("error_code")
        if code:
            yield code
        if len(path) > 1:
            yield from _error_codes_in(entry, path[1:])


@dataclass(slots=True, kw_only=True)
class ServerContext:
    """State that all connections of a Kafka listener share.

    Create it after recovery. `host` and `port` are the advertised address. `cluster_id` never changes for a data
    directory.
    """

    apis: Mapping[int, Api]
    api: TopicsApi | KafkaShards
    authorizer: Authorizer
    settings: KafkaSettings
    statistics: KafkaStatistics
    cluster_id: str
    host: str = "127.0.0.1"
    port: int = 9092
    leader_epoch: int = 0
    """The epoch of every partition's leader where there is one broker; that of the shard in a cluster with one."""
    log: RateLimitedLogger = field(default_factory=lambda: RateLimitedLogger(logging.getLogger("topics.kafka")))
    single: TopicsApi | None = field(init=False)
    """The only engine; None where there are several shards."""
    cluster: Brokers | None = field(init=False)
    """The nodes among which the shards are; None if the listener is the only broker."""
    views: BrokerViews = field(init=False)
    _epochs: tuple[int | None, tuple[int, ...]] = field(init=False, default=(None, ()))
    catalog: Catalog = field(init=False)
    membership: Members = field(init=False)
    loop_budget: LoopBudget = field(default_factory=LoopBudget)
    shares: "WeakValueDictionary[str, Share]" = field(default_factory=WeakValueDictionary)
    """By `key_id`, while a connection has them."""
    mock_key: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)
    """Secret from which the salts of users that are not there are made, for SCRAM."""
    waiting: int = 0
    """Number of partitions that fetches wait for; one that is named repeatedly counts each time."""

    def __post_init__(self) -> None:
        self.single = self.api if isinstance(self.api, TopicsApi) else None
        self.cluster = None if isinstance(self.api, TopicsApi) else self.api.brokers
        self.views = BrokerViews(self.cluster or OneBroker(self._broker, lambda: self.leader_epoch))
        self.catalog = self.api.catalog
        self.membership = self.api.serve_members(self.settings.groups)

    def _broker(self) -> Broker:
        return Broker(self.settings.node_id, self.host, self.port)

    @property
    def me(self) -> Broker:
        """This broker."""
        return self.views.brokers.me

    @property
    def shards(self) -> KafkaShards:
        """The shards, where there are several."""
        assert not isinstance(self.api, TopicsApi), "there is a single engine"
        return self.api

    def here(self, topic: str, partition: int) -> TopicsApi | None:
        """The engine that has a partition; None if it is in another process."""
        return self.single or self.shards.here(topic, partition)

    async def refresh(self, *names: str, topic_id: UUID | None = None) -> None:
        """Have the topics as they are now: what is known of those of other processes may be some milliseconds old."""
        refreshed = self.catalog.refresh(names, () if topic_id is None else (topic_id,))
        if refreshed is not None:
            await refreshed

    def refresh_unknown(self, topics: Iterable[Message], name: str = "name") -> Awaitable[None] | None:
        """Ask for those topics of a request that this process does not know where they are; None if there are none."""
        find = self.catalog.find
        unknown = [each for each in topics if find(each.get(name), each.get("topic_id")) is None]
        if not unknown:
            return None
        ids = [each["topic_id"] for each in unknown if not each.get(name) and each.get("topic_id")]
        return self.catalog.refresh([each[name] for each in unknown if each.get(name)], ids)

    def shard(self, topic: str, partition: int) -> int:
        """The shard of a partition."""
        return 0 if self.single is not None else self.shards.shard(topic, partition)

    def group_shard(self, group: str) -> int:
        """The shard of a group."""
        return 0 if self.single is not None else home_of(group, self.shards.shard_count)

    def partitions(self, view: BrokerView, topic: TopicView) -> list[dict[str, Any]]:
        """The partitions of a topic in Metadata. Cached: do not modify."""
        count = 1 if self.single is not None else self.shards.shard_count
        identity = topic.identity
        if identity.placement and count > 1:
            shards = shards_of(topic.name, count, identity.placement)
            return view.partitions_in(shards, (-1, *shards, identity.partition_count))
        return view.partitions(self.shard(topic.name, 0), count, identity.partition_count)

    @property
    def replicas(self) -> int:
        """The number of nodes that have a partition, as far as it is the same for all; that of shard 0."""
        return max(len(self.views.of().replicas(0)), 1)

    def epoch(self, topic: str, partition: int) -> int:
        """The leader epoch of a partition."""
        return self.leader_epoch if self.cluster is None else self.cluster.owner(self.shard(topic, partition))[1]

    def epoch_error(self, epoch: int, topic: str, partition: int) -> ErrorCode:
        """The error for a client that assumes leader epoch `epoch` of a partition; -1 if it assumes none."""
        known = self.leader_epoch if self.cluster is None else self.epoch(topic, partition)
        if epoch > known:
            return ErrorCode.UNKNOWN_LEADER_EPOCH
        return ErrorCode.FENCED_LEADER_EPOCH if 0 <= epoch < known else ErrorCode.NONE

    def epochs(self) -> Sequence[int]:
        """The epochs of all shards of a cluster. The same object as long as they stay."""
        cluster = self.cluster
        if cluster is None:
            return ()
        if cluster.revision != self._epochs[0]:
            found = tuple(cluster.owner(shard)[1] for shard in range(self.shards.shard_count))
            self._epochs = cluster.revision, self._epochs[1] if found == self._epochs[1] else found
        return self._epochs[1]

    def share(self, principal: Principal) -> Share | None:
        """The share of frame memory for requests of one key: at most half."""
        if not principal.key_id:
            return None
        share = self.shares.get(principal.key_id)
        if share is None:
            usage, half = self.authorizer.quotas.for_key(principal.key_id), self.settings.frame_bytes // 2
            share = self.shares[principal.key_id] = Share(lambda: min(usage.limits.nbytes, half))
        return share


@dataclass(slots=True, eq=False)
class SaslState:
    """State of an authentication: the mechanism that the client chose, empty without one, and what a second step needs.

    `user` and `known` are the user of SCRAM and what is known of it; `refusal` is that of an OAUTHBEARER token.
    """

    mechanism: str = ""
    exchange: Exchange | None = None
    user: str = ""
    known: tuple[UserRow, Principal] | None = None
    refusal: str = ""


@dataclass(slots=True, eq=False, kw_only=True)
class Context:
    """State of one connection, for its handlers.

    `client_id` is that of the current request, `zone` its `zone_id=` if any. `software` is the client's name and
    version from ApiVersions, empty if unknown. `peer` is its address. With `raw_tokens` the next frame is a SASL token
    without a request around it. If a handler sets `closing`, the connection is closed after the response; while a
    Produce is `appending`, the next one waits.
    """

    server: ServerContext
    peer: str = ""
    principal: Principal = ANONYMOUS
    client_id: str | None = None
    software: str = ""
    authenticated: bool = False
    sasl: SaslState = field(default_factory=SaslState)
    raw_tokens: bool = False
    closing: bool = False
    appending: bool = False
    gone: bool = False
    epochs: Sequence[int] = ()
    """The epoch of each shard of a cluster that the client may know: of when it connected, or asked for Metadata."""
    _told: dict[int, tuple[int, float]] = field(default_factory=dict)
    on_gone: list[Callable[[], None]] = field(default_factory=list)
    """Called once when the connection is lost, after its running requests were cancelled."""

    @property
    def zone(self) -> str | None:
        """The availability zone of the client, if it is known."""
        return zone_of(self.client_id)

    @property
    def view(self) -> BrokerView:
        """The brokers as the client sees them."""
        return self.server.views.of(self.zone)

    def is_outdated(self, view: BrokerView, shard: int) -> bool:
        """Return whether the client should learn that another broker leads a shard, in place of having its request
        passed on: it connected here before that one did.

        That is so for a second from the first request on, which is for those that are under way as well. Then the
        client's requests are served, as are those of clients that were led here: any broker answers any request.
        """
        if not self.epochs or not view.leads_elsewhere(shard):
            return False
        _, epoch = view.leader(shard)
        if epoch <= self.epochs[shard]:
            return False
        now = time.monotonic()
        told, since = self._told.get(shard, (-1, now))
        if told != epoch:
            self._told[shard] = epoch, now
            return True
        return now < since + TELLING_SECONDS

    def has_scope(self, scope: Scope) -> bool:
        """Return whether the caller has `scope`."""
        return self.principal.allows(scope)

    def is_allowed(self, api: ApiKey, name: str | None = None) -> bool:
        """Return whether the caller has the scopes of `api` and access to the topic or group `name`, if given.

        A caller without any scope has no access to topics and groups, also where an API needs none.
        """
        principal = self.principal
        if not self.server.apis[api].rule.scopes <= principal.scopes:
            return False
        return name is None or (bool(principal.scopes) and principal.allows_name(name))

    @property
    def prefixes(self) -> tuple[str, ...] | None:
        """The prefixes of names that the caller may see; None for all."""
        return self.principal.prefixes if self.principal.scopes else ()


def advertised_versions(apis: Mapping[int, Api]) -> list[Message]:
    """The entries of ApiVersions, by API key."""
    return [
        {"api_key": key, "min_version": api.advertised[0], "max_version": api.advertised[1]}
        for key, api in sorted(apis.items())
    ]


def zone_of(client_id: str | None) -> str | None:
    """The `zone_id` in a client id of the form `zone_id=<zone>,key=value`; None without one."""
    for pair in (client_id or "").split(","):
        key, equals, value = pair.partition("=")
        if equals and key.strip() == "zone_id":
            return value.strip() or None
    return None
