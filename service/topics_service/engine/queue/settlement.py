"""The end of leases: acks, nacks, extensions, and the release of what a connection held."""

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from topics_service.engine.errors import Reason, TopicsError, invalid
from topics_service.engine.queue import leases
from topics_service.engine.queue.attempts import REASON_BYTES, Attempt, remembered
from topics_service.engine.queue.jobs import SettleReply, SettleRequest
from topics_service.engine.queue.leases import Delivery
from topics_service.engine.queue.mover import Mover
from topics_service.engine.queue.opened import DAY_MS, OpenQueues, clamp_lease
from topics_service.engine.queue.state import Queue
from topics_service.engine.topic import Topic
from topics_service.engine.transaction import Transaction
from topics_service.storage.store import Family


class Settlement:
    """Settles leased jobs: only those that the caller's node holds; others are skipped."""

    def __init__(self, queues: OpenQueues, mover: Mover) -> None:
        self._queues = queues
        self._mover = mover

    def ack(self, request: SettleRequest) -> tuple[SettleReply, int]:
        """Complete jobs: delete all of them in one write. A duplicate counts once."""
        (reply,), ticket = self.ack_many((request,))
        return reply, ticket

    def ack_many(self, requests: Sequence[SettleRequest]) -> tuple[list[SettleReply], int]:
        """Apply acks of one queue in order, as one write. Raises the errors of a single ack; nothing is acked then."""
        for request in requests:
            self._check(request)
        topic, queue, now = self._queues.begin(requests[0].topic)
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
            with Transaction(self._queues.writer) as tx:
                s = log.begin(cfg, now)
                if live:
                    log.mark(tx, s, live, cfg)
                if cfg.leases_durable:
                    for seq in live:
                        tx.batch.delete(Family.LEASES, leases.key(log.log_id, seq))
                ticket = max(ticket, tx.commit())
            queue.done(found)
            queue.seen(log.state)
            self._queues.touched(log)
        return [self._reply(topic, queue, done, skipped) for done, skipped in parts], ticket

    def nack(self, request: SettleRequest) -> tuple[SettleReply, int]:
        """Give jobs back, to be claimed again after `delay_ms`; with mode `release` the attempt does not count.

        Jobs after their last delivery move to the dead letter topic in the same write, regardless of the delay. If that
        topic refuses them they are exhausted; the reply lists both separately.
        """
        topic, queue, now, found, skipped = self._settle(request)
        delay = max(0, min(request.delay_ms, DAY_MS))
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
        deadline = now + clamp_lease(request.lease_ms)
        changed = ((seq, replace(delivery, deadline=deadline)) for seq, delivery in found.items() if seq in queue.jobs)
        ticket = self._queues.write_leases(topic, queue, changed)
        queue.extend(list(found), deadline)
        self._queues.watch(topic, queue, now)
        reply = self._reply(topic, queue, len(found), skipped)
        reply.deadlines = dict.fromkeys(found, deadline)
        return reply, max(ticket, topic.log.expiry_ticket)

    def release(self, topic: str, held: Mapping[int, str]) -> int:
        """Give back jobs still held under these lease ids (by seq), like a nack; return their number.

        No error when the topic is gone or not a queue any more. Raises `throttled` or `internal`, and gives nothing
        back, when durable leases can't be written.
        """
        opened = self._queues.find(topic)
        if opened is None:
            return 0
        now = self._queues.refresh(*opened)
        found = self._holds(opened[1], held)
        ended = {seq: _failed(delivery, now, "connection ended", is_told=False) for seq, delivery in found.items()}
        self._give_back(*opened, ended, now, 0)
        return len(found)

    def held(self, topic: str, held: Mapping[int, str]) -> set[int]:
        """Return the seqs with valid lease ids. No error when the topic is gone or not a queue any more."""
        opened = self._queues.find(topic)
        if opened is None:
            return set()
        self._queues.refresh(*opened)
        return set(self._holds(opened[1], held))

    def _settle(self, request: SettleRequest) -> tuple[Topic, Queue, int, dict[int, Delivery], list[int]]:
        self._check(request)
        topic, queue, now = self._queues.begin(request.topic)
        return topic, queue, now, *self._held(queue, request, {})

    def _check(self, request: SettleRequest) -> None:
        """Check the parts of a request that do not depend on the queue, in the order of docs/contract.md, 10.3."""
        for token in request.lease_ids:
            if token and not leases.is_token(token):
                raise invalid("lease_ids must hold lease ids as a claim gave them, or empty strings")
        self._queues.check_node(request.node)
        if len(request.seqs) > self._queues.limits.max_claim:
            raise TopicsError(
                Reason.BATCH_TOO_LARGE, f"a call takes at most {self._queues.limits.max_claim} seqs",
                {"seqs": len(request.seqs), "max": self._queues.limits.max_claim},
            )  # fmt: skip
        if not request.seqs:
            raise invalid("seqs must hold at least one seq")
        if request.lease_ids and len(request.lease_ids) != len(request.seqs):
            raise invalid("lease_ids must have one entry for each of seqs")
        if request.reasons and len(request.reasons) != len(request.seqs):
            raise invalid("reasons must have one entry for each of seqs")
        if any(len(reason.encode()) > REASON_BYTES for reason in request.reasons):
            raise invalid(f"a reason must be at most {REASON_BYTES} bytes of text")

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
        is_elsewhere = bool(last) and self._mover.is_elsewhere(topic.config.dead_letter or "")
        if last and now >= queue.stuck_until and not is_elsewhere:
            try:
                ticket, moved = self._mover.move(topic, queue, last, now, rows)
            except TopicsError as error:
                self._queues.writer.check()
                refusal = error
        if not moved:
            ticket = self._queues.write_leases(topic, queue, rows.items())
        gone = set(moved)
        queue.give_back({seq: delivery for seq, delivery in ended.items() if seq not in gone}, ready_at)
        if refusal is not None:
            self._mover.refused(queue, last[0], now, refusal)
        if is_elsewhere and now >= queue.stuck_until:
            self._mover.bury(topic, queue, now)
        self._queues.watch(topic, queue, now)
        return ticket, moved


def _failed(delivery: Delivery, now: int, reason: str, *, is_told: bool = True) -> Delivery:
    """Return the delivery after its failure."""
    attempt = Attempt(delivery.deliveries, now, delivery.node or "", reason, is_told and reason != "")
    return replace(delivery, attempts=remembered(delivery.attempts, attempt))
