"""Jobs, leases and dead letters: who may have which job now, and that none is lost."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, get_args

from simulation.oracle.jobs import STAMPS, Lease, QueueModel, Touched, origin, plain
from simulation.oracle.routers import read
from simulation.oracle.topics import TopicModel, back, prune
from support.log_model import LogState, Rec, demand
from topics_service.engine.errors import TopicsError
from topics_service.engine.queue.jobs import ClaimRequest, Job, JobState, ListJobsRequest, RedriveRequest, SettleRequest
from topics_service.engine.queue.leases import Delivery
from topics_service.engine.queue.state import Queue
from topics_service.engine.topic import Topic
from topics_service.storage.block import Block

if TYPE_CHECKING:
    from simulation.world import World

_STATES: tuple[JobState, ...] = get_args(JobState)


class Queues:
    """Every call of queues, checked."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.models: dict[int, QueueModel] = {}
        self.tokens: set[str] = set()

    def of(self, topic: TopicModel) -> QueueModel:
        """The model of a topic that is a queue."""
        return self.models.setdefault(topic.number, QueueModel(topic))

    # -------------------------------------------------------------------- calls

    def claim(self, topic: TopicModel, node: str, most: int, lease_ms: int | None) -> list[Job]:
        """Claim jobs: all of them must be free, and none that is free may be missing."""
        world, queue = self._world, self._begin(topic)
        request = ClaimRequest(topic=topic.name, node=node, max=most, lease_ms=lease_ms)
        [reply], ticket = world.call(lambda: world.engine.queues.claim([request]))
        free = queue.claimable()
        demand(len(reply.jobs) == min(most, len(free)), f"{len(reply.jobs)} of {most} jobs, and {len(free)} are free")
        deadline = world.now + max(100, topic.config.lease_ms if lease_ms is None else lease_ms)
        taken = {job.seq for job in reply.jobs}
        for job in reply.jobs:
            demand(job.seq in free, f"job {job.seq} of {topic.name} is not free: {queue.touched.get(job.seq)}")
            self._check_job(queue, job, node, deadline)
        live = topic.log.written.live
        order = [(-live[seq].priority, seq) for seq in free if seq not in queue.touched]
        served, left = ([each for each in order if (each[1] in taken) == served] for served in (True, False))
        demand(not served or not left or max(served) < min(left), "a job was served before one that comes first")
        for job in reply.jobs:
            queue.touched[job.seq] = Touched(job.deliveries, Lease(node, job.lease_id, deadline))
        queue.written(world.w)
        gated = topic.config.durability == "fsync" and topic.config.leases_durable and reply.jobs
        world.owe(ticket, world.w if gated else None, f"leases of {topic.name}")
        world.trace.meet("a job leased", len(reply.jobs))
        return reply.jobs

    def _check_job(self, queue: QueueModel, job: Job, node: str, deadline: int) -> None:
        rec, before = queue.topic.log.written.live[job.seq], queue.touched.get(job.seq)
        demand(read(job.block, job.position) == rec, f"job {job.seq} is not {rec}")
        demand(job.lease_id not in self.tokens, "a token is given out twice")
        self.tokens.add(job.lease_id)
        demand(job.deadline == deadline, "a lease ends at another time")
        count = 1 + (before.deliveries if before else 0)
        demand(job.deliveries == count, f"delivery {job.deliveries} of job {job.seq} for {node} is number {count}")
        if before:
            self._world.trace.meet("a job delivered again")

    def settle(
        self, call: str, topic: TopicModel, node: str, seqs: Sequence[int], tokens: Sequence[str], *,
        delay_ms: int = 0, lease_ms: int = 1000, released: bool = False,
    ) -> None:  # fmt: skip
        """Ack, nack or extend: exactly what the node holds, under these tokens, is settled."""
        world, queue = self._world, self._begin(topic)
        request = SettleRequest(
            topic=topic.name, node=node, seqs=list(seqs), lease_ids=list(tokens), delay_ms=delay_ms, lease_ms=lease_ms,
            mode="release" if released else "retry",
        )  # fmt: skip
        done: list[int] = []
        skipped: list[int] = []
        for seq, token in zip(seqs, tokens or [""] * len(seqs), strict=True):
            lease = queue.lease(seq)
            holds = lease is not None and lease.node == node and token in ("", lease.token) and seq not in done
            (done if holds else skipped).append(seq)
            if not holds and token:
                world.trace.meet("a stale token refused")
        if call == "extend":
            skipped = [seq for seq in skipped if seq not in done]
        before = dict(queue.touched)
        reply, ticket = world.call(lambda: getattr(world.engine.queues.settlement, call)(request))
        demand((reply.done, reply.skipped) == (len(done), skipped), f"{call} skips {reply.skipped}, not {skipped}")
        live = [seq for seq in done if seq in before]
        if call == "nack":
            last = [seq for seq in live if queue.is_last(before[seq].deliveries - released)]
            told = sorted((*reply.dead_lettered, *reply.exhausted))
            demand(told == sorted(last), f"{told} get no further delivery, not {last}")
        state = topic.log.written.expired(topic.config.ttl_ms, world.now, world.hold(topic, 0))
        for seq in done:
            job = before.get(seq)
            if seq in reply.dead_lettered:
                demand(seq not in queue.touched, f"job {seq} is said to be a dead letter, and stays")
            elif job is None:
                lease = queue.gone.pop(seq)
                if call == "extend":
                    queue.gone[seq] = replace(lease, deadline=world.now + max(100, lease_ms))
            elif call == "ack":
                del queue.touched[seq]
            elif call == "nack":
                rests = delay_ms and seq not in reply.exhausted
                queue.touched[seq] = Touched(job.deliveries - released, None, world.now + delay_ms if rests else 0)
            else:
                assert job.lease is not None
                deadline = world.now + max(100, lease_ms)
                queue.touched[seq] = replace(job, lease=replace(job.lease, deadline=deadline))
        gated = topic.config.durability == "fsync" and live
        if call == "ack":
            if live:
                waits = topic.log.commit(state.without(live), world.w, world.log(topic), topic.config)
                demand(ticket >= waits, "an ack is acknowledged before readers see it")
        elif not topic.config.leases_durable:
            gated = []
        queue.written(world.w)
        world.owe(ticket, world.w if gated else None, f"{call} of {live} in {topic.name}")
        world.trace.meet(f"{call} of a job", len(done))

    def release(self, topic: TopicModel, held: Mapping[int, str]) -> None:
        """A worker's connection is gone: what is held under these tokens is free."""
        world, queue = self._world, self._begin(topic)
        mine = [seq for seq, token in held.items() if (lease := queue.lease(seq)) and lease.token == token]
        before = dict(queue.touched)
        found = world.call(lambda: world.engine.queues.settlement.release(topic.name, held))
        demand(found == len(mine), f"{found} jobs are given back, not {len(mine)}")
        for seq in mine:
            if seq not in before:
                del queue.gone[seq]
            elif seq in queue.touched:  # else it is a dead letter
                queue.touched[seq] = Touched(before[seq].deliveries)
        queue.written(world.w)

    def redrive(self, topic: TopicModel, most: int) -> None:
        """Move dead letters back: the first ones, whole."""
        world = self._world
        name = topic.config.dead_letter
        letters = None if name is None else world.topics.find(name)
        if name is None or letters is None or not world.is_visible(letters):
            return
        self._begin(topic)
        world.look(letters)
        source = letters.log.written.expired(letters.config.ttl_ms, world.now, world.hold(letters, 0))
        dest = topic.log.written.expired(topic.config.ttl_ms, world.now, world.hold(topic, 0))
        mine = [rec for rec in source.between(0, letters.log.view.head) if origin(rec) == topic.name][:most]
        reply, ticket = world.call(
            lambda: world.engine.queues.mover.redrive(RedriveRequest(topic=topic.name, max=most)),
            "topic_full", "record_too_large", "throttled",
        )  # fmt: skip
        demand(reply.redriven <= len(mine), f"{reply.redriven} letters are driven back, of {len(mine)}")
        demand(
            reply.redriven == len(mine) or topic.config.discard == "reject" or topic.config.retaining, "letters stay"
        )
        if not reply.redriven:
            return
        moved = self._moved(topic, dest, mine[: reply.redriven])
        for rec, letter in zip(moved, mine, strict=False):
            demand(plain(rec) == plain(letter), f"letter {letter} comes back as {rec}")
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
                self._begin(topic)
                self._world.engine.queues.counters(topic.name)

    # ------------------------------------------------------------- dead letters

    def hook(self) -> None:
        """The engine is new: see each move of dead letters, whoever has it made."""
        world, mover = self._world, self._world.engine.queues.mover
        bury, move = mover.bury, mover.move

        def looked(topic: Topic, queue: Queue, now: int) -> int:
            self._begin(world.topics.by_name[topic.name])
            return bury(topic, queue, now)

        def moved(
            topic: Topic, queue: Queue, seqs: Sequence[int], now: int, rows: Mapping[int, Delivery]
        ) -> tuple[int, list[int]]:
            try:
                ticket, gone = move(topic, queue, seqs, now, rows)
            except TopicsError:
                world.trace.meet("dead letters that can't be moved")
                raise
            self._buried(world.topics.by_name[topic.name], gone, rows)
            return ticket, gone

        mover.bury = looked  # type: ignore[method-assign]
        mover.move = moved  # type: ignore[method-assign]

    def _buried(self, topic: TopicModel, seqs: Sequence[int], rows: Mapping[int, Delivery]) -> None:
        world, queue = self._world, self.of(topic)
        letters = world.topics.by_name[topic.config.dead_letter or ""]
        dest = letters.log.written.expired(letters.config.ttl_ms, world.now, world.hold(letters, 0))
        source = topic.log.written
        head = world.log(letters).state.head
        early = [seq for seq in seqs if not (queue.is_exhausted(seq) or (seq in rows and self._ends(queue, rows[seq])))]
        demand(not early, f"jobs {early} of {topic.name} become letters too early")
        jobs = [source.live[seq] for seq in seqs]
        demand(len(jobs) == head - dest.head > 0, f"{head - dest.head} dead letters, and {len(seqs)} jobs to bury")
        made = self._moved(letters, dest, jobs)
        for rec, job in zip(made, jobs, strict=True):
            demand(plain(rec) == plain(job), f"job {job} becomes letter {rec}")
            found = json.loads(rec.meta or b"{}")
            told = tuple(found.get(name) for name in STAMPS)
            demand(told == (topic.name, str(topic.config.max_deliveries), str(job.seq)), f"a letter is stamped {told}")
            del queue.touched[job.seq]
        hold = world.hold(letters, 0)
        letters.log.commit(dest.appended(made, letters.config, hold), world.w, world.log(letters), letters.config)
        gone = source.without([job.seq for job in jobs])
        topic.log.commit(gone, world.w, world.log(topic), topic.config)
        queue.written(world.w)
        world.trace.meet("a dead letter", len(made))
        world.trace.meet("a dead letter of a nack", len(made) if rows else 0)

    @staticmethod
    def _ends(queue: QueueModel, row: Delivery) -> bool:
        return row.node is None and queue.is_last(row.deliveries)

    def _moved(self, topic: TopicModel, state: LogState, recs: Sequence[Rec]) -> list[Rec]:
        """What was appended to the topic's log, on top of `state`: as many records as these."""
        log, ts = self._world.log(topic), max(self._world.now, state.last_ts)
        found = []
        for seq in range(state.head + 1, state.head + 1 + len(recs)):
            block = log.blocks.records(seq)
            assert isinstance(block, Block)
            found.append(read(block, seq - block.base_seq))
            demand(found[-1].ts == ts, "a moved job has another time")
        return found

    # ------------------------------------------------------------------ crashes

    def prune(self, synced: int) -> None:
        """See Topics."""
        for queue in self.models.values():
            prune(queue.history, synced)

    def back(self, w: int) -> None:
        """After a crash: the leases that were on the disk then, and no others."""
        world = self._world
        there = {topic.number: topic for topic in world.topics.by_name.values()}
        self.models = {number: queue for number, queue in self.models.items() if there.get(number) is queue.topic}
        for queue in self.models.values():
            rows = back(queue.history, w)
            queue.gone, queue.due, queue.loaded = {}, set(), False
            world.trace.meet("a lease over a restart", sum(job.lease is not None for job in rows.values()))
            queue.touched = dict(rows)

    def check(self) -> None:
        """The counters of all queues."""
        world = self._world
        for topic in world.visible():
            if topic.config.type == "queue":
                queue = self._begin(topic)
                found = world.engine.queues.counters(topic.name)
                held = sum(job.lease is not None for job in queue.touched.values())
                demand(found.in_flight == held, f"{found.in_flight} jobs of {topic.name} are in flight, not {held}")
                free = len(queue.claimable())
                demand(found.ready == free, f"{found.ready} jobs of {topic.name} are ready, not {free}")
                spent = sum(queue.is_exhausted(seq) for seq in queue.touched)
                demand(found.exhausted == spent, f"{found.exhausted} jobs of {topic.name} are exhausted, not {spent}")
                self._check_lists(
                    queue, held=[seq for seq, job in sorted(queue.touched.items()) if job.lease is not None]
                )

    def _check_lists(self, queue: QueueModel, held: list[int]) -> None:
        """Every job that readers see is listed once, as what it is."""
        topic = queue.topic
        ready, flying, delayed, exhausted = [self._list(topic, state) for state in _STATES]
        seen = [seq for seq in topic.log.written.live if seq <= topic.log.view.head]
        free, spent = queue.claimable(), [seq for seq in topic.log.written.live if queue.is_exhausted(seq)]
        demand(flying == held, f"the jobs {flying} of {topic.name} are listed as in flight, not {held}")
        listed = sorted((*ready, *flying, *delayed, *exhausted))
        demand(listed == seen, f"{ready}, {flying}, {delayed}, {exhausted} are listed, not {seen}")
        demand(ready == free, f"{ready} are listed as ready, and {free} are free")
        demand(exhausted == spent, f"{exhausted} are listed as exhausted, and {spent} are")

    def _list(self, topic: TopicModel, state: JobState) -> list[int]:
        found: list[int] = []
        after: int | None = 0
        while after is not None:
            request = ListJobsRequest(topic=topic.name, state=state, after=after, limit=3)
            page = self._world.engine.queues.jobs(request)
            found += [job.block.base_seq + job.position for job in page.jobs]
            after = page.next_after
        return found

    def _begin(self, topic: TopicModel) -> QueueModel:
        world, queue = self._world, self.of(topic)
        world.look(topic)
        expired = sum(job.lease is not None and world.now > job.lease.deadline for job in queue.touched.values())
        world.trace.meet("a lease that expired", expired)
        queue.refresh(world.now)
        return queue
