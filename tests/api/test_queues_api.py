"""The queue service in fake time: windows of claims, push streams, their order, and no leftovers."""

import asyncio
from contextlib import nullcontext
from typing import Any

import pytest

from support.fake_time import in_fake_time, steps
from support.watching import LoopClock
from topics_service.api.access.auth import UNRESTRICTED
from topics_service.api.queues import QueuesApi
from topics_service.api.scheduling import claim_waiters
from topics_service.api.work import WorkStream
from topics_service.engine.engine import Engine
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.model import AppendRequest, Batch, ConfigInput, DeleteRequest
from topics_service.engine.queue.jobs import ClaimReply, ClaimRequest, Job, SettleRequest
from topics_service.engine.watch.frames import ErrorFrame, HeartbeatFrame
from topics_service.storage.memory import MemoryStore


class Queues:
    """An engine in memory and the queue api in front of it, in the time of the running loop."""

    def __init__(self) -> None:
        clock = LoopClock()
        self.engine = Engine(MemoryStore(), clock)
        self.settles = 0
        self.api = QueuesApi(lambda: self.engine, self._settle, lambda _: nullcontext(), self._forwarded, clock=clock)

    async def _forwarded(self, topic: str) -> None:
        """There are no routers."""

    async def _settle(self, ticket: int) -> None:
        self.settles += 1
        await asyncio.sleep(0.01)
        self.engine.sync()

    def put(self, name: str = "q", count: int = 0, **config: Any) -> None:
        self.engine.put_topic(name, ConfigInput(**{"type": "queue"} | config))
        self.engine.sync()
        if count:
            self.append(count, name)

    def append(self, count: int = 1, name: str = "q", size: int = 1) -> None:
        self.engine.append(AppendRequest(topic=name, batch=Batch(datas=[b"1" * size] * count)))
        self.engine.sync()

    def drop(self, name: str = "q") -> None:
        self.engine.delete_topic(name)
        self.engine.sync()

    def claim(self, node: str = "w", max_jobs: int = 1, lease_ms: int | None = None) -> "asyncio.Task[ClaimReply]":
        return asyncio.create_task(self.api.claim(request(node, max_jobs, lease_ms)))

    async def ack(self, *seqs: int, node: str = "w") -> int:
        return (await self.api.ack(SettleRequest(topic="q", node=node, seqs=list(seqs)))).done

    async def nack(self, *seqs: int, node: str = "w", delay_ms: int = 0) -> None:
        await self.api.nack(SettleRequest(topic="q", node=node, seqs=list(seqs), delay_ms=delay_ms))

    def counters(self) -> tuple[int, int]:
        found = self.engine.queues.counters("q")
        return found.ready, found.in_flight

    @property
    def is_calm(self) -> bool:
        """No waiters and no leftovers."""
        return not self.api._claim_waiters


def request(node: str = "w", max_jobs: int = 1, lease_ms: int | None = None) -> ClaimRequest:
    return ClaimRequest(topic="q", node=node, max=max_jobs, lease_ms=lease_ms)


def seqs(reply: ClaimReply) -> list[int]:
    return [job.seq for job in reply.jobs]


async def next_jobs(stream: WorkStream) -> list[int]:
    """The seqs of the next frame, which must be jobs."""
    frame = await anext(stream)
    assert isinstance(frame, list), frame
    return [job.seq for job in frame]


async def opened(stream: WorkStream) -> None:
    assert isinstance(await anext(stream), HeartbeatFrame)


def now() -> float:
    return asyncio.get_running_loop().time()


# ------------------------------------------------------------------------ the window


@in_fake_time
async def test_a_window_lasts_exactly_as_long_as_it_should_and_is_shared() -> None:
    queues = Queues()
    queues.put(count=20, claim_jitter_ms=700)
    began = now()
    first = queues.claim("a", 10)
    await asyncio.sleep(0.3)
    others = [queues.claim(node, 10) for node in "bcd"]
    replies = await asyncio.gather(first, *others)
    assert now() - began == pytest.approx(0.7)
    assert [seqs(reply) for reply in replies] == [
        [1, 5, 9, 13, 17],
        [2, 6, 10, 14, 18],
        [3, 7, 11, 15, 19],
        [4, 8, 12, 16, 20],
    ]
    assert {reply.ready for reply in replies} == {0}
    assert queues.is_calm
    late = queues.claim()
    began = now()
    await late
    assert now() - began == pytest.approx(0.7)


@in_fake_time
async def test_each_gets_what_it_asked_for_under_its_own_lease() -> None:
    queues = Queues()
    queues.put(count=9, claim_jitter_ms=50)
    small, big = queues.claim("small", 2, 5000), queues.claim("big", 100, 60_000)
    assert [len((await small).jobs), len((await big).jobs)] == [2, 7]
    assert big.result().jobs[0].deadline - small.result().jobs[0].deadline == 55_000


@in_fake_time
async def test_what_is_written_during_the_window_is_served() -> None:
    queues = Queues()
    queues.put(claim_jitter_ms=50)
    claim = queues.claim()
    await asyncio.sleep(0.02)
    queues.append()
    assert seqs(await claim) == [1]


@in_fake_time
async def test_who_leaves_gets_nothing() -> None:
    queues = Queues()
    queues.put(count=2, claim_jitter_ms=50)
    leaving, staying = queues.claim("leaving", 2), queues.claim("staying", 2)
    await asyncio.sleep(0.01)
    leaving.cancel()
    assert seqs(await staying) == [1, 2]
    assert leaving.cancelled()
    await staying
    alone = queues.claim("alone", 2)
    await steps(2)
    alone.cancel()
    await asyncio.sleep(1)
    assert queues.counters() == (0, 2)
    assert queues.is_calm


@in_fake_time
@pytest.mark.parametrize("config", [{"claim_jitter_ms": 50}, {}])
async def test_who_leaves_in_the_last_moment_gives_it_back(config: dict[str, Any]) -> None:
    queues = Queues()
    queues.put(count=3, durability="fsync", leases_durable=True, **config)
    claim = queues.claim(max_jobs=3)
    while queues.counters() != (0, 3):
        await asyncio.sleep(0.001)
    assert not claim.done()  # it waits until its leases are durable
    claim.cancel()
    await asyncio.wait((claim,))
    assert queues.counters() == (3, 0)
    assert queues.is_calm


@in_fake_time
@pytest.mark.parametrize("jitter", [0, 20])
async def test_a_call_that_moves_dead_letters_is_answered_when_they_can_be_read(jitter: int) -> None:
    queues = Queues()
    queues.put(count=3, max_deliveries=1, dead_letter="dead", claim_jitter_ms=jitter)
    assert seqs(await queues.claim(lease_ms=100)) == [1]
    await asyncio.sleep(0.2)
    assert seqs(await queues.claim()) == [2]
    assert queues.settles == 1
    assert queues.engine.get_topic("dead", touch=False).count == 1
    await queues.nack(2)
    assert queues.engine.get_topic("dead", touch=False).count == 2
    assert queues.settles == 1  # the second one was to be seen at once
    queues.drop("dead")
    assert seqs(await queues.claim()) == [3]
    await queues.nack(3)
    assert queues.settles == 2
    assert queues.engine.get_topic("dead", touch=False).count == 1


@in_fake_time
async def test_a_pass_that_fails_fails_for_all() -> None:
    queues = Queues()
    queues.put(count=3, claim_jitter_ms=50)
    claims = [queues.claim(node) for node in "ab"]
    await asyncio.sleep(0.01)
    queues.drop()
    for claim in claims:
        with pytest.raises(TopicsError) as failed:
            await claim
        assert failed.value.reason is Reason.TOPIC_NOT_FOUND
    assert queues.is_calm


@in_fake_time
async def test_bad_claims_are_refused_at_once() -> None:
    queues = Queues()
    queues.put(count=1, claim_jitter_ms=5000)
    began = now()
    for bad in (request(""), request("n" * 129), ClaimRequest(topic="absent", node="w")):
        with pytest.raises(TopicsError):
            await queues.api.claim(bad)
    assert now() == began
    assert queues.is_calm


@in_fake_time
async def test_a_full_window_is_served_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim_waiters, "COHORT", 5)
    queues = Queues()
    queues.put(count=10, claim_jitter_ms=1000)
    began = now()
    claims = [queues.claim(f"w{i}") for i in range(6)]
    await asyncio.wait(claims[:5])
    assert now() == began
    await claims[5]
    assert now() - began == pytest.approx(1)


@in_fake_time
async def test_large_cohorts_are_served_in_parts_and_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim_waiters, "PASS_JOBS", 8)
    queues = Queues()
    queues.put(count=50, claim_jitter_ms=10)
    claims = [queues.claim(f"w{i}", 20) for i in range(4)]
    await asyncio.sleep(0.011)
    claims[3].cancel()  # maybe in the middle of it
    replies = await asyncio.gather(*claims[:3])
    counts = [len(reply.jobs) for reply in replies]
    assert max(counts) - min(counts) <= 1
    assert all(seqs(reply) == sorted(seqs(reply)) for reply in replies)
    await asyncio.wait(claims)
    assert queues.counters()[1] == sum(counts) + (0 if claims[3].cancelled() else len(claims[3].result().jobs))


@in_fake_time
async def test_a_reply_in_parts_is_bounded_in_bytes_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim_waiters, "PASS_JOBS", 8)
    queues = Queues()
    queues.put(claim_jitter_ms=10)
    queues.append(50, size=4)
    asked = [ClaimRequest(topic="q", node=f"w{i}", max=20, max_bytes=10) for i in range(4)]
    replies = await asyncio.gather(*map(queues.api.claim, asked))
    assert [len(reply.jobs) for reply in replies] == [3] * 4
    assert queues.counters() == (38, 12)


@in_fake_time
@pytest.mark.parametrize("again", [None, "queue", "log"])
async def test_the_end_of_its_queue_ends_a_wait_at_once(again: str | None) -> None:
    queues = Queues()
    queues.put(count=5, claim_jitter_ms=5000)
    began = now()
    claims = [queues.claim(f"w{i}") for i in range(3)]
    await asyncio.sleep(1)
    queues.append()  # a wake that ends nothing
    await asyncio.sleep(1)
    assert not any(claim.done() for claim in claims)
    queues.drop()
    if again is not None:
        queues.put(type=again, count=2)  # another one: none of its jobs is theirs
    outcomes = await asyncio.gather(*claims, return_exceptions=True)
    assert [error.reason for error in outcomes if isinstance(error, TopicsError)] == [Reason.TOPIC_NOT_FOUND] * 3
    assert now() == began + 2
    assert queues.is_calm
    if again == "queue":
        assert seqs(await queues.claim()) == [1]
        assert queues.counters() == (1, 1)
    await asyncio.sleep(5)


@in_fake_time
async def test_the_end_of_its_queue_ends_a_pass_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of a pass takes nothing from the queue that has the name then."""
    monkeypatch.setattr(claim_waiters, "PASS_JOBS", 2)
    queues = Queues()
    queues.put(count=50, claim_jitter_ms=10)
    claims = [queues.claim(f"w{i}", 20) for i in range(2)]
    await asyncio.sleep(0.009)
    asyncio.get_running_loop().call_later(0.001, lambda: (queues.drop(), queues.put(count=50)))
    replies = await asyncio.gather(*claims, return_exceptions=True)
    held = sum(len(reply.jobs) for reply in replies if isinstance(reply, ClaimReply))
    assert held < 40
    assert queues.counters() == (50, 0)


@in_fake_time
async def test_a_stop_ends_the_waits() -> None:
    queues = Queues()
    queues.put(count=1, claim_jitter_ms=5000)
    claim = queues.claim()
    await steps(2)
    queues.api.drain()
    with pytest.raises(TopicsError) as failed:
        await claim
    assert failed.value.reason is Reason.SHUTTING_DOWN
    assert queues.counters() == (1, 0)
    assert queues.is_calm


@in_fake_time
async def test_who_was_served_longest_ago_comes_first() -> None:
    queues = Queues()
    queues.put(claim_jitter_ms=10)
    served: list[str] = []
    for _ in range(9):
        queues.append()
        claims = {node: queues.claim(node) for node in "abc"}
        await asyncio.wait(claims.values())
        served += [node for node, claim in claims.items() if claim.result().jobs]
    assert served == list("abcabcabc")


# --------------------------------------------------------------------- push streams


@in_fake_time
async def test_a_stream_begins_with_a_heartbeat_and_has_one_every_15_s_of_silence() -> None:
    queues = Queues()
    queues.put()
    with queues.api.work(request(), principal=UNRESTRICTED) as stream:
        began = now()
        await opened(stream)
        assert now() == began
        for _ in range(3):
            await opened(stream)
        assert now() - began == pytest.approx(45)
        jobs = asyncio.create_task(next_jobs(stream))
        await asyncio.sleep(10)
        queues.append()
        assert await jobs == [1]
        await opened(stream)
        assert now() - began == pytest.approx(70)
    assert queues.is_calm


@in_fake_time
async def test_nothing_is_leased_before_it_is_asked_for() -> None:
    queues = Queues()
    queues.put(count=1)
    with queues.api.work(request(), principal=UNRESTRICTED) as stream:
        await opened(stream)
        await asyncio.sleep(100)
        assert queues.counters() == (1, 0)
        assert await next_jobs(stream) == [1]
    assert queues.counters() == (1, 0)
    assert queues.is_calm


@in_fake_time
async def test_an_expiry_that_somebody_else_sees_first_is_not_missed() -> None:
    queues = Queues()
    queues.put(count=1)
    await asyncio.sleep(0.0014 - now() % 0.001)  # timers run by the loop's clock, leases by whole milliseconds
    with queues.api.work(request(lease_ms=5000), principal=UNRESTRICTED) as stream:
        await opened(stream)
        assert await next_jobs(stream) == [1]
        began, waiting = now(), asyncio.create_task(next_jobs(stream))
        await asyncio.sleep(5.0003)
        assert queues.counters() == (1, 0)
        queues.append()
        assert await waiting == [1]
        assert now() - began < 5.1


@in_fake_time
async def test_room_comes_from_acks_nacks_and_expiry_without_polling() -> None:
    queues = Queues()
    queues.put(count=6)
    with queues.api.work(request(max_jobs=2, lease_ms=5000), principal=UNRESTRICTED) as stream:
        await opened(stream)
        assert await next_jobs(stream) == [1, 2]
        waiting = asyncio.create_task(next_jobs(stream))
        await asyncio.sleep(1)
        assert not waiting.done()
        assert await queues.ack(1) == 1
        assert await waiting == [3]
        waiting = asyncio.create_task(next_jobs(stream))
        await asyncio.sleep(1)
        await queues.nack(3, delay_ms=60_000)
        assert await waiting == [4]
        # 2 was leased at the start: it ends after 5 s, and comes again before 5.
        waiting = asyncio.create_task(next_jobs(stream))
        began = now()
        assert await waiting == [2]
        assert now() - began == pytest.approx(3, abs=0.01)
        extend = SettleRequest(topic="q", node="w", seqs=[4, 2], lease_ms=86_400_000)
        assert (await queues.api.extend(extend)).done == 2
        assert isinstance(await anext(stream), HeartbeatFrame)
        assert queues.counters() == (2, 2)
    await asyncio.sleep(0)
    assert queues.counters() == (4, 0)


@in_fake_time
async def test_a_lease_that_was_lost_with_its_job_makes_room_with_its_ack() -> None:
    queues = Queues()
    queues.put(count=2)
    with queues.api.work(request(lease_ms=80_000_000), principal=UNRESTRICTED) as stream:
        await opened(stream)
        assert await next_jobs(stream) == [1]
        queues.engine.delete_records(DeleteRequest(topic="q", before_seq=2))
        waiting = asyncio.create_task(next_jobs(stream))
        await asyncio.sleep(1)
        await queues.ack(1)
        assert await waiting == [2]


@in_fake_time
async def test_a_cancelled_wait_leaves_nothing_even_with_jobs_on_their_way() -> None:
    queues = Queues()
    queues.put(durability="fsync", leases_durable=True)
    stream_holder = queues.api.work(request(max_jobs=5), principal=UNRESTRICTED)
    stream = stream_holder.__enter__()
    await opened(stream)
    waiting = asyncio.create_task(next_jobs(stream))
    await asyncio.sleep(1)
    queues.append(3)
    while queues.counters() != (0, 3):
        await asyncio.sleep(0.001)
    waiting.cancel()
    await asyncio.wait((waiting,))
    stream_holder.__exit__(None, None, None)
    assert queues.counters() == (3, 0)
    assert queues.is_calm


@in_fake_time
async def test_a_frame_takes_a_bounded_number_of_jobs_and_bytes() -> None:
    queues = Queues()
    queues.put(count=150)
    queues.append(5, size=100_000)
    with queues.api.work(request(max_jobs=1000), principal=UNRESTRICTED) as stream:
        await opened(stream)
        frames = []
        while sum(map(len, frames)) < 155:
            frames.append(await next_jobs(stream))
        assert [len(frame) for frame in frames] == [64, 64, 24, 2, 1]
        assert [seq for frame in frames for seq in frame] == list(range(1, 156))


@in_fake_time
@pytest.mark.parametrize("again", [None, "queue", "log"])
async def test_a_deleted_queue_ends_its_streams(again: str | None) -> None:
    queues = Queues()
    queues.put(count=1)
    with (
        queues.api.work(request("hungry", 3), principal=UNRESTRICTED) as hungry,
        queues.api.work(request("slow"), principal=UNRESTRICTED) as slow,
    ):
        for stream in (hungry, slow):
            await opened(stream)
        assert await next_jobs(hungry) == [1]
        waiting = asyncio.create_task(anext(hungry))
        await steps(3)
        queues.drop()
        if again:
            queues.put(type=again)
        for frame in (await waiting, await anext(slow)):
            assert isinstance(frame, ErrorFrame)
            assert (frame.reason, frame.code, frame.terminal) == (Reason.NOT_A_QUEUE, 409, True)
        for stream in (hungry, slow):
            with pytest.raises(StopAsyncIteration):
                await anext(stream)
    assert queues.is_calm


@in_fake_time
async def test_a_stop_is_told_before_the_jobs_are_given_back() -> None:
    queues = Queues()
    queues.put(count=1)
    with queues.api.work(request(), principal=UNRESTRICTED) as stream:
        await opened(stream)
        assert await next_jobs(stream) == [1]
        waiting = asyncio.create_task(anext(stream))
        await steps(3)
        queues.engine.draining = True
        queues.api.drain()
        frame = await waiting
        assert isinstance(frame, ErrorFrame)
        assert (frame.reason, frame.code, frame.terminal) == (Reason.SHUTTING_DOWN, 503, True)
        assert queues.counters() == (0, 1)
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
    assert queues.counters() == (1, 0)
    assert queues.is_calm


@in_fake_time
async def test_a_throttled_pass_paces_the_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    queues = Queues()
    queues.put(count=1)
    passes = 0
    claim = queues.engine.queues.claim

    def stalled(requests: Any) -> Any:
        nonlocal passes
        passes += 1
        if passes < 3:
            raise TopicsError(Reason.THROTTLED, "the store stalls")
        return claim(requests)

    monkeypatch.setattr(queues.engine.queues, "claim", stalled)
    with queues.api.work(request(), principal=UNRESTRICTED) as stream:
        await opened(stream)
        began = now()
        for _ in range(2):
            frame = await anext(stream)
            assert isinstance(frame, ErrorFrame)
            assert (frame.code, frame.terminal, frame.retry_after_ms) == (429, False, 1000)
        assert await next_jobs(stream) == [1]
        assert now() - began == pytest.approx(2)
    assert passes == 3


@in_fake_time
async def test_few_jobs_go_round_among_streams_and_pollers() -> None:
    queues = Queues()
    queues.put(claim_jitter_ms=10)
    served: dict[str, int] = {}

    async def push(node: str) -> None:
        with queues.api.work(request(node), principal=UNRESTRICTED) as stream:
            async for frame in stream:
                if isinstance(frame, list):
                    served[node] = served.get(node, 0) + len(frame)
                    await queues.ack(*(job.seq for job in frame), node=node)

    async def poll(node: str) -> None:
        while True:
            jobs: list[Job] = (await queues.api.claim(request(node))).jobs
            if jobs:
                served[node] = served.get(node, 0) + len(jobs)
                await queues.ack(*(job.seq for job in jobs), node=node)

    workers = [asyncio.create_task(push(f"s{i}")) for i in range(3)]
    workers += [asyncio.create_task(poll(f"p{i}")) for i in range(3)]
    await asyncio.sleep(0.1)
    for _ in range(120):
        queues.append()
        await asyncio.sleep(0.03)
    for worker in workers:
        worker.cancel()
    await asyncio.wait(workers)
    assert served == dict.fromkeys(("s0", "s1", "s2", "p0", "p1", "p2"), 20)


@in_fake_time
async def test_streams_without_a_window_take_turns() -> None:
    queues = Queues()
    queues.put()
    served: list[str] = []

    async def push(node: str) -> None:
        with queues.api.work(request(node, 2), principal=UNRESTRICTED) as stream:
            async for frame in stream:
                if isinstance(frame, list):
                    served.extend(node for _ in frame)
                    await queues.ack(*(job.seq for job in frame), node=node)

    workers = [asyncio.create_task(push(f"s{i}")) for i in range(4)]
    await asyncio.sleep(0.1)
    for _ in range(40):
        queues.append()
        await asyncio.sleep(0.01)
    queues.append(8)
    await asyncio.sleep(0.01)
    for worker in workers:
        worker.cancel()
    await asyncio.wait(workers)
    assert {node: served.count(node) for node in sorted(set(served))} == {f"s{i}": 12 for i in range(4)}
    assert queues.is_calm


@in_fake_time
async def test_an_idle_stream_keeps_one_timer() -> None:
    """Nothing looks again and again whether there is something to do."""
    queues = Queues()
    queues.put(count=1)
    with queues.api.work(request(lease_ms=80_000_000), principal=UNRESTRICTED) as stream:
        await opened(stream)
        assert await next_jobs(stream) == [1]
        waiting = asyncio.create_task(anext(stream))
        await steps(5)
        looks = 0
        counters = queues.engine.queues.counters

        def counted(topic: str) -> Any:
            nonlocal looks
            looks += 1
            return counters(topic)

        queues.engine.queues.counters = counted  # type: ignore[method-assign]
        assert isinstance(await waiting, HeartbeatFrame)
        assert looks <= 1


@in_fake_time
async def test_a_bug_fails_everybody_and_leaves_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    queues = Queues()
    queues.put(count=3, claim_jitter_ms=10)

    def broken(_: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(queues.engine.queues, "claim", broken)
    claims = [queues.claim(node) for node in "ab"]
    with queues.api.work(request(), principal=UNRESTRICTED) as stream:
        await opened(stream)
        frame = await anext(stream)
        assert isinstance(frame, ErrorFrame)
        assert (frame.code, frame.terminal) == (500, True)
        for claim in claims:
            with pytest.raises(TopicsError) as failed:
                await claim
            assert failed.value.reason is Reason.INTERNAL
    assert queues.is_calm
    monkeypatch.undo()
    monkeypatch.setattr(queues.engine.queues, "counters", broken)
    with queues.api.work(request(), principal=UNRESTRICTED) as stream:
        await opened(stream)
        frame = await anext(stream)
        assert isinstance(frame, ErrorFrame)
        assert frame.code == 500
    assert queues.is_calm
    assert {record.levelname for record in caplog.records} == {"ERROR"}
