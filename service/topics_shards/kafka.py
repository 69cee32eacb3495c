"""The calls of the Kafka gateway over all shards."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Final, TypeVar

from topics_service.api.access.auth import Principal
from topics_service.api.interfaces import Groups
from topics_service.api.kafka import Brokers, ReplicaLogs, UnknownOutcomeError
from topics_service.api.kafka_logs import (
    BatchOutcome,
    FetchOutcome,
    KafkaApi,
    NamedBatch,
    OffsetOutcome,
    ProducersOutcome,
)
from topics_service.api.metrics.collector import Counters
from topics_service.api.topics import Settable, TopicsApi
from topics_service.engine.batches import FetchRequest
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.limits import Limits
from topics_service.engine.membership.members import GroupSettings
from topics_service.engine.model import (
    ConfigInput,
    DeleteReply,
    DeleteRequest,
    DeleteTopicReply,
    PutTopicReply,
    TopicState,
)
from topics_shards.catalog import ShardedCatalog
from topics_shards.known_parts import KnownParts
from topics_shards.locating import Located
from topics_shards.members import ShardedMembers
from topics_shards.shards import LostCallError, Shard
from topics_shards.topics import ShardedTopics

T = TypeVar("T")

_CLUSTER_SHARD: Final = 0
_PATIENCE_SECONDS: Final = 1.0
"""Time for batches to reach a shard that another node may get at any moment. Clients then look for its owner, while the
requests behind are served: a connection has the batches of many shards, and its answers are in order."""


class ShardedKafka:
    """See KafkaShards. Belongs to the event loop."""

    def __init__(
        self,
        topics: ShardedTopics,
        located: Located,
        brokers: Brokers | None = None,
        replica: Callable[[int], ReplicaLogs | None] = lambda _shard: None,
    ) -> None:
        """`brokers` are the nodes of a cluster, `replica` finds this node's one of a shard that another one owns."""
        self._replica = replica
        self.brokers = brokers
        self.catalog = ShardedCatalog(located.shards)
        self._parts = KnownParts(located, self.catalog)
        self._topics = topics
        self._located = located
        self._shards = located.shards
        self._members: ShardedMembers | None = None
        self._settings: GroupSettings | None = None
        self._cluster_id = ""
        self._lines: dict[int, asyncio.Future[None]] = {}

    async def start(self, settings: GroupSettings) -> None:
        """Follow the other shards, and serve the members of groups here once all topics are known.

        Call it before the gateway is created, when the shards of this process have recovered. It waits for the others.
        """
        self.catalog.start()
        await self.catalog.whole()
        self._cluster_id = await self._shards.call(_CLUSTER_SHARD, KafkaApi.cluster_id)
        self.serve_members(settings)

    async def stop(self) -> None:
        """Follow no more."""
        await self.catalog.stop()

    # ------------------------------------------------------------------ the server

    @property
    def limits(self) -> Limits:
        """See TopicsApi."""
        return self._topics.limits

    @property
    def metrics(self) -> Counters:
        """See TopicsApi."""
        return self._topics.metrics

    @property
    def groups(self) -> Groups:
        """See TopicsApi."""
        return self._topics.groups

    @property
    def draining(self) -> bool:
        """See TopicsApi."""
        return self._topics.draining

    @property
    def shard_count(self) -> int:
        """See KafkaShards."""
        return self._shards.count

    def cluster_id(self) -> str:
        """The id that shard 0 has."""
        return self._cluster_id

    def notify_on_drain(self, event: Settable) -> AbstractContextManager[None]:
        """See TopicsApi."""
        return self._topics.notify_on_drain(event)

    def is_expiry_durable(self) -> bool:
        """See TopicsApi, for the shards of this process: other ones answer once it is."""
        return all(shard.api.is_expiry_durable() for shard in self._direct())

    async def expiry_durable(self) -> None:
        """See TopicsApi."""
        for shard in self._direct():
            await shard.api.expiry_durable()

    def _direct(self) -> list[Shard]:
        """The shards that are used without calls."""
        shards = map(self._shards.direct, self._shards.local)
        return [shard for shard in shards if shard is not None]

    def serve_members(self, settings: GroupSettings) -> ShardedMembers:
        """See TopicsApi."""
        if self._members is None:
            self._settings = settings
            self._members = ShardedMembers(self._located)
            for shard in self._shards.local.values():
                self.join(shard.api)
        return self._members

    def join(self, api: TopicsApi) -> None:
        """Serve the members of the groups of a shard that has come to this process."""
        if self._settings is not None:
            api.serve_members(self._settings, self.catalog)

    # ------------------------------------------------------------------ topics

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
        """See TopicsApi."""
        if zone:
            made = self._topics.create_in_zone(
                name,
                config,
                zone,
                principal=principal,
                partition_count=partition_count,
                kafka_configs=kafka_configs,
            )
            return await _told(made)
        return await _told(
            self._located.call(
                name,
                0,
                TopicsApi.create_topic,
                name,
                config,
                principal=principal,
                partition_count=partition_count,
                kafka_configs=kafka_configs,
            )
        )

    async def put_topic(
        self,
        name: str,
        config: ConfigInput,
        *,
        principal: Principal,
        partition_count: int | None = None,
        kafka_configs: dict[str, str] | None = None,
    ) -> PutTopicReply:
        """See TopicsApi."""
        return await _told(
            self._topics.put_topic(
                name, config, principal=principal, partition_count=partition_count, kafka_configs=kafka_configs
            )
        )

    async def get_topic(self, name: str, *, touch: bool = True, partition: int = 0) -> TopicState:
        """See TopicsApi."""
        return await _answered(self._topics.get_topic(name, touch=touch, partition=partition))

    async def delete_topic(self, name: str, *, if_empty: bool = False) -> DeleteTopicReply:
        """See TopicsApi."""
        return await _told(self._topics.delete_topic(name, if_empty=if_empty))

    async def delete_records(self, request: DeleteRequest) -> DeleteReply:
        """See TopicsApi."""
        return await _told(self._topics.delete_records(request))

    # ------------------------------------------------------------------ logs

    def here(self, topic: str, partition: int) -> TopicsApi | None:
        """See KafkaShards; None also while its part of the topic is made, and batches wait for that."""
        number = self.catalog.shard(topic, partition)
        shard = self._shards.direct(number)
        if shard is None or number in self._lines or shard.api.catalog.find(topic) is None:
            return None
        return shard.api

    def shard(self, topic: str, partition: int) -> int:
        """See KafkaShards."""
        return self.catalog.shard(topic, partition)

    def append(self, shard: int, batches: Sequence[NamedBatch], *, settle: bool) -> Awaitable[list[BatchOutcome]]:
        """See KafkaApi. The calls stand in line from now on, until they are on their way."""
        before = self._lines.get(shard)
        own = self._lines[shard] = asyncio.get_running_loop().create_future()
        own.add_done_callback(partial(self._passed, shard))
        return self._append(before, own, shard, batches, settle=settle)

    async def _append(
        self,
        before: "asyncio.Future[None] | None",
        own: "asyncio.Future[None]",
        shard: int,
        batches: Sequence[NamedBatch],
        *,
        settle: bool,
    ) -> list[BatchOutcome]:
        try:
            if before is not None and not before.done():
                await asyncio.wait((before,))
            async with asyncio.timeout(None if self.brokers is None else _PATIENCE_SECONDS):
                await self._parts.have(shard, (batch.request.topic for batch in batches))
                done = await self._shards.begin(shard, KafkaApi.append, batches, settle=settle)
            if self._shards.direct(shard) is None:
                own.set_result(None)  # the call is on its way
            return await _told(done)
        except TimeoutError:
            raise TopicsError(Reason.NOT_READY, f"shard {shard} has no owner that can be reached") from None
        finally:
            if not own.done():
                own.set_result(None)

    def _passed(self, shard: int, own: "asyncio.Future[None]") -> None:
        if self._lines.get(shard) is own:
            del self._lines[shard]

    async def fetch(
        self, shard: int, requests: Sequence[FetchRequest], *, max_bytes: int, min_bytes: int = 0, wait_ms: int = 0
    ) -> list[FetchOutcome]:
        """See KafkaApi."""
        await self._parts.have(shard, (request.topic for request in requests))
        replica = None if shard in self._shards.local else self._replica(shard)
        if replica is not None:
            found = await replica.fetch(requests, max_bytes=max_bytes, min_bytes=min_bytes, wait_ms=wait_ms)
            if found is not None:
                return found
        return await _answered(
            self._shards.call(
                shard, KafkaApi.fetch, requests, max_bytes=max_bytes, min_bytes=min_bytes, wait_ms=wait_ms
            )
        )

    async def offsets(self, shard: int, asked: Sequence[tuple[str, int, int]]) -> list[OffsetOutcome]:
        """See KafkaApi."""
        await self._known(shard, [topic for topic, _, _ in asked])
        return await _answered(self._shards.call(shard, KafkaApi.offsets, asked))

    async def producers(self, shard: int, asked: Sequence[tuple[str, int]]) -> list[ProducersOutcome]:
        """See KafkaApi."""
        await self._known(shard, [topic for topic, _ in asked])
        return await _answered(self._shards.call(shard, KafkaApi.producers, asked))

    async def sizes(self, shard: int, asked: Sequence[tuple[str, int]]) -> list[int]:
        """See KafkaApi. A shard without its part has no records."""
        return await _answered(self._shards.call(shard, KafkaApi.sizes, asked))

    async def _known(self, shard: int, names: Sequence[str]) -> None:
        """Have the shard know the topics, also those that were made a moment ago."""
        refreshed = self.catalog.refresh(name for name in names if self.catalog.find(name) is None)
        if refreshed is not None:
            await refreshed
        await self._parts.have(shard, names)

    async def new_producer_id(self) -> int:
        """See KafkaShards: each shard has every `count`th number, so that no two give the same."""
        number = next(iter(self._shards.local), _CLUSTER_SHARD)
        return await _answered(self._shards.call(number, KafkaApi.new_producer_id)) * self._shards.count + number


async def _told(call: Awaitable[T]) -> T:
    """The outcome of a call that changes something."""
    try:
        return await call
    except LostCallError as error:
        raise UnknownOutcomeError(str(error)) from error


async def _answered(call: Coroutine[Any, Any, T]) -> T:
    """The outcome of a call that may be repeated, and was until now."""
    try:
        return await call
    except LostCallError as error:
        raise TopicsError(Reason.NOT_READY, str(error)) from error
