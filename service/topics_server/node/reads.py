"""Long reads at a node that follows: from its own rows, once they have all that the owner has acknowledged."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any, Final, cast

import grpc

from topics_cluster.store import ShardStore
from topics_proto.v1 import topics_service_pb2 as pb
from topics_server.node.peers import Standpoint
from topics_service.api.access.authorizer import Authorizer
from topics_service.api.access.passwords import UnverifiedPasswordError
from topics_service.api.bulk import Turns
from topics_service.api.grpc.bulk_diff import bulk_messages
from topics_service.api.grpc.calls import Calls, Services
from topics_service.api.grpc.guard import Guard, authorization_of
from topics_service.api.grpc.handlers import Context, Handler
from topics_service.api.grpc.meter import CallMeter, CallObserver
from topics_service.api.metrics.collector import NodeMetrics
from topics_service.api.observers import Observers
from topics_service.api.topics import TopicsApi
from topics_service.engine.clock import Clock
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.limits import Limits
from topics_service.engine.model import BulkRequest, DiffReply
from topics_service.engine.replica import Replica
from topics_service.statistics import NodeStatistics

log: Final = logging.getLogger("topics.cluster")

BULK_DIFF: Final = "/topics.v1.TopicsService/BulkDiff"

_RPC: Final = "topics.v1.TopicsService.BulkDiff"
_REACH_SECONDS: Final = 1.0
"""The longest wait for rows that the owner has acknowledged: a long read takes seconds anyway."""
_CACHE_BYTES: Final = 16 << 20
_UNREADABLE: Final = frozenset((Reason.NOT_READY, Reason.INTERNAL))


class _LocalRows:
    """The part of `TopicsApi` that a BulkDiff calls, on the rows of a store that follows the log."""

    def __init__(self, store: ShardStore, replica: Replica, reach: Callable[["_LocalRows"], Awaitable[None]]) -> None:
        self.store = store
        self.is_closed = False
        self._replica = replica
        self._reach = reach

    @property
    def limits(self) -> Limits:
        """The limits that requests meet."""
        return self._replica.limits

    async def bulk(self, request: BulkRequest) -> tuple[DiffReply, int]:
        """One page of one moment; see `Replica.bulk`. The first finds all that was acknowledged before the call."""
        if not request.epoch:
            await self._reach(self)
        if self.is_closed:
            raise TopicsError(Reason.NOT_READY, "the node is replacing its rows of the shard")
        with self.store.writing:  # objects are applied on another thread
            return self._replica.bulk(request)


class FollowerReads:
    """Serves BulkDiff at a node that does not own the shard.

    A read asks the owner where the log ends, waits until the node has applied it up to there, and is served from the
    local rows. What these can't answer is passed on to the owner: a read that follows, a topic whose records are in
    memory only, expired records, rows that don't come in time. Belongs to the event loop.
    """

    def __init__(
        self,
        clock: Clock,
        limits: Limits,
        *,
        authorizer: Authorizer,
        standpoint: Callable[[], Awaitable[Standpoint]],
        forward: Callable[[str], Handler],
        metrics: NodeMetrics,
        observers: Observers,
        observer: CallObserver | None,
        statistics: NodeStatistics,
    ) -> None:
        """`standpoint` asks the owner, and raises `not_ready`; `forward` finds the handler that passes a call on."""
        self._clock = clock
        self._limits = limits
        self._authorizer = authorizer
        self._standpoint = standpoint
        self._forward = forward
        self._statistics = statistics
        self._rows: _LocalRows | None = None
        self._turns = Turns()
        self._news = asyncio.Event()
        services = Services()
        call: grpc.RpcMethodHandler[Any, Any] = grpc.unary_stream_rpc_method_handler(
            self._bulk_diff, pb.BulkDiffRequest.FromString
        )
        service, _, name = BULK_DIFF[1:].partition("/")
        services.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {name: call}),))
        guard = Guard(authorizer, metrics.refusals, observers)
        self.calls = Calls(services, (CallMeter(metrics.grpc, observer), guard))
        """BulkDiff alone, behind the interceptors of every call."""

    def begin(self, store: ShardStore) -> None:
        """Serve reads from a store that follows the log, up to `end`."""
        if self._rows is None or self._rows.store is not store:
            self.end()
            replica = Replica(store, self._clock, limits=self._limits, cache_bytes=_CACHE_BYTES, is_durable=True)
            self._rows = _LocalRows(store, replica, self._reach)

    def applied(self) -> None:
        """Note that the store has new rows."""
        self._news.set()
        self._news = asyncio.Event()

    def end(self) -> None:
        """Serve no more reads from the store: those under way end with `not_ready`, to be continued elsewhere."""
        if self._rows is not None:
            self._rows.is_closed = True
            self._rows = None
            self.applied()

    def serves(self, details: grpc.HandlerCallDetails) -> bool:
        """Return whether a call is to be tried here: there are rows, and the caller is one that this node can know.

        Users of CREATE USER are known to the owner only.
        """
        if self._rows is None or details.method != BULK_DIFF:
            return False
        users = self._authorizer.users
        try:
            principal = self._authorizer.identify(_RPC, authorization_of(details.invocation_metadata or ()))
        except UnverifiedPasswordError as unverified:
            return users.is_read_only(unverified.name)
        except TopicsError:
            return False
        return not users.is_stored(principal)

    async def _bulk_diff(self, request: pb.BulkDiffRequest, context: Context) -> AsyncIterator[bytes]:
        """Yield serialized messages, from here or from the owner."""
        rows, has_begun = self._rows, False
        if rows is not None and not request.follow:
            try:
                api = cast(TopicsApi, rows)  # a BulkDiff needs only this part
                async with aclosing(bulk_messages(api, request, self._turns)) as messages:
                    async for message in messages:
                        if not has_begun:
                            self._statistics.follower_reads += 1
                            has_begun = True
                        yield message
                return
            except TopicsError as error:
                if has_begun or error.reason not in _UNREADABLE:
                    raise
                log.debug("a read goes to the owner: %s", error.message)
        self._statistics.forwarded["grpc"] += 1
        handler: Any = self._forward(BULK_DIFF)
        async with aclosing(handler.stream_stream(_only(request.SerializeToString()), context)) as answers:
            async for answer in answers:
                yield answer

    async def _reach(self, rows: _LocalRows) -> None:
        """Wait until there is everything that the owner had acknowledged before the call. Raises `not_ready`."""
        wanted, store = await self._standpoint(), rows.store
        try:
            async with asyncio.timeout(_REACH_SECONDS):
                while not rows.is_closed and not _has(store, wanted):
                    await self._news.wait()
        except TimeoutError:
            raise TopicsError(
                Reason.NOT_READY, f"the node is behind the owner: at {store.ticket} of {wanted.ticket} writes"
            ) from None


def reader_addresses(addresses: Sequence[str]) -> list[tuple[str, int]]:
    """Host and port of each host:port, as ListBulkReaders has them."""
    split = [address.rpartition(":") for address in addresses]
    return [(host.strip("[]"), int(port)) for host, _, port in split]


def _has(store: ShardStore, wanted: Standpoint) -> bool:
    """Return whether all writes up to there are in the store. Those of former epochs are where a later one begins."""
    epoch = store.position.epoch
    return epoch > wanted.epoch or (epoch == wanted.epoch and store.ticket >= wanted.ticket)


async def _only(request: bytes) -> AsyncIterator[bytes]:
    yield request
