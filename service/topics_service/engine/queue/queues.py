"""Queue calls on plain structs: synchronous, each atomic (docs/contract.md, 10).

A lease is in memory; with `leases_durable` it is also a row, written in the batch of its cause. An ack is the
deletion of the job in the log. Startup loads no jobs: a queue is read on first use.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

from msgspec.structs import replace

from topics_service.engine import config
from topics_service.engine.capacity import Capacity
from topics_service.engine.catalog import Catalog
from topics_service.engine.clock import Clock
from topics_service.engine.errors import Reason, TopicsError, invalid
from topics_service.engine.limits import Limits
from topics_service.engine.log import Log
from topics_service.engine.model import AppendRequest, ConfigInput, QueueCounters, TopicConfig
from topics_service.engine.queue import browse, deadletters, leases, moves
from topics_service.engine.queue.alarms import Alarms
from topics_service.engine.queue.attempts import REASON_BYTES, Attempt, for_letter, remembered
from topics_service.engine.queue.cohort import deal
from topics_service.engine.queue.jobs import (
    ClaimReply,
    ClaimRequest,
    Job,
    ListJobsReply,
    ListJobsRequest,
    RedriveReply,
    RedriveRequest,
    SettleReply,
    SettleRequest,
)
from topics_service.engine.queue.leases import Delivery
from topics_service.engine.queue.schedule import Schedule, Write
from topics_service.engine.queue.state import Queue
from topics_service.engine.topic import Topic
from topics_service.engine.transaction import Transaction
from topics_service.engine.writer import Writer
from topics_service.storage.store import Family, WriteBatch

_DAY_MS = 86_400_000
_LEASE_MIN_MS = 100
_TOKEN_BYTES = 16
_BACKOFF_MS = 1000  # after a dead letter could not be moved; doubles up to
_BACKOFF_MAX_MS = 60_000
_REDRIVE_LOOKS = 10_000


class Queues:
    """Every queue of the engine. Calls by name raise `topic_not_found` and `not_a_queue`.

    The ticket that a call returns is the one its acknowledgement waits for, 0 for none: an ack is as durable as the
    topic; leases are durable in an `fsync` queue with `leases_durable`.
    """

    def __init__(
        self,
        catalog: Catalog,
        writer: Writer,
        clock: Clock,
        limits: Limits,
        capacity: Capacity,
        touched: Callable[[Log], None],
        random: Callable[[int], bytes] = os.urandom,
    ) -> None:
        """`touched` is called with logs that changed; `random` returns unpredictable bytes for lease ids."""
        self.dead_letter_failures = 0
        """How often dead letters could not be moved; `last_error` says why."""
        self._catalog = catalog
        self._writer = writer
        self._clock = clock
        self._limits = limits
        self._capacity = capacity
        self._touched = touched
        self._random = random
        self._queues: dict[int, Queue] = {}  # by topic number
        self._moves: dict[int, tuple[int, Topic]] = {}  # when to look for exhausted jobs, by topic number
        self._alarms = Alarms(lambda at, number: number in self._moves and self._moves[number][0] == at)
        self._oldest: dict[int, tuple[int, int]] = {}  # the oldest ready job and its commit time, as asked for last

    # -------------------------------------------------------------------- checks

    def topic(self, name: str) -> Topic:
        """Return the topic of a queue. Raises `topic_not_found` and `not_a_queue`."""
        topic = self._catalog.visible(name)
        if topic.config.type != "queue":
            raise TopicsError(Reason.NOT_A_QUEUE, f'topic "{name}" is not a queue', {"topic": name})
        return topic

    def check_node(self, node: str) -> None:
        """Raise `invalid_request` unless `node` can be the name of a worker."""
        if not node or len(node.encode()) > self._limits.max_node_bytes:
            raise invalid(f"node must be 1 to {self._limits.max_node_bytes} bytes of text")

    # -------------------------------------------------------------------- claims

    def claim(self, requests: Sequence[ClaimRequest]) -> tuple[list[ClaimReply], int]:
        """Serve a cohort of claims on one queue: jobs are dealt one at a time, in the order of the requests.

        A reply holds fewer jobs than requested if there are no more, or if they exceed `max_bytes`.
        Jobs due for the dead letter topic are moved there on the way, which the ticket covers. Raises `invalid_request`
        for an empty or long node. On any error no job is leased.
        """
        topic, queue = self._open(requests[0].topic)
        for request in requests:
            self.check_node(request.node)
        self._writer.check()
        now = self._refresh(topic, queue)
        topic.touch(now)
        buried = self._bury(topic, queue, now)
        log, cfg = topic.log, topic.config
        wants = [max(1, min(request.max, self._limits.max_claim)) for request in requests]
        budgets = [self._budget(request.max_bytes) for request in requests]
        try:
            jobs = queue.offer(log.state, log.view.head)
            hands = deal(jobs, wants, budgets, log.blocks, self._limits.max_record_bytes)
            tokens = leases.tokens(self._random(_TOKEN_BYTES * sum(map(len, hands))))
            replies: list[ClaimReply] = []
            given: list[tuple[list[int], list[Delivery]]] = []
            for request, hand in zip(requests, hands, strict=True):
                deadline = now + _clamp_lease(cfg.lease_ms if request.lease_ms is None else request.lease_ms)
                seqs = [seq for seq, _ in hand]
                deliveries = queue.grant(seqs, request.node, tokens[: len(hand)], deadline)
                del tokens[: len(hand)]
                leased = [
                    Job(
                        block,
                        seq - block.base_seq,
                        delivery.lease_id,
                        deadline,
                        delivery.deliveries,
                        queue.is_last(delivery.deliveries),
                    )
                    for (seq, block), delivery in zip(hand, deliveries, strict=True)
                ]
                replies.append(ClaimReply(topic=topic.name, jobs=leased))
                if hand:
                    given.append((seqs, deliveries))
            ticket = self._write_leases(
                topic, queue, (pair for each in given for pair in zip(*each, strict=True)), move_cursor=True
            )
        except BaseException:
            queue.put_back()
            raise
        for seqs, deliveries in given:
            queue.granted(seqs, deliveries)
        self._watch(topic, queue, now)
        ready = queue.ready(log.state, log.view.head)
        for reply in replies:
            reply.ready = ready
        return replies, max(ticket, buried, log.expiry_ticket)

    # ---------------------------------------------------------------- settlement

    def ack(self, request: SettleRequest) -> tuple[SettleReply, int]:
        """Complete jobs: delete all of them in one write. A duplicate counts once."""
        (reply,), ticket = self.ack_together((request,))
        return reply, ticket

    def ack_together(self, requests: Sequence[SettleRequest]) -> tuple[list[SettleReply], int]:
        """Apply acks of one queue in order, as one write. Raises the errors of a single ack; nothing is acked then."""
        for request in requests:
            self._check(request)
        topic, queue, now = self._begin(requests[0].topic)
        log, cfg = topic.log, topic.config
        found: dict[int, Delivery] = {}
        parts = []
        for request in requests:
            held, skipped = self._held(queue, request, found)
            found |= held
            parts.append((len(held), skipped))
        # What is skipped may be an ack before that still waits, or have expired just now.
        ticket = max(log.pending_ticket, log.expiry_ticket)
        if found:
            live = [seq for seq in found if seq in queue.jobs]
            with Transaction(self._writer) as tx:
                s = log.begin(cfg, now)
                if live:
                    log.mark(tx, s, live, cfg)
                if cfg.leases_durable:
                    for seq in live:
                        tx.batch.delete(Family.LEASES, leases.key(log.log_id, seq))
                ticket = max(ticket, tx.commit())
            queue.done(found)
            queue.seen(log.state)
            self._touched(log)
        return [self._reply(topic, queue, done, skipped) for done, skipped in parts], ticket

    def nack(self, request: SettleRequest) -> tuple[SettleReply, int]:
        """Give jobs back, to be claimed again after `delay_ms`; with mode `release` the attempt does not count.

        Jobs after their last delivery move to the dead letter topic in the same write, regardless of the delay. If that
        topic refuses them they are exhausted; the reply lists both separately.
        """
        topic, queue, now, found, skipped = self._settle(request)
        delay = max(0, min(request.delay_ms, _DAY_MS))
        ready_at = now + delay if delay else 0
        if request.mode == "release":
            ended = {seq: replace(delivery, deliveries=delivery.deliveries - 1) for seq, delivery in found.items()}
        else:
            reasons = dict(zip(request.seqs[::-1], request.reasons[::-1], strict=False))  # of a repeated seq the first
            ended = {seq: _failed(delivery, now, reasons.get(seq, "")) for seq, delivery in found.items()}
        ticket, moved = self._give_back(topic, queue, ended, now, ready_at)
        reply = self._reply(topic, queue, len(found), skipped)
        reply.dead_lettered = moved
        reply.exhausted = [seq for seq in found if seq in queue.exhausted or seq in queue.aside]
        return reply, max(ticket, topic.log.expiry_ticket)

    def extend(self, request: SettleRequest) -> tuple[SettleReply, int]:
        """Set the deadlines of held jobs to `lease_ms` from now; lease ids and delivery counts stay.

        A repeated seq is extended once, and not skipped: the job is still held.
        """
        topic, queue, now, found, skipped = self._settle(request)
        skipped = [seq for seq in skipped if seq not in found]
        deadline = now + _clamp_lease(request.lease_ms)
        changed = ((seq, replace(delivery, deadline=deadline)) for seq, delivery in found.items() if seq in queue.jobs)
        ticket = self._write_leases(topic, queue, changed)
        queue.extend(list(found), deadline)
        self._watch(topic, queue, now)
        reply = self._reply(topic, queue, len(found), skipped)
        reply.deadlines = dict.fromkeys(found, deadline)
        return reply, max(ticket, topic.log.expiry_ticket)

    def release(self, topic: str, held: Mapping[int, str]) -> int:
        """Give back jobs still held under these lease ids (by seq), like a nack; return their number.

        No error when the topic is gone or not a queue any more. Raises `throttled` or `internal`, and gives nothing
        back, when durable leases can't be written.
        """
        opened = self._find(topic)
        if opened is None:
            return 0
        now = self._refresh(*opened)
        found = self._holds(opened[1], held)
        ended = {seq: _failed(delivery, now, "connection ended", is_told=False) for seq, delivery in found.items()}
        self._give_back(*opened, ended, now, 0)
        return len(found)

    def held(self, topic: str, held: Mapping[int, str]) -> set[int]:
        """Return the seqs with valid lease ids. No error when the topic is gone or not a queue any more."""
        opened = self._find(topic)
        if opened is None:
            return set()
        self._refresh(*opened)
        return set(self._holds(opened[1], held))

    # ---------------------------------------------------------------------- state

    def counters(self, topic: str) -> QueueCounters:
        """Return the queue's current counters."""
        return self.state(self._open(topic)[0])

    def state(self, topic: Topic) -> QueueCounters:
        """Return the counters of a queue's topic."""
        queue = self._queue(topic)
        self._refresh(topic, queue)
        s, head = topic.log.state, topic.log.view.head
        return QueueCounters(
            ready=queue.ready(s, head),
            in_flight=queue.in_flight,
            dead_lettered=queue.dead_lettered,
            delayed=queue.not_due(s, head),
            retrying=len(queue.delayed),
            exhausted=queue.spent,
        )

    def oldest_ready_ms(self, topic: Topic) -> int:
        """Return the age (ms) of the oldest job that a claim could get now; 0 if there is none.

        As `state` left the queue. Raises TopicsError when the job can't be read; each is read once.
        """
        seq = self._queue(topic).oldest_ready(topic.log.state, topic.log.view.head)
        if seq is None:
            self._oldest.pop(topic.number, None)
            return 0
        known = self._oldest.get(topic.number)
        if known is None or known[0] != seq:
            block = topic.log.blocks.find(seq, scan=True)
            known = self._oldest[topic.number] = (seq, block.ts_at(seq - block.base_seq))
        return max(0, self._clock.now_ms() - known[1])

    def next_due(self, topic: str) -> int | None:
        """Return the time (ms) until a lease expires or a delay ends and jobs become claimable; None if never.

        Jobs that have come due since the last look at the queue count as due now, so that none is missed.
        """
        opened = self._find(topic)
        if opened is None:
            return None
        now = self._clock.now_ms()
        due = opened[1].next_due()
        return None if due is None else max(due, now + 1)

    @property
    def leases_in_flight(self) -> int:
        """Return the leases of all queues, including those that expired since the last look at their queue."""
        return sum(queue.in_flight for queue in self._queues.values())

    def last_error(self, topic: str) -> str | None:
        """Return the error of the last attempt to move dead letters; None if it succeeded."""
        return self._open(topic)[1].last_error

    def jobs(self, request: ListJobsRequest) -> ListJobsReply:
        """Return a page of jobs in one state, by seq, unchanged: at most `max_bytes` of records, but at least one."""
        topic, queue = self._open(request.topic)
        if not 1 <= request.limit <= self._limits.max_limit:
            raise invalid(f"limit must be from 1 to {self._limits.max_limit}")
        self._refresh(topic, queue)
        return browse.page(topic, queue, request, self._budget(request.max_bytes))

    # ---------------------------------------------------------------- dead letters

    def bury(self) -> bool:
        """Move the exhausted jobs of one due queue: after the end of a last lease, and again after a failure.

        A slice of maintenance; returns True if more is due at once. Raises `internal` when the store fails.
        """
        now = self._clock.now_ms()
        number = next(self._alarms.until(now), None)
        if number is None:
            return False
        _, topic = self._moves.pop(number)
        queue = self._queue(topic)
        self._bury(topic, queue, self._refresh(topic, queue))
        self._watch(topic, queue, now)
        due = self._alarms.next()
        return due is not None and due <= now

    def recover(self) -> None:
        """Schedule queues whose leases may be of exhausted jobs. Call it after the catalog is loaded."""
        for topic in self._catalog.topics.values():
            if topic.config.type == "queue" and topic.config.leases_durable and _limit(topic.config):
                self._look(topic, self._clock.now_ms())

    def redrive(self, request: RedriveRequest) -> tuple[RedriveReply, int]:
        """Move dead letters of this queue back into it, in one atomic write, as fresh jobs: one bounded slice.

        At most `max` (0: 1000) jobs and 8 MiB. Leased letters stay, if the dead letter topic is a queue. `resume` says
        that it is not done. Raises `invalid_request` without a dead letter topic, and the errors of a write to a full
        queue.
        """
        topic, queue = self._open(request.topic)
        name = topic.config.dead_letter
        if name is None:
            raise invalid(f'queue "{topic.name}" has no dead_letter')
        letters = self._catalog.find(name)
        reply = RedriveReply(topic=topic.name, dead_letter=name, redriven=0)
        if letters is None or self._catalog.unsynced(letters):
            return reply, 0
        now = self._refresh(topic, queue)
        held = self._queues.get(letters.number)
        if letters.config.type == "queue":
            held = self._queue(letters)
            self._refresh(letters, held)
        letters.log.visible(letters.config, now)
        max_jobs = min(request.max or moves.MOVE_JOBS, moves.MOVE_JOBS)
        seqs, at = self._letters(topic, letters, held, request, max_jobs)
        reply.resume = at if at <= letters.log.view.head else 0
        if not seqs:
            return reply, 0
        batch = moves.copies(letters.log.blocks, seqs, lambda meta, _: deadletters.strip(meta))
        batch = moves.fitting(batch, seqs, letters, topic, self._capacity, now)
        reply.redriven = len(batch.datas)
        if reply.redriven < len(seqs):
            reply.resume = seqs[reply.redriven]
        with Transaction(self._writer) as tx:
            moves.move(tx, batch, seqs[: reply.redriven], letters, topic, now)
            ticket = tx.commit()
        for log in (topic.log, letters.log):
            self._touched(log)
        return reply, ticket

    # ---------------------------------------------------------- for other calls

    def stage_jobs(self, tx: Transaction, topic: Topic, request: AppendRequest, base: int, now: int) -> Write:
        """Stage the rows that an append with a delay or a priority adds to its records; `added` follows the commit.

        The records are staged already, from seq `base` on.
        """
        delay = min(request.delay_ms, _DAY_MS)
        write = Write(base, len(request.batch.datas), request.priority, now + delay if delay else 0)
        self._queue(topic).schedule.stage(tx.batch, write, topic.log.state)
        return write

    def added(self, topic: Topic, write: Write) -> None:
        """Apply what `stage_jobs` staged, once it is written."""
        self._queue(topic).schedule.added(write)

    def stage_config(self, tx: Transaction, topic: Topic, resolved: TopicConfig) -> None:
        """Stage the rows for a change of the topic's config: `leases_durable` adds or removes those of leases."""
        if topic.config.type != "queue":
            return
        if _limit(topic.config) != _limit(resolved):
            self._look(topic, self._clock.now_ms())
        if topic.config.leases_durable == resolved.leases_durable:
            return
        queue, log_id = self._queue(topic), topic.log.log_id
        if resolved.leases_durable:
            for seq, delivery in queue.jobs.items():
                known = replace(delivery, deadline=0) if seq in queue.aside else delivery
                tx.batch.put(Family.LEASES, leases.key(log_id, seq), leases.encode(known))
            self._put_queue_row(tx.batch, topic, queue, cursor=queue.cursor)
        else:
            tx.batch.delete_range(Family.LEASES, *leases.job_range(log_id))
            self._put_queue_row(tx.batch, topic, queue, cursor=0)
            queue.trash = []

    def forget(self, topic: Topic) -> None:
        """Forget a deleted topic."""
        self._queues.pop(topic.number, None)
        self._moves.pop(topic.number, None)
        self._oldest.pop(topic.number, None)

    # ---------------------------------------------------------------- internals

    def _find(self, name: str) -> tuple[Topic, Queue] | None:
        topic = self._catalog.find(name)
        if topic is None or topic.config.type != "queue" or self._catalog.unsynced(topic):
            return None
        return topic, self._queue(topic)

    def _open(self, name: str) -> tuple[Topic, Queue]:
        topic = self.topic(name)
        return topic, self._queue(topic)

    def _queue(self, topic: Topic) -> Queue:
        """Return the queue's state, read from its rows on first use. O(jobs under way)."""
        queue = self._queues.get(topic.number)
        if queue is None:
            queue = self._queues[topic.number] = self._load(topic)
            self._watch(topic, queue, self._clock.now_ms())
        return queue

    def _load(self, topic: Topic) -> Queue:
        store, log, s = self._writer.store, topic.log, topic.log.state
        schedule = Schedule(log.log_id, store)
        schedule.load(s)
        queue = Queue(schedule)
        queue.dead_lettered, cursor = leases.decode_queue(store.get(Family.LEASES, leases.key(log.log_id, 0)))
        queue.limit(_limit(topic.config))
        queue.prune(s)
        if topic.config.leases_durable:
            queue.cursor = max(cursor, 1)
            now = self._clock.now_ms()
            for seq, row in leases.scan(store, log.log_id):
                if s.is_live(seq):
                    queue.restore(seq, leases.decode(row), now)
                else:
                    queue.trash.append(seq)
        return queue

    def _refresh(self, topic: Topic, queue: Queue) -> int:
        """Update the queue after losses, expiries and config changes of the log; return the time."""
        now, log = self._clock.now_ms(), topic.log
        log.visible(topic.config, now)
        is_changed = queue.limit(_limit(topic.config))
        queue.prune(log.state)
        queue.sweep(now)
        if is_changed:
            self._watch(topic, queue, now)
        if not topic.config.leases_durable:
            queue.trash = []
        if queue.stuck_until - now > _BACKOFF_MAX_MS:
            queue.stuck_until = now  # the clock was set back
            self._watch(topic, queue, now)
        if queue.schedule.fold_is_due(log.state):
            with suppress(TopicsError), Transaction(self._writer) as tx:  # later, if the store can't now
                queue.schedule.fold(tx.batch, log.state)
                tx.commit()
                queue.schedule.folded()
        return now

    def _settle(self, request: SettleRequest) -> tuple[Topic, Queue, int, dict[int, Delivery], list[int]]:
        self._check(request)
        topic, queue, now = self._begin(request.topic)
        return topic, queue, now, *self._held(queue, request, {})

    def _check(self, request: SettleRequest) -> None:
        """Check the parts of a request that do not depend on the queue, in the order of docs/contract.md, 10.3."""
        for token in request.lease_ids:
            if token and not leases.is_token(token):
                raise invalid("lease_ids must hold lease ids as a claim gave them, or empty strings")
        self.check_node(request.node)
        if len(request.seqs) > self._limits.max_claim:
            raise TopicsError(
                Reason.BATCH_TOO_LARGE, f"a call takes at most {self._limits.max_claim} seqs",
                {"seqs": len(request.seqs), "max": self._limits.max_claim},
            )  # fmt: skip
        if not request.seqs:
            raise invalid("seqs must hold at least one seq")
        if request.lease_ids and len(request.lease_ids) != len(request.seqs):
            raise invalid("lease_ids must have one entry for each of seqs")
        if request.reasons and len(request.reasons) != len(request.seqs):
            raise invalid("reasons must have one entry for each of seqs")
        if any(len(reason.encode()) > REASON_BYTES for reason in request.reasons):
            raise invalid(f"a reason must be at most {REASON_BYTES} bytes of text")

    def _begin(self, name: str) -> tuple[Topic, Queue, int]:
        topic, queue = self._open(name)
        self._writer.check()
        return topic, queue, self._refresh(topic, queue)

    def _held(
        self, queue: Queue, request: SettleRequest, others: Mapping[int, Delivery]
    ) -> tuple[dict[int, Delivery], list[int]]:
        """Split the request's seqs into those that its node holds and the others."""
        found: dict[int, Delivery] = {}
        skipped = []
        for seq, token in zip(request.seqs, request.lease_ids or [""] * len(request.seqs), strict=True):
            delivery = queue.find(seq)
            if delivery is None or seq in found or seq in others or not delivery.held_by(request.node, token):
                skipped.append(seq)
            else:
                found[seq] = delivery
        return found, skipped

    def _reply(self, topic: Topic, queue: Queue, done: int, skipped: list[int]) -> SettleReply:
        log = topic.log
        return SettleReply(
            topic=topic.name, done=done, skipped=skipped, ready=queue.ready(log.state, log.view.head),
            in_flight=queue.in_flight,
        )  # fmt: skip

    def _holds(self, queue: Queue, held: Mapping[int, str]) -> dict[int, Delivery]:
        found = ((seq, token, queue.find(seq)) for seq, token in held.items())
        return {
            seq: delivery
            for seq, token, delivery in found
            if delivery is not None and delivery.node is not None and delivery.lease_id == token
        }

    def _give_back(
        self, topic: Topic, queue: Queue, ended: Mapping[int, Delivery], now: int, ready_at: int
    ) -> tuple[int, list[int]]:
        """End leases, with the counts and attempts of `ended`: the jobs can be claimed again from `ready_at` on, or
        move to the dead letters.

        Returns the ticket to wait for, and the seqs of moved jobs.
        """
        rows = {
            seq: replace(
                delivery, node=None, lease_id="", deadline=0 if queue.is_last(delivery.deliveries) else ready_at
            )
            for seq, delivery in ended.items()
            if seq in queue.jobs
        }
        last = sorted(seq for seq, delivery in rows.items() if queue.is_last(delivery.deliveries))
        refusal: TopicsError | None = None
        moved: list[int] = []
        ticket = 0
        if last and now >= queue.stuck_until:
            try:
                ticket, moved = self._move_letters(topic, queue, last, now, rows)
            except TopicsError as error:
                self._writer.check()
                refusal = error
        if not moved:
            ticket = self._write_leases(topic, queue, rows.items())
        gone = set(moved)
        queue.give_back({seq: delivery for seq, delivery in ended.items() if seq not in gone}, ready_at)
        if refusal is not None:
            self._refused(queue, last[0], now, refusal)
        self._watch(topic, queue, now)
        return ticket, moved

    def _write_leases(
        self, topic: Topic, queue: Queue, changed: Iterable[tuple[int, Delivery]], *, move_cursor: bool = False
    ) -> int:
        """Write the rows of changed deliveries if the config requires it; return the ticket to wait for."""
        if not topic.config.leases_durable:
            return 0
        with Transaction(self._writer) as tx:
            self._stage_leases(tx.batch, topic, queue, changed)
            if tx.batch.is_empty():
                return 0
            if move_cursor:
                self._put_queue_row(tx.batch, topic, queue, cursor=queue.cursor)
            tx.commit()
        queue.trash = []
        return tx.ticket if topic.config.durability == "fsync" else 0

    def _stage_leases(
        self, batch: WriteBatch, topic: Topic, queue: Queue, changed: Iterable[tuple[int, Delivery]]
    ) -> None:
        """Stage the rows of changed deliveries and, if there are any, the removal of obsolete ones."""
        log_id = topic.log.log_id
        for seq, delivery in changed:
            batch.put(Family.LEASES, leases.key(log_id, seq), leases.encode(delivery))
        if not batch.is_empty():
            for seq in queue.trash:
                batch.delete(Family.LEASES, leases.key(log_id, seq))

    def _put_queue_row(
        self, batch: WriteBatch, topic: Topic, queue: Queue, *, cursor: int, dead_lettered: int = 0
    ) -> None:
        row = leases.encode_queue(queue.dead_lettered + dead_lettered, cursor)
        batch.put(Family.LEASES, leases.key(topic.log.log_id, 0), row)

    def _watch(self, topic: Topic, queue: Queue, now: int) -> None:
        """Schedule `bury` for the end of a last lease, or for the next attempt to move exhausted jobs."""
        at = queue.next_move(now)
        if at is not None:
            self._look(topic, at)

    def _look(self, topic: Topic, at: int) -> None:
        known = self._moves.get(topic.number)
        if known is None or at < known[0]:
            self._moves[topic.number] = (at, topic)
            self._alarms.set(at, (topic.number,))

    def _bury(self, topic: Topic, queue: Queue, now: int) -> int:
        """Move exhausted jobs to the dead letter topic: many in one atomic write.

        Returns the ticket after which readers see them there. On failure they stay, are not claimable, and the move is
        retried later.
        """
        if not queue.exhausted or now < queue.stuck_until:
            return 0
        seqs = [seq for seq, _ in zip(queue.exhausted, range(moves.MOVE_JOBS), strict=False)]
        try:
            return self._move_letters(topic, queue, seqs, now, {})[0]
        except TopicsError as error:
            self._writer.check()
            self._refused(queue, seqs[0], now, error)
            return 0

    def _refused(self, queue: Queue, first: int, now: int, error: TopicsError) -> None:
        """Note that a move beginning with the job `first` was refused."""
        if error.reason in (Reason.RECORD_TOO_LARGE, Reason.INTERNAL):
            # It never fits or can't be read: the others need not wait for it.
            queue.set_aside(first, now + _BACKOFF_MAX_MS)
        self.dead_letter_failures += 1
        queue.last_error = error.message
        queue.stuck_until = now + min(_BACKOFF_MS << min(queue.failures, 16), _BACKOFF_MAX_MS)
        queue.failures += 1

    def _move_letters(
        self, topic: Topic, queue: Queue, seqs: Sequence[int], now: int, rows: Mapping[int, Delivery]
    ) -> tuple[int, list[int]]:
        """Move as many of these jobs as fit, from the first on, to the dead letter topic, and write `rows`.

        `rows` are those of deliveries that end in the same write. Returns the ticket after which readers see the
        letters, and the moved jobs, at least one. Raises the error that refuses the first; nothing has happened then.
        """
        cfg, log = topic.config, topic.log
        name = cfg.dead_letter or ""
        letters = self._catalog.find(name)
        if letters is None:
            if not cfg.auto_create:
                raise invalid(f'the dead letter topic "{name}" does not exist and auto_create is off')
            letters = self._catalog.create(name, config.resolve(name, ConfigInput()))

        def stamped(meta: bytes | None, seq: int) -> bytes:
            told = for_letter((rows.get(seq) or queue.jobs[seq]).attempts)
            return deadletters.stamp(meta, topic.name, cfg.max_deliveries, seq, told)

        batch = moves.copies(log.blocks, seqs, stamped)
        batch = moves.fitting(batch, seqs, topic, letters, self._capacity, now)
        moved = list(seqs[: len(batch.datas)])
        with Transaction(self._writer) as tx:
            moves.move(tx, batch, moved, topic, letters, now)
            if cfg.leases_durable:
                gone = set(moved)
                self._stage_leases(tx.batch, topic, queue, (row for row in rows.items() if row[0] not in gone))
                for seq in moved:
                    tx.batch.delete(Family.LEASES, leases.key(log.log_id, seq))
            self._put_queue_row(
                tx.batch, topic, queue, cursor=queue.cursor if cfg.leases_durable else 0, dead_lettered=len(moved)
            )
            waits = max(tx.commit(), self._catalog.unsynced(letters))
        queue.trash = []
        queue.dead_lettered += len(moved)
        queue.failures = 0
        queue.last_error = None
        queue.done(moved)
        queue.seen(log.state)
        for changed in (log, letters.log):
            self._touched(changed)
        if waits:
            self._writer.request_sync(waits)  # a push stream without a job does not wait for it
        return waits, moved

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

    def _budget(self, max_bytes: int) -> int:
        limit = self._limits.max_batch_bytes
        return min(max_bytes or limit, limit)


def _limit(cfg: TopicConfig) -> int:
    return 0 if cfg.dead_letter is None else cfg.max_deliveries


def _failed(delivery: Delivery, now: int, reason: str, *, is_told: bool = True) -> Delivery:
    """Return the delivery after its failure."""
    attempt = Attempt(delivery.deliveries, now, delivery.node or "", reason, is_told and reason != "")
    return replace(delivery, attempts=remembered(delivery.attempts, attempt))


def _clamp_lease(ms: int) -> int:
    return max(_LEASE_MIN_MS, min(ms, _DAY_MS))
