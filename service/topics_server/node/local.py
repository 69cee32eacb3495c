"""Topics as a node that follows the log has them in its rows."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final

from topics_cluster.store import ShardStore
from topics_gateway.request import PassedOnError
from topics_server.node.peers import Standpoint
from topics_service.engine.batches import FetchReply, FetchRequest
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.limits import Limits
from topics_service.engine.model import BulkRequest, DiffReply, DiffRequest, TopicState
from topics_service.engine.replica import Replica

UNREADABLE: Final = frozenset((Reason.NOT_READY, Reason.INTERNAL))
"""Reasons for which the owner is asked."""


class LocalTopics:
    """The part of `TopicsApi` that reads topics, on the rows of a store that follows the log.

    All but `bulk` raise PassedOnError where only the owner can answer, in place of `not_ready` and `internal`. Belongs
    to the event loop.
    """

    def __init__(self, store: ShardStore, replica: Replica) -> None:
        self.store = store
        self.is_closed = False
        self.waiting: set[Callable[[], object]] = set()
        """Called whenever the store has new rows, and when no more reads are answered."""
        self._replica = replica
        self._news = asyncio.Event()

    @property
    def limits(self) -> Limits:
        """The limits that requests meet."""
        return self._replica.limits

    @property
    def position(self) -> Standpoint:
        """The position that the rows have."""
        return Standpoint(epoch=self.store.position.epoch, ticket=self.store.ticket)

    async def get_topic(self, name: str, *, touch: bool = True, partition: int = 0) -> TopicState:
        """See `TopicsApi.get_topic` and `Replica.state`. A touch has no effect: the owner does not hear of it."""
        with self._reading():
            return self._replica.state(name, partition)

    async def diff(self, request: DiffRequest) -> DiffReply:
        """See `TopicsApi.diff`. It does not wait."""
        with self._reading():
            return self._replica.diff(request)

    async def locate(self, name: str, ts: int, partition: int = 0) -> tuple[int, int]:
        """See `TopicsApi.locate`."""
        with self._reading():
            return self._replica.locate(name, ts, partition)

    async def bulk(self, request: BulkRequest) -> tuple[DiffReply, int]:
        """See `TopicsApi.bulk`. A read that has begun continues while the node takes the shard over."""
        self._check(has_begun=bool(request.epoch))
        with self.store.writing:  # objects are applied on another thread
            return self._replica.bulk(request)

    async def reach(self, wanted: Standpoint, seconds: float) -> None:
        """Wait until the rows have all writes up to there. Raises PassedOnError after `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                while not self.is_closed and not self._has(wanted):
                    await self._news.wait()
        except TimeoutError:
            raise PassedOnError(f"the node is behind: at {self.position}, wanted is {wanted}") from None

    def fetch(self, request: FetchRequest) -> FetchReply:
        """See `TopicsApi.fetch`."""
        with self._reading():
            return self._replica.fetch(request)

    def applied(self) -> None:
        """Note that the store has new rows."""
        self._news.set()
        self._news = asyncio.Event()
        for wake in list(self.waiting):
            wake()

    def close(self) -> None:
        """Answer no more reads."""
        self.is_closed = True
        self.applied()

    def _has(self, wanted: Standpoint) -> bool:
        """Return whether all writes up to there are in the store.

        A later epoch alone does not tell: a node that slept may put its fence into a stretch of the log that was
        deleted, and that hides what came behind.
        """
        return self.store.position.epoch >= wanted.epoch and self.store.ticket >= wanted.ticket

    def _check(self, *, has_begun: bool = False) -> None:
        """Raise `not_ready` unless the store may be read: that of an owner, and of a former one, can have rows that
        are not in the log."""
        store = self.store
        if self.is_closed:
            raise TopicsError(Reason.NOT_READY, "the node is replacing its rows of the shard")
        if not has_begun and (store.uploader is not None or store.is_ahead):
            raise TopicsError(Reason.NOT_READY, "the node has rows that are not in the log yet")

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            self._check()
            with self.store.writing:
                yield
        except TopicsError as error:
            if error.reason not in UNREADABLE:
                raise
            raise PassedOnError(error.message) from error


class LocalLogs:
    """The part of `TopicsApi` that `KafkaApi.fetch` needs, on such topics; errors are those of LocalTopics."""

    draining: Final = False

    def __init__(self, topics: LocalTopics) -> None:
        self._topics = topics

    def fetch(self, request: FetchRequest) -> FetchReply:
        """See TopicsApi."""
        return self._topics.fetch(request)

    def park(self, _topic: str, wake: Callable[[], object], _partition: int = 0) -> "_Parked":
        """See TopicsApi; it wakes up for records of any topic."""
        return _Parked(self._topics, wake)

    def notify_on_drain(self, _event: object) -> AbstractContextManager[None]:
        """See TopicsApi: who waits is woken when the topics are closed."""
        return nullcontext()

    async def expiry_durable(self) -> None:
        """See TopicsApi: only what is durable is here."""


class _Parked:
    """A wait for new rows."""

    def __init__(self, topics: LocalTopics, wake: Callable[[], object]) -> None:
        self._topics = topics
        self._wake = wake
        topics.waiting.add(wake)

    def leave(self) -> None:
        """End it, and all of the same caller."""
        self._topics.waiting.discard(self._wake)
