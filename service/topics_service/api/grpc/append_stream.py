"""AppendStream over gRPC: batches taken in ahead of their acks, acks in the order of the batches."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Final

from msgspec import Struct

from topics_proto.v1 import errors_pb2
from topics_proto.v1 import topics_service_pb2 as pb
from topics_service.api.access.auth import Principal
from topics_service.api.grpc import convert
from topics_service.api.grpc.status import detail_texts
from topics_service.api.interfaces import Topics
from topics_service.api.topics import Submitted
from topics_service.engine.errors import Reason, TopicsError

_AHEAD_BATCHES: Final = 64
_AHEAD_BYTES: Final = 16 << 20
_MESSAGE_SEQS: Final = 100_000  # a message of acks stays below the clients' default limit


class _Batch(Struct):
    """A batch that was taken in and has no ack yet."""

    request_id: int
    submitted: Submitted
    return_seqs: bool
    nbytes: int
    started: float  # on time.perf_counter


class AppendPipe:
    """One AppendStream.

    A task accepts batches, at once and in order, while a bounded number or size of them waits for an ack; waiting
    batches are made durable together. It ends when the client has half-closed, when a message can't be read, or with
    the iterator.
    """

    def __init__(self, api: Topics, requests: AsyncIterator[pb.AppendStreamRequest], *, principal: Principal) -> None:
        """`principal` is the writer: access is checked batch by batch."""
        self._api = api
        self._requests = requests
        self._principal = principal
        self._pending: deque[_Batch] = deque()
        self._ahead_bytes = 0
        self._changed = asyncio.Event()  # for the acks: something came, the input ended, or the server drains
        self._room = asyncio.Event()
        self._ended = False
        self._failure: Exception | None = None

    async def acks(self) -> AsyncGenerator[pb.AppendStreamResponse, None]:
        """The acks. Raises the error that ended the input, once every accepted batch has its ack."""
        intake = asyncio.create_task(self._take_in())
        try:
            with self._api.notify_on_drain(self._changed):
                while True:
                    if self._api.draining and not self._ended:
                        await _cancel(intake)  # later batches are not accepted
                        self._failure = TopicsError(Reason.SHUTTING_DOWN, "the server is shutting down")
                    if self._pending:
                        yield await self._next_acks()
                    elif self._ended:
                        break
                    else:
                        self._changed.clear()
                        await self._changed.wait()
        finally:
            await _cancel(intake)
        if self._failure is not None:
            raise self._failure

    async def _take_in(self) -> None:
        try:
            async for request in self._requests:
                self._pending.append(batch := await self._submit(request))
                self._ahead_bytes += batch.nbytes
                self._changed.set()
                while len(self._pending) >= _AHEAD_BATCHES or self._ahead_bytes >= _AHEAD_BYTES:
                    self._room.clear()
                    await self._room.wait()
        except Exception as error:
            self._failure = error
        finally:
            self._ended = True
            self._changed.set()

    async def _submit(self, request: pb.AppendStreamRequest) -> _Batch:
        started = time.perf_counter()
        append, nbytes = request.append, 0
        try:
            given = convert.append_request(append, self._api.limits)
            nbytes = sum(given.batch.sizes)
            submitted = await self._api.submit(given, principal=self._principal)
        except TopicsError as error:
            if error.reason in (Reason.SHUTTING_DOWN, Reason.NOT_READY):
                raise
            submitted = Submitted(error=error)
        return _Batch(request.request_id, submitted, append.return_seqs, nbytes, started)

    async def _next_acks(self) -> pb.AppendStreamResponse:
        """The ack of the first batch, when it is due, and of those behind it that are due as well."""
        response = pb.AppendStreamResponse()
        seqs = 0
        while True:
            batch = self._pending[0]
            try:
                reply = await self._api.settle(batch.submitted)
            except TopicsError as error:
                response.acks.add(request_id=batch.request_id, error=_error(error))
            else:
                appended = convert.append_response(reply, return_seqs=batch.return_seqs)
                appended.performance.server_total_ms = (time.perf_counter() - batch.started) * 1e3
                response.acks.add(request_id=batch.request_id, appended=appended)
                seqs += len(appended.seqs)
            self._pending.popleft()
            self._ahead_bytes -= batch.nbytes
            self._room.set()
            if not self._pending or seqs >= _MESSAGE_SEQS or not self._api.is_settled(self._pending[0].submitted):
                return response


def _error(error: TopicsError) -> pb.AppendError:
    reason = errors_pb2.ErrorReason.Value(f"ERROR_REASON_{error.reason.name}")
    failure = pb.AppendError(reason=reason, message=error.message[:1024], retry_after_ms=error.retry_after_ms)
    failure.detail.update(detail_texts(error))
    return failure


async def _cancel(task: "asyncio.Task[None]") -> None:
    if not task.done():
        task.cancel()
        await asyncio.wait((task,))
