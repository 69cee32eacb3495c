"""Watches of many topics, for every protocol: sessions, and streams with or without one (docs/contract.md, 8)."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from topics_service.api.access.auth import Principal
from topics_service.api.access.authorizer import check_subscription
from topics_service.api.connections import Connections
from topics_service.api.scheduling.dispatch import Dispatcher
from topics_service.api.watch_sessions import Session, Sessions
from topics_service.api.watch_stream import WatchStream
from topics_service.engine.clock import Clock, SystemClock
from topics_service.engine.engine import Engine
from topics_service.engine.errors import Reason, TopicsError, invalid
from topics_service.engine.limits import Limits
from topics_service.engine.watch.core import Watch
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


class WatchApi:
    """Watch calls, for all protocols. Must be called on the event loop.

    Opening a stream raises TopicsError; errors of an open stream are ErrorFrames. Callers have authorized the call
    itself; the names in it are checked here.
    """

    def __init__(
        self,
        admit: Callable[[], Engine],
        priority: Callable[[str], int],
        overload_ms: Callable[[], int],
        statistics: WatchStatistics,
        caps: WatchCaps | None = None,
        *,
        clock: Clock | None = None,
    ) -> None:
        """`admit` returns the engine unless the server is starting or stopping; `priority` is a topic's priority."""
        caps = caps or WatchCaps()
        loop = asyncio.get_running_loop()
        self._admit = admit
        self._statistics = statistics
        self._clock = clock or SystemClock()
        self._dispatcher = Dispatcher(lambda name: priority(parse_topic_partition(name)[0]), overload_ms)
        self._min_heartbeat_ms = caps.min_heartbeat_ms
        self._sessions = Sessions(
            statistics, loop.time, max_sessions=caps.max_sessions, journal_bytes=caps.journal_bytes
        )
        self.connections = Connections(
            statistics, max_total=caps.max_connections, max_per_key=caps.max_connections_per_key
        )
        self._streams: dict[WatchStream, None] = {}

    async def create(self, request: WatchRequest, *, principal: Principal) -> Session:
        """Create a session that belongs to the caller's key (docs/contract.md, 8.2).

        Raises `invalid_request`, `forbidden`, `topic_not_found`, and `throttled` when there are too many sessions.
        """
        engine = self._admit()
        request = self._checked(engine, request, principal)
        watch = engine.watch(request, _ignore)
        try:
            self._sessions.collect()
            return self._sessions.add(request, watch, principal)
        finally:
            watch.close()

    def recall(self, token: str, *, principal: Principal | None) -> dict[str, int] | None:
        """Look up the resume cursors of a token of the caller's key; None if it has expired."""
        return None if principal is None else self._sessions.recall(token, principal)

    @contextmanager
    def open(self, wid: str, cursor: Mapping[str, int], *, principal: Principal | None) -> Iterator[WatchStream]:
        """Open a stream of a session, which resumes where the last one ended (docs/contract.md, 8.3).

        `cursor` (an SSE client's Last-Event-ID) can only rewind the session, topic by topic. `principal` None is a
        caller without a valid key. Raises `not_found`, then `unauthorized` for another key than the session's, then
        `throttled` when there are too many connections.
        """
        engine = self._admit()
        self._sessions.collect()
        session = self._sessions.find(wid)
        if principal is None or principal != session.principal:
            raise TopicsError(Reason.UNAUTHORIZED, "this watch session belongs to another API key")
        with self.connection(principal):
            session.rewind(cursor)
            request = replace(session.request, cursor=session.cursors, lenient=True)

            def resume(wake: Callable[[str], None]) -> Watch:
                watch = engine.watch(request, wake, epochs=session.epochs, heads=session.heads)
                session.attach(watch)
                return watch

            with self._opened(session.request, resume, session) as stream:
                yield stream

    @contextmanager
    def stream(self, request: WatchRequest, *, principal: Principal, slot: bool = True) -> Iterator[WatchStream]:
        """Open a stream without a session. With `slot` it takes a connection slot.

        Raises as `create` does, and `throttled` when there are too many connections.
        """
        engine = self._admit()
        request = self._checked(engine, request, principal)
        with ExitStack() as entered:
            stream = entered.enter_context(self._opened(request, lambda wake: engine.watch(request, wake)))
            if slot:
                entered.enter_context(self.connection(principal))
            yield stream

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

    # --------------------------------------------------------------- internals

    def _checked(self, engine: Engine, request: WatchRequest, principal: Principal) -> WatchRequest:
        """Check the request and clamp its heartbeat. Names are checked unless their number is rejected anyway."""
        _check_filters(request, engine.limits)
        if len(request.topics) <= engine.limits.max_watch_topics:
            check_subscription(principal, request.topics)
        if request.heartbeat_ms is None:
            return request
        heartbeat_ms = min(max(request.heartbeat_ms, self._min_heartbeat_ms), _MAX_HEARTBEAT_MS)
        return replace(request, heartbeat_ms=heartbeat_ms)

    @contextmanager
    def _opened(
        self,
        request: WatchRequest,
        open_watch: Callable[[Callable[[str], None]], Watch],
        session: Session | None = None,
    ) -> Iterator[WatchStream]:
        if session is None:
            stream = WatchStream(request, open_watch, self._dispatcher, self._statistics, self._clock)
        else:
            remember = partial(self._sessions.journals.note, session.wid)
            stream = WatchStream(
                request, open_watch, self._dispatcher, self._statistics, self._clock,
                session.moved, session.marks, remember,
            )  # fmt: skip
        self._streams[stream] = None
        if session is not None:
            self._sessions.enter(session, stream)
        try:
            yield stream
        finally:
            del self._streams[stream]
            if session is not None:
                session.detach(stream.watch)
                self._sessions.leave(session, stream)
            stream.close()


def _check_filters(request: WatchRequest, limits: Limits) -> None:
    """Raise `invalid_request` for oversized filters: values longer than those of records match nothing."""
    if len(request.nodes) > _MAX_NODES:
        raise invalid(f"a watch leaves out the records of at most {_MAX_NODES} nodes")
    if any(len(node) > limits.max_node_bytes for node in request.nodes):
        raise invalid(f"a node is at most {limits.max_node_bytes} bytes")
    if request.filter is not None and len(request.filter.value) > limits.max_tag_bytes:
        raise invalid(f"a tag is at most {limits.max_tag_bytes} bytes")


def _ignore(_: object) -> None:
    """Do nothing, for watches that are never read and for streams without a session."""
