"""Moves of jobs to the dead letter topic, and back: each atomic, in bounded slices."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from topics_service.engine import config
from topics_service.engine.errors import Reason, TopicsError, invalid
from topics_service.engine.model import Batch, ConfigInput
from topics_service.engine.placement import Place
from topics_service.engine.queue import deadletters, moves
from topics_service.engine.queue.attempts import for_letter
from topics_service.engine.queue.jobs import RedriveReply, RedriveRequest
from topics_service.engine.queue.leases import Delivery, key
from topics_service.engine.queue.opened import BACKOFF_MAX_MS, OpenQueues
from topics_service.engine.queue.shipments import Letter, Shipment, Shipments, letters_of
from topics_service.engine.queue.state import Queue
from topics_service.engine.topic import Topic
from topics_service.engine.transaction import Transaction
from topics_service.storage.store import Family

_BACKOFF_MS: Final = 1000  # after a dead letter could not be moved; doubles up to BACKOFF_MAX_MS
_REDRIVE_LOOKS: Final = 10_000
_NO_ROWS: Final[Mapping[int, Delivery]] = MappingProxyType({})


class Offer(NamedTuple):
    """Jobs that are to move to the topic `dest` in another shard: their seqs in the one that they leave, and sizes."""

    dest: str
    topic_id: str
    may_create: bool
    seqs: list[int]
    sizes: list[int]


def _offer(dest: str, topic: Topic, seqs: Sequence[int], batch: Batch) -> Offer:
    metas = batch.metas or [None] * len(batch.datas)
    sizes = [size + len(meta or b"") for size, meta in zip(batch.sizes, metas, strict=True)]
    return Offer(dest, topic.topic_id, topic.config.auto_create, list(seqs[: len(sizes)]), sizes)


class Mover:
    """Moves exhausted jobs, and drives dead letters back."""

    def __init__(self, queues: OpenQueues, place: Place) -> None:
        self.failures = 0
        """Number of times that dead letters could not be moved."""
        self.on_elsewhere: Callable[[str], object] = lambda _queue: None
        """Called with a queue that has exhausted jobs whose dead letter topic is in another shard."""
        self.shipments = Shipments(queues.catalog, queues.writer, queues.clock, queues.capacity)
        self._queues = queues
        self._place = place

    def is_elsewhere(self, name: str) -> bool:
        """Return whether a topic is, or would be made, in another shard."""
        if self._place.count == 1:
            return False
        topic = self._queues.catalog.find(name)
        return topic.is_part if topic is not None else not self._place.is_home(name)

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
        if self.is_elsewhere(topic.config.dead_letter or ""):
            queue.stuck_until = now + _BACKOFF_MS  # if no answer comes until then, it is sent again
            self.on_elsewhere(topic.name)
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

        batch = self._stamped(topic, queue, seqs, rows)
        batch = moves.fitting(batch, seqs, topic, letters, self._queues.capacity, now)
        moved = list(seqs[: len(batch.datas)])
        with Transaction(self._queues.writer) as tx:
            moves.move(tx, batch, moved, topic, letters, now)
            self._stage_end(tx, topic, queue, moved, rows)
            waits = max(tx.commit(), self._queues.catalog.unsynced(letters))
        self._end(topic, queue, moved)
        for changed in (log, letters.log):
            self._queues.touched(changed)
        if waits:
            self._queues.writer.request_sync(waits)  # a push stream without a job does not wait for it
        return waits, moved

    def _stamped(
        self, topic: Topic, queue: Queue, seqs: Sequence[int], rows: Mapping[int, Delivery] = _NO_ROWS
    ) -> Batch:
        """These jobs as dead letters."""

        def stamped(meta: bytes | None, seq: int) -> bytes:
            attempts = for_letter((rows.get(seq) or queue.jobs[seq]).attempts)
            return deadletters.stamp(meta, topic.name, topic.config.max_deliveries, seq, attempts)

        return moves.copies(topic.log.blocks, seqs, stamped)

    def _stage_end(
        self,
        tx: Transaction,
        topic: Topic,
        queue: Queue,
        moved: Sequence[int],
        rows: Mapping[int, Delivery] = _NO_ROWS,
    ) -> None:
        """Stage the rows of leases and counters when jobs are moved; `rows` are those of others."""
        cfg = topic.config
        if cfg.leases_durable:
            gone = set(moved)
            self._queues.stage_leases(tx.batch, topic, queue, (row for row in rows.items() if row[0] not in gone))
            for seq in moved:
                tx.batch.delete(Family.LEASES, key(topic.log.log_id, seq))
        self._queues.put_queue_row(
            tx.batch, topic, queue, cursor=queue.cursor if cfg.leases_durable else 0, dead_lettered=len(moved)
        )

    def _end(self, topic: Topic, queue: Queue, moved: Sequence[int]) -> None:
        """Jobs have become dead letters."""
        queue.trash = []
        queue.dead_lettered += len(moved)
        queue.failures = 0
        queue.last_error = None
        queue.done(moved)
        queue.seen(topic.log.state)

    # ------------------------------------------------- dead letters elsewhere

    def due_elsewhere(self, name: str) -> Offer | None:
        """The next exhausted jobs for a dead letter topic in another shard; None if there are none."""
        opened = self._queues.find(name)
        if opened is None:
            return None
        topic, queue = opened
        self._queues.refresh(topic, queue)
        dest = topic.config.dead_letter
        if not queue.exhausted or dest is None or not self.is_elsewhere(dest):
            return None
        seqs = [seq for seq, _ in zip(queue.exhausted, range(moves.MOVE_JOBS), strict=False)]
        try:
            batch = self._stamped(topic, queue, seqs)
        except TopicsError as error:
            self.refused(queue, seqs[0], self._queues.clock.now_ms(), error)
            return None
        return _offer(dest, topic, seqs, batch)

    def ship(self, name: str, offer: Offer, count: int) -> Shipment | None:
        """Put the first `count` of offered jobs in the outbox, as far as they are still exhausted.

        Returns the shipment, which may be sent once it is durable; None if there is nothing to send.
        """
        opened = self._queues.find(name)
        if opened is None or opened[0].topic_id != offer.topic_id or opened[0].config.dead_letter != offer.dest:
            return None
        topic, queue = opened
        now = self._queues.refresh(topic, queue)
        moved = [seq for seq in offer.seqs[:count] if seq in queue.exhausted]
        if not moved:
            return None
        batch = self._stamped(topic, queue, moved)
        moved = moved[: len(batch.datas)]
        shipment = self._shipment(topic, offer.dest, letters_of(batch, moved), is_redrive=False)
        with Transaction(self._queues.writer) as tx:
            moves.leave(tx, moved, topic, now)
            self._stage_end(tx, topic, queue, moved)
            self.shipments.stage(tx.batch, shipment)
            tx.commit()
        self.shipments.left(shipment)
        self._end(topic, queue, moved)
        self._queues.touched(topic.log)
        return shipment

    def refused_elsewhere(self, name: str, offer: Offer, error: TopicsError) -> None:
        """Note that another shard has refused the first of these jobs."""
        opened = self._queues.find(name)
        if opened is not None and opened[0].topic_id == offer.topic_id and offer.seqs[0] in opened[1].exhausted:
            topic, queue = opened
            now = self._queues.clock.now_ms()
            self.refused(queue, offer.seqs[0], now, error)
            self._queues.watch(topic, queue, now)

    def left(self, name: str, seqs: Sequence[int]) -> list[int]:
        """Those of these jobs that are not exhausted jobs of the queue any more."""
        opened = self._queues.find(name)
        if opened is None:
            return []
        queue = opened[1]
        return [seq for seq in seqs if seq not in queue.exhausted and seq not in queue.aside]

    def end_of(self, letters: str) -> int:
        """One past the head of a dead letter topic."""
        topic = self._queues.catalog.find(letters)
        return 1 if topic is None else topic.log.view.head + 1

    def due_back(self, letters: str, request: RedriveRequest, stop: int, max_jobs: int) -> tuple[Offer | None, int]:
        """The next dead letters below `stop` of a queue in another shard, and the next seq, 0 at the end."""
        topic = self._queues.catalog.find(letters)
        if topic is None or self._queues.catalog.unsynced(topic):
            return None, 0
        now = self._queues.clock.now_ms()
        held = None
        if topic.config.type == "queue":
            held = self._queues.queue(topic)
            self._queues.refresh(topic, held)
        topic.log.visible(topic.config, now)
        seqs, at = self._letters(request.topic, topic, held, request, min(max_jobs, moves.MOVE_JOBS))
        resume = at if at < min(stop, topic.log.view.head + 1) else 0
        seqs = [seq for seq in seqs if seq < stop]
        if not seqs:
            return None, resume
        batch = moves.copies(topic.log.blocks, seqs, lambda meta, _: meta)
        if len(batch.datas) < len(seqs):
            resume = seqs[len(batch.datas)]
        return _offer(request.topic, topic, seqs, batch), resume

    def ship_back(self, letters: str, offer: Offer, count: int) -> Shipment | None:
        """Put the first `count` of offered dead letters in the outbox, as far as they are still there; as `ship`."""
        topic = self._queues.catalog.find(letters)
        if topic is None or topic.topic_id != offer.topic_id:
            return None
        now = self._queues.clock.now_ms()
        moved = topic.log.begin(topic.config, now).live_among(offer.seqs[:count])
        if topic.config.type == "queue":
            held = self._queues.queue(topic)
            self._queues.refresh(topic, held)
            moved = [seq for seq in moved if seq not in held.held]
        if not moved:
            return None
        batch = moves.copies(topic.log.blocks, moved, lambda meta, _: meta)
        moved = moved[: len(batch.datas)]
        shipment = self._shipment(topic, offer.dest, letters_of(batch, moved), is_redrive=True)
        with Transaction(self._queues.writer) as tx:
            moves.leave(tx, moved, topic, now)
            self.shipments.stage(tx.batch, shipment)
            tx.commit()
        self.shipments.left(shipment)
        self._queues.touched(topic.log)
        return shipment

    def _shipment(self, topic: Topic, dest: str, letters: list[Letter], *, is_redrive: bool) -> Shipment:
        return Shipment(
            source=topic.name, topic_id=topic.topic_id, shard=self._place.shard, dest=dest,
            may_create=topic.config.auto_create, is_redrive=is_redrive, letters=letters,
        )  # fmt: skip

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
        seqs, at = self._letters(topic.name, letters, held, request, max_jobs)
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
        self, queue: str, letters: Topic, held: Queue | None, request: RedriveRequest, max_jobs: int
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
                and deadletters.origin(block.metas[i]) == queue
                and (held is None or at not in held.held)
            ):
                found.append(at)
            at += 1
        return found, at
