"""The thread that extends leases. Handlers and acks never delay it."""

import logging
import math
import time
from collections.abc import Callable
from threading import Event, Thread
from typing import Final

from topics_client.connection import Connection
from topics_client.retry import Patience, Retry
from topics_client.worker.errors import passes
from topics_client.worker.leases import Held, Leases
from topics_proto.v1 import queue_service_pb2 as pb

log = logging.getLogger("topics_client.worker")

_CALL_JOBS: Final = 1000  # the server's limit per call
_LOOKS: Final = 6  # checks per lease duration
_MIN_CALL_SECONDS: Final = 1.0
_RETRY: Final = Retry(seconds=math.inf, first_pause=0.05, longest_pause=1.0)


class LeaseRenewer:
    """Extends the leases of all unsettled jobs, each when a sixth to a third of its duration has passed."""

    def __init__(
        self,
        connection: Connection,
        queue: str,
        node: str,
        leases: Leases,
        *,
        failed: Callable[[Exception], None],
    ) -> None:
        """`failed` is called with errors that no retry can fix."""
        self._connection = connection
        self._queue = queue
        self._node = node
        self._leases = leases
        self._failed = failed
        self._lease_ms = 0
        self._look = Event()
        self._over = Event()
        self._patience = Patience(_RETRY, sleep=self._sleep)
        self._thread = Thread(target=self._run, name="topics-keep", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def lasts(self, lease_ms: int) -> None:
        """Set the duration of leases from now on."""
        if self._lease_ms != lease_ms:
            self._lease_ms = lease_ms
            self._look.set()

    def recheck(self) -> None:
        """Check at once which leases are still held, after their stream broke."""
        self._leases.recheck()
        self._look.set()

    def stop(self) -> None:
        """Stop extending leases."""
        self._over.set()
        self._look.set()

    def join(self, seconds: float) -> None:
        """Wait for the end of the thread."""
        self._thread.join(seconds)

    # -------------------------------------------------------------- internals

    def _run(self) -> None:
        while not self._over.is_set():
            self._look.wait(self._lease_ms / 1e3 / _LOOKS if self._lease_ms else None)
            self._look.clear()
            due = self._leases.due()
            for start in range(0, len(due), _CALL_JOBS):
                if not self._over.is_set():
                    self._extend(due[start : start + _CALL_JOBS])

    def _extend(self, batch: list[Held]) -> None:
        lease_ms = self._lease_ms
        request = pb.ExtendRequest(
            topic=self._queue,
            node=self._node,
            seqs=[held.job.seq for held in batch],
            lease_ids=[held.job.lease_id for held in batch],
            lease_ms=lease_ms,
        )
        timeout = min(self._connection.timeout, max(lease_ms / 3e3, _MIN_CALL_SECONDS))
        sent = time.monotonic()
        try:
            reply = self._connection.unary(self._connection.queues.Extend, request, repeatable=False, timeout=timeout)
        except Exception as error:
            if unavailable := passes(error):
                self._patience.waited(unavailable)
                self._look.set()
            else:
                self._report_lost(self._leases.extended(batch, {held.job.seq for held in batch}, lease_ms / 1e3, sent))
                self._failed(error)
        else:
            self._patience.renew()
            self._report_lost(self._leases.extended(batch, set(reply.skipped), lease_ms / 1e3, sent))

    def _report_lost(self, lost: list[Held]) -> None:
        if lost:
            log.warning(
                "%s: lost the leases of %d jobs with running handlers; other workers may have them now: seq %s",
                self._queue, len(lost), ", ".join(str(held.job.seq) for held in lost[:5]),
            )  # fmt: skip

    def _sleep(self, seconds: float) -> None:
        self._over.wait(seconds)
