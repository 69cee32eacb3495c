"""Streams that resume at their position when the connection breaks."""

from asyncio import Event
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, suppress
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar
from weakref import ref

from topics_client.aio_connection import AsyncConnection
from topics_client.codecs import Codec
from topics_client.errors import TopicsError, UnavailableError
from topics_client.reading import Decoding, Feed, Reading, Undecodable
from topics_client.retry import Patience
from topics_client.sqllive import Following, LiveEvent
from topics_client.watching import Watching

HEARTBEAT_SECONDS: Final = 15
_SILENT_HEARTBEATS: Final = 3

Item = TypeVar("Item")


class AsyncFlow(Generic[Item]):
    """The items of a stream. It holds no reference to the stream, so that the call to the server ends when the last
    iteration is garbage collected."""

    def __init__(
        self,
        connection: AsyncConnection,
        method: Callable[[], Any],
        feed: Feed[Any, Any, Item],
        silence: float | None,
    ) -> None:
        """See AsyncStream."""
        self._connection = connection
        self._method = method
        self._feed = feed
        self._silence = silence
        self._closed = Event()
        self._cancel: Callable[[], object] = lambda: None

    async def items(self) -> AsyncGenerator[Item, None]:
        """Yield the items one by one."""
        feed = self._feed
        async with aclosing(self._answers()) as answers:
            async for answer in answers:
                for item in feed.take(answer):
                    feed.at(item)
                    yield item
                    if self._closed.is_set():
                        return
                feed.passed(answer)

    async def batches(self) -> AsyncGenerator[Sequence[Item], None]:
        """Yield the items in the batches received."""
        feed = self._feed
        async with aclosing(self._answers()) as answers:
            async for answer in answers:
                for items in feed.groups(answer):
                    yield items
                    if self._closed.is_set():
                        return

    async def _answers(self) -> AsyncGenerator[Any, None]:
        """Yield the responses of consecutive calls; the next call starts where the last one broke off."""
        patience = Patience(self._connection.retry)
        while not (self._feed.done or self._closed.is_set()):
            try:
                request = self._feed.request()
                async with self._connection.stream(
                    self._method(), request, silence=self._silence, started=self._started
                ) as answers:
                    async for answer in answers:
                        patience.renew()
                        yield answer
                return
            except TopicsError as error:
                if self._closed.is_set():
                    return
                if not isinstance(error, UnavailableError) or not await self._connection.waited(
                    patience, error, self._closed
                ):
                    raise

    def _started(self, cancel: Callable[[], object]) -> None:
        self._cancel = cancel
        if self._closed.is_set():
            cancel()

    def close(self) -> None:
        """See AsyncStream."""
        self._closed.set()
        self._cancel()


class AsyncStream(Generic[Item]):
    """A stream of items. While the server is unavailable, the stream waits and then resumes without loss or duplicates;
    it raises UnavailableError once that takes longer than the client's `retry` allows.

    Yielded items count as processed. The stream is an iterator with a single iteration: a loop continues where `next`
    stopped, and vice versa. Iterating again, also after an error, resumes after the last item yielded. Leaving a loop
    ends the call to the server, unless `next` was used; so does leaving the stream's context.
    """

    def __init__(
        self,
        connection: AsyncConnection,
        method: Callable[[], Any],
        feed: Feed[Any, Any, Item],
        silence: float | None,
    ) -> None:
        """Created by the client. `method` returns the stub's method. If given, `silence` is the number of seconds
        without a message after which the connection counts as broken."""
        self._server = str(connection.address)
        self._flow = AsyncFlow(connection, method, feed, silence)
        # Weak: an unreferenced iteration ends at once.
        self._iteration: Callable[[], Any] = lambda: None
        self._batches: Callable[[], Any] = lambda: None
        self._held: AsyncGenerator[Item, None] | None = None  # by `next`

    def __aiter__(self) -> AsyncIterator[Item]:
        return self._items()  # returning self would cost a Python call for each item

    async def __anext__(self) -> Item:
        self._held = self._items()
        return await anext(self._held)

    def _items(self) -> AsyncGenerator[Item, None]:
        current = self._iteration()
        has_ended = current is None or current.ag_frame is None
        items: AsyncGenerator[Item, None] = self._flow.items() if has_ended else current
        self._iteration = ref(items)
        return items

    def batches(self) -> AsyncIterator[Sequence[Item]]:
        """Iterate over the same items in the batches received, of a few thousand at most: the cheapest way to read
        many."""
        self._held = None
        batches = self._flow.batches()
        self._batches = ref(batches)
        return batches

    def close(self) -> None:
        """End the iteration, including one that is waiting for the next item in another thread or task."""
        self._flow.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.close()
        for iteration in (self._iteration(), self._batches()):
            if iteration is not None:
                with suppress(RuntimeError, ValueError):  # it is running in another task or thread, and ends there
                    await iteration.aclose()


class AsyncReadStream(AsyncStream[Item]):
    """The records of one partition, and its gaps if requested as objects."""

    def __init__(
        self,
        connection: AsyncConnection,
        reading: Reading,
        codec: Codec[Any] | None = None,
        undecodable: Undecodable = "raise",
    ) -> None:
        """Created by `read`."""
        feed: Feed[Any, Any, Any] = reading if codec is None else Decoding(reading, codec, undecodable)
        super().__init__(connection, lambda: connection.topics.BulkDiff, feed, None)
        self._reading = reading

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._reading} at {self._server}>"

    @property
    def position(self) -> int | None:
        """The cursor after the last item yielded, to be used as `from_seq` to resume. None until the first response to
        a read that starts at a time or near the end."""
        return self._reading.position


class AsyncWatchStream(AsyncStream[Item]):
    """The records of many topics, and their other events if requested."""

    def __init__(
        self,
        connection: AsyncConnection,
        watching: Watching,
        codec: Codec[Any] | None = None,
        undecodable: Undecodable = "raise",
    ) -> None:
        """Created by `watch`."""
        feed: Feed[Any, Any, Any] = watching if codec is None else Decoding(watching, codec, undecodable)
        super().__init__(connection, lambda: connection.watches.Watch, feed, _SILENT_HEARTBEATS * HEARTBEAT_SECONDS)
        self._watching = watching

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._watching} at {self._server}>"

    @property
    def cursor(self) -> dict[str, int]:
        """The last seq yielded of each topic, or of `topic@N` for a partition N > 0. Store it and pass it to another
        watch to resume."""
        return dict(self._watching.cursor)


class AsyncLiveStream(AsyncStream[LiveEvent]):
    """The frames of a live query."""

    def __init__(self, connection: AsyncConnection, following: Following) -> None:
        """Created by `subscribe`."""
        silence = _SILENT_HEARTBEATS * HEARTBEAT_SECONDS
        super().__init__(connection, lambda: connection.sql.Subscribe, following, silence)
        self._following = following

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._following} at {self._server}>"

    @property
    def position(self) -> str | None:
        """The position behind the last item yielded. Store it and pass it to `subscribe` as `after` to resume."""
        return self._following.position
