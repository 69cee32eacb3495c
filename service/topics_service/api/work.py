"""Push streams of jobs (docs/contract.md, 10.9)."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Self

from topics_service.api.scheduling.claim_waiters import CallLater, ClaimWaiters
from topics_service.engine.clock import Clock
from topics_service.engine.engine import Engine
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.queue.jobs import ClaimReply, ClaimRequest, Job
from topics_service.engine.watch.frames import ErrorFrame, HeartbeatFrame

HEARTBEAT_SECONDS: Final = 15.0
_FRAME_JOBS: Final = 64
_FRAME_BYTES: Final = 256 << 10
_GONE: Final = (Reason.TOPIC_NOT_FOUND, Reason.NOT_A_QUEUE)

WorkFrame = list[Job] | HeartbeatFrame | ErrorFrame


class WorkStream:
    """Stream of jobs leased to one worker, at most `request.max` at a time.

    Yields a heartbeat first, then jobs, and a heartbeat after `heartbeat_seconds` without jobs. Jobs are leased only
    when the next frame is requested, which implies that the previous one was handed to the transport. A terminal
    ErrorFrame is the last. Raises TopicsError when leases can't be made durable. Leases of a cancelled wait are
    released by `ClaimWaiters.unregister`.
    """

    def __init__(
        self,
        engine: Engine,
        waiters: ClaimWaiters,
        request: ClaimRequest,
        *,
        settle: Callable[[int], Awaitable[None]],
        clock: Clock,
        call_later: CallLater,
        heartbeat_seconds: float,
    ) -> None:
        self.request = request
        self.leases: dict[int, str] = {}
        self._engine = engine
        self._waiters = waiters
        self._settle = settle
        self._clock = clock
        self._call_later = call_later
        self._heartbeat_seconds = heartbeat_seconds
        self._given: list[Job] = []  # not yielded yet
        self._outcome: asyncio.Future[tuple[list[Job], int]] | None = None
        self._notice: ErrorFrame | None = None
        self._is_open = True
        self._is_stopped = False
        self._has_begun = False
        self._was_silent = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> WorkFrame:
        if not self._has_begun:
            self._has_begun = True
            return HeartbeatFrame(ts=self._clock.now_ms())
        if not self._given and self._notice is None and self._is_open:
            self._given = await self._wait()
        if self._notice is not None:
            notice, self._notice = self._notice, None
            return notice
        if not self._is_open:
            raise StopAsyncIteration
        if self._given:
            return self._next_frame()
        self._was_silent = True
        self.recount()
        return HeartbeatFrame(ts=self._clock.now_ms())

    # ------------------------------------------------ claim_waiters.Stream

    @property
    def is_waiting(self) -> bool:
        """See claim_waiters.Stream."""
        return self._outcome is not None and not self._outcome.done()

    @property
    def max_bytes(self) -> int:
        """See claim_waiters.Stream."""
        return self.request.max_bytes

    def capacity(self) -> int:
        """See claim_waiters.Stream."""
        if self._is_stopped or not self.is_waiting:
            return 0
        return min(self.request.max - len(self.leases), _FRAME_JOBS)

    def deliver(self, reply: ClaimReply, ticket: int) -> None:
        """See claim_waiters.Stream."""
        if not reply.jobs:
            return
        for job in reply.jobs:
            self.leases[job.seq] = job.lease_id
            self._waiters.lease_added(self, job.seq)
        self._answer(reply.jobs, ticket)

    def fail(self, error: TopicsError) -> None:
        """See claim_waiters.Stream."""
        if error.reason in _GONE or not error.reason.value.retryable:
            self.end(error)
            return
        # The condition may be temporary: keep the stream open.
        self._notice = _frame(error, terminal=False)
        self._answer([], 0)

    def stop(self) -> None:
        """See claim_waiters.Stream."""
        self._is_stopped = True
        self.recount()

    def end(self, error: TopicsError) -> None:
        """See claim_waiters.Stream."""
        if self._is_open:
            self._is_open = False
            self._given = []
            self._notice = _frame(error, terminal=True)
            self._answer([], 0)

    def recount(self) -> None:
        """See claim_waiters.Stream."""
        for seq in self.leases.keys() - self._engine.queues.settlement.held(self.request.topic, self.leases):
            del self.leases[seq]
            self._waiters.lease_removed(self, seq)

    # --------------------------------------------------------------- internals

    async def _wait(self) -> list[Job]:
        """Wait for jobs; returns none if a heartbeat or the notice is due."""
        self._outcome = asyncio.get_running_loop().create_future()
        timer = self._call_later(self._heartbeat_seconds, lambda: self._answer([], 0))
        try:
            self._waiters.request_more(self, first=self._was_silent)
            self._was_silent = False
            jobs, ticket = await self._outcome
        finally:
            timer.cancel()
            self._outcome = None
            self._waiters.withdraw_request(self)
        if ticket:
            await self._settle(ticket)
        return jobs

    def _answer(self, jobs: list[Job], ticket: int) -> None:
        if self._outcome is not None and not self._outcome.done():
            self._outcome.set_result((jobs, ticket))
            self._waiters.withdraw_request(self)

    def _next_frame(self) -> list[Job]:
        """Take the jobs of the next frame, at least one."""
        size = taken = 0
        for job in self._given:
            size += job.nbytes
            if taken and size > _FRAME_BYTES:
                break
            taken += 1
        frame, self._given = self._given[:taken], self._given[taken:]
        return frame


def _frame(error: TopicsError, *, terminal: bool) -> ErrorFrame:
    code = 409 if error.reason in _GONE else error.reason.value.http_status
    reason = Reason.NOT_A_QUEUE if error.reason in _GONE else error.reason
    message = error.message if code != 409 else "the topic is not a queue any more"
    return ErrorFrame(reason=reason, code=code, message=message, retry_after_ms=error.retry_after_ms, terminal=terminal)
