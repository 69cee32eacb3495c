"""Moves of jobs to the dead letter topic, and back: each atomic, in bounded slices."""

from collections.abc import Mapping, Sequence
from typing import Final

from topics_service.engine import config
from topics_service.engine.errors import Reason, TopicsError, invalid
from topics_service.engine.model import ConfigInput
from topics_service.engine.queue import deadletters, moves
from topics_service.engine.queue.attempts import for_letter
from topics_service.engine.queue.jobs import RedriveReply, RedriveRequest
from topics_service.engine.queue.leases import Delivery, key
from topics_service.engine.queue.opened import BACKOFF_MAX_MS, OpenQueues
from topics_service.engine.queue.state import Queue
from topics_service.engine.topic import Topic
from topics_service.engine.transaction import Transaction
from topics_service.storage.store import Family

_BACKOFF_MS: Final = 1000  # after a dead letter could not be moved; doubles up to BACKOFF_MAX_MS
_REDRIVE_LOOKS: Final = 10_000


class Mover:
    """Moves exhausted jobs, and drives dead letters back."""

    def __init__(self, queues: OpenQueues) -> None:
        self.failures = 0
        """Number of times that dead letters could not be moved."""
        self._queues = queues

    def bury_due(self) -> bool:
        """Move the exhausted jobs of one due queue: after the end of a last lease, and again after a failure.

        A slice of maintenance; returns True if more is due at once. Raises `internal` when the store fails.
        """
        now = self._queues.clock.now_ms()
        topic = self._queues.due(now)
        if topic is None:
            return False
        queue = self._queues.queue(topic)
        self.bury(topic, queue, self._queues.refresh(topic, queue))
        self._queues.watch(topic, queue, now)
        return self._queues.is_due(now)

    def bury(self, topic: Topic, queue: Queue, now: int) -> int:
        """Move exhausted jobs to the dead letter topic: many in one atomic write.

        Returns the ticket after which readers see them there. On failure they stay, are not claimable, and the move is
        retried later.
        """
        if not queue.exhausted or now < queue.stuck_until:
            return 0
        seqs = [seq for seq, _ in zip(queue.exhausted, range(moves.MOVE_JOBS), strict=False)]
        try:
            return self.move(topic, queue, seqs, now, {})[0]
        except TopicsError as error:
            self._queues.writer.check()
            self.refused(queue, seqs[0], now, error)
            return 0

    def refused(self, queue: Queue, first: int, now: int, error: TopicsError) -> None:
        """Note that a move beginning with the job `first` was refused."""
        if error.reason in (Reason.RECORD_TOO_LARGE, Reason.INTERNAL):
            # It never fits or can't be read: the others need not wait for it.
            queue.set_aside(first, now + BACKOFF_MAX_MS)
        self.failures += 1
        queue.last_error = error.message
        queue.stuck_until = now + min(_BACKOFF_MS << min(queue.failures, 16), BACKOFF_MAX_MS)
        queue.failures += 1

    def move(
        self, topic: Topic, queue: Queue, seqs: Sequence[int], now: int, rows: Mapping[int, Delivery]
    ) -> tuple[int, list[int]]:
        """Move as many of these jobs as fit, from the first on, to the dead letter topic, and write `rows`.

        `rows` are those of deliveries that end in the same write. Returns the ticket after which readers see the
        letters, and the moved jobs, at least one. Raises the error that refuses the first; nothing has happened then.
        """
        cfg, log = topic.config, topic.log
        name = cfg.dead_letter or ""
        letters = self._queues.catalog.find(name)
        if letters is None:
            if not cfg.auto_create:
                raise invalid(f'the dead letter topic "{name}" does not exist and auto_create is off')
            letters = self._queues.catalog.create(name, config.resolve(name, ConfigInput()))

        def stamped(meta: bytes | None, seq: int) -> bytes:
            attempts = for_letter((rows.get(seq) or queue.jobs[seq]).attempts)
            return deadletters.stamp(meta, topic.name, cfg.max_deliveries, seq, attempts)

        batch = moves.copies(log.blocks, seqs, stamped)
        batch = moves.fitting(batch, seqs, topic, letters, self._queues.capacity, now)
        moved = list(seqs[: len(batch.datas)])
        with Transaction(self._queues.writer) as tx:
            moves.move(tx, batch, moved, topic, letters, now)
            if cfg.leases_durable:
                gone = set(moved)
                self._queues.stage_leases(tx.batch, topic, queue, (row for row in rows.items() if row[0] not in gone))
                for seq in moved:
                    tx.batch.delete(Family.LEASES, key(log.log_id, seq))
            self._queues.put_queue_row(
                tx.batch, topic, queue, cursor=queue.cursor if cfg.leases_durable else 0, dead_lettered=len(moved)
            )
            waits = max(tx.commit(), self._queues.catalog.unsynced(letters))
        queue.trash = []
        queue.dead_lettered += len(moved)
        queue.failures = 0
        queue.last_error = None
        queue.done(moved)
        queue.seen(log.state)
        for changed in (log, letters.log):
            self._queues.touched(changed)
        if waits:
            self._queues.writer.request_sync(waits)  # a push stream without a job does not wait for it
        return waits, moved

    def redrive(self, request: RedriveRequest) -> tuple[RedriveReply, int]:
        """Move dead letters of this queue back into it, in one atomic write, as fresh jobs: one bounded slice.

        At most `max` (0: 1000) jobs and 8 MiB. Leased letters stay, if the dead letter topic is a queue. `resume` says
        that it is not done. Raises `invalid_request` without a dead letter topic, and the errors of a write to a full
        queue.
        """
        topic, queue = self._queues.open(request.topic)
        name = topic.config.dead_letter
        if name is None:
            raise invalid(f'queue "{topic.name}" has no dead_letter')
        letters = self._queues.catalog.find(name)
        reply = RedriveReply(topic=topic.name, dead_letter=name, redriven=0)
        if letters is None or self._queues.catalog.unsynced(letters):
            return reply, 0
        now = self._queues.refresh(topic, queue)
        held = None
        if letters.config.type == "queue":
            held = self._queues.queue(letters)
            self._queues.refresh(letters, held)
        letters.log.visible(letters.config, now)
        max_jobs = min(request.max or moves.MOVE_JOBS, moves.MOVE_JOBS)
        seqs, at = self._letters(topic, letters, held, request, max_jobs)
        reply.resume = at if at <= letters.log.view.head else 0
        if not seqs:
            return reply, 0
        batch = moves.copies(letters.log.blocks, seqs, lambda meta, _: deadletters.strip(meta))
        batch = moves.fitting(batch, seqs, letters, topic, self._queues.capacity, now)
        reply.redriven = len(batch.datas)
        if reply.redriven < len(seqs):
            reply.resume = seqs[reply.redriven]
        with Transaction(self._queues.writer) as tx:
            moves.move(tx, batch, seqs[: reply.redriven], letters, topic, now)
            ticket = tx.commit()
        for log in (topic.log, letters.log):
            self._queues.touched(log)
        return reply, ticket

    def _letters(
        self, topic: Topic, letters: Topic, held: Queue | None, request: RedriveRequest, max_jobs: int
    ) -> tuple[list[int], int]:
        """Return up to `max_jobs` matching dead letters, and the seq to continue from, past the head when done."""
        s, head, blocks = letters.log.state, letters.log.view.head, letters.log.blocks
        at = max(s.earliest, request.start)
        found: list[int] = []
        looks = 0
        while (at := s.first_live(at)) <= head and len(found) < max_jobs and looks < _REDRIVE_LOOKS:
            block = blocks.records(at)
            i = at - block.base_seq
            looks += 1
            if (
                request.takes(block.tags[i] if block.tags is not None else None)
                and block.metas is not None
                and deadletters.origin(block.metas[i]) == topic.name
                and (held is None or at not in held.held)
            ):
                found.append(at)
            at += 1
        return found, at
