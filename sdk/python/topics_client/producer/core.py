"""The common part of the two producers: accept records without blocking, and events to wait for."""

import logging
import time
import uuid
from collections.abc import Callable
from copy import copy
from threading import Event
from typing import Any, Final, NamedTuple

from topics_client.codecs import Codec, encoder_of
from topics_client.connection import Connection
from topics_client.encoding import encode_meta
from topics_client.errors import InvalidRequestError, UnavailableError
from topics_client.models import Headers
from topics_client.producer import shutdown
from topics_client.producer.batch import Limits, Parts
from topics_client.producer.batching import Batches
from topics_client.producer.delivery import Delivery, on_delivering_thread
from topics_client.producer.sender import Sender
from topics_client.retry import Retry

_MAX_BYTES: Final = 1 << 20  # of a record, its meta included
_MAX_PART_BYTES: Final = (256, 128, 16 << 10)  # bytes of tag, node and meta
_FITS: Final = _MAX_BYTES - (16 << 10)  # whatever the meta
_LOG: Final = logging.getLogger("topics_client.producer")

_Then = Callable[[], None]


class ProducerStatistics(NamedTuple):
    """Statistics of a producer."""

    buffered_records: int
    buffered_bytes: int
    in_flight: int  # appends without a response
    delivered: int  # records
    failed: int  # records
    batches: int  # stored, each counted once
    repeats: int  # retried appends


class ProducerCore:
    """The common part of the blocking and the asyncio producer. Thread-safe; only `drain` and `close` block."""

    def __init__(
        self, connection: Connection, limits: Limits, retry: Retry, *, owns_connection: bool, codec: Codec[Any] | None
    ) -> None:
        self._connection = connection
        self._encode = encoder_of(codec)
        self._owns_connection = owns_connection
        self._batches = Batches(
            limits, name=uuid.uuid4().hex, retry=retry, timeout=connection.timeout, clock=time.monotonic
        )
        self._sender = Sender(connection, self._batches)
        self._lock = self._sender.lock
        shutdown.register(self)

    def __str__(self) -> str:
        """The server and the statistics."""
        held = self.statistics()
        return (
            f"{self._connection.address}: {held.buffered_records} records buffered, "
            f"{held.in_flight} appends in flight, {held.delivered} delivered, {held.failed} failed"
        )

    def offer(
        self, topic: str, value: Any, tag: str | None, node: str | None, meta: Headers | None, partition: int
    ) -> Delivery | None:
        """Accept a record; None if the buffer is full. Raises InvalidRequestError, and RuntimeError once closed."""
        # Runs 250,000 times a second and more: the rare parts of a record cost a single check.
        data, binary = self._encode(value)
        parts = _parts(binary, tag, node, meta) if binary or tag is not None or node is not None or meta else None
        if len(data) > _FITS:
            _check_size(data, parts)
        batches = self._batches
        with self._lock:
            if batches.buffered_bytes >= batches.room:
                if batches.closed:
                    raise RuntimeError(batches.closed)
                return None
            delivery = batches.add(topic, partition, data, parts)
            if batches.stirred:
                self._sender.wake()
                batches.stirred = False  # only now: after an interrupt before this line, the next record would wake it
            return delivery

    def when_room(self, then: _Then) -> None:
        """Call `then` once when `offer` may accept a record: now, or from the producer's thread."""
        with self._lock:
            self._sender.when_room(then)

    def forget(self, then: _Then) -> None:
        """Unregister `then` from either of the two."""
        with self._lock:
            self._sender.forget(then)

    def no_room(self) -> UnavailableError:
        """The error of a wait for room that timed out."""
        with self._lock:
            held, trouble = self._batches.buffered_bytes, self._batches.trouble
        cause = f"last failure: {trouble}" if trouble else "they are appended faster than they are stored"
        text = f"there is no room for another record, {held} bytes of them wait to be delivered ({cause})"
        return UnavailableError("buffer_full", text, {"buffered_bytes": str(held)})

    def when_settled(self, then: _Then) -> int:
        """Stop all lingering, and call `then` once when all records have their outcomes and all callbacks have run:
        now, or from the producer's thread. Returns the number to pass to `too_late`."""
        with self._lock:
            number = self._batches.flush()
            self._sender.when_settled(number, then)
        return number

    def too_late(self, number: int, timeout: float) -> TimeoutError:
        """The error of a wait for outcomes that timed out."""
        with self._lock:
            left, trouble = self._batches.pending(number), self._batches.trouble
        cause = f" (last failure: {trouble})" if trouble else ""
        are = "1 record is" if left == 1 else f"{left} records are"
        return TimeoutError(f"{are} not delivered after {timeout:.3g} s{cause}")

    def raise_unseen(self) -> None:
        """Raise the first unreported failure, and mark all as reported."""
        with self._lock:
            unseen = [failure for receipt, failure in self._sender.unseen if not receipt.seen]
            self._sender.unseen.clear()
        if unseen:
            error = copy(unseen[0])
            if len(unseen) > 1:
                error.add_note(f"(batches that failed besides: {len(unseen) - 1}, the last with {unseen[-1]})")
            raise error

    def flush(self, timeout: float | None) -> None:
        """Wait until all records have their outcomes and all callbacks have run. Raises the first unreported failure,
        TimeoutError, and RuntimeError in a callback."""
        if on_delivering_thread():
            raise RuntimeError("a callback of a delivery must not flush or close a producer")
        settled = Event()
        then = settled.set
        try:
            number = self.when_settled(then)
            if not settled.wait(timeout):
                raise self.too_late(number, timeout or 0)
        finally:
            self.forget(then)
        self.raise_unseen()

    def close(self, timeout: float | None) -> None:
        """Stop accepting records, flush, and end. Raises as `flush`; records without an outcome then fail."""
        if not on_delivering_thread():
            with self._lock:
                self._batches.close("the producer is closed")
        try:
            self.flush(timeout)
        finally:
            if not on_delivering_thread():
                self._end()

    def leave(self, error: BaseException | None) -> None:
        """Close at the end of a `with` block, without hiding the `error` that leaves it."""
        if error is None:
            self.close(None)
            return
        try:
            self.close(None if isinstance(error, Exception) else shutdown.SECONDS)
        except Exception as failure:
            _LOG.error("closing a producer failed: %s", failure)

    def end_with_process(self, seconds: float) -> None:
        """See shutdown."""
        try:
            self.close(seconds)
        except Exception as error:
            _LOG.error("a producer was not closed before its process ended: %s", error)

    def abandon(self) -> None:
        """See shutdown."""
        why = "this process was forked: the producer is its parent's; make one of your own after the fork"
        self._lock = self._sender.abandon(why)
        self._owns_connection = False

    def statistics(self) -> ProducerStatistics:
        """Current statistics."""
        batches = self._batches
        with self._lock:
            return ProducerStatistics(
                batches.pending(),
                batches.buffered_bytes,
                batches.in_flight,
                batches.delivered_records,
                batches.failed_records,
                batches.stored_batches,
                batches.repeats,
            )

    def _end(self) -> None:
        self._sender.finish(UnavailableError("closed", "the producer was closed before it could deliver"))
        shutdown.unregister(self)
        if self._owns_connection:
            self._connection.close()


def _parts(binary: bool, tag: str | None, node: str | None, meta: Headers | None) -> Parts:
    """The parts of a record other than its data. Raises InvalidRequestError for parts that no topic accepts."""
    meta_data = encode_meta(meta)
    try:
        sizes = (len((tag or "").encode()), len((node or "").encode()), len(meta_data))
    except UnicodeEncodeError as error:
        raise InvalidRequestError("invalid_request", f"tag and node are UTF-8: {error}") from None
    for name, size, maximum in zip(("tag", "node", "meta"), sizes, _MAX_PART_BYTES, strict=True):
        if size > maximum:
            raise InvalidRequestError("invalid_request", f"the {name} has {size} bytes, and may have {maximum}")
    return Parts(binary, tag, node, meta_data, sum(sizes))


def _check_size(data: bytes, parts: Parts | None) -> None:
    size = len(data) + (len(parts.meta) if parts else 0)
    if size > _MAX_BYTES:
        raise InvalidRequestError("record_too_large", f"the record has {size} bytes, and may have {_MAX_BYTES}")
