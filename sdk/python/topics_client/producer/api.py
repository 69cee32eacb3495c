"""Producers: append records in the background, in batches, in order, each exactly once."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from threading import Event
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypedDict, TypeVar, Unpack

from topics_client.codecs import Codec
from topics_client.connection import DEFAULT_RETRY, Connection
from topics_client.models import Headers, RawJson
from topics_client.producer.batch import Limits
from topics_client.producer.core import ProducerCore, ProducerStatistics
from topics_client.producer.delivery import Delivery, on_delivering_thread
from topics_client.retry import Retry

if TYPE_CHECKING:
    import typing_extensions

    Value = typing_extensions.TypeVar("Value", default=Any)
else:
    Value = TypeVar("Value")

_Then = Callable[[], None]


class ProducerOptions(TypedDict, total=False):
    """The options of Producer, to annotate functions that pass them on."""

    linger_ms: float
    max_batch_records: int
    max_batch_bytes: int
    max_in_flight: int
    max_buffered_bytes: int
    block_seconds: float
    retry: Retry


class Producer(Generic[Value]):
    """Appends records in the background. Thread-safe, but not safe in signal handlers, which may interrupt it anywhere:
    let them raise, or set a flag.

    Delivered records of a topic partition are stored exactly once, in the order in which they were appended, even if
    the server fails meanwhile: a batch is retried under its own idempotency key, and later batches wait. A batch that
    can't be stored (`topic_full`, an API key without the scope) fails alone; a batch rejected for some of its records
    is split until only these fail.

    While the server is unavailable or throttles, batches are retried for `retry.seconds` after the append, or after the
    last response for the partition if that is later. For records given up then, `error.detail["outcome"]` is
    `not_stored` or `unknown`. No batch is retried once the topic may have forgotten its key (`idempotency_window_ms`).

    `close`, or leaving the `with` block, delivers the remaining records. If an interrupt leaves the block, or the
    process ends without closing the producer, 10 seconds are allowed for this; records not delivered by then are
    logged. A forked child can't use the producer of its parent, which keeps all its records.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        linger_ms: float = 5.0,
        max_batch_records: int = 10_000,
        max_batch_bytes: int = 2 << 20,
        max_in_flight: int = 8,
        max_buffered_bytes: int = 32 << 20,
        block_seconds: float = 60.0,
        retry: Retry = DEFAULT_RETRY,
        codec: Codec[Value] | None = None,
        owns_connection: bool = False,
    ) -> None:
        """`linger_ms` is the time that a record waits for others to share its batch; a partition has one append in
        flight at a time, for whose response later records wait anyway. At most `max_in_flight` appends are in flight in
        total. Records without an outcome are buffered, each counted with 100 bytes of overhead; `block_seconds` is the
        time that `append` waits while the buffer is full. `codec` encodes the values. With `owns_connection`, `close`
        also closes the connection. Raises ValueError."""
        limits = Limits(linger_ms, max_batch_records, max_batch_bytes, max_in_flight, max_buffered_bytes)
        self._block_seconds = block_seconds
        self._core = ProducerCore(connection, limits, retry, owns_connection=owns_connection, codec=codec)
        self._offer = self._core.offer

    def __repr__(self) -> str:
        return f"<{type(self).__name__} at {self._core}>"

    def append(
        self,
        topic: str,
        value: Value | RawJson,
        *,
        tag: str | None = None,
        node: str | None = None,
        meta: Headers | None = None,
        partition: int = 0,
    ) -> Delivery:
        """Append a record. See NewRecord for its parts.

        Blocks while the buffer is full, for up to `block_seconds`; then, and immediately in a delivery callback, raises
        UnavailableError (`buffer_full`). Raises InvalidRequestError for a record that no topic accepts, and
        RuntimeError once the producer is closed.
        """
        delivery = self._offer(topic, value, tag, node, meta, partition)
        if delivery is None:
            ends = time.monotonic() + (0 if on_delivering_thread() else self._block_seconds)
            while delivery is None:
                room = Event()
                then = room.set
                try:
                    self._core.when_room(then)
                    if not room.wait(max(0.0, ends - time.monotonic())):
                        raise self._core.no_room()
                finally:
                    self._core.forget(then)
                delivery = self._offer(topic, value, tag, node, meta, partition)
        return delivery

    def flush(self, timeout: float | None = None) -> None:
        """Wait until all records appended so far have their outcomes and all callbacks have run.

        Raises the first failure not reported yet by a delivery or an earlier flush: if it raises nothing, all records
        are stored except for failures already reported. Raises TimeoutError with the number of remaining records, and
        RuntimeError in a callback.
        """
        self._core.flush(timeout)

    def close(self, timeout: float | None = None) -> None:
        """Stop accepting records, flush, and end. Raises as `flush`; records left after `timeout` seconds, or when
        interrupted, fail. Does nothing if already closed."""
        self._core.close(timeout)

    def statistics(self) -> ProducerStatistics:
        """Current statistics."""
        return self._core.statistics()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._core.leave(error)


class AsyncProducer(Generic[Value]):
    """The asyncio producer: calls that would block a thread are awaited. Otherwise it works as Producer.

    `delivery = await producer.append(...)` waits only while the buffer is full; `seq = await delivery` waits for the
    record to be stored.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        codec: Codec[Value] | None = None,
        owns_connection: bool = False,
        **options: Unpack[ProducerOptions],
    ) -> None:
        """See Producer, also for the defaults."""
        self._producer = Producer(connection, codec=codec, owns_connection=owns_connection, **options)
        self._core = self._producer._core

    def __repr__(self) -> str:
        return f"<{type(self).__name__} at {self._core}>"

    async def append(
        self,
        topic: str,
        value: Value | RawJson,
        *,
        tag: str | None = None,
        node: str | None = None,
        meta: Headers | None = None,
        partition: int = 0,
    ) -> Delivery:
        """See Producer.append."""
        delivery = self._core.offer(topic, value, tag, node, meta, partition)
        if delivery is None:
            try:
                async with asyncio.timeout(self._producer._block_seconds):
                    while delivery is None:
                        await _called(self._core.when_room, self._core.forget)
                        delivery = self._core.offer(topic, value, tag, node, meta, partition)
            except TimeoutError:
                raise self._core.no_room() from None
        return delivery

    async def flush(self, timeout: float | None = None) -> None:  # noqa: ASYNC109  # as Producer.flush
        """See Producer.flush."""
        number = 0

        def register(then: Callable[[], None]) -> None:
            nonlocal number
            number = self._core.when_settled(then)

        try:
            async with asyncio.timeout(timeout):
                await _called(register, self._core.forget)
        except TimeoutError:
            raise self._core.too_late(number, timeout or 0) from None
        self._core.raise_unseen()

    async def close(self, timeout: float | None = None) -> None:  # noqa: ASYNC109  # as Producer.close
        """See Producer.close."""
        await asyncio.to_thread(self._core.close, timeout)

    def statistics(self) -> ProducerStatistics:
        """See Producer.statistics."""
        return self._core.statistics()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self._core.leave, error)


async def _called(register: Callable[[_Then], None], forget: Callable[[_Then], None]) -> None:
    """Wait until the registered callback is called, by any thread."""
    loop = asyncio.get_running_loop()
    future = loop.create_future()

    def wake() -> None:
        if not future.done():
            future.set_result(None)

    def call() -> None:
        with suppress(RuntimeError):  # the loop is closed: no waiters
            loop.call_soon_threadsafe(wake)

    register(call)
    try:
        await future
    finally:
        forget(call)
