"""Watches of many topics, for every protocol: sessions, and streams with or without one (docs/contract.md, 8)."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Final, Protocol

from msgspec import Struct
from msgspec.structs import replace

from topics_service.api.access.auth import Principal
from topics_service.api.access.authorizer import check_subscription
from topics_service.api.connections import Connections
from topics_service.api.scheduling.dispatch import Dispatcher
from topics_service.api.watch_feed import Feed, FeedItem
from topics_service.api.watch_sessions import Session, Sessions
from topics_service.api.watch_stream import Watch, WatchStream
from topics_service.engine.clock import Clock, SystemClock
from topics_service.engine.engine import Engine
from topics_service.engine.errors import Reason, TopicsError, invalid
from topics_service.engine.limits import Limits
from topics_service.engine.watch.frames import ErrorFrame, WatchRequest
from topics_service.engine.watch.topic_partition import parse_topic_partition
from topics_service.statistics import WatchLag, WatchStatistics

_MAX_HEARTBEAT_MS: Final = 60_000
_MAX_NODES: Final = 1000
_MAX_LAG_CURSORS: Final = 10_000  # per computation, 10 to 20 ms

_SHUTDOWN: Final = ErrorFrame(reason=Reason.SHUTTING_DOWN, code=503, message="the server is shutting down")
_REMOVED: Final = ErrorFrame(reason=Reason.NOT_FOUND, code=410, message="the watch session was removed")


class WatchCaps(Struct, frozen=True, kw_only=True):
    """Limits of watches, 0 means unlimited (docs/contract.md, 12), and the minimum interval of heartbeats."""

    max_sessions: int = 10_000
    max_connections: int = 10_000
    max_connections_per_key: int = 1000
    journal_bytes: int = 64 << 20
    """Memory for the resume cursors behind short event ids of large sessions."""
    min_heartbeat_ms: int = 1000


class Source(Protocol):
    """The logs that can be watched, of one engine or of several."""

    def admit(self) -> Limits:
        """Return the limits of watches. Raises `not_ready` or `shutting_down` while the server starts or stops."""
        ...

    async def watch(
        self,
        request: WatchRequest,
        wake: Callable[[str], None],
        *,
        epochs: Mapping[str, int] | None = None,
        heads: Mapping[str, int] | None = None,
    ) -> Watch:
        """Follow many topics; see `engine.watch.core.Watch`."""
        ...

    def counter(self, topic_partition: str) -> int:
        """Return the number of the counter that the topic's epochs are of; they grow only within one."""
        ...


class EngineSource:
    """The logs of one engine."""

    def __init__(self, admit: Callable[[], Engine]) -> None:
        """`admit` returns the engine unless the server is starting or stopping."""
        self._admit = admit

    def admit(self) -> Limits:
        """See Source."""
        return self._admit().limits

    async def watch(
        self,
        request: WatchRequest,
        wake: Callable[[str], None],
        *,
        epochs: Mapping[str, int] | None = None,
        heads: Mapping[str, int] | None = None,
    ) -> Watch:
        """See Source."""
        return self._admit().watch(request, wake, epochs=epochs, heads=heads)

    def counter(self, topic_partition: str) -> int:
        """See Source."""
        return 0


class WatchApi:
    """Watch calls, for all protocols. Must be called on the event loop.

    Opening a stream raises TopicsError; errors of an open stream are ErrorFrames. The caller closes it; it is a context
    manager. Callers have authorized the call itself; the names in it are checked here.
    """

    def __init__(
        self,
        source: Source,
        priority: Callable[[str], int],
        overload_ms: Callable[[], int],
        statistics: WatchStatistics,
        caps: WatchCaps | None = None,
        *,
        clock: Clock | None = None,
        id_prefix: bytes = b"",
    ) -> None:
        """`priority` is a topic's priority, `overload_ms` how long to hold streams back: 0 without overload.

        `id_prefix` is that of `Sessions`.
        """
        caps = caps or WatchCaps()
        loop = asyncio.get_running_loop()
        self._source = source
        self.priority = priority
        self._statistics = statistics
        self._clock = clock or SystemClock()
        self._dispatcher = Dispatcher(lambda name: priority(parse_topic_partition(name)[0]), overload_ms)
        self._min_heartbeat_ms = caps.min_heartbeat_ms
        self._sessions = Sessions(
            statistics,
            loop.time,
            max_sessions=caps.max_sessions,
            journal_bytes=caps.journal_bytes,
            counter=source.counter,
            id_prefix=id_prefix,
        )
        self.connections = Connections(
            statistics, max_total=caps.max_connections, max_per_key=caps.max_connections_per_key
        )
        self._streams: dict[WatchStream, None] = {}
        self._feeds: dict[str, Feed] = {}
        self._attached: dict[Watch, Callable[[], None]] = {}

    async def create(self, request: WatchRequest, *, principal: Principal) -> Session:
        """Create a session that belongs to the caller's key (docs/contract.md, 8.2).

        Raises `invalid_request`, `forbidden`, `topic_not_found`, and `throttled` when there are too many sessions.
        """
        request = self._checked(self._source.admit(), request, principal)
        watch = await self._source.watch(request, _ignore)
        try:
            self._sessions.collect()
            return self._sessions.add(request, watch, principal)
        finally:
            watch.close()

    async def recall(self, token: str, *, principal: Principal | None) -> dict[str, int] | None:
        """Look up the resume cursors of a token of the caller's key; None if it has expired."""
        return None if principal is None else self._sessions.recall(token, principal)

    async def open(self, wid: str, cursor: Mapping[str, int], *, principal: Principal | None) -> WatchStream:
        """Open a stream of a session, which resumes where the last one ended (docs/contract.md, 8.3).

        `cursor` (an SSE client's Last-Event-ID) can only rewind the session, topic by topic. `principal` None is a
        caller without a valid key. Raises `not_found`, then `unauthorized` for another key than the session's, then
        `throttled` when there are too many connections.
        """
        self._source.admit()
        self._sessions.collect()
        session = self._sessions.find(wid)
        if principal is None or principal != session.principal:
            raise TopicsError(Reason.UNAUTHORIZED, "this watch session belongs to another API key")
        with ExitStack() as held:
            held.enter_context(self.connection(principal))
            session.rewind(cursor)
            request = replace(session.request, cursor=session.cursors, lenient=True)
            remember = partial(self._sessions.journals.note, session.wid)
            stream = WatchStream(
                session.request, self._dispatcher, self._statistics, self._clock,
                session.moved, session.marks, remember,
            )  # fmt: skip
            self._sessions.enter(session, stream)
            held.callback(self._sessions.leave, session, stream)
            watch = await self._source.watch(request, stream.wake, epochs=session.epochs, heads=session.heads)
            session.attach(watch)
            held.callback(session.detach, watch)
            self._begin(stream, watch, held)
        return stream

    async def stream(self, request: WatchRequest, *, principal: Principal, slot: bool = True) -> WatchStream:
        """Open a stream without a session. With `slot` it takes a connection slot.

        Raises as `create` does, and `throttled` when there are too many connections.
        """
        request = self._checked(self._source.admit(), request, principal)
        with ExitStack() as held:
            stream = WatchStream(request, self._dispatcher, self._statistics, self._clock)
            watch = await self._source.watch(request, stream.wake)
            held.callback(watch.close)
            if slot:
                held.enter_context(self.connection(principal))
            self._begin(stream, watch, held)
        return stream

    async def follow(
        self, request: WatchRequest, feed: str, epochs: dict[str, int] | None, heads: dict[str, int] | None
    ) -> AsyncGenerator[FeedItem, None]:
        """Follow for another process, whose name for it is `feed`; see `engine.watch.core.Watch` for the rest.

        Ends when nothing is left to follow. Raises `shutting_down` when the server drains.
        """
        stream = WatchStream(request, self._dispatcher, WatchStatistics(), self._clock)
        stream.begin(await self._source.watch(request, stream.wake, epochs=epochs, heads=heads))
        with stream:
            given = self._feeds[feed] = Feed(stream, self.priority)
            stream.held.callback(self._feeds.pop, feed)
            yield given.first()
            while not stream.over:
                item = given.next()
                if item is None:
                    await stream.ready()
                elif isinstance(item.frame, ErrorFrame) and item.frame.terminal:
                    raise TopicsError(item.frame.reason, item.frame.message)
                else:
                    yield item

    async def watch(
        self,
        request: WatchRequest,
        wake: Callable[[str], None],
        *,
        epochs: Mapping[str, int] | None,
        heads: Mapping[str, int] | None,
    ) -> Watch:
        """Follow as part of a watch of several shards, whose request was checked; see `engine.watch.core.Watch`."""
        return await self._source.watch(request, wake, epochs=epochs, heads=heads)

    def attach(self, watch: Watch, left: Callable[[], None]) -> None:
        """Call `left` when the server drains, of a watch that then continues in another process, until `detach`."""
        self._attached[watch] = left

    def detach(self, watch: Watch) -> None:
        """See `attach`."""
        self._attached.pop(watch, None)

    async def unfollow(self, feed: str, topic: str) -> int:
        """Drop a topic or pattern from a feed; return the number of items that it had given before, 0 if it ended."""
        given = self._feeds.get(feed)
        if given is None:
            return 0
        given.stream.drop(topic)
        return given.given

    def connection(self, principal: Principal) -> AbstractContextManager[None]:
        """Hold a slot for a long-lived connection. Entering raises `throttled` when there are too many."""
        return self.connections.hold(principal)

    def remove_sessions(self, key_id: str) -> int:
        """Remove the sessions of an API key, ending their streams with 410; returns how many there were."""
        sessions = self._sessions.for_key(key_id)
        for session in sessions:
            self._sessions.remove(session.wid)
            for stream in session.streams:
                stream.end(_REMOVED)
        return len(sessions)

    def lag(self) -> WatchLag:
        """Compute the lag of the streams. With very many streams it covers only the oldest, to limit its cost."""
        total = largest = behind = looked_at = 0
        for stream in self._streams:
            looked_at += len(stream.watch.cursors)
            if looked_at > _MAX_LAG_CURSORS:
                return WatchLag(records=total, largest=largest, behind=behind, truncated=True)
            if lag := stream.watch.lag:
                total += lag
                largest = max(largest, lag)
                behind += 1
        return WatchLag(records=total, largest=largest, behind=behind)

    def drain(self) -> None:
        """End every stream."""
        for stream in self._streams:
            stream.end(_SHUTDOWN)
        for feed in self._feeds.values():
            feed.stream.end(_SHUTDOWN)
        while self._attached:
            self._attached.popitem()[1]()

    # --------------------------------------------------------------- internals

    def _checked(self, limits: Limits, request: WatchRequest, principal: Principal) -> WatchRequest:
        """Check the request and clamp its heartbeat. Names are checked unless their number is rejected anyway."""
        _check_filters(request, limits)
        if len(request.topics) <= limits.max_watch_topics:
            check_subscription(principal, request.topics)
        if request.heartbeat_ms is None:
            return request
        heartbeat_ms = min(max(request.heartbeat_ms, self._min_heartbeat_ms), _MAX_HEARTBEAT_MS)
        return replace(request, heartbeat_ms=heartbeat_ms)

    def _begin(self, stream: WatchStream, watch: Watch, held: ExitStack) -> None:
        """Follow with an open watch; the stream releases what is `held`, unless the server began to stop meanwhile."""
        held.callback(watch.close)
        self._source.admit()
        stream.begin(watch)
        self._streams[stream] = None
        held.callback(self._streams.pop, stream)
        stream.held = held.pop_all()


def _check_filters(request: WatchRequest, limits: Limits) -> None:
    """Raise `invalid_request` for oversized filters: values longer than those of records match nothing."""
    if len(request.nodes) > _MAX_NODES:
        raise invalid(f"a watch leaves out the records of at most {_MAX_NODES} nodes")
    if any(len(node) > limits.max_node_bytes for node in request.nodes):
        raise invalid(f"a node is at most {limits.max_node_bytes} bytes")
    if request.filter is not None and len(request.filter.value) > limits.max_tag_bytes:
        raise invalid(f"a tag is at most {limits.max_tag_bytes} bytes")


def _ignore(_: object) -> None:
    """Do nothing, for watches that are never read."""
