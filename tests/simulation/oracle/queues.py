"""Jobs, leases and dead letters: who may have which job now, and that none is lost."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from simulation.oracle.topics import History, TopicModel, back, keep, prune
from support.log_model import LogState, Rec, demand, matches, read
from support.queue_model import Kept, QueueModel, origin, plain
from topics_service.engine.errors import TopicsError
from topics_service.engine.model import TagMatch
from topics_service.engine.queue.jobs import (
    ClaimReply,
    ClaimRequest,
    JobState,
    JobView,
    ListJobsRequest,
    RedriveRequest,
    SettleReply,
    SettleRequest,
)
from topics_service.engine.queue.leases import Delivery
from topics_service.engine.queue.state import Queue
from topics_service.engine.topic import Topic
from topics_service.storage.block import Block

if TYPE_CHECKING:
    from simulation.world import World

Claim = tuple[str, int, int | None]  # node, how many jobs at most, the time of the leases


class Queues:
    """Every call of queues, checked."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.models: dict[int, QueueModel] = {}
        self._histories: dict[int, History[Kept]] = {}
        self._tokens: set[str] = set()

    def of(self, topic: TopicModel) -> QueueModel:
        """The model of a topic that is a queue."""
        if topic.number not in self.models:
            self.models[topic.number] = QueueModel(topic, self._tokens)
            self._histories[topic.number] = [(0, ({}, 0))]
        return self.models[topic.number]

    def begin(self, topic: TopicModel) -> QueueModel:
        """The same for a call that comes now."""
        world, queue = self._world, self.of(topic)
        world.look(topic)
        expired = sum(job.lease is not None and world.now > job.lease.deadline for job in queue.touched.values())
        world.trace.meet("a lease that expired", expired)
        queue.refresh(world.now)
        return queue

    # -------------------------------------------------------------------- calls

    def claim(self, topic: TopicModel, *claims: Claim) -> list[ClaimReply]:
        """Claim jobs, in one pass: the ones that come first, and none that is free may be missing."""
        world, queue = self._world, self.begin(topic)
        requests = [
            ClaimRequest(topic=topic.name, node=node, max=most, lease_ms=lease_ms) for node, most, lease_ms in claims
        ]
        moves, must_move, letters = queue.moves, queue.must_move(world.now), queue.dead_lettered
        replies, ticket = world.call(lambda: world.engine.queues.claim(requests))
        demand(queue.moves == moves + must_move, f"a claim looks for {queue.to_move()}, or does not")
        again = queue.claimed(requests, replies, world.now)
        self.written(topic)
        leased = sum(len(reply.jobs) for reply in replies)
        gated = topic.config.durability == "fsync" and topic.config.leases_durable and leased
        waits = gated or world.log(topic).expiry_ticket > world.synced
        if queue.dead_lettered == letters:
            demand((ticket > world.synced) == bool(waits), "a claim waits for an fsync, or for none")
        elif topic.config.durability == "fsync":
            demand(ticket > world.synced, "a claim is answered before its letters are there")
        world.owe(ticket, world.w if gated else None, f"leases of {topic.name}")
        world.trace.meet("a job leased", leased)
        world.trace.meet("a job delivered again", len(again))
        world.trace.meet("a pass of several claims", len(claims) > 1)
        return replies

    def settle(
        self, call: str, topic: TopicModel, node: str, seqs: Sequence[int], tokens: Sequence[str], *,
        delay_ms: int = 0, lease_ms: int = 1000, released: bool = False, reasons: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """Ack, nack or extend: exactly what the node holds, under these tokens, is settled."""
        world, queue = self._world, self.begin(topic)
        request = SettleRequest(
            topic=topic.name, node=node, seqs=list(seqs), lease_ids=list(tokens), delay_ms=delay_ms, lease_ms=lease_ms,
            mode="release" if released else "retry", reasons=list(reasons),
        )  # fmt: skip
        done, skipped = queue.settling(call, request, world.now)
        stale = sum(token != "" and seq in skipped for seq, token in zip(seqs, tokens, strict=False))
        world.trace.meet("a stale token refused", stale)
        must_move = bool(queue.last_ending) and world.now >= queue.stuck_until
        moves = queue.moves
        reply: SettleReply
        reply, ticket = world.call(lambda: getattr(world.engine.queues.settlement, call)(request))
        demand(queue.moves == moves + (must_move and call == "nack"), f"{call} moves dead letters, or does not")
        live = queue.settled(call, request, done, skipped, reply, world.now)
        gated = topic.config.durability == "fsync" and live
        if call == "ack":
            if live:
                state = topic.log.written.expired(topic.config.ttl_ms, world.now, world.hold(topic, 0))
                waits = topic.log.commit(state.without(live), world.w, world.log(topic), topic.config)
                demand(ticket >= waits, "an ack is acknowledged before readers see it")
        elif not (topic.config.leases_durable or reply.dead_lettered):
            gated = []
        queue.check_counts(reply)
        self.written(topic)
        demand(not gated or ticket > world.synced, f"{call} in a queue of the class fsync waits for no fsync")
        world.owe(ticket, world.w if gated else None, f"{call} of {live} in {topic.name}")
        world.trace.meet(f"{call} of a job", len(done))
        world.trace.meet("a reason of a nack", len(done) if call == "nack" and any(reasons) else 0)

    def release(self, topic: TopicModel, held: Mapping[int, str]) -> None:
        """A worker's connection is gone: what is held under these tokens is free."""
        world, queue = self._world, self.begin(topic)
        settlement = world.engine.queues.settlement
        mine = queue.releasing(held, world.now)
        told = world.call(lambda: settlement.held(topic.name, held))
        demand(told == set(mine), f"the jobs {told} are said to be held, not {mine}")
        found = world.call(lambda: settlement.release(topic.name, held))
        demand(found == len(mine), f"{found} jobs are given back, not {len(mine)}")
        queue.released(mine)
        self.written(topic)

    def redrive(self, topic: TopicModel, most: int, match: TagMatch | None = None) -> None:
        """Move dead letters back: the first ones (all of them for 0), whole."""
        world = self._world
        name = topic.config.dead_letter
        letters = None if name is None else world.topics.find(name)
        request = RedriveRequest(topic=topic.name, max=most, match=match)
        if letters is None or not world.is_visible(letters):
            codes = ["invalid_request"] if name is None else []
            reply, _ = world.call(lambda: world.engine.queues.mover.redrive(request), *codes)
            demand(name is not None and not reply.redriven, "letters come from nowhere")
            return
        self.begin(topic)
        world.look(letters)
        source = letters.log.written.expired(letters.config.ttl_ms, world.now, world.hold(letters, 0))
        dest = topic.log.written.expired(topic.config.ttl_ms, world.now, world.hold(topic, 0))
        mine = [
            rec
            for rec in source.between(0, letters.log.view.head)
            if origin(rec) == topic.name and (match is None or matches(match, rec.tag))
        ][: most or None]
        reply, ticket = world.call(
            lambda: world.engine.queues.mover.redrive(request), "topic_full", "record_too_large", "throttled"
        )
        demand(reply.redriven <= len(mine), f"{reply.redriven} letters are driven back, of {len(mine)}")
        demand(
            reply.redriven == len(mine) or topic.config.discard == "reject" or topic.config.retaining, "letters stay"
        )
        if not reply.redriven:
            return
        moved = self._moved(topic, dest, reply.redriven)
        for rec, letter in zip(moved, mine, strict=False):
            demand(plain(rec) == plain(letter) and origin(rec) is None, f"letter {letter} comes back as {rec}")
        log = world.log(topic)
        waits = topic.log.commit(dest.appended(moved, topic.config, world.hold(topic, 0)), world.w, log, topic.config)
        gone = source.without([rec.seq for rec in mine[: reply.redriven]])
        waits = max(waits, letters.log.commit(gone, world.w, world.log(letters), letters.config))
        demand(ticket >= waits, "a redrive is acknowledged before readers see it")
        world.owe(ticket, None, "a redrive")
        world.trace.meet("a letter driven back", len(moved))

    def refresh(self) -> None:
        """Somebody looks at every queue."""
        for topic in self._world.visible():
            if topic.config.type == "queue":
                self.begin(topic)
                self._world.engine.queues.counters(topic.name)

    def written(self, topic: TopicModel) -> None:
        """Leases have changed, or which of them are on the disk, by the newest write."""
        keep(self._histories[topic.number], self._world.w, self.of(topic).kept)

    # ------------------------------------------------------------- dead letters

    def hook(self) -> None:
        """The engine is new: see each move of dead letters, whoever has it made."""
        world, mover = self._world, self._world.engine.queues.mover
        bury, move, refused = mover.bury, mover.move, mover.refused

        def looked(topic: Topic, queue: Queue, now: int) -> int:
            self.begin(world.topics.by_name[topic.name])
            return bury(topic, queue, now)

        def moved(
            topic: Topic, queue: Queue, seqs: Sequence[int], now: int, rows: Mapping[int, Delivery]
        ) -> tuple[int, list[int]]:
            model = world.topics.by_name[topic.name]
            self.of(model).moving(seqs, now, ends=bool(rows))
            fits, stalls = self._fits(model.config.dead_letter or ""), world.disk.refused
            try:
                ticket, gone = move(topic, queue, seqs, now, rows)
            except TopicsError as error:
                code = error.reason.code
                demand(fits is not True or code in ("throttled", "internal"), f"letters are refused as {code}")
                demand(code != "throttled" or world.disk.refused > stalls, "letters wait for no stall")
                world.trace.meet("dead letters that can't be moved")
                raise
            demand(fits is not False, "letters are moved to where they have no room")
            self._buried(model, seqs, gone, ends=bool(rows))
            return ticket, gone

        def put_off(topic_queue: Queue, first: int, now: int, error: TopicsError) -> None:
            [model] = [each for each in self.models.values() if self._is_of(each, topic_queue)]
            model.refused(first, error.reason.code, now)
            refused(topic_queue, first, now, error)

        mover.bury = looked  # type: ignore[method-assign]
        mover.move = moved  # type: ignore[method-assign]
        mover.refused = put_off  # type: ignore[method-assign]

    def _is_of(self, model: QueueModel, queue: Queue) -> bool:
        assert isinstance(model.topic, TopicModel)
        return self._world.engine.queues._queues.get(model.topic.number) is queue

    def _fits(self, name: str) -> bool | None:
        """Return whether there is room for one more letter; None if that depends on its size."""
        world, letters = self._world, self._world.topics.find(name)
        if letters is None:
            return True
        config, hold = letters.config, world.hold(letters, 0)
        if config.discard != "reject" and hold is None:
            return True
        if config.cap_bytes:
            return None
        state = letters.log.written.expired(config.ttl_ms, world.now, hold)
        held = sum(config.discard == "reject" or seq > (hold or 0) for seq in state.live)
        return not config.cap_records or held < config.cap_records

    def _buried(self, topic: TopicModel, seqs: Sequence[int], gone: Sequence[int], *, ends: bool) -> None:
        world, queue = self._world, self.of(topic)
        letters = world.topics.by_name[topic.config.dead_letter or ""]
        hold = world.hold(letters, 0)
        dest = letters.log.written.expired(letters.config.ttl_ms, world.now, hold)
        head = world.log(letters).state.head
        demand(len(gone) == head - dest.head > 0, f"{head - dest.head} dead letters, and {len(gone)} jobs to bury")
        is_bounded = letters.config.discard == "reject" or hold is not None
        demand(list(gone) == list(seqs[: len(gone) if is_bounded else None]), f"of {seqs} only {gone} become letters")
        made = self._moved(letters, dest, len(gone))
        queue.moved(dict(zip(gone, made, strict=True)), ends=ends)
        letters.log.commit(dest.appended(made, letters.config, hold), world.w, world.log(letters), letters.config)
        topic.log.commit(topic.log.written.without(gone), world.w, world.log(topic), topic.config)
        self.written(topic)
        world.trace.meet("a dead letter", len(made))
        world.trace.meet("a dead letter of a nack", len(made) if ends else 0)

    def _moved(self, topic: TopicModel, state: LogState, count: int) -> list[Rec]:
        """The records that were appended to the topic's log, on top of `state`."""
        log, ts = self._world.log(topic), max(self._world.now, state.last_ts)
        found = []
        for seq in range(state.head + 1, state.head + 1 + count):
            block = log.blocks.records(seq)
            assert isinstance(block, Block)
            found.append(read(block, seq - block.base_seq))
            demand(found[-1].ts == ts, "a moved job has another time")
        return found

    # ------------------------------------------------------------------ crashes

    def prune(self, synced: int) -> None:
        """See Topics."""
        for history in self._histories.values():
            prune(history, synced)

    def back(self, w: int) -> None:
        """After a crash: the leases that were on the disk then, and no others."""
        world = self._world
        there = {topic.number: topic for topic in world.topics.by_name.values()}
        self.models = {number: queue for number, queue in self.models.items() if there.get(number) is queue.topic}
        self._histories = {number: self._histories[number] for number in self.models}
        for number, queue in self.models.items():
            queue.restarted(back(self._histories[number], w))
            world.trace.meet("a lease over a restart", len(queue.leases))

    def check(self) -> None:
        """The counters and jobs of all queues."""
        world = self._world
        held = 0
        for topic in world.visible():
            if topic.config.type == "queue":
                queue = self.begin(topic)
                queue.check(
                    world.engine.queues.counters(topic.name), lambda state, topic=topic: self._list(topic, state)
                )
                held += sum(job.lease is not None for job in queue.touched.values())
                due, soonest = world.engine.queues.next_due(topic.name), queue.soonest
                demand(due is None or due > world.now, f"{topic.name} has been due since {due}")
                demand(soonest is None or (due is not None and due <= soonest), f"{topic.name} is due only at {due}")
        found = world.engine.queues.leases_in_flight
        demand(found == held, f"{found} leases are in flight, not {held}")

    def _list(self, topic: TopicModel, state: JobState) -> Iterator[JobView]:
        after: int | None = 0
        while after is not None:
            request = ListJobsRequest(topic=topic.name, state=state, after=after, limit=3)
            page = self._world.engine.queues.jobs(request)
            demand(len(page.jobs) == 3 or page.next_after is None, "a page of jobs ends for no reason")
            yield from page.jobs
            after = page.next_after
