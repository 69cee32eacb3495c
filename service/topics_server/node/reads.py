"""Reads at a node that follows: from its own rows, once they have all that the read has to find."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Final, NamedTuple, cast

import grpc
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from topics_cluster.store import ShardStore
from topics_gateway.app import create_reads
from topics_gateway.request import PassedOnError
from topics_gateway.routes import RouteTable
from topics_gateway.settings import GatewaySettings
from topics_proto.v1 import topics_service_pb2 as pb
from topics_server.node import positions
from topics_server.node.local import UNREADABLE, LocalLogs, LocalTopics
from topics_server.node.peers import Standpoint
from topics_server.node.positions import StatingContext, stating
from topics_service.api.access.authorizer import Authorizer
from topics_service.api.access.passwords import UnverifiedPasswordError
from topics_service.api.bulk import Turns
from topics_service.api.grpc.admin_servicer import Probed
from topics_service.api.grpc.bulk_diff import bulk_messages
from topics_service.api.grpc.calls import Calls, Services
from topics_service.api.grpc.guard import Guard, authorization_of
from topics_service.api.grpc.handlers import Handler
from topics_service.api.grpc.meter import CallMeter, CallObserver
from topics_service.api.grpc.topics_servicer import TopicsServicer
from topics_service.api.kafka_logs import FetchOutcome, KafkaApi
from topics_service.api.request_context import POSITION
from topics_service.api.topics import TopicsApi
from topics_service.engine.batches import FetchRequest
from topics_service.engine.clock import Clock
from topics_service.engine.errors import TopicsError
from topics_service.engine.replica import Replica
from topics_service.statistics import NodeStatistics

log: Final = logging.getLogger("topics.cluster")

_SERVICE: Final = "topics.v1.TopicsService"
_BULK_DIFF: Final = "BulkDiff"
_REQUESTS: Final[dict[str, Any]] = {
    "Diff": pb.DiffRequest, "GetTopic": pb.GetTopicRequest, "LocateTime": pb.LocateTimeRequest
}  # fmt: skip
_ROUTED: Final = frozenset((f"{_SERVICE}.Diff", f"{_SERVICE}.GetTopic"))

BULK_SECONDS: Final = 1.0
"""The longest wait for rows that the owner has acknowledged: a long read takes seconds anyway."""
_REACH_SECONDS: Final = 0.1
"""The longest wait of a read that names a position; to ask the owner takes less."""
_MOST_KEPT_BYTES: Final = 64 << 10  # of a request's body, to send it to the owner
_CACHE_BYTES: Final = 16 << 20


class FollowerReads:
    """Serves reads at a node that does not own the shard, from its rows.

    A BulkDiff asks the owner where the log ends, unless it names a position; other reads are served here only if they
    name one (`positions`). They wait until the node has applied the log up to there. What the rows can't answer is
    passed on to the owner: a read that waits or follows, a topic whose records are in memory only, expired records,
    rows that don't come in time. Belongs to the event loop.
    """

    def __init__(
        self,
        clock: Clock,
        settings: GatewaySettings,
        node: Probed,
        *,
        authorizer: Authorizer,
        standpoint: Callable[[], Awaitable[Standpoint]],
        forward: Callable[[str], Handler],
        is_ready: Callable[[], bool],
        observer: CallObserver | None,
        traced: Callable[[ASGIApp], ASGIApp],
        statistics: NodeStatistics,
    ) -> None:
        """`standpoint` asks the owner, and raises `not_ready`; `forward` finds the handler that passes a call on.
        `is_ready` tells whether the node has caught up."""
        self._clock = clock
        self._settings = replace(settings, render_cache_bytes=min(settings.render_cache_bytes, _CACHE_BYTES))
        self._node = node
        self._authorizer = authorizer
        self._standpoint = standpoint
        self._forward = forward
        self._is_ready = is_ready
        self._traced = traced
        self._statistics = statistics
        self._local: _Local | None = None
        self._routes = RouteTable({})
        self._turns = Turns()
        services = Services()
        calls: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            name: grpc.unary_unary_rpc_method_handler(
                self._page(name), request.FromString, lambda reply: reply.SerializeToString()
            )
            for name, request in _REQUESTS.items()
        }
        calls[_BULK_DIFF] = grpc.unary_stream_rpc_method_handler(self._bulk_diff, pb.BulkDiffRequest.FromString)
        services.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, calls),))
        guard = Guard(authorizer, node.metrics.refusals, node.observers)
        self._calls = Calls(services, (CallMeter(node.metrics.grpc, observer), guard))

    def begin(self, store: ShardStore) -> None:
        """Serve reads from a store that follows the log, up to `end`."""
        if self._local is None or self._local.topics.store is not store:
            self.end()
            limits = self._settings.limits
            replica = Replica(store, self._clock, limits=limits, cache_bytes=_CACHE_BYTES, is_durable=True)
            topics = LocalTopics(store, replica)
            api = cast(TopicsApi, topics)  # the calls here need only this part
            app = self._traced(create_reads(api, self._node, self._settings, self._authorizer))
            self._local = _Local(topics, TopicsServicer(api), app, KafkaApi(cast(TopicsApi, LocalLogs(topics))))

    @property
    def topics(self) -> LocalTopics | None:
        """Topics as the rows have them; None without a store that may be read."""
        return None if self._local is None or not self._is_ready() else self._local.topics

    def applied(self) -> None:
        """Note that the store has new rows."""
        if self._local is not None:
            self._local.topics.applied()

    def end(self) -> None:
        """Serve no more reads from the store: those under way end with `not_ready`, to be continued elsewhere."""
        if self._local is not None:
            self._local.topics.close()
            self._local = None

    def _knows(self, rpc: str, authorization: bytes | None) -> bool:
        """Return whether the caller is one that this node can know. Users of CREATE USER are known to the owner only.
        Raises TopicsError for one that is refused."""
        users = self._authorizer.users
        try:
            principal = self._authorizer.identify(rpc, authorization)
        except UnverifiedPasswordError as unverified:
            return users.is_read_only(unverified.name)
        return not users.is_stored(principal)

    # -------------------------------------------------------------- Kafka

    async def fetch(
        self, requests: Sequence[FetchRequest], *, max_bytes: int, min_bytes: int = 0, wait_ms: int = 0
    ) -> list[FetchOutcome] | None:
        """See ReplicaLogs."""
        local = self._local
        if local is None or not self._is_ready():
            return None
        try:
            await local.topics.reach(await self._standpoint(), _REACH_SECONDS)
            found = await local.logs.fetch(requests, max_bytes=max_bytes, min_bytes=min_bytes, wait_ms=wait_ms)
        except (PassedOnError, TopicsError) as error:
            log.debug("a fetch goes to the owner: %s", error)
            return None
        if any(outcome.error is not None for outcome in found):
            return None
        self._statistics.follower_reads += 1
        return found

    # -------------------------------------------------------------- gRPC

    async def find(self, details: grpc.HandlerCallDetails) -> Handler:
        """The handler of a call that is to be tried here, behind the interceptors of every call; None for others."""
        service, _, name = details.method[1:].partition("/")
        metadata = details.invocation_metadata or ()
        if self._local is None or service != _SERVICE or not (name == _BULK_DIFF or name in _REQUESTS):
            return None
        is_marked = any(key == POSITION for key, _ in metadata)
        if not (self._is_ready() if is_marked else name == _BULK_DIFF):
            return None
        try:
            is_known = self._knows(f"{_SERVICE}.{name}", authorization_of(metadata))
        except TopicsError:
            return None
        return positions.stating_handler(await self._calls.find(details)) if is_known else None

    def _page(self, name: str) -> Callable[[Any, StatingContext], Awaitable[Any]]:
        async def call(request: Any, context: StatingContext) -> Any:
            local, wanted = self._local, positions.of_call(context.invocation_metadata() or ())
            if local is not None and wanted is not None:
                try:
                    await local.topics.reach(wanted, _REACH_SECONDS)
                    context.position = lambda: local.topics.position
                    reply = await getattr(local.servicer, name)(request, context)
                    self._statistics.follower_reads += 1
                    return reply
                except PassedOnError as passed:
                    context.position = None
                    log.debug("a read goes to the owner: %s", passed)
            self._statistics.forwarded["grpc"] += 1
            handler: Any = self._forward(f"/{_SERVICE}/{name}")
            return await handler.unary_unary(request.SerializeToString(), context.inner)

        return call

    async def _bulk_diff(self, request: pb.BulkDiffRequest, context: StatingContext) -> AsyncIterator[bytes]:
        """Yield serialized messages, from here or from the owner."""
        local, has_begun = self._local, False
        wanted = positions.of_call(context.invocation_metadata() or ())
        if local is not None and not request.follow:
            try:
                if wanted is None:
                    await local.topics.reach(await self._standpoint(), BULK_SECONDS)
                else:
                    await local.topics.reach(wanted, _REACH_SECONDS)
                context.position = lambda: local.topics.position
                api = cast(TopicsApi, local.topics)
                async with aclosing(bulk_messages(api, request, self._turns)) as messages:
                    async for message in messages:
                        if not has_begun:
                            self._statistics.follower_reads += 1
                            has_begun = True
                        yield message
                return
            except PassedOnError as passed:
                log.debug("a read goes to the owner: %s", passed)
            except TopicsError as error:
                if has_begun or error.reason not in UNREADABLE:
                    raise
                log.debug("a read goes to the owner: %s", error.message)
            context.position = None
        self._statistics.forwarded["grpc"] += 1
        handler: Any = self._forward(f"/{_SERVICE}/{_BULK_DIFF}")
        async with aclosing(handler.stream_stream(_only(request.SerializeToString()), context.inner)) as answers:
            async for answer in answers:
                yield answer

    # -------------------------------------------------------------- HTTP

    async def answer(self, wanted: Standpoint | None, scope: Scope, receive: Receive, send: Send) -> Receive | None:
        """Answer an HTTP request that is to be answered here. For others, return what receives the whole request."""
        local = self._local
        if local is None or wanted is None or scope["type"] != "http" or not self._is_ready():
            return receive
        if not self._is_tried(scope):
            return receive
        kept = _Kept(receive)
        here = {**scope, "state": {**scope["state"]}}  # what is taken out of it stays for the owner
        try:
            await local.topics.reach(wanted, _REACH_SECONDS)
            await local.app(here, kept.receive, stating(send, lambda: local.topics.position))
        except PassedOnError as passed:
            log.debug("a read goes to the owner: %s", passed)
            return kept.again
        self._statistics.follower_reads += 1
        return None

    def _is_tried(self, scope: Scope) -> bool:
        """Return whether it is a read, of a caller that this node can know, and small enough to be sent to the owner
        after all."""
        rpc, headers = self._routes.rpc_of(scope["method"], scope["raw_path"]), dict(scope["headers"])
        length = headers.get(b"content-length", b"0" if scope["method"] != "POST" else b"")
        is_small = length.isdigit() and len(length) < 10 and int(length) <= _MOST_KEPT_BYTES
        try:
            return is_small and rpc in _ROUTED and self._knows(rpc, headers.get(b"authorization"))
        except TopicsError:
            return False


class _Local(NamedTuple):
    """The parts that serve reads from one store."""

    topics: LocalTopics
    servicer: TopicsServicer
    app: ASGIApp
    logs: KafkaApi


class _Kept:
    """Receives a request, and all of it once more."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._messages: list[Message] = []

    async def receive(self) -> Message:
        """The next message of the request."""
        message = await self._receive()
        self._messages.append(message)
        return message

    async def again(self) -> Message:
        """The next message, from the first one on."""
        return self._messages.pop(0) if self._messages else await self._receive()


async def _only(request: bytes) -> AsyncIterator[bytes]:
    yield request
