"""Settles finished jobs: a background thread batches acks and nacks."""

import logging
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from threading import Event, Thread
from typing import Final

from topics_client.connection import Connection
from topics_client.models import Job
from topics_client.retry import Patience, Retry
from topics_client.worker.errors import passes
from topics_client.worker.leases import Held, Leases
from topics_client.worker.outbox import ACKED, Outbox, Outcome
from topics_proto.v1 import queue_service_pb2 as pb

log = logging.getLogger("topics_client.worker")

_CALL_JOBS: Final = 1000  # the server's limit per call
_STEPS: Final = 10
_LONGEST_MS: Final = 86_400_000  # as the server clamps delays
_RETRY: Final = Retry(seconds=math.inf, first_pause=0.05, longest_pause=2.0)


class Release(Exception):  # noqa: N818  # not an error
    """Raised by a handler to return its job unprocessed: the delivery does not count. Other workers may receive it
    after `delay_ms`, by default at once."""

    def __init__(self, delay_ms: int = 0) -> None:
        super().__init__(delay_ms)
        self.delay_ms = _checked(delay_ms)


class RetryLater(Exception):  # noqa: N818  # not an error
    """Raised by a handler to have its job retried in `delay_ms`, regardless of the backoff. The delivery counts."""

    def __init__(self, delay_ms: int) -> None:
        super().__init__(delay_ms)
        self.delay_ms = _checked(delay_ms)


def _checked(delay_ms: int) -> int:
    if not isinstance(delay_ms, int):
        raise TypeError(f"delay_ms is {delay_ms!r}: a delay is a whole number of milliseconds")
    if delay_ms < 0:
        raise ValueError(f"delay_ms is {delay_ms}: a delay is 0 or more milliseconds")
    return min(delay_ms, _LONGEST_MS)


@dataclass(frozen=True, slots=True)
class Backoff:
    """The delay before the retry of a failed job: up to `first_seconds` after its first delivery, doubled after each
    further one, at most `longest_seconds`; with full jitter, in tenths."""

    first_seconds: float = 1.0
    longest_seconds: float = 300.0

    def delay_ms(self, deliveries: int) -> int:
        """Return a delay after this many deliveries, at least one millisecond."""
        top = min(self.first_seconds * 2.0 ** min(max(deliveries, 1) - 1, 64), self.longest_seconds)
        # Tenths, so that jobs which fail together fit into few calls.
        return max(1, min(round(1000 * top * random.randint(1, _STEPS) / _STEPS), _LONGEST_MS))


def outcome_of(error: BaseException | None, job: Job, backoff: Backoff) -> Outcome:
    """The outcome of a job whose handler returned (None) or raised."""
    if error is None:
        return ACKED
    if isinstance(error, Release):
        return Outcome("released", error.delay_ms)
    # The delay of a job given up matters only if the queue allows more deliveries by now.
    delay_ms = error.delay_ms if isinstance(error, RetryLater) else backoff.delay_ms(job.deliveries)
    return Outcome("given_up" if job.is_last else "retried", delay_ms)


def calls(batch: list[Held]) -> Iterator[list[Held]]:
    """Split a batch into parts for one call each: no part has two deliveries of one job, as responses name jobs by seq
    only."""
    while batch:
        part: dict[int, Held] = {}
        rest = list[Held]()
        for held in batch:
            fits = len(part) < _CALL_JOBS and held.job.seq not in part
            if fits:
                part[held.job.seq] = held
            else:
                rest.append(held)
        yield list(part.values())
        batch = rest


class AckSender:
    """A thread that sends the outcomes in its outbox.

    While the server is unavailable, it retries indefinitely: lease ids fence each call, so a retry can have no second
    effect.
    """

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
        self.outbox = Outbox(lambda: leases.busy)
        self._given_up = Event()
        self._patience = Patience(_RETRY, sleep=self._sleep)
        self._thread = Thread(target=self._run, name="topics-settle", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def is_done(self) -> bool:
        """True once the outbox is closed and all its outcomes are settled."""
        return not self._thread.is_alive()

    def give_up(self) -> None:
        """Stop sending."""
        self._given_up.set()
        self.outbox.close()

    # -------------------------------------------------------------- internals

    def _run(self) -> None:
        is_open = True
        while is_open and not self._given_up.is_set():
            groups, is_open = self.outbox.gather()
            for outcome, batch in groups.items():
                for call in calls(batch):
                    self._settle(call, outcome)

    def _settle(self, batch: list[Held], outcome: Outcome) -> None:
        is_first = True
        while batch and not self._given_up.is_set():
            try:
                skipped = self._call(batch, outcome)
            except Exception as error:
                if unavailable := passes(error):
                    is_first = False
                    self._patience.waited(unavailable)
                    continue
                skipped = {held.job.seq for held in batch}
                self._failed(error)
            else:
                self._patience.renew()
            lost = self._leases.settled(batch, outcome.fate, skipped)
            if lost and outcome == ACKED:
                self._report_lost(lost, is_first=is_first)
            return

    def _call(self, batch: list[Held], outcome: Outcome) -> set[int]:
        queues = self._connection.queues
        seqs, lease_ids = [held.job.seq for held in batch], [held.job.lease_id for held in batch]
        if outcome.fate == "acked":
            ack = pb.AckRequest(topic=self._queue, node=self._node, seqs=seqs, lease_ids=lease_ids)
            return set(self._connection.unary(queues.Ack, ack, repeatable=False).skipped)
        nack = pb.NackRequest(
            topic=self._queue,
            node=self._node,
            seqs=seqs,
            lease_ids=lease_ids,
            delay_ms=outcome.delay_ms,
            mode=pb.NACK_MODE_RELEASE if outcome.fate == "released" else pb.NACK_MODE_RETRY,
            reasons=[held.reason for held in batch] if any(held.reason for held in batch) else (),
        )
        reply = self._connection.unary(queues.Nack, nack, repeatable=False)
        self._report_last(logging.INFO, "dead-lettered", list(reply.dead_lettered))
        why = "out of deliveries, but not yet accepted by the dead-letter topic"
        self._report_last(logging.WARNING, why, list(reply.exhausted))
        return set(reply.skipped)

    def _report_last(self, level: int, what: str, seqs: list[int]) -> None:
        if seqs:
            more = f" and {len(seqs) - 5} more" if len(seqs) > 5 else ""
            log.log(level, "%s: %s: seq %s%s", self._queue, what, ", ".join(map(str, seqs[:5])), more)

    def _report_lost(self, lost: list[Held], *, is_first: bool) -> None:
        log.warning(
            "%s: %d jobs finished, but %s; they may be processed again: seq %s",
            self._queue,
            len(lost),
            "their leases were lost"
            if is_first
            else "an ack had no response, and its retry was too late or unnecessary",
            ", ".join(str(held.job.seq) for held in lost[:5]),
        )

    def _sleep(self, seconds: float) -> None:
        self._given_up.wait(seconds)
