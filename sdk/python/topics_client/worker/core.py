"""The core of a worker: connects its threads and shuts them down in order."""

import logging
import time
from asyncio import CancelledError
from contextlib import suppress
from enum import Enum, auto
from queue import Empty, SimpleQueue
from typing import Final

from topics_client.connection import Connection
from topics_client.errors import TopicsError
from topics_client.models import Job
from topics_client.units import counted
from topics_client.worker.ack_sender import AckSender, Release, RetryLater, outcome_of
from topics_client.worker.errors import passes
from topics_client.worker.executor import Executor
from topics_client.worker.lease_renewer import LeaseRenewer
from topics_client.worker.leases import Fate, Held, Leases
from topics_client.worker.options import Options, WorkerStatistics
from topics_client.worker.outbox import RELEASED, RELEASED_AT_LAST, Outcome
from topics_client.worker.reasons import reason_of
from topics_client.worker.receiver import Receiver
from topics_proto.v1.job_pb2 import JOB_STATE_IN_FLIGHT
from topics_proto.v1.queue_service_pb2 import ListJobsRequest, StopWorkRequest
from topics_proto.v1.topics_service_pb2 import GetTopicRequest

log = logging.getLogger("topics_client.worker")

_LOOK_SECONDS: Final = 0.02  # poll interval during shutdown
_EMPTY_SECONDS: Final = 0.1  # poll interval of the check for an empty queue
_MIN_FLUSH_SECONDS: Final = 5.0
_ARRIVE_SECONDS: Final = 2.0  # for jobs in transit to arrive
_JOIN_SECONDS: Final = 1.0


class Wish(Enum):
    """Requests to end a running worker, in increasing urgency."""

    STOP = auto()
    """End once the running handlers are done, for which they have `drain_seconds`."""
    HURRY = auto()
    """Abandon the running handlers, and end once all other outcomes are sent."""
    ABANDON = auto()
    """End at once."""


class _AbandonedError(Exception):
    """The worker is to end at once."""


class Core:
    """One run of a worker: four kinds of threads (receiver, executor, ack sender, lease renewer) and this one.

    This one waits. The threads share only the Leases and queues.
    """

    def __init__(self, connection: Connection, queue: str, options: Options) -> None:
        self._connection = connection
        self._queue = queue
        self._options = options
        self._wishes: SimpleQueue[Wish | BaseException] = SimpleQueue()
        self._executor: Executor
        self._error: BaseException | None = None
        self._is_stopped = False  # True once the server sends no more jobs
        self.leases = Leases(options.slots)
        self._ack_sender = AckSender(connection, queue, options.node, self.leases, failed=self._failed)
        self._outbox = self._ack_sender.outbox
        self._lease_renewer = LeaseRenewer(connection, queue, options.node, self.leases, failed=self._failed)
        self._receiver = Receiver(
            connection,
            queue,
            options.node,
            options.slots,
            options.lease_ms,
            opening=self._opening,
            opened=self._opened,
            took=self._took,
            broke=self._lease_renewer.recheck,
            has_room=lambda: self.leases.unsettled < options.slots,
            is_wanted=lambda: not self.leases.is_closed,
            failed=self._failed,
        )

    def wish(self, wish: Wish) -> None:
        """Request the end. Callable from any thread and from signal handlers."""
        self._wishes.put(wish)

    def statistics(self) -> WorkerStatistics:
        """Current statistics."""
        taken, running, fates = self.leases.counts()
        kinds: tuple[Fate, ...] = ("acked", "retried", "released", "lost", "given_up")
        return WorkerStatistics(taken, running, *(fates[fate] for fate in kinds))

    def conduct(self, executor: Executor) -> None:
        """Run until the end. Blocks. Raises the error that ended it, unless it ended by request or with an empty
        queue."""
        self._executor = executor
        log.info(
            "%s: started as %s, up to %d jobs at a time", self._queue, self._options.node, self._options.concurrency
        )
        try:
            self._ack_sender.start()
            self._lease_renewer.start()
            self._receiver.start()
            wish = self._until_asked()
            self._drain(wish)
        except BaseException as error:
            self._abandon()
            if not isinstance(error, _AbandonedError):
                raise
        log.info("%s: ended, %s", self._queue, self.statistics())
        if self._error is not None:
            raise self._error

    def finished(self, held: Held, error: BaseException | None) -> None:
        """Process the end of a handler, which returned or raised `error`."""
        outcome = outcome_of(error, held.job, self._options.backoff)
        if error is not None and not isinstance(error, Release | RetryLater):
            self._report_failure(held, error, outcome)
        held.reason = reason_of(error)
        if self.leases.finish(held):
            self._outbox.put(held, outcome)

    # -------------------------------------------------------------- internals

    def _until_asked(self) -> Wish:
        """Wait for a wish, an error, or an empty queue."""
        while True:
            try:
                wish = self._wishes.get(timeout=_EMPTY_SECONDS if self._options.until_empty else None)
            except Empty:
                if self._is_empty():
                    return Wish.STOP
                continue
            return self._accept(wish)

    def _accept(self, wish: Wish | BaseException) -> Wish:
        if isinstance(wish, BaseException):
            self._error = self._error or wish
            return Wish.STOP
        if wish is Wish.ABANDON:
            raise _AbandonedError
        return wish

    def _drain(self, wish: Wish) -> None:
        ends = time.monotonic() + (0 if wish is Wish.HURRY else self._options.drain_seconds)
        unbegun = self.leases.close()
        self._stopped()
        for held in unbegun:
            self._give_back(held)
        if self.leases.busy:
            log.info(
                "%s: stopping, %d handlers have %g s to finish", self._queue, self.leases.busy, ends - time.monotonic()
            )
        while self.leases.busy and time.monotonic() < ends:
            with suppress(Empty):
                if self._accept(self._wishes.get(timeout=_LOOK_SECONDS)) is Wish.HURRY:
                    break
        left = self.leases.leave()
        for held in left:
            self._outbox.put(held, RELEASED_AT_LAST)
        if left:
            log.warning(
                "%s: %d handlers did not finish in time, releasing their jobs: seq %s",
                self._queue, len(left), ", ".join(str(held.job.seq) for held in left[:5]),
            )  # fmt: skip
        arrives = time.monotonic() + _ARRIVE_SECONDS
        while self._stopped() and time.monotonic() < arrives:
            time.sleep(_LOOK_SECONDS)
        self._flush(max(ends, time.monotonic() + _MIN_FLUSH_SECONDS))
        self._receiver.stop()
        self._lease_renewer.stop()
        self._executor.close()
        for thread in (self._receiver, self._lease_renewer):
            thread.join(_JOIN_SECONDS)

    def _stopped(self) -> int:
        """Make the server stop sending jobs: they would be returned unprocessed, with a delivery counted. Returns the
        number of jobs sent but not settled, including those in transit; 0 if the server can't be reached."""
        request = StopWorkRequest(topic=self._queue, node=self._options.node)
        try:
            stop = self._connection.queues.StopWork
            held = self._connection.unary(stop, request, repeatable=False, timeout=_ARRIVE_SECONDS).held
        except TopicsError:
            return 0
        self._is_stopped = True
        return held

    def _give_back(self, held: Held) -> None:
        """Return a job that can't run here to the queue."""
        if self._is_stopped:  # this makes no room for another
            self._outbox.put(held, RELEASED)
        else:
            self._outbox.give_back(held)

    def _flush(self, ends: float) -> None:
        """Let the ack sender send what it has, while listening for more urgent wishes."""
        self._outbox.close()
        while not self._ack_sender.is_done and time.monotonic() < ends:
            with suppress(Empty):
                self._accept(self._wishes.get(timeout=_LOOK_SECONDS))
        self._ack_sender.give_up()
        undone = self.leases.abandon()
        if undone:
            jobs = counted(undone, "job")
            log.warning("%s: could not ack %s, which will be delivered again", self._queue, jobs)

    def _abandon(self) -> None:
        self.leases.abandon()
        self._ack_sender.give_up()
        self._receiver.stop()
        self._lease_renewer.stop()
        self._executor.close()

    def _opening(self, lease_ms: int) -> None:
        self._length = lease_ms / 1e3
        self._lease_renewer.lasts(lease_ms)

    def _opened(self) -> None:
        if self.leases.is_closed:  # it was opened while the worker was stopping
            self._stopped()

    def _took(self, jobs: list[Job]) -> None:
        accepted, refused, lost = self.leases.take(jobs, self._length)
        for held in refused:
            self._give_back(held)
        if accepted:
            self._executor.start(accepted)
        for held in lost:
            log.warning("%s: job %d was delivered again: its lease was lost before the ack", self._queue, held.job.seq)

    def _failed(self, error: BaseException) -> None:
        self._wishes.put(error)

    def _report_failure(self, held: Held, error: BaseException, outcome: Outcome) -> None:
        job = held.job
        if not isinstance(error, Exception | CancelledError):
            self._failed(error)
        if held.is_over:
            if not isinstance(error, CancelledError):
                log.warning("%s: job %d failed after its lease was lost: %r", self._queue, job.seq, error)
        elif self._options.on_error is None and outcome.fate == "given_up":
            log.warning(
                "%s: job %d failed for the last time, after %d deliveries",
                self._queue, job.seq, job.deliveries, exc_info=error,
            )  # fmt: skip
        elif self._options.on_error is None:
            log.warning(
                "%s: job %d failed (delivery %d), retry in %d ms",
                self._queue, job.seq, job.deliveries, outcome.delay_ms, exc_info=error,
            )  # fmt: skip
        else:
            try:
                self._options.on_error(job, error)
            except BaseException as raised:  # the job's outcome is unaffected
                log.exception("%s: on_error failed for job %d", self._queue, job.seq)
                if not isinstance(raised, Exception):
                    self._failed(raised)

    def _is_empty(self) -> bool:
        """Return True if the queue has nothing ready and this worker holds no jobs; if so, log the remaining jobs.

        If deliveries are limited, jobs waiting for a retry are waited for, as their number of retries is finite.
        """
        if self.leases.unsettled or not self._receiver.is_open:
            return False
        topics, queues = self._connection.topics, self._connection.queues
        try:
            request = GetTopicRequest(topic=self._queue, touch=False)
            state = self._connection.unary(topics.GetTopic, request, repeatable=False).state
            counts, config = state.queue, state.config
            is_limited = config.max_deliveries > 0 and config.HasField("dead_letter")
            if counts.ready or (counts.retrying and is_limited):
                return False
            # Jobs leased to this worker may be in transit.
            after, more = 0, counts.in_flight > 0
            while more:
                page = self._connection.unary(
                    queues.ListJobs,
                    ListJobsRequest(topic=self._queue, state=JOB_STATE_IN_FLIGHT, limit=1000, after=after),
                    repeatable=False,
                )
                if any(view.node == self._options.node for view in page.jobs):
                    return False
                after, more = page.next_after, page.HasField("next_after")
        except Exception as error:
            if passes(error) is None:
                self._failed(error)
            return False
        if self.leases.unsettled:
            return False
        left = (
            (counts.retrying, "waiting for a retry"),
            (counts.delayed - counts.retrying, "not due yet"),
            (counts.in_flight, "leased by other workers"),
            (counts.exhausted, "not accepted by the dead-letter topic"),
        )
        for count, which in left:
            if count:
                log.info("%s: nothing is ready; jobs %s: %d", self._queue, which, count)
        return True
