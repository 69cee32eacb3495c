"""Calls on topics and records over all shards."""

from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Concatenate

from msgspec.structs import replace

from topics_service.api.access.auth import Principal
from topics_service.api.interfaces import Sql
from topics_service.api.metrics.collector import Counters
from topics_service.api.observers import Observers
from topics_service.api.scheduling.pressure import Shortage
from topics_service.api.topics import Settable, Submitted, TopicsApi
from topics_service.api.watch import WatchCaps
from topics_service.api.zones import Zones, check_zoned, no_zones, placed_in
from topics_service.engine.clock import Clock, SystemClock
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.limits import Limits
from topics_service.engine.model import (
    AppendReply,
    AppendRequest,
    BulkRequest,
    ConfigInput,
    DeleteReply,
    DeleteRequest,
    DeleteTopicReply,
    DiffReply,
    DiffRequest,
    ListTopicsReply,
    ListTopicsRequest,
    PutTopicReply,
    ReadyState,
    TopicState,
)
from topics_service.engine.names import check_placement, check_topic_name
from topics_shards.consumers import ShardedConsumers
from topics_shards.groups import ShardedGroups
from topics_shards.health import Health
from topics_shards.locating import Located
from topics_shards.merging import topic_state, topics_page
from topics_shards.queues import ShardedQueues
from topics_shards.reading_ahead import ReadAhead
from topics_shards.routers import ShardedRouters
from topics_shards.shards import P, R
from topics_shards.submissions import Submissions
from topics_shards.watches import ShardedWatches


class ShardedTopics:
    """The calls of `interfaces.Topics`, each run at the shards that it concerns. Belongs to the event loop."""

    sql: Sql | None = None

    def __init__(
        self,
        located: Located,
        limits: Limits,
        metrics: Counters,
        observers: Observers,
        health: Health,
        *,
        overload_ms: Callable[[], int] = lambda: 0,
        watch_caps: WatchCaps | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`overload_ms` is how long to hold streams back: 0 without overload. `clock` is that of the engines."""
        self.limits = limits
        self.health = health
        self.metrics = metrics
        self.observers = observers
        self.draining = False
        self.zones: Zones = no_zones
        """Finds the shards that prefer a zone."""
        self._located = located
        self._submissions = Submissions(located)
        self._ahead = ReadAhead()
        self.groups = ShardedGroups(located, limits, observers)
        self.consumers = ShardedConsumers(located)
        self._waiting: set[Settable] = set()
        self.routers = ShardedRouters(located, observers, clock or SystemClock())
        self.watches = ShardedWatches(located, self._admit, metrics.watch, overload_ms, watch_caps, clock=clock)
        self.queues = ShardedQueues(located, lambda principal: self.watches.connection(principal))

    async def put_topic(
        self,
        name: str,
        config: ConfigInput,
        *,
        principal: Principal,
        partition_count: int | None = None,
        kafka_configs: dict[str, str] | None = None,
        placement: str = "",
        zone: str = "",
    ) -> PutTopicReply:
        """See TopicsApi."""
        if placement or zone:
            placement = await self._placement(name, placement, zone, by_kafka=kafka_configs is not None)
            reply = await self._placed(
                placement,
                TopicsApi.put_topic,
                name,
                config,
                principal=principal,
                partition_count=partition_count,
                kafka_configs=kafka_configs,
                placement=placement,
            )
        else:
            reply = await self._located.call(
                name,
                0,
                TopicsApi.put_topic,
                name,
                config,
                principal=principal,
                partition_count=partition_count,
                kafka_configs=kafka_configs,
            )
        self._ahead.changed()
        return reply

    async def create_in_zone(
        self,
        name: str,
        config: ConfigInput,
        zone: str,
        *,
        principal: Principal,
        partition_count: int | None = None,
        kafka_configs: dict[str, str] | None = None,
    ) -> bool:
        """See `TopicsApi.create_topic`."""
        placement = await self._placement(name, "", zone, by_kafka=True)
        return await self._placed(
            placement,
            TopicsApi.create_topic,
            name,
            config,
            principal=principal,
            partition_count=partition_count,
            kafka_configs=kafka_configs,
            placement=placement,
        )

    async def _placement(self, name: str, placement: str, zone: str, *, by_kafka: bool) -> str:
        """The placement of a topic that names a group or a zone."""
        check_topic_name(name, by_kafka=by_kafka)
        if not zone:
            check_placement(placement)
            return placement
        check_zoned(zone, placement)
        return placed_in(name, zone, self.zones, await self._located.placement(name, zone))

    async def _placed(
        self,
        placement: str,
        method: Callable[Concatenate[Any, str, P], Coroutine[Any, Any, R]],
        name: str,
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        """Create or configure a topic in the shard of its placement."""
        async with self._located.placed(name, placement) as shard:
            return await self._located.shards.call(shard, method, name, *args, **kwargs)

    async def get_topic(self, name: str, *, touch: bool = True, partition: int = 0) -> TopicState:
        """See TopicsApi."""
        return await topic_state(self._located, name, partition, touch=touch)

    async def list_topics(self, request: ListTopicsRequest, *, principal: Principal) -> ListTopicsReply:
        """See TopicsApi. A page is not of one moment over all shards."""
        return await topics_page(self._located, request, principal, self._ahead)

    def topics_changed(self) -> None:
        """Take note that topics were made or deleted, in any shard: the next page of a list shows it."""
        self._ahead.changed()

    async def delete_topic(self, name: str, *, if_empty: bool = False) -> DeleteTopicReply:
        """See TopicsApi."""
        reply = await self._located.call(name, 0, TopicsApi.delete_topic, name, if_empty=if_empty)
        self._ahead.changed()
        await self._located.release(name)
        await self.routers.forget(reply.routers_removed)
        return reply

    async def append(self, request: AppendRequest, *, principal: Principal) -> AppendReply:
        """See TopicsApi."""
        reply = await self._located.call(
            request.topic, request.partition, TopicsApi.append, request, principal=principal
        )
        if reply.created:
            self._ahead.changed()
        return reply

    async def submit(self, request: AppendRequest, *, principal: Principal) -> Submitted:
        """See TopicsApi."""
        return await self._submissions.submit(request, principal=principal)

    async def settle(self, submitted: Submitted) -> AppendReply:
        """See TopicsApi."""
        reply = await self._submissions.settle(submitted)
        if reply.created:
            self._ahead.changed()
        return reply

    def is_settled(self, submitted: Submitted) -> bool:
        """See TopicsApi."""
        return self._submissions.is_settled(submitted)

    async def settle_all(self, writes: Iterable[Submitted]) -> None:
        """See TopicsApi."""
        await self._submissions.settle_all(writes)

    async def diff(self, request: DiffRequest) -> DiffReply:
        """See TopicsApi."""
        return await self._located.call(request.topic, request.partition, TopicsApi.diff, request)

    async def bulk(self, request: BulkRequest) -> tuple[DiffReply, int]:
        """See TopicsApi."""
        return await self._located.call(request.topic, request.partition, TopicsApi.bulk, request)

    async def news(self, topic: str, partition: int = 0, after: int | None = None) -> None:
        """See TopicsApi."""
        await self._located.call(topic, partition, TopicsApi.news, topic, partition, after)

    async def locate(self, name: str, ts: int, partition: int = 0) -> tuple[int, int]:
        """See TopicsApi."""
        return await self._located.call(name, partition, TopicsApi.locate, name, ts, partition)

    async def delete_records(self, request: DeleteRequest) -> DeleteReply:
        """See TopicsApi."""
        return await self._located.call(request.topic, request.partition, TopicsApi.delete_records, request)

    @contextmanager
    def notify_on_drain(self, event: Settable) -> Iterator[None]:
        """See TopicsApi."""
        self._waiting.add(event)
        try:
            yield
        finally:
            self._waiting.discard(event)

    def drain(self) -> None:
        """End the waits of calls under way."""
        self.draining = True
        for woken in self._waiting:
            woken.set()
        self.watches.drain()

    def _admit(self) -> Limits:
        """Return the limits. Raises `shutting_down` while the server drains."""
        if self.draining:
            raise TopicsError(Reason.SHUTTING_DOWN, "the server is shutting down")
        return self.limits

    def ready(self) -> ReadyState:
        """See TopicsApi. The server is ready when all shards are."""
        state = self.health.ready()
        return replace(state, ready=False, reason="shutting_down") if self.draining else state

    def shortage(self) -> Shortage | None:
        """See TopicsApi."""
        return self.health.shortage()
