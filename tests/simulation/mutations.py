"""Bugs planted into the engine, to see that the oracle finds them. Each is a context in which the engine has it."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from msgspec.structs import replace

from topics_service.engine import idempotency, maintenance, recovery, retention, snapshot, stored_logs
from topics_service.engine.deletes import Deletes
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.lives import Lives
from topics_service.engine.log import Log
from topics_service.engine.offsets.groups import Groups
from topics_service.engine.queue import attempts, leases, mover, moves, queues, settlement
from topics_service.engine.queue.cohort import deal
from topics_service.engine.queue.jobs import Job, RedriveRequest, SettleReply, SettleRequest
from topics_service.engine.queue.leases import Delivery
from topics_service.engine.queue.queues import Queues
from topics_service.engine.queue.schedule import Schedule
from topics_service.engine.queue.settlement import Settlement
from topics_service.engine.queue.state import Queue
from topics_service.engine.router import forwarding, routers
from topics_service.engine.router.forwarding import Forwarding
from topics_service.engine.router.graph import RouterGraph
from topics_service.engine.router.router import Router
from topics_service.engine.snapshot import Snapshot
from topics_service.engine.transaction import Transaction
from topics_service.engine.watch.core import Watch
from topics_service.engine.writer import Writer
from topics_service.storage import block, keys
from topics_service.storage.memory import MemoryBatch
from topics_service.storage.store import Family

Planted = Callable[[], AbstractContextManager[Any]]
_put, _written = MemoryBatch.put, Log._written


def _rows_lost(family: Family, lost: Callable[[bytes, bytes], bool] = lambda _key, _value: True) -> Planted:
    """Such rows never get into a batch."""

    def put(self: MemoryBatch, to: Family, key: bytes, value: bytes) -> None:
        if to is not family or not lost(key, value):
            _put(self, to, key, value)

    return lambda: patch.object(MemoryBatch, "put", put)


def _cursor_lost(self: MemoryBatch, family: Family, key: bytes, value: bytes) -> None:
    is_new = any(change[0] is Family.ROUTERS for change in self.changes)
    if family is not Family.ROUTERS or key[8:] != b"\x01" or is_new:
        _put(self, family, key, value)


def _shown_at_once(self: Log, change: Any, ticket: int) -> int:
    waits = _written(self, change, ticket)
    self._publish(self.state)
    return waits


def _acked_at_once(self: Log, change: Any, ticket: int) -> int:
    if change.config.durability == "fsync":
        change.config = replace(change.config, durability="disk")
    return _written(self, change, ticket)


def _not_skipped(self: Forwarding, router: Router, lost_to: int) -> tuple[int, int]:
    self._pass_over(router, lost_to)
    return 0, 0


def _ended(self: Forwarding, *given: Any) -> bool:
    _advance(self, *given)
    return False


def _none_fits(self: Forwarding, *given: Any) -> tuple[int, TopicsError | None]:
    _fitting(self, *given)
    return 0, TopicsError(Reason.TOPIC_FULL, "there is no room")


def _granted_to_all(self: Queue, seqs: Any, deliveries: Any) -> None:
    self.jobs.update(zip(seqs, deliveries, strict=True))
    self.free.update(seqs)


_marked, _sweep, _evict, _expire, _step = Deletes.marked, Queue.sweep, retention.evict, retention.expire, Watch._step
_merge, _synced, _find, _staged, _close = block.merge, Writer.on_synced, idempotency.find, Log.stage, recovery.close
_nack, _extend, _reply, _lose = Settlement.nack, Settlement.extend, Settlement._reply, recovery.lose
_decode_queue, _advance, _fitting = leases.decode_queue, Forwarding._advance, Forwarding._fitting


def _moved_only_away(tx: Transaction, batch: Any, seqs: Any, source: Any, dest: Any, now: int) -> Any:
    s = source.log.begin(source.config, now)
    source.log.mark(tx, s, seqs, source.config)
    return s


def _hides_losses(self: Watch, follow: Any, now: int, *, fresh: bool) -> Any:
    frame = _step(self, follow, now, fresh=fresh)
    return None if hasattr(frame, "tombstone") else frame


def _copied(tx: Transaction, batch: Any, seqs: Any, source: Any, dest: Any, now: int) -> Any:
    dest.log.append(tx, dest.log.begin(dest.config, now), batch, dest.config, now)
    return source.log.state


def _staged_without_hold(
    self: Log, tx: Transaction, s: Any, config: Any, *, chunks: Any = (), hold: bool = False
) -> None:
    _staged(self, tx, s, config, chunks=chunks)


def _closed(writer: Writer, _logs: Any) -> None:
    _close(writer, ())


def _counted(self: Settlement, request: SettleRequest) -> tuple[SettleReply, int]:
    return _nack(self, replace(request, mode="retry"))


def _served_from_the_end(self: Queue, numbers: Any, level: int, s: Any, head: int) -> Iterator[int]:
    while numbers and (seq := numbers.max()) <= head:
        numbers.discard(seq)
        if s.is_live(seq):
            self._taken[seq] = level
            yield seq


def _dealt_one_by_one(jobs: Iterator[int], wants: list[int], budgets: list[int], blocks: Any, most: int) -> Any:
    return [deal(jobs, [want], [budget], blocks, most)[0] for want, budget in zip(wants, budgets, strict=True)]


def _told_without_deadlines(self: Settlement, request: SettleRequest) -> tuple[SettleReply, int]:
    reply, ticket = _extend(self, request)
    reply.deadlines = {}
    return reply, ticket


def _counted_as_shown(self: Settlement, topic: Any, queue: Queue, done: int, skipped: list[int]) -> SettleReply:
    reply = _reply(self, topic, queue, done, skipped)
    reply.ready = queue.ready(topic.log.view, topic.log.view.head)
    return reply


def _wakes_for_leases(self: Queue) -> int | None:
    expiry = self._expiries.next()
    return None if expiry is None else expiry + 1


def _kept_in_memory(self: Log, disk: Any, s: Any) -> None:
    s.volatile_from = 0


def _lost_wrongly(change: Callable[[Snapshot], None]) -> Planted:
    """A start that loses a tail writes another state of the log."""

    def lose(s: Snapshot, blocks: Any, log_id: int, start: int, ceiling: int, batch: Any) -> None:
        written = len(batch.changes)
        _lose(s, blocks, log_id, start, ceiling, batch)
        if len(batch.changes) > written:
            change(s)
            batch.put(Family.LOGS, keys.u64(log_id), snapshot.encode(s))

    return lambda: patch.object(recovery, "lose", lose)


def _forget_ttl(s: Snapshot) -> None:
    s.evict_ttl = 0


def _forget_cap(s: Snapshot) -> None:
    s.evict_cap = 0


def _leave_floor(s: Snapshot) -> None:
    s.evict_cap = s.evict_cap if s.count else 0


def _invent_expiry(s: Snapshot) -> None:
    s.evict_ttl = s.evict_ttl if s.count else s.head


def _jump(s: Snapshot) -> None:
    s.head += 100


_BUGS: dict[str, Planted] = {
    "a write of the class fsync acknowledged before the fsync": lambda: patch.object(Log, "_written", _acked_at_once),
    "a write shown before the fsync": lambda: patch.object(Log, "_written", _shown_at_once),
    "deletes forgotten by a start": lambda: patch.object(stored_logs, "Deletes", lambda _: Deletes()),
    "deletes not written": lambda: patch.object(Deletes, "marked", lambda self, sizes: (_marked(self, sizes)[0], ())),
    "a ceiling not written": _rows_lost(Family.CEILINGS),
    "a lost tail not looked for": lambda: patch.object(Lives, "take", lambda *_: False),
    "an unclean end taken for a clean one": lambda: patch.object(recovery, "_CLEAN", b"boot-1"),
    "the cursor of a router not written": lambda: patch.object(MemoryBatch, "put", _cursor_lost),
    "copies that exactly_once forgets": _rows_lost(Family.ROUTER_COPIES),
    "a loss that is not forwarded": lambda: patch.object(Forwarding, "_skip_lost", _not_skipped),
    "a gap not written": _rows_lost(Family.GAPS),
    "a lease given to two": lambda: patch.object(Queue, "granted", _granted_to_all),
    "a lease that ends too early": lambda: patch.object(Queue, "sweep", lambda self, now: _sweep(self, now + 50)),
    "a stale token that acts": lambda: patch.object(Delivery, "held_by", lambda self, node, _: self.node == node),
    "a lease that is to be durable, not written": _rows_lost(Family.LEASES, lambda key, _: key[8:] != bytes(8)),
    "a delay forgotten by a start": _rows_lost(Family.JOBS),
    "a dead letter lost": lambda: patch.object(moves, "move", _moved_only_away),
    "an exhausted job that counts as ready": lambda: patch.object(Queue, "spent", 0),
    "an idempotency key lost": _rows_lost(Family.IDEMPOTENCY, lambda _, value: value[7] % 3 == 0),
    "a commit not written": _rows_lost(Family.POSITIONS),
    "retention that waits for no group": lambda: patch.object(
        retention, "evict", lambda s, blocks, config, hold=None: _evict(s, blocks, config)
    ),
    "records in memory forgotten when the class changes": lambda: patch.object(Log, "materialize", _kept_in_memory),
    "writes after a failed fsync": lambda: patch.object(Writer, "check", lambda _: None),
    "expiry a moment too early": lambda: patch.object(
        retention, "expire", lambda s, blocks, ttl, now, hold=None: _expire(s, blocks, ttl, now + 1, hold)
    ),
    "a watch that hides losses": lambda: patch.object(Watch, "_step", _hides_losses),
    "a seal that loses records": lambda: patch.object(maintenance, "merge_columns", lambda blocks: _merge(blocks[:2])),
    "an fsync that is taken to cover what came after it began": lambda: patch.object(
        Writer, "on_synced", lambda self, _ticket: _synced(self, self.written)
    ),
    "an idempotency key that holds too long": lambda: patch.object(
        idempotency, "find", lambda store, log_id, key, now, window: _find(store, log_id, key, now, window + 200)
    ),
    "records that go round for ever": lambda: patch.object(forwarding, "MAX_HOPS", 1 << 30),
    "letters that are driven back and stay": lambda: patch.object(moves, "move", _copied),
    "a config acknowledged before its fsync": lambda: patch.object(Log, "stage", _staged_without_hold),
    "positions that outlive their topic": lambda: patch.object(Groups, "remove_topic", lambda *_: None),
    "a stop that forgets what is only in memory": lambda: patch.object(recovery, "close", _closed),
    "an attempt that is released and counts": lambda: patch.object(Settlement, "nack", _counted),
    "a failed attempt that is not remembered": lambda: patch.object(settlement, "remembered", lambda known, _: known),
    "attempts forgotten by a start": lambda: patch.object(attempts, "encode", lambda _: b"[]"),
    "a letter that tells of no attempts": lambda: patch.object(mover, "for_letter", lambda _: None),
    "jobs given back that are served from the last on": lambda: patch.object(Queue, "_drain", _served_from_the_end),
    "a pass that serves one claimer after the other": lambda: patch.object(queues, "deal", _dealt_one_by_one),
    "a last delivery that is not called so": lambda: patch.object(queues, "Job", lambda *fields: Job(*fields[:5])),
    "dead letters tried again too early": lambda: patch.object(mover, "_BACKOFF_MS", 500),
    "a letter that never fits and holds up the others": lambda: patch.object(Queue, "set_aside", lambda *_: None),
    "a count of dead letters forgotten by a start": lambda: patch.object(
        leases, "decode_queue", lambda row: (0, _decode_queue(row)[1])
    ),
    "an ack that counts as ready": lambda: patch.object(Settlement, "_reply", _counted_as_shown),
    "an extended lease without its end": lambda: patch.object(Settlement, "extend", _told_without_deadlines),
    "a lost lease that is called held": lambda: patch.object(Settlement, "held", lambda _self, _topic, held: set(held)),
    "a job given back that counts as leased": lambda: patch.object(
        Queues, "leases_in_flight", property(lambda self: sum(len(queue.jobs) for queue in self._queues.values()))
    ),
    "a delay that is listed without its end": lambda: patch.object(Schedule, "lookup", lambda *_: (0, 0)),
    "a delay that nobody wakes for": lambda: patch.object(Queue, "next_due", _wakes_for_leases),
    "a redrive of what does not match": lambda: patch.object(RedriveRequest, "takes", lambda *_: True),
    "an expiry floor forgotten with a lost tail": _lost_wrongly(_forget_ttl),
    "an eviction floor forgotten with a lost tail": _lost_wrongly(_forget_cap),
    "a lost tail that leaves no floor": _lost_wrongly(_leave_floor),
    "a lost tail that is said to have expired": _lost_wrongly(_invent_expiry),
    "a lost tail that is longer than it was": _lost_wrongly(_jump),
    "a slice that tells of no further one": lambda: patch.object(Forwarding, "_advance", _ended),
    "a cycle that is let in": lambda: patch.object(RouterGraph, "cycle", lambda *_, **__: None),
    "an edge that is taken for a cycle": lambda: patch.object(routers, "may_close_a_cycle", lambda *_: True),
    "a router that stops before a destination with room": lambda: patch.object(Forwarding, "_fitting", _none_fits),
    "a lag that counts what nobody sees": lambda: patch.object(
        Router, "lag", property(lambda self: self.source.log.state.head - self.cursor)
    ),
    "totals that drift": lambda: patch.object(Log, "_account", lambda self, s: None),
}

_SEEDS = {
    "deletes forgotten by a start": 7,
    "deletes not written": 7,
    "a ceiling not written": 3,
    "a lost tail not looked for": 2,
    "copies that exactly_once forgets": 96,
    "a gap not written": 8,
    "a lease that ends too early": 5,
    "a stale token that acts": 23,
    "a delay forgotten by a start": 5,
    "a dead letter lost": 9,
    "a commit not written": 2,
    "retention that waits for no group": 7,
    "records in memory forgotten when the class changes": 2,
    "writes after a failed fsync": 3,
    "expiry a moment too early": 2,
    "records that go round for ever": 15,
    "letters that are driven back and stay": 9,
    "positions that outlive their topic": 2,
    "a stop that forgets what is only in memory": 2,
    "an attempt that is released and counts": 2,
    "attempts forgotten by a start": 80,
    "dead letters tried again too early": 49,
    "a letter that never fits and holds up the others": 5,
    "an exhausted job that counts as ready": 5,
    "a letter that tells of no attempts": 9,
    "a count of dead letters forgotten by a start": 2,
    "a lost lease that is called held": 5,
    "a delay that is listed without its end": 2,
    "a redrive of what does not match": 9,
    "an edge that is taken for a cycle": 17,
}

MUTATIONS = {name: (planted, _SEEDS.get(name, 1)) for name, planted in _BUGS.items()}
"""Each with a seed that is known to find it: the first to try."""
