"""Appending chunks over one AppendStream, over breaks of the connection and pauses that the server asks for."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Thread
from types import TracebackType
from typing import Final, Self

from pyspark_topics.write_chunks import Chunk
from topics_client.connection import Connection
from topics_client.errors import (
    AuthError,
    ConflictError,
    InvalidRequestError,
    NotFoundError,
    TopicsError,
    UnavailableError,
)
from topics_client.retry import Patience
from topics_proto.v1 import errors_pb2
from topics_proto.v1 import topics_service_pb2 as pb

_AHEAD_BYTES: Final = 16 << 20  # the server's window of unacknowledged appends
_REASON_PREFIX: Final = "ERROR_REASON_"
_KINDS: Final[dict[str, type[TopicsError]]] = {
    "throttled": UnavailableError,
    "not_ready": UnavailableError,
    "shutting_down": UnavailableError,
    "unauthorized": AuthError,
    "forbidden": AuthError,
    "topic_not_found": NotFoundError,
    "partition_not_found": NotFoundError,
    "topic_full": ConflictError,
    "invalid_request": InvalidRequestError,
    "batch_too_large": InvalidRequestError,
    "record_too_large": InvalidRequestError,
    "payload_too_large": InvalidRequestError,
}


@dataclass(slots=True)
class Counts:
    """Statistics of an appender."""

    records: int = 0
    chunks: int = 0
    deduped: int = 0  # chunks that an earlier attempt had written


@dataclass(slots=True)
class _Sent:
    chunk: Chunk
    request: pb.AppendStreamRequest
    at: float = 0.0  # when it was sent last; times are of time.monotonic
    lost: float | None = None  # when it was sent for the first time without an answer: since then it may be stored

    @property
    def number(self) -> int:
        return self.request.request_id


class Appender:
    """Appends chunks in order, several at a time ahead of their acks; for one thread.

    Each chunk goes with its own idempotency key, so that one whose answer was lost is sent again as it was. The order
    of the chunks is kept over breaks; a chunk that is throttled can be overtaken by those that were sent before its ack
    came, unless `in_flight` is 1. As long as an earlier write has stored every chunk, they go one by one: nothing is
    appended behind one that `check` refuses.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        key: Callable[[Chunk], str],
        ready: Callable[[Chunk, float], None],
        check: Callable[[Chunk, pb.AppendResponse], None],
        in_flight: int,
    ) -> None:
        """`key` gives the idempotency key; `ready` is called each time before a chunk is sent, with how many seconds
        ago it may have been stored already, and raises where it must not be sent; `check` is called with the result of
        an earlier write with this key, and raises if it isn't the chunk. How long a chunk is tried without any success
        is the connection's `retry`.
        """
        self.counts = Counts()
        self._connection = connection
        self._key = key
        self._ready = ready
        self._check = check
        self._in_flight = in_flight
        self._patience = Patience(connection.retry)
        self._pending: deque[_Sent] = deque()  # sent, in order
        self._refused: list[_Sent] = []  # to be sent again when the others have their acks, in order
        self._refusal: UnavailableError | None = None
        self._ahead_bytes = 0
        self._appending = False  # whether a chunk was stored that had not been before
        self._last = 0
        self._stream: _Stream | None = None

    def add(self, chunk: Chunk) -> None:
        """Send a chunk. Blocks while too much is ahead. Raises TopicsError for this or an earlier chunk."""
        while self._refused or len(self._pending) >= self._max_pending or self._ahead_bytes >= _AHEAD_BYTES:
            self._settle()
        self._last += 1
        append = pb.AppendRequest(
            topic=chunk.target.topic,
            partition=chunk.target.partition,
            idempotency_key=self._key(chunk),
            create=False,
            columns=chunk.columns(),
        )
        self._send(_Sent(chunk, pb.AppendStreamRequest(request_id=self._last, append=append)))

    def finish(self) -> Counts:
        """Wait until every chunk is stored. Raises TopicsError."""
        while self._pending or self._refused:
            self._settle()
        return self.counts

    @property
    def _max_pending(self) -> int:
        return self._in_flight if self._appending else 1

    def _send(self, sent: _Sent) -> None:
        self._ready(sent.chunk, 0.0 if sent.lost is None else time.monotonic() - sent.lost)
        if self._stream is None:
            self._stream = _Stream(self._connection)
        sent.at = time.monotonic()
        self._stream.send(sent.request)
        self._pending.append(sent)
        self._ahead_bytes += sent.chunk.nbytes

    def _settle(self) -> None:
        """One step: the ack of the first chunk, or another attempt where there are none to wait for."""
        if not self._pending:
            assert self._refusal is not None
            self._again(self._refusal)
            return
        assert self._stream is not None
        try:
            ack = self._stream.ack()
        except UnavailableError as error:
            self._again(error)
            return
        except TopicsError as error:
            raise _about(self._pending[0].chunk, error) from error
        sent = self._pending.popleft()
        self._ahead_bytes -= sent.chunk.nbytes
        if ack.request_id != sent.number:
            raise TopicsError("internal", f"{sent.chunk}: the server acked another request")
        if ack.HasField("error"):
            refusal = _about(sent.chunk, _error(ack.error))
            if not isinstance(refusal, UnavailableError):
                raise refusal
            self._refused.append(sent)
            self._refusal = refusal
            return
        self._patience.renew()
        if ack.appended.deduped:
            self.counts.deduped += 1
            self._check(sent.chunk, ack.appended)
        else:
            self._appending = True
        self.counts.chunks += 1
        self.counts.records += sent.chunk.records.num_rows

    def _again(self, error: UnavailableError) -> None:
        """Everything that has no ack once more, after a pause; on a new stream, unless all acks of this came."""
        unsettled = sorted([*self._refused, *self._pending], key=lambda sent: sent.number)
        if self._pending:
            self._hang_up()
        for sent in self._pending:
            sent.lost = sent.at if sent.lost is None else sent.lost
        if not self._patience.waited(error):
            raise _about(unsettled[0].chunk, error) from error
        self._refused.clear()
        self._pending.clear()
        self._ahead_bytes = 0
        for sent in unsettled:
            self._send(sent)

    def _hang_up(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._hang_up()


class _Stream:
    """One call of AppendStream. A thread receives the acks at once: acks left in gRPC are lost when the connection
    breaks.
    """

    def __init__(self, connection: Connection) -> None:
        self._requests: SimpleQueue[pb.AppendStreamRequest | None] = SimpleQueue()
        self._acks: SimpleQueue[pb.AppendAck | Exception] = SimpleQueue()
        self._call = ExitStack()
        requests = iter(self._requests.get, None)
        responses = self._call.enter_context(connection.exchange(connection.topics.AppendStream, requests))
        end = UnavailableError("unavailable", f"{connection.address}: the stream ended early")
        self._reading = Thread(target=self._read, args=(responses, end), name="topics-acks", daemon=True)
        self._reading.start()

    def _read(self, responses: Iterator[pb.AppendStreamResponse], end: Exception) -> None:
        try:
            for response in responses:
                for ack in response.acks:
                    self._acks.put(ack)
        except Exception as error:
            end = error
        self._acks.put(end)

    def send(self, request: pb.AppendStreamRequest) -> None:
        self._requests.put(request)

    def ack(self) -> pb.AppendAck:
        """The next ack, in the order of the requests. Raises TopicsError."""
        got = self._acks.get()
        if isinstance(got, Exception):
            raise got
        return got

    def close(self) -> None:
        self._requests.put(None)  # ends the thread that sends
        self._call.close()
        self._reading.join()


def _error(error: pb.AppendError) -> TopicsError:
    known = errors_pb2.ErrorReason.DESCRIPTOR.values_by_number.get(error.reason)
    reason = known.name.removeprefix(_REASON_PREFIX).lower() if known else "internal"  # of a newer server
    retry = error.retry_after_ms if error.HasField("retry_after_ms") else None
    return _KINDS.get(reason, TopicsError)(reason, error.message, error.detail, retry)


def _hint(error: TopicsError) -> str:
    if error.reason == "topic_full":
        return " (the topic refuses writes over its caps until its readers have made room)"
    if error.reason == "invalid_request" and error.message.startswith("columns.data"):
        return " (data that is not JSON is written with option dataKind=binary or a column kind)"
    return ""


def _about(chunk: Chunk, error: TopicsError) -> TopicsError:
    """The error with the topic, partition and records written."""
    text = error.message if str(chunk) in error.message else f"{chunk}: {error.message}{_hint(error)}"
    return type(error)(error.reason, text, error.detail, error.retry_after_ms)
