"""Queue calls on plain structs: synchronous, each atomic (docs/contract.md, 10).

A lease is in memory; with `leases_durable` it is also a row, written in the batch of its cause. An ack is the
deletion of the job in the log. Startup loads no jobs: a queue is read on first use.
"""

import os
from collections.abc import Callable, Sequence
from typing import Final

from msgspec.structs import replace

from topics_service.engine.capacity import Capacity
from topics_service.engine.catalog import Catalog
from topics_service.engine.clock import Clock
from topics_service.engine.errors import invalid
from topics_service.engine.limits import Limits
from topics_service.engine.log import Log
from topics_service.engine.model import AppendRequest, QueueCounters, TopicConfig
from topics_service.engine.placement import Place
from topics_service.engine.queue import browse, leases
from topics_service.engine.queue.cohort import deal
from topics_service.engine.queue.jobs import ClaimReply, ClaimRequest, Job, ListJobsReply, ListJobsRequest
from topics_service.engine.queue.leases import Delivery
from topics_service.engine.queue.mover import Mover
from topics_service.engine.queue.opened import DAY_MS, OpenQueues, clamp_lease, delivery_limit
from topics_service.engine.queue.schedule import Write
from topics_service.engine.queue.settlement import Settlement
from topics_service.engine.topic import Topic
from topics_service.engine.transaction import Transaction
from topics_service.engine.writer import Writer
from topics_service.storage.store import Family

_TOKEN_BYTES: Final = 16


class Queues(OpenQueues):
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
        place: Place | None = None,
    ) -> None:
        """`touched` is called with logs that changed; `random` returns unpredictable bytes for lease ids."""
        super().__init__(catalog, writer, clock, limits, capacity, touched)
        self.mover = Mover(self, place or Place())
        self.settlement = Settlement(self, self.mover)
        self._random = random
        self._oldest: dict[int, tuple[int, int]] = {}  # the oldest ready job and its commit time, as asked for last

    def claim(self, requests: Sequence[ClaimRequest]) -> tuple[list[ClaimReply], int]:
        """Serve a cohort of claims on one queue: jobs are dealt one at a time, in the order of the requests.

        A reply holds fewer jobs than requested if there are no more, or if they exceed `max_bytes`.
        Jobs due for the dead letter topic are moved there on the way, which the ticket covers. Raises `invalid_request`
        for an empty or long node. On any error no job is leased.
        """
        topic, queue = self.open(requests[0].topic)
        for request in requests:
            self.check_node(request.node)
        self.writer.check()
        now = self.refresh(topic, queue)
        topic.touch(now)
        buried = self.mover.bury(topic, queue, now)
        log, cfg = topic.log, topic.config
        wants = [max(1, min(request.max, self.limits.max_claim)) for request in requests]
        budgets = [self._budget(request.max_bytes) for request in requests]
        try:
            jobs = queue.offer(log.state, log.view.head)
            hands = deal(jobs, wants, budgets, log.blocks, self.limits.max_record_bytes)
            tokens = leases.tokens(self._random(_TOKEN_BYTES * sum(map(len, hands))))
            replies: list[ClaimReply] = []
            given: list[tuple[list[int], list[Delivery]]] = []
            for request, hand in zip(requests, hands, strict=True):
                deadline = now + clamp_lease(cfg.lease_ms if request.lease_ms is None else request.lease_ms)
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
            ticket = self.write_leases(
                topic, queue, (pair for each in given for pair in zip(*each, strict=True)), move_cursor=True
            )
        except BaseException:
            queue.put_back()
            raise
        for seqs, deliveries in given:
            queue.granted(seqs, deliveries)
        self.watch(topic, queue, now)
        ready = queue.ready(log.state, log.view.head)
        for reply in replies:
            reply.ready = ready
        return replies, max(ticket, buried, log.expiry_ticket)

    def counters(self, topic: str) -> QueueCounters:
        """Return the queue's current counters."""
        return self.state(self.open(topic)[0])

    def state(self, topic: Topic) -> QueueCounters:
        """Return the counters of a queue's topic."""
        queue = self.queue(topic)
        self.refresh(topic, queue)
        s, head = topic.log.state, topic.log.view.head
        waiting = self.mover.shipments.waiting
        return QueueCounters(
            ready=queue.ready(s, head),
            in_flight=queue.in_flight,
            dead_lettered=queue.dead_lettered,
            delayed=queue.not_due(s, head),
            retrying=len(queue.delayed),
            exhausted=queue.spent + (waiting.get(topic.topic_id, 0) if waiting else 0),
        )

    def oldest_ready_ms(self, topic: Topic) -> int:
        """Return the age (ms) of the oldest job that a claim could get now; 0 if there is none.

        As `state` left the queue. Raises TopicsError when the job can't be read; each is read once.
        """
        seq = self.queue(topic).oldest_ready(topic.log.state, topic.log.view.head)
        if seq is None:
            self._oldest.pop(topic.number, None)
            return 0
        known = self._oldest.get(topic.number)
        if known is None or known[0] != seq:
            block = topic.log.blocks.find(seq, scan=True)
            known = self._oldest[topic.number] = (seq, block.ts_at(seq - block.base_seq))
        return max(0, self.clock.now_ms() - known[1])

    def next_due(self, topic: str) -> int | None:
        """Return the time (ms) until a lease expires or a delay ends and jobs become claimable; None if never.

        Jobs that have come due since the last look at the queue count as due now, so that none is missed.
        """
        opened = self.find(topic)
        if opened is None:
            return None
        now = self.clock.now_ms()
        due = opened[1].next_due()
        return None if due is None else max(due, now + 1)

    @property
    def leases_in_flight(self) -> int:
        """Return the leases of all queues, including those that expired since the last look at their queue."""
        return sum(queue.in_flight for queue in self._queues.values())

    def last_error(self, topic: str) -> str | None:
        """Return the error of the last attempt to move dead letters; None if it succeeded."""
        return self.open(topic)[1].last_error

    def jobs(self, request: ListJobsRequest) -> ListJobsReply:
        """Return a page of jobs in one state, by seq, unchanged: at most `max_bytes` of records, but at least one."""
        topic, queue = self.open(request.topic)
        if not 1 <= request.limit <= self.limits.max_limit:
            raise invalid(f"limit must be from 1 to {self.limits.max_limit}")
        self.refresh(topic, queue)
        return browse.page(topic, queue, request, self._budget(request.max_bytes))

    def recover(self) -> None:
        """Schedule queues whose leases may be of exhausted jobs. Call it after the catalog is loaded."""
        self.mover.shipments.load()
        for topic in self.catalog.each():
            config = topic.config
            if config.type == "queue" and config.leases_durable and delivery_limit(config) and not topic.is_part:
                self.look(topic, self.clock.now_ms())

    def stage_jobs(self, tx: Transaction, topic: Topic, request: AppendRequest, base: int, now: int) -> Write:
        """Stage the rows that an append with a delay or a priority adds to its records; `added` follows the commit.

        The records are staged already, from seq `base` on.
        """
        delay = min(request.delay_ms, DAY_MS)
        write = Write(base, len(request.batch.datas), request.priority, now + delay if delay else 0)
        self.queue(topic).schedule.stage(tx.batch, write, topic.log.state)
        return write

    def added(self, topic: Topic, write: Write) -> None:
        """Apply what `stage_jobs` staged, once it is written."""
        self.queue(topic).schedule.added(write)

    def stage_config(self, tx: Transaction, topic: Topic, resolved: TopicConfig) -> None:
        """Stage the rows for a change of the topic's config: `leases_durable` adds or removes those of leases."""
        if topic.config.type != "queue" or topic.is_part:
            return
        if delivery_limit(topic.config) != delivery_limit(resolved):
            self.look(topic, self.clock.now_ms())
        if topic.config.leases_durable == resolved.leases_durable:
            return
        queue, log_id = self.queue(topic), topic.log.log_id
        if resolved.leases_durable:
            for seq, delivery in queue.jobs.items():
                known = replace(delivery, deadline=0) if seq in queue.aside else delivery
                tx.batch.put(Family.LEASES, leases.key(log_id, seq), leases.encode(known))
            self.put_queue_row(tx.batch, topic, queue, cursor=queue.cursor)
        else:
            tx.batch.delete_range(Family.LEASES, *leases.job_range(log_id))
            self.put_queue_row(tx.batch, topic, queue, cursor=0)
            queue.trash = []

    def forget(self, topic: Topic) -> None:
        """Forget a deleted topic."""
        super().forget(topic)
        self._oldest.pop(topic.number, None)

    def _budget(self, max_bytes: int) -> int:
        limit = self.limits.max_batch_bytes
        return min(max_bytes or limit, limit)
