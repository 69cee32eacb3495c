"""Watches over all shards: one stream for topics wherever they are."""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractContextManager, aclosing
from typing import Final

from msgspec.structs import replace

from topics_service.api.access.auth import Principal
from topics_service.api.topics import TopicsApi
from topics_service.api.watch import WatchApi, WatchCaps
from topics_service.api.watch_journal import process_of as process_of_token
from topics_service.api.watch_sessions import Session, process_of, unknown_session
from topics_service.api.watch_stream import SessionStream, Watch, WatchStream
from topics_service.engine.clock import Clock
from topics_service.engine.errors import Reason, TopicsError, topic_not_found
from topics_service.engine.limits import Limits
from topics_service.engine.watch.frames import WatchRequest
from topics_service.engine.watch.scope import patterns_of, too_many
from topics_service.engine.watch.topic_partition import parse_topic_partition
from topics_service.statistics import WatchLag, WatchStatistics
from topics_shards.locating import Located
from topics_shards.merged_watch import MergedWatch
from topics_shards.remote_watch import RemoteWatch
from topics_shards.session_forwarding import ForwardedItem, ForwardedStream, forwarded
from topics_shards.shards import LostCallError

_MAX_PRIORITIES: Final = 65_536
_TRIES: Final = 3
_MISSING: Final = (Reason.TOPIC_NOT_FOUND, Reason.PARTITION_NOT_FOUND)


class ShardedSource:
    """The logs of all shards, as those of one engine (`api.watch.Source`)."""

    def __init__(self, located: Located, admit: Callable[[], Limits]) -> None:
        self._located = located
        self._shards = located.shards
        self._admit = admit
        self._priorities: OrderedDict[str, int] = OrderedDict()

    def admit(self) -> Limits:
        """See Source."""
        return self._admit()

    def counter(self, topic_partition: str) -> int:
        """See Source: each home counts the epochs of its topics."""
        return self._located.shard(parse_topic_partition(topic_partition)[0], 0)

    def priority(self, topic: str) -> int:
        """The effective priority of a topic; of one elsewhere that of its last frame."""
        local = self._shards.local.get(self._located.shard(topic, 0))
        return self._priorities.get(topic, 0) if local is None else local.api.watches.priority(topic)

    async def watch(
        self,
        request: WatchRequest,
        wake: Callable[[str], None],
        *,
        epochs: Mapping[str, int] | None = None,
        heads: Mapping[str, int] | None = None,
    ) -> Watch:
        """See Source. A session's watch opens as well while shards of other processes are away."""
        limits = self._admit()
        prefixes = tuple(patterns_of(request, limits.max_watch_topics, new=heads is None))
        moved: str | None = ""
        for _ in range(_TRIES):
            merged = MergedWatch(wake, limits.max_watch_topics)
            watches = await self._open(merged, request, prefixes, epochs, heads)
            try:
                moved = await self._elsewhere(self._missing(watches, request, heads), request, new=heads is None)
                if heads is None and sum(len(watch.positions) for watch in watches.values()) > limits.max_watch_topics:
                    raise too_many(limits.max_watch_topics)
            except BaseException:
                _close(watches)
                raise
            if moved is None:
                merged.begin(watches, heads or {})
                return merged
            _close(watches)
        raise topic_not_found(parse_topic_partition(moved or "")[0])

    async def _open(
        self,
        merged: MergedWatch,
        request: WatchRequest,
        prefixes: tuple[str, ...],
        epochs: Mapping[str, int] | None,
        heads: Mapping[str, int] | None,
    ) -> dict[int, Watch]:
        """Open a watch of each shard that has topics of the request, or may get some."""
        watches: dict[int, Watch] = {}
        opening: list[asyncio.Task[None]] = []
        try:
            for shard, (part, known) in self._split(request, prefixes, heads).items():
                local = self._shards.direct(shard)
                waker = merged.waker(shard)
                if local is not None:
                    watches[shard] = await local.api.watches.watch(part, waker, epochs=epochs, heads=known)
                else:
                    remote = watches[shard] = RemoteWatch(self._shards, shard, part, waker, self._note_priority)
                    opening.append(asyncio.create_task(remote.open(epochs, known)))
            if opening:
                await asyncio.gather(*opening)
        except BaseException:
            for task in opening:
                task.cancel()
            if opening:
                await asyncio.wait(opening)
            _close(watches)
            raise
        return watches

    def _split(
        self, request: WatchRequest, prefixes: tuple[str, ...], heads: Mapping[str, int] | None
    ) -> dict[int, tuple[WatchRequest, dict[str, int] | None]]:
        """The parts of a request by shard, with the heads of a session that are there.

        Patterns are of every shard, each of which has the topics whose home it is.
        """
        patterns = {key: start for key, start in request.topics.items() if key.endswith("*")}
        shards = {shard: patterns.copy() for shard in range(self._shards.count)} if patterns else {}
        for key, start in request.topics.items():
            if key not in patterns:
                shards.setdefault(self._shard(key), {})[key] = start
        known: dict[int, dict[str, int]] = {}
        for key, head in (heads or {}).items():
            if key in request.topics or key.startswith(prefixes):
                known.setdefault(self._shard(key), {})[key] = head
        parts = {}
        for shard, topics in shards.items():
            part = replace(request, topics=topics, heartbeat_ms=None, lenient=True)
            parts[shard] = (part, None if heads is None else known.get(shard, {}))
        return parts

    def _shard(self, topic_partition: str) -> int:
        return self._located.shard(*parse_topic_partition(topic_partition))

    def _missing(
        self, watches: Mapping[int, Watch], request: WatchRequest, heads: Mapping[str, int] | None
    ) -> list[str]:
        """The names that no watch has found, unless their shard is away."""
        away = {shard for shard, watch in watches.items() if isinstance(watch, RemoteWatch) and watch.is_away}
        return [
            key
            for key in (request.topics if heads is None else heads)
            if "*" not in key
            and (shard := self._shard(key)) in watches
            and shard not in away
            and key not in watches[shard].positions
        ]

    async def _elsewhere(self, missing: list[str], request: WatchRequest, *, new: bool) -> str | None:
        """Return the first of some names that is somewhere else than it was looked for, and is found from now on.

        Raises the error of the first that is nowhere, unless the request is lenient.
        """
        outcomes = await asyncio.gather(*map(self._state, missing), return_exceptions=True)
        strict = new and not request.lenient
        for outcome in outcomes:
            if isinstance(outcome, BaseException) and (
                strict or not isinstance(outcome, TopicsError) or outcome.reason not in _MISSING
            ):
                raise outcome
        return next((name for name, found in zip(missing, outcomes, strict=True) if found is None), None)

    async def _state(self, topic_partition: str) -> None:
        """Raise the error of a topic partition that does not exist."""
        name, partition = parse_topic_partition(topic_partition)
        await self._located.call(name, partition, TopicsApi.get_topic, name, touch=False, partition=partition)

    def _note_priority(self, topic_partition: str, priority: int) -> None:
        name = parse_topic_partition(topic_partition)[0]
        self._priorities[name] = priority
        self._priorities.move_to_end(name)
        if len(self._priorities) > _MAX_PRIORITIES:
            self._priorities.popitem(last=False)


def _close(watches: Mapping[int, Watch]) -> None:
    for watch in watches.values():
        watch.close()


class ShardedWatches:
    """See WatchApi. Streams are of this process, whichever shards the topics are in; sessions are of the process that
    their id names, and the others hand on its streams."""

    def __init__(
        self,
        located: Located,
        admit: Callable[[], Limits],
        statistics: WatchStatistics,
        overload_ms: Callable[[], int] = lambda: 0,
        caps: WatchCaps | None = None,
        *,
        clock: Clock | None = None,
    ) -> None:
        """`admit` returns the limits unless the server is starting or stopping."""
        source = ShardedSource(located, admit)
        shards = self._shards = located.shards
        id_prefix = b"" if shards.is_alone else shards.process.to_bytes(shards.number_bytes, "big")
        self._here = WatchApi(source, source.priority, overload_ms, statistics, caps, clock=clock, id_prefix=id_prefix)
        self.connections = self._here.connections

    async def create(self, request: WatchRequest, *, principal: Principal) -> Session:
        """See WatchApi."""
        return await self._here.create(request, principal=principal)

    async def recall(self, token: str, *, principal: Principal | None) -> dict[str, int] | None:
        """See WatchApi."""
        process = process_of_token(token, self._shards.number_bytes)
        if process is None or not self._shards.is_another(process):
            return await self._here.recall(token, principal=principal)
        try:
            return await self._shards.call(
                self._shards.number_of(process), ShardedWatches.recall_here, token, principal
            )
        except (TopicsError, LostCallError):
            return None

    async def open(self, wid: str, cursor: Mapping[str, int], *, principal: Principal | None) -> SessionStream:
        """See WatchApi. `not_found` if the process of the session is gone."""
        process = process_of(wid, self._shards.number_bytes)
        if process is None or not self._shards.is_another(process):
            return await self._here.open(wid, cursor, principal=principal)
        items = self._shards.stream(
            self._shards.number_of(process), ShardedWatches.open_here, wid, dict(cursor), principal
        )
        try:
            first = await anext(items)
        except LostCallError:
            raise unknown_session() from None
        except TopicsError as error:
            raise unknown_session() if error.reason is Reason.NOT_READY else error from None
        return ForwardedStream(first, items)

    async def stream(self, request: WatchRequest, *, principal: Principal, slot: bool = True) -> WatchStream:
        """See WatchApi."""
        return await self._here.stream(request, principal=principal, slot=slot)

    def connection(self, principal: Principal) -> AbstractContextManager[None]:
        """See WatchApi."""
        return self._here.connection(principal)

    def remove_sessions(self, key_id: str) -> int:
        """See WatchApi; those of this process, since each reads the keys itself."""
        return self._here.remove_sessions(key_id)

    def lag(self) -> WatchLag:
        """See WatchApi; that of shards elsewhere is as far as they have sent."""
        return self._here.lag()

    def drain(self) -> None:
        """See WatchApi."""
        self._here.drain()

    # ------------------------------------------------------------------ for other processes

    async def open_here(
        self, wid: str, cursor: dict[str, int], principal: Principal | None
    ) -> AsyncGenerator[ForwardedItem, None]:
        """The stream of a session of this process."""
        with await self._here.open(wid, cursor, principal=principal) as stream:
            async with aclosing(forwarded(stream)) as items:
                async for item in items:
                    yield item

    async def recall_here(self, token: str, principal: Principal | None) -> dict[str, int] | None:
        """See `recall`."""
        return await self._here.recall(token, principal=principal)
