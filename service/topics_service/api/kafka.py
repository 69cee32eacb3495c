"""The calls of the Kafka gateway, whether one engine answers them or several shards."""

from collections.abc import Awaitable, Sequence
from typing import Protocol

from msgspec import Struct

from topics_service.api.access.auth import Principal
from topics_service.api.catalog import Catalog
from topics_service.api.interfaces import CommonCalls
from topics_service.api.kafka_logs import BatchOutcome, FetchOutcome, NamedBatch, OffsetOutcome, ProducersOutcome
from topics_service.api.membership import Members
from topics_service.api.topics import TopicsApi
from topics_service.engine.batches import FetchRequest
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.membership.members import GroupSettings
from topics_service.engine.model import (
    ConfigInput,
    PutTopicReply,
)


class UnreachableError(TopicsError):
    """A shard can't be reached, or a call on it that may be repeated was lost."""

    def __init__(self, message: str) -> None:
        super().__init__(Reason.NOT_READY, message)


class UnknownOutcomeError(TopicsError):
    """A call on a shard was lost with the process or node that ran it: it may have had its effect or not."""

    def __init__(self, message: str) -> None:
        super().__init__(Reason.NOT_READY, message)


class Broker(Struct, frozen=True):
    """A node of a cluster, as Kafka clients see it."""

    node_id: int
    host: str
    port: int
    zone: str = ""
    """Its availability zone, which clients see as its rack; empty if it has none."""


class Brokers(Protocol):
    """The nodes of a cluster and their shards, as this node knows them. Calls return at once.

    The view of another node may be newer or older; epochs tell which. An epoch of a shard never falls.
    """

    @property
    def me(self) -> Broker:
        """This node."""
        ...

    @property
    def revision(self) -> int:
        """A number that is another one after each change of what the methods return."""
        ...

    def nodes(self) -> Sequence[Broker]:
        """The nodes that live and serve Kafka, this one among them, ordered by id."""
        ...

    def owner(self, shard: int) -> tuple[Broker | None, int]:
        """The owner of a shard and its epoch; None, with the last epoch that is known, while there is none.

        A node that still takes over is none. One that lives and serves no Kafka has port 0; another node is shown in
        its place.
        """
        ...

    def followers(self, shard: int) -> Sequence[Broker]:
        """The nodes that have a warm replica of a shard and do not own it, ordered by id."""
        ...


class ReplicaLogs(Protocol):
    """A replica of a shard that another node owns."""

    async def fetch(
        self, requests: Sequence[FetchRequest], *, max_bytes: int, min_bytes: int = 0, wait_ms: int = 0
    ) -> list[FetchOutcome] | None:
        """See KafkaApi: everything that the shard's owner had acknowledged before the call, and what comes while the
        call waits. None if the owner has to be asked."""
        ...


class KafkaTopics(CommonCalls, Protocol):
    """The calls of the Kafka gateway on one engine or several, but for those on logs; see TopicsApi.

    With several, those that change something raise UnknownOutcomeError as well.
    """

    @property
    def catalog(self) -> Catalog:
        """The topics, for reading."""
        ...

    async def create_topic(
        self,
        name: str,
        config: ConfigInput,
        *,
        principal: Principal,
        partition_count: int | None = None,
        kafka_configs: dict[str, str] | None = None,
        zone: str = "",
    ) -> bool:
        """Create a topic unless there is one; return whether there was none, once the topic is visible."""
        ...

    async def put_topic(
        self,
        name: str,
        config: ConfigInput,
        *,
        principal: Principal,
        partition_count: int | None = None,
        kafka_configs: dict[str, str] | None = None,
    ) -> PutTopicReply:
        """Create a topic or replace its config; durable before it is acknowledged."""
        ...

    def serve_members(self, settings: GroupSettings) -> Members:
        """The calls of group members; the first call starts their coordinators with the settings."""
        ...

    def cluster_id(self) -> str:
        """The cluster id that clients see."""
        ...

    def is_expiry_durable(self) -> bool:
        """True if `expiry_durable` returns without waiting."""
        ...

    async def expiry_durable(self) -> None:
        """Wait until expiry that reads in this process have found is as durable as its class requires."""
        ...


class KafkaShards(KafkaTopics, Protocol):
    """The logs of several shards: those of this process are called directly, those of others by the shard's number.

    The methods that take a shard are the calls of KafkaApi there. They raise TopicsError: `not_ready` if the shard
    could not be reached, UnknownOutcomeError if a call that changes something was lost.
    """

    @property
    def brokers(self) -> Brokers | None:
        """The nodes of the cluster; None if there is one broker, the listener itself."""
        ...

    @property
    def shard_count(self) -> int:
        """The number of shards."""
        ...

    def here(self, topic: str, partition: int) -> TopicsApi | None:
        """The shard that has the partition; None if it is in another process."""
        ...

    def shard(self, topic: str, partition: int) -> int:
        """The number of the shard that has the partition."""
        ...

    def append(self, shard: int, batches: Sequence[NamedBatch], *, settle: bool) -> Awaitable[list[BatchOutcome]]:
        """See KafkaApi. Calls take effect in their order."""
        ...

    def fetch(
        self, shard: int, requests: Sequence[FetchRequest], *, max_bytes: int, min_bytes: int = 0, wait_ms: int = 0
    ) -> Awaitable[list[FetchOutcome]]:
        """See KafkaApi."""
        ...

    def offsets(self, shard: int, asked: Sequence[tuple[str, int, int]]) -> Awaitable[list[OffsetOutcome]]:
        """See KafkaApi."""
        ...

    def producers(self, shard: int, asked: Sequence[tuple[str, int]]) -> Awaitable[list[ProducersOutcome]]:
        """See KafkaApi."""
        ...

    def sizes(self, shard: int, asked: Sequence[tuple[str, int]]) -> Awaitable[list[int]]:
        """See KafkaApi."""
        ...

    async def new_producer_id(self) -> int:
        """A producer id that no shard has given to anyone else; durable."""
        ...
