"""The queues in use: their state, read on first use and kept up to date with their logs, and the rows of leases."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

from topics_service.engine.capacity import Capacity
from topics_service.engine.catalog import Catalog
from topics_service.engine.clock import Clock
from topics_service.engine.errors import Reason, TopicsError, invalid
from topics_service.engine.limits import Limits
from topics_service.engine.log import Log
from topics_service.engine.model import TopicConfig
from topics_service.engine.queue import leases
from topics_service.engine.queue.alarms import Alarms
from topics_service.engine.queue.leases import Delivery
from topics_service.engine.queue.schedule import Schedule
from topics_service.engine.queue.state import Queue
from topics_service.engine.topic import Topic
from topics_service.engine.transaction import Transaction
from topics_service.engine.writer import Writer
from topics_service.storage.store import Family, WriteBatch

DAY_MS: Final = 86_400_000
BACKOFF_MAX_MS: Final = 60_000  # after a dead letter could not be moved
_LEASE_MIN_MS: Final = 100


class OpenQueues:
    """State shared by all calls on queues. An instance keeps the state of every queue that was used."""

    def __init__(
        self,
        catalog: Catalog,
        writer: Writer,
        clock: Clock,
        limits: Limits,
        capacity: Capacity,
        touched: Callable[[Log], None],
    ) -> None:
        """`touched` is called with logs that changed."""
        self.catalog = catalog
        self.writer = writer
        self.clock = clock
        self.limits = limits
        self.capacity = capacity
        self.touched = touched
        self._queues: dict[int, Queue] = {}  # by topic number
        self._moves: dict[int, tuple[int, Topic]] = {}  # when to look for exhausted jobs, by topic number
        self._alarms = Alarms(lambda at, number: number in self._moves and self._moves[number][0] == at)

    def topic(self, name: str) -> Topic:
        """Return the topic of a queue. Raises `topic_not_found` and `not_a_queue`."""
        topic = self.catalog.visible(name)
        if topic.config.type != "queue":
            raise TopicsError(Reason.NOT_A_QUEUE, f'topic "{name}" is not a queue', {"topic": name})
        return topic

    def check_node(self, node: str) -> None:
        """Raise `invalid_request` unless `node` can be the name of a worker."""
        if not node or len(node.encode()) > self.limits.max_node_bytes:
            raise invalid(f"node must be 1 to {self.limits.max_node_bytes} bytes of text")

    def find(self, name: str) -> tuple[Topic, Queue] | None:
        """Return a queue and its topic; None if there is no such queue."""
        topic = self.catalog.find(name)
        if topic is None or topic.config.type != "queue" or self.catalog.unsynced(topic):
            return None
        return topic, self.queue(topic)

    def open(self, name: str) -> tuple[Topic, Queue]:
        """Return a queue and its topic. Raises `topic_not_found` and `not_a_queue`."""
        topic = self.topic(name)
        return topic, self.queue(topic)

    def begin(self, name: str) -> tuple[Topic, Queue, int]:
        """Return an open queue, its topic and the time, for a call that writes."""
        topic, queue = self.open(name)
        self.writer.check()
        return topic, queue, self.refresh(topic, queue)

    def queue(self, topic: Topic) -> Queue:
        """Return the queue's state, read from its rows on first use. O(jobs under way)."""
        queue = self._queues.get(topic.number)
        if queue is None:
            queue = self._queues[topic.number] = self._load(topic)
            self.watch(topic, queue, self.clock.now_ms())
        return queue

    def _load(self, topic: Topic) -> Queue:
        store, log, s = self.writer.store, topic.log, topic.log.state
        schedule = Schedule(log.log_id, store)
        schedule.load(s)
        queue = Queue(schedule)
        queue.dead_lettered, cursor = leases.decode_queue(store.get(Family.LEASES, leases.key(log.log_id, 0)))
        queue.limit(delivery_limit(topic.config))
        queue.prune(s)
        if topic.config.leases_durable:
            queue.cursor = max(cursor, 1)
            now = self.clock.now_ms()
            for seq, row in leases.scan(store, log.log_id):
                if s.is_live(seq):
                    queue.restore(seq, leases.decode(row), now)
                else:
                    queue.trash.append(seq)
        return queue

    def refresh(self, topic: Topic, queue: Queue) -> int:
        """Update the queue after losses, expiries and config changes of the log; return the time."""
        now, log = self.clock.now_ms(), topic.log
        log.visible(topic.config, now)
        is_changed = queue.limit(delivery_limit(topic.config))
        queue.prune(log.state)
        queue.sweep(now)
        if is_changed:
            self.watch(topic, queue, now)
        if not topic.config.leases_durable:
            queue.trash = []
        if queue.stuck_until - now > BACKOFF_MAX_MS:
            queue.stuck_until = now  # the clock was set back
            self.watch(topic, queue, now)
        if queue.schedule.fold_is_due(log.state):
            with suppress(TopicsError), Transaction(self.writer) as tx:  # later, if the store can't now
                queue.schedule.fold(tx.batch, log.state)
                tx.commit()
                queue.schedule.folded()
        return now

    def watch(self, topic: Topic, queue: Queue, now: int) -> None:
        """Schedule the next look for exhausted jobs: at the end of a last lease, or for another try to move them."""
        at = queue.next_move(now)
        if at is not None:
            self.look(topic, at)

    def look(self, topic: Topic, at: int) -> None:
        """Look for exhausted jobs at that time (ms), or earlier."""
        known = self._moves.get(topic.number)
        if known is None or at < known[0]:
            self._moves[topic.number] = (at, topic)
            self._alarms.set(at, (topic.number,))

    def due(self, now: int) -> Topic | None:
        """Take the topic of the next queue with exhausted jobs to look for; None if there is none."""
        number = next(self._alarms.until(now), None)
        return None if number is None else self._moves.pop(number)[1]

    def is_due(self, now: int) -> bool:
        """Return whether there are more of them."""
        due = self._alarms.next()
        return due is not None and due <= now

    def forget(self, topic: Topic) -> None:
        """Forget a deleted topic."""
        self._queues.pop(topic.number, None)
        self._moves.pop(topic.number, None)

    def write_leases(
        self, topic: Topic, queue: Queue, changed: Iterable[tuple[int, Delivery]], *, move_cursor: bool = False
    ) -> int:
        """Write the rows of changed deliveries if the config requires it; return the ticket to wait for."""
        if not topic.config.leases_durable:
            return 0
        with Transaction(self.writer) as tx:
            self.stage_leases(tx.batch, topic, queue, changed)
            if tx.batch.is_empty():
                return 0
            if move_cursor:
                self.put_queue_row(tx.batch, topic, queue, cursor=queue.cursor)
            tx.commit()
        queue.trash = []
        return tx.ticket if topic.config.durability == "fsync" else 0

    def stage_leases(
        self, batch: WriteBatch, topic: Topic, queue: Queue, changed: Iterable[tuple[int, Delivery]]
    ) -> None:
        """Stage the rows of changed deliveries and, if there are any, the removal of obsolete ones."""
        log_id = topic.log.log_id
        for seq, delivery in changed:
            batch.put(Family.LEASES, leases.key(log_id, seq), leases.encode(delivery))
        if not batch.is_empty():
            for seq in queue.trash:
                batch.delete(Family.LEASES, leases.key(log_id, seq))

    def put_queue_row(
        self, batch: WriteBatch, topic: Topic, queue: Queue, *, cursor: int, dead_lettered: int = 0
    ) -> None:
        """Stage the queue's own row."""
        row = leases.encode_queue(queue.dead_lettered + dead_lettered, cursor)
        batch.put(Family.LEASES, leases.key(topic.log.log_id, 0), row)


def delivery_limit(cfg: TopicConfig) -> int:
    """The deliveries after which a job moves to the dead letter topic; 0 for no limit."""
    return 0 if cfg.dead_letter is None else cfg.max_deliveries


def clamp_lease(ms: int) -> int:
    """The duration of a lease, within its bounds."""
    return max(_LEASE_MIN_MS, min(ms, DAY_MS))
