"""Producers: records are appended in the background, many at a time, in order, each exactly once."""

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
    """The options of a producer, for those who pass them on: see Producer."""

    linger_ms: float
    max_batch_records: int
    max_batch_bytes: int
    max_in_flight: int
    max_buffered_bytes: int
    block_seconds: float
    retry: Retry


class Producer(Generic[Value]):
    """Appends records in the background. Threads can share it; signal handlers, which may interrupt it anywhere, can't:
    let them raise, or set a flag.

    Records of one topic partition that are delivered are there exactly once, in the order in which they were appended,
    whatever happens to the server meanwhile: a batch is repeated under its own idempotency key, and those behind it
    wait. One that can't be stored (`topic_full`, a key without the scope) fails alone; one that is refused for some of
    its records is split until only these fail.

    A server that is absent or throttles is waited for, `retry.seconds` from the append on, or from the last answer for
    the partition if that was later. Of what is given up then, `error.detail["outcome"]` tells whether it is
    `not_stored` or `unknown`. Nothing is repeated once the topic may have forgotten its key (`idempotency_window_ms`).

    `close`, or leaving the `with` block, delivers what is left. An interrupt that leaves the block grants it 10
    seconds, and so does the end of a process that has not closed it; what does not get through then is logged. A forked
    child can't use the producer of its parent, which goes on with all that it was given.
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
        """`linger_ms` is how long a record waits for others to go with; those of a partition that has an append under
        way wait for its answer anyway, as there is one at a time. At most `max_in_flight` are under way in all. Records
        without an outcome fill the buffer, each counted with 100 bytes on top; `block_seconds` is how long `append`
        waits for room in it. `codec` encodes the values. With `owns_connection`, `close` closes the connection too.
        Raises ValueError."""
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
        """Hand a record over. See NewRecord for its parts.

        Blocks while the buffer is full, at most `block_seconds`; then, and at once in a callback of a delivery, raises
        UnavailableError (`buffer_full`). Raises InvalidRequestError for a record that no topic can take, and
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
        """Wait until every record that was appended before has its outcome, and their callbacks have run.

        Raises the first failure that nobody has seen yet, by its delivery or an earlier flush: where it raises nothing,
        all is stored but for what the program knows of. Raises TimeoutError, which tells how many records are left, and
        RuntimeError in a callback.
        """
        self._core.flush(timeout)

    def close(self, timeout: float | None = None) -> None:
        """Take no more records, flush, and end. Raises as `flush`; what is left after `timeout` seconds, or when it is
        interrupted, fails. Once closed, it does nothing."""
        self._core.close(timeout)

    def statistics(self) -> ProducerStatistics:
        """What it holds and has done, now."""
        return self._core.statistics()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._core.leave(error)


class AsyncProducer(Generic[Value]):
    """The producer for asyncio: what would block a thread is awaited. Everything else is as Producer says.

    `delivery = await producer.append(...)` waits for room alone; `seq = await delivery` waits for the record.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        codec: Codec[Value] | None = None,
        owns_connection: bool = False,
        **options: Unpack[ProducerOptions],
    ) -> None:
        """As Producer, which also has the defaults."""
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
        """As Producer.append."""
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
        """As Producer.flush."""
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
        """As Producer.close."""
        await asyncio.to_thread(self._core.close, timeout)

    def statistics(self) -> ProducerStatistics:
        """As Producer.statistics."""
        return self._core.statistics()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self._core.leave, error)


async def _called(register: Callable[[_Then], None], forget: Callable[[_Then], None]) -> None:
    """Wait until what is registered is called, by whatever thread."""
    loop = asyncio.get_running_loop()
    future = loop.create_future()

    def wake() -> None:
        if not future.done():
            future.set_result(None)

    def call() -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(wake)

    register(call)
    try:
        await future
    finally:
        forget(call)
