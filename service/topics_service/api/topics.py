"""The topics service: every unary call of `/v0` topics, once, for gRPC and HTTP alike."""

import asyncio
import time

from msgspec.structs import replace

from topics_service.api.commit import GroupCommit
from topics_service.api.pressure import Pressure
from topics_service.engine.engine import Engine
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.limits import Limits
from topics_service.engine.model import (
    AppendReply,
    AppendRequest,
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


class TopicsApi:
    """Runs calls on the engine and answers when their effect is as durable as promised.

    Every method raises TopicsError. All of them run on the event loop that owns the engine. Cancelling a call ends
    its wait; a write that was already handed to the store stays.
    """

    def __init__(self, engine: Engine, commit: GroupCommit, pressure: Pressure | None = None) -> None:
        self._engine = engine
        self._commit = commit
        self._pressure = pressure or Pressure()
        self._waiting: set[asyncio.Event] = set()

    @property
    def limits(self) -> Limits:
        """The limits that requests meet."""
        return self._engine.limits

    async def put_topic(self, name: str, config: ConfigInput) -> PutTopicReply:
        """Create a topic or replace its config; durable before it is acknowledged (SPEC API 1.1)."""
        reply, ticket = self._admit().put_topic(name, config)
        await self._settle(ticket)
        return reply

    async def get_topic(self, name: str, *, touch: bool = True) -> TopicState:
        """A topic's state; with `touch` it counts as a read for recency (SPEC API 1.2)."""
        return self._admit().get_topic(name, touch=touch)

    async def list_topics(self, request: ListTopicsRequest) -> ListTopicsReply:
        """One page of topics in name order (SPEC API 1.3)."""
        return self._admit().list_topics(request)

    async def delete_topic(self, name: str, *, if_empty: bool = False) -> DeleteTopicReply:
        """Remove a topic and everything in it, irreversibly and durably (SPEC API 1.4)."""
        reply, ticket = self._admit().delete_topic(name, if_empty=if_empty)
        await self._settle(ticket)
        return reply

    async def append(self, request: AppendRequest) -> AppendReply:
        """Append records atomically; returns once they are durable for the topic's class and visible (SPEC API 2)."""
        engine = self._admit()
        started = time.perf_counter()
        try:
            if request.disable_backpressure:
                (reply, ticket), waited = await self._pressure.push_through(lambda: engine.append(request))
                started += waited / 1e3
                reply.throttle_wait_ms = waited
            else:
                self._pressure.check()
                reply, ticket = engine.append(request)
        except TopicsError:
            # A write that is refused for its size may have created its topic, which stays: let it be seen first.
            await self._settle(engine.creation_ticket(request.topic))
            raise
        if not ticket:
            reply.wal_append_ms = (time.perf_counter() - started) * 1e3
            return reply
        written = time.perf_counter()
        reply.wal_append_ms = (written - started) * 1e3
        await self._settle(ticket)
        if reply.fsync_gated:
            reply.fsync_ms = (time.perf_counter() - written) * 1e3
        return reply

    async def diff(self, request: DiffRequest) -> DiffReply:
        """Read from a cursor, waiting up to `wait_ms` for a first record (SPEC API 3).

        A topic that is deleted meanwhile ends the wait with `topic_not_found`.
        """
        reply = self._admit().diff(request)
        if request.wait_ms <= 0 or reply.slices or reply.tombstone is not None or not reply.caught_up:
            return reply
        woken = asyncio.Event()
        park = self._engine.park(request.topic, woken.set)
        self._waiting.add(woken)
        try:
            async with asyncio.timeout(min(request.wait_ms, self._engine.limits.max_wait_ms) / 1000):
                await woken.wait()
        except TimeoutError:
            return reply
        finally:
            park.leave()
            self._waiting.discard(woken)
        return self._engine.diff(replace(request, from_seq=reply.next_from_seq, from_ts=None, last=None))

    async def locate(self, name: str, ts: int) -> tuple[int, int]:
        """The first live seq of time `ts` (ms) or later, head + 1 if there is none yet; and the head."""
        return self._admit().locate(name, ts)

    async def delete_records(self, request: DeleteRequest) -> DeleteReply:
        """Delete records by seq and/or tag, permanently and silently (SPEC API 5)."""
        reply, ticket = self._admit().delete_records(request)
        await self._settle(ticket)
        return reply

    def drain(self) -> None:
        """Stop taking calls (they get `shutting_down`) and end the waits of those under way."""
        self._engine.draining = True
        for woken in self._waiting:
            woken.set()

    def ready(self) -> ReadyState:
        """Whether the server takes work now, and if not, why."""
        return self._engine.ready()

    def _admit(self) -> Engine:
        """The engine, unless the server is still starting or already stopping."""
        if self._engine.draining:
            raise TopicsError(Reason.SHUTTING_DOWN, "the server is shutting down")
        if self._engine.recovered < 1.0:
            progress = {"replay_progress": self._engine.recovered}
            raise TopicsError(Reason.NOT_READY, "the server is starting", progress)
        return self._engine

    async def _settle(self, ticket: int) -> None:
        if ticket:
            await self._commit.wait(ticket)
