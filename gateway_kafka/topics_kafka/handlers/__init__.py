"""State that the handlers of Kafka's APIs share: the context of the server, and that of the connection.

A module of handlers has `handlers(server) -> HandlerTable`, which rows of `topics_kafka.registry` name. A handler
gets the connection's context, the request's version and its decoded body, and gives one of:

- a message: the response body, sent at once. A member that the version does not have is left out of it, an absent one
  takes the schema's default;
- None: no response is sent, ever (Produce with acks=0);
- an awaitable of either: sent when it is done, cancelled when the connection is gone. Requests of a connection are
  answered in order and one at a time, except Produce: the next one is taken in while those before it wait.

Handlers put what is refused into the response, with `errors.error_of`. An exception that leaves a handler is a bug:
it is logged and counted, and closes the connection.
"""

import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import UUID

from topics_kafka.loop_budget import LoopBudget
from topics_kafka.protocol import ApiKey, Message
from topics_kafka.settings import KafkaSettings
from topics_kafka.topicids import TopicIds
from topics_net.quiet import QuietLog
from topics_service.api.access import Gate, Rule
from topics_service.api.auth import NOBODY, Principal, Scope
from topics_service.api.budget import Share
from topics_service.api.topics import TopicsApi
from topics_service.engine.catalog import Catalog
from topics_service.engine.engine import Engine
from topics_service.engine.errors import TopicsError
from topics_service.engine.topic import Topic
from topics_service.statistics import KafkaStatistics

Answer = Message | None | Awaitable[Message | None]
Handler = Callable[["Context", int, Message], Answer]
HandlerTable = Mapping[int, Handler]


class AuditAction(NamedTuple):
    """The entry of an API in the audit log: `target` is the member that names the topic or group."""

    action: str
    target: str


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
    """One Kafka listener: what all its connections share. What writes goes through `api`, which asks whether the server
    takes work; `engine` is there for what is only looked at.

    `host` and `port` are what clients are told to connect to, `cluster_id` never changes for a data directory.
    """

    apis: Mapping[int, Api]
    api: TopicsApi
    engine: Engine
    gate: Gate
    settings: KafkaSettings
    statistics: KafkaStatistics
    cluster_id: str
    host: str = "127.0.0.1"
    port: int = 9092
    log: QuietLog = field(default_factory=lambda: QuietLog(logging.getLogger("topics.kafka")))
    ids: TopicIds = field(init=False)
    loop_budget: LoopBudget = field(default_factory=LoopBudget)
    shares: dict[str, Share] = field(default_factory=dict)
    waiting: int = 0
    """Partitions that fetches wait for, each counted as often as it is named."""

    def __post_init__(self) -> None:
        self.ids = TopicIds(self.catalog)

    def share(self, principal: Principal) -> Share | None:
        """What the requests of a key may hold of the memory for those of all: at most half of that."""
        if not principal.key_id:
            return None
        share = self.shares.get(principal.key_id)
        if share is None:
            usage, half = self.gate.quotas.of(principal.key_id), self.settings.frame_bytes // 2
            share = self.shares[principal.key_id] = Share(lambda: min(usage.limits.nbytes, half))
        return share

    @property
    def catalog(self) -> Catalog:
        """The topics there are."""
        return self.engine.catalog

    def find(self, name: str | None, topic_id: UUID | None = None) -> Topic | None:
        """The topic as readers see it, by name or, where that is empty, by id; None if there is none."""
        if not name:
            return None if topic_id is None else self.ids.find(topic_id)
        try:
            return self.catalog.visible(name)
        except TopicsError:
            return None


@dataclass(slots=True, eq=False, kw_only=True)
class Context:
    """One connection, as its handlers see it.

    `client_id` is that of the request at hand, `zone` what it says as `zone_id=`, and `software` the name and version
    that the client gave in ApiVersions, empty without. `peer` is its address. `mechanism` is that of SASL once the
    client chose one; with `raw_tokens` its next frame is a token without a request around it. A handler that sets
    `closing` has the connection closed behind its response; while a Produce is `appending`, the next one waits.
    """

    server: ServerContext
    peer: str = ""
    principal: Principal = NOBODY
    client_id: str | None = None
    software: str = ""
    authenticated: bool = False
    mechanism: str = ""
    raw_tokens: bool = False
    closing: bool = False
    appending: bool = False
    gone: bool = False
    on_gone: list[Callable[[], None]] = field(default_factory=list)
    """Called once when the connection is lost, after its running requests were cancelled."""

    @property
    def zone(self) -> str | None:
        """The availability zone that the client is in, if it says so."""
        return zone_of(self.client_id)

    def allows(self, scope: Scope) -> bool:
        """Whether the caller has `scope`."""
        return self.principal.allows(scope)

    def is_allowed(self, api: ApiKey, name: str | None = None) -> bool:
        """Whether the caller has the scopes of `api`, and may touch the topic or group `name` where one is given."""
        scopes = self.server.apis[api].rule.scopes
        return scopes <= self.principal.scopes and (name is None or self.principal.allows_name(name))


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
