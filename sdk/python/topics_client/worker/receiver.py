"""The thread that receives jobs: reopens the Work stream for as long as the worker accepts jobs."""

import logging
import math
import time
from collections.abc import Callable
from threading import Event, Thread
from typing import Final

from topics_client.connection import Connection
from topics_client.decoding import job_of
from topics_client.errors import UnavailableError
from topics_client.models import Job
from topics_client.retry import Patience, Retry
from topics_client.worker.errors import passes
from topics_proto.v1 import queue_service_pb2 as pb
from topics_proto.v1.topics_service_pb2 import GetTopicRequest

log = logging.getLogger("topics_client.worker")

_HEARTBEATS: Final = 3
_HEARTBEAT_SECONDS: Final = 15.0  # of a Work stream, as specified in the protos
_RETRY: Final = Retry(seconds=math.inf, first_pause=0.1, longest_pause=5.0)


class Receiver:
    """Receives jobs, up to `slots` that are neither acked nor returned nor lost.

    When a stream breaks, the server returns its jobs to the queue. A worker may then hold jobs that it has lost, and
    receives no new ones until some of them are finished.
    """

    def __init__(
        self,
        connection: Connection,
        queue: str,
        node: str,
        slots: int,
        lease_ms: int | None,
        *,
        opening: Callable[[int], None],
        opened: Callable[[], None],
        took: Callable[[list[Job]], None],
        broke: Callable[[], None],
        has_room: Callable[[], bool],
        is_wanted: Callable[[], bool],
        failed: Callable[[BaseException], None],
    ) -> None:
        """`opening` is called with the duration of leases in ms: `lease_ms`, or the queue's if None. `opened` is called
        once a stream is open, `broke` after the unexpected end of a stream, `failed` with an error that no retry can
        fix."""
        self._connection = connection
        self._queue = queue
        self._node = node
        self._slots = slots
        self._lease_ms = lease_ms
        self._opening = opening
        self._has_opened = opened
        self._took = took
        self._broke = broke
        self._has_room = has_room
        self._is_wanted = is_wanted
        self._failed = failed
        self._over = Event()
        self._cancel: Callable[[], object] | None = None
        self._is_open = False
        self._broken_at: float | None = None
        self._patience = Patience(_RETRY, sleep=self._sleep)
        self._thread = Thread(target=self._run, name="topics-feed", daemon=True)

    @property
    def is_open(self) -> bool:
        """True while a stream is open, as far as is known."""
        return self._is_open

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the stream: the server returns its unsettled jobs to the queue."""
        self._over.set()
        if self._cancel is not None:
            self._cancel()

    def join(self, seconds: float) -> None:
        """Wait for the end of the thread."""
        self._thread.join(seconds)

    # -------------------------------------------------------------- internals

    def _run(self) -> None:
        try:
            while self._wanted():
                error: Exception = UnavailableError("unavailable", "the server ended the stream")
                try:
                    self._receive()
                except Exception as broken:
                    error = broken
                finally:
                    self._is_open = False
                unavailable = passes(error)
                if unavailable is None:
                    raise error
                if self._wanted():
                    self._pause(unavailable)
        except BaseException as error:
            if not self._over.is_set():
                self._failed(error)

    def _receive(self) -> None:
        lease_ms = self._lease_ms or self._length()
        self._opening(lease_ms)
        while self._wanted() and not self._has_room():
            self._sleep(0.05)
        request = pb.WorkRequest(topic=self._queue, node=self._node, max=self._slots, lease_ms=lease_ms)
        silence = _HEARTBEATS * _HEARTBEAT_SECONDS
        connection = self._connection
        with connection.stream(connection.queues.Work, request, silence=silence, started=self._started) as frames:
            opens = True
            for response in frames:
                jobs = response.frame.jobs.jobs
                if jobs:
                    self._took([job_of(self._queue, job) for job in jobs])
                if opens:
                    self._opened()
                    opens = False
                else:
                    self._patience.renew()

    def _length(self) -> int:
        """The lease_ms of the queue."""
        request = GetTopicRequest(topic=self._queue, touch=False)
        config = self._connection.unary(self._connection.topics.GetTopic, request, repeatable=False).state.config
        return config.lease_ms or 30_000  # a log has none, and Work returns the error

    def _started(self, cancel: Callable[[], object]) -> None:
        self._cancel = cancel
        if self._over.is_set():
            cancel()

    def _opened(self) -> None:
        self._is_open = True
        self._has_opened()
        if self._broken_at is not None:
            log.info("%s: receiving jobs again, after %.1f s", self._queue, time.monotonic() - self._broken_at)
            self._broken_at = None

    def _pause(self, error: UnavailableError) -> None:
        if self._broken_at is None:
            self._broken_at = time.monotonic()
            log.warning("%s: can't receive jobs (%s), retrying", self._queue, error)
        self._broke()
        self._patience.waited(error)

    def _wanted(self) -> bool:
        return not self._over.is_set() and self._is_wanted()

    def _sleep(self, seconds: float) -> None:
        self._over.wait(seconds)
