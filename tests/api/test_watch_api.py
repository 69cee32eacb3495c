"""Streams: when frames come, when a heartbeat, how a stream ends, and that a slow client costs nothing."""

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import ExitStack
from itertools import pairwise

import pytest

from support.fake_time import FakeTimeLoop, in_fake_time, steps
from support.watching import Watching, code, key, quiet, seqs, tell, watch
from topics_service.api.access.auth import UNRESTRICTED
from topics_service.api.scheduling.commit import GroupCommit
from topics_service.api.scheduling.pressure import Pressure
from topics_service.api.topics import TopicsApi
from topics_service.api.watch import WatchCaps
from topics_service.api.watch_stream import WatchStream
from topics_service.engine.clock import SystemClock
from topics_service.engine.engine import Engine
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.model import ConfigInput
from topics_service.engine.watch.frames import ErrorFrame, Frame, HeartbeatFrame, RecordsFrame
from topics_service.storage.memory import MemoryStore

DRAIN = ErrorFrame(reason=Reason.SHUTTING_DOWN, code=503, message="the server is shutting down")


async def times(stream: WatchStream, seconds: float) -> AsyncIterator[tuple[float, Frame]]:
    """The frames of the given seconds, each with its time."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    try:
        async with asyncio.timeout(seconds):
            async for frame in stream:
                yield round(loop.time() - began, 3), frame
    except TimeoutError:
        return


# ---------------------------------------------------------------------------- frames


@in_fake_time
async def test_a_stream_without_a_session_checks_as_a_session_does() -> None:
    world = Watching(max_connections=0)
    world.put("a-1")
    for topics, reason in (((), "invalid_request"), (("b",), "forbidden"), (("a-2",), "topic_not_found")):
        with pytest.raises(TopicsError) as caught, await world.api.stream(watch(*topics), principal=key("k", "a-")):
            pass
        assert code(caught) == reason
    assert world.statistics.streams == world.statistics.connections == 0


@in_fake_time
async def test_backlog_then_live() -> None:
    world = Watching()
    world.put("a", "b")
    world.append("a", 300)
    world.append("b", 1)
    with await world.api.stream(watch("a", "b"), principal=UNRESTRICTED) as stream:
        assert list(stream.positions) == ["a", "b"]
        frames = await quiet(stream)
        assert seqs(frames, "a") == list(range(1, 301))
        assert seqs(frames, "b") == [1]
        assert [told for told in tell(frames) if told[1] == "caught up"] == [("b", "caught up"), ("a", "caught up")]
        world.append("b", 2)
        assert tell(await quiet(stream)) == [("b", [2, 3]), ("b", "caught up")]
        assert stream.cursors == {"a": 300, "b": 3}
    assert world.statistics.records == 303
    assert world.statistics.frames == len(frames) + 2


@in_fake_time
async def test_a_live_record_is_read_in_the_next_step_of_the_loop() -> None:
    world = Watching()
    world.put("a")
    with await world.api.stream(watch("a"), principal=UNRESTRICTED) as stream:
        await quiet(stream)
        waiting = asyncio.create_task(anext(stream))
        await steps(2)
        world.append("a")
        await steps()
        assert waiting.done()
        assert tell([await waiting]) == [("a", [1])]


@in_fake_time
async def test_cancelling_a_wait_loses_nothing() -> None:
    world = Watching()
    world.put("a")
    with await world.api.stream(watch("a"), principal=UNRESTRICTED) as stream:
        await quiet(stream)
        for expected in range(1, 6):
            waiting = asyncio.create_task(anext(stream))
            await steps(2)
            world.append("a")  # it is its turn now
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert tell(await quiet(stream)) == [("a", [expected]), ("a", "caught up")]


@in_fake_time
async def test_long_backlogs_let_others_run_between_turns() -> None:
    """A protocol whose sends never wait must not keep the loop to itself."""
    world = Watching()
    world.put("a")
    for _ in range(20):
        world.append("a", 256)
    with await world.api.stream(watch("a"), principal=UNRESTRICTED) as stream:
        seen: list[int] = []

        async def read() -> None:
            async for frame in stream:
                seen.extend(seqs([frame]))

        reading = asyncio.create_task(read())
        at_each_step = []
        while len(seen) < 20 * 256:
            await steps()
            at_each_step.append(len(seen))
        assert all(b - a <= 256 for a, b in pairwise(at_each_step))
        reading.cancel()
        await asyncio.wait((reading,))


# ------------------------------------------------------------------------ heartbeats


@in_fake_time
async def test_heartbeats_come_after_silence_only() -> None:
    world = Watching()
    world.put("a")
    loop = asyncio.get_running_loop()
    with await world.api.stream(watch("a", heartbeat_ms=1000), principal=UNRESTRICTED) as stream:
        loop.call_later(1.5, world.append, "a")
        loop.call_later(1.9, world.append, "a")
        seen = [frame async for frame in times(stream, 5.0)]
    beats = [at for at, frame in seen if isinstance(frame, HeartbeatFrame)]
    assert beats == [1.0, 2.9, 3.9, 4.9]
    assert [at for at, frame in seen if isinstance(frame, RecordsFrame)] == [1.5, 1.9]
    first = next(frame for _, frame in seen if isinstance(frame, HeartbeatFrame))
    assert first.ts == 1_001_000


@in_fake_time
async def test_no_heartbeats_if_none_are_wanted() -> None:
    world = Watching()
    world.put("a")
    with await world.api.stream(watch("a"), principal=UNRESTRICTED) as stream:
        assert tell(await quiet(stream, 1000)) == [("a", "caught up")]


@in_fake_time
async def test_a_client_that_is_slow_gets_what_there_is_and_no_pile_of_heartbeats() -> None:
    world = Watching()
    world.put("a")
    with await world.api.stream(watch("a", heartbeat_ms=1000), principal=UNRESTRICTED) as stream:
        await quiet(stream)
        world.append("a", 1)
        assert tell([await anext(stream)]) == [("a", [1])]
        await asyncio.sleep(3600)
        world.append("a", 1)
        assert tell(await quiet(stream)) == [("a", [2]), ("a", "caught up")]


# ------------------------------------------------------------------------ slow clients


@in_fake_time
async def test_nothing_is_done_for_a_client_that_does_not_ask() -> None:
    world = Watching()
    world.put("a", "b")
    with await world.api.stream(watch("a", "b"), principal=UNRESTRICTED) as stream:
        await quiet(stream)
        world.append("a")
        await anext(stream)  # and now the client takes its time
        turns = 0
        turn = stream.turn

        def count() -> None:
            nonlocal turns
            turns += 1
            turn()

        world.api._dispatcher._give = lambda waiter: count()  # type: ignore[method-assign]
        for _ in range(100):
            world.append("a")
            world.append("b", 2)
            await steps(2)
        assert not turns
        assert world.api._dispatcher.is_idle
        del world.api._dispatcher._give
        frames = await quiet(stream)
        assert sorted(told for told in tell(frames) if told[1] != "caught up") == [
            ("a", list(range(2, 102))),
            ("b", list(range(1, 201))),
        ]


@in_fake_time
async def test_slow_clients_are_counted() -> None:
    world = Watching()
    world.put("a")
    world.append("a")
    with await world.api.stream(watch("a"), principal=UNRESTRICTED) as stream:
        await anext(stream)
        await asyncio.sleep(4.9)
        await anext(stream)
        assert world.statistics.slow == 0
        await asyncio.sleep(5.1)
        assert await quiet(stream, 60) == []
        assert world.statistics.slow == 1, "its wait for a record is not its fault"
        world.append("a")
        await anext(stream)
        await asyncio.sleep(60)
    assert world.statistics.slow == 2, "it never came back"


# -------------------------------------------------------------------------------- ends


@in_fake_time
async def test_drain_ends_every_stream_at_once() -> None:
    world = Watching()
    world.put("a")
    wid = await world.session("a")
    with (
        await world.api.open(wid, {}, principal=UNRESTRICTED) as waits,
        await world.api.stream(watch("a"), principal=UNRESTRICTED) as busy,
        await world.api.stream(watch("a"), principal=UNRESTRICTED) as fresh,
    ):
        await quiet(waits)
        await anext(busy)
        world.append("a")
        await quiet(waits)
        waiting = asyncio.create_task(anext(waits))
        await steps(2)
        world.api.drain()
        await steps()
        assert waiting.done()
        assert await waiting == DRAIN
        for stream in (waits, busy, fresh):
            assert await quiet(stream, 0) == ([] if stream is waits else [DRAIN])
            with pytest.raises(StopAsyncIteration):
                await anext(stream)


@in_fake_time
async def test_the_stream_ends_with_its_last_topic() -> None:
    world = Watching()
    world.put("a", "b")
    with await world.api.stream(watch("a", "b"), principal=UNRESTRICTED) as stream:
        await quiet(stream)
        world.drop("a")
        assert tell(await quiet(stream)) == [("a", "deleted", 0)]
        waiting = asyncio.create_task(quiet(stream, 60))
        await steps(2)
        world.drop("b")
        await steps(2)
        assert waiting.done()
        assert tell(await waiting) == [("b", "deleted", 0)]
        assert stream.cursors == {"a": 0, "b": 0}


@in_fake_time
async def test_dropping_topics() -> None:
    world = Watching()
    world.put("a", "b")
    with await world.api.stream(watch("a", "b"), principal=UNRESTRICTED) as stream:
        await quiet(stream)
        waiting = asyncio.create_task(anext(stream))
        await steps(2)
        assert stream.drop("a")
        assert not stream.drop("a")
        assert not stream.drop("ghost")
        world.append("a")
        await steps(2)
        assert not waiting.done()
        world.append("b")
        assert tell([await waiting]) == [("b", [1])]
        waiting = asyncio.create_task(quiet(stream, 60))
        await steps(2)
        assert stream.drop("b")
        await steps(2)
        assert waiting.done()
        assert tell(await waiting) == [("b", "caught up")]


@in_fake_time
async def test_closing_tells_who_waits() -> None:
    world = Watching()
    world.put("a")
    with await world.api.stream(watch("a", heartbeat_ms=1000), principal=UNRESTRICTED) as stream:
        await quiet(stream)
        waiting = asyncio.create_task(quiet(stream))
        await steps(2)
    await steps()
    assert waiting.done()
    stream.close()
    assert world.statistics.streams == 0


# ---------------------------------------------------------------------------- overload


@in_fake_time
async def test_overload_paces_streams_tells_them_once_and_loses_nothing() -> None:
    world = Watching()
    world.put("low", "high", priority=0)
    world.put("high", priority=500)
    loop = asyncio.get_running_loop()
    with ExitStack() as entered:
        streams = [
            entered.enter_context(await world.api.stream(watch(topic), principal=UNRESTRICTED))
            for topic in ["low"] * 60 + ["high"] * 10
        ]
        got: list[list[Frame]] = [[] for _ in streams]

        async def read(place: int) -> None:
            async for frame in streams[place]:
                got[place].append(frame)

        readers = [asyncio.create_task(read(place)) for place in range(len(streams))]
        await asyncio.sleep(1)
        world.overload_ms = 1500
        began = loop.time()
        for _ in range(50):
            world.append("low")
            world.append("high")
            await asyncio.sleep(0.1)
        elapsed = loop.time() - began
        world.overload_ms = 0
        await asyncio.sleep(10)
        for frames in got:
            assert seqs(frames) == list(range(1, 51))
        advice = [[frame for frame in frames if isinstance(frame, ErrorFrame)] for frames in got]
        assert all(len(told) <= 1 for told in advice)
        assert not any(advice[60:])
        paced = [place for place, told in enumerate(advice) if told]
        assert len(paced) >= 30
        for place in paced:
            assert advice[place] == [
                ErrorFrame(
                    reason=Reason.THROTTLED, code=429, terminal=False, retry_after_ms=1500, topics=("low",),
                    message="the server is overloaded: records of low priority come less often",
                )
            ]  # fmt: skip
            batches = [frame for frame in got[place] if isinstance(frame, RecordsFrame)]
            assert len(batches) <= elapsed / 1.5 + 2, "fewer, larger frames"
        assert world.statistics.paced == len(paced)
        for reader in readers:
            reader.cancel()
        await asyncio.wait(readers)


# ------------------------------------------------------------------ the whole service


async def test_the_service_paces_drains_and_counts() -> None:
    engine = Engine(MemoryStore(), SystemClock())
    commit = GroupCommit.for_engine(engine, engine.sync)
    api = TopicsApi(engine, commit, Pressure(lag_ms=lambda: 900, max_lag_ms=500), WatchCaps(max_connections=100))
    try:
        await api.put_topic("a", ConfigInput(), principal=UNRESTRICTED)
        await api.watches.create(watch("a"), principal=UNRESTRICTED)
        with ExitStack() as entered:
            streams = [
                entered.enter_context(await api.watches.stream(watch("a"), principal=UNRESTRICTED)) for _ in range(100)
            ]
            with pytest.raises(TopicsError), api.watches.connection(UNRESTRICTED):
                pass
            first = await asyncio.gather(*(anext(stream) for stream in streams))
            told = [frame for frame in first if isinstance(frame, ErrorFrame)]
            assert 0 < len(told) < 100
            assert {(frame.code, frame.retry_after_ms, frame.topics) for frame in told} == {(429, 1000, ("a",))}
            shown = (await api.metrics.text()).decode()
            assert "topics_sse_connections 100.0" in shown
            assert "topics_watch_sessions 1.0" in shown
            assert "topics_watch_streams 100.0" in shown
            assert f"topics_watch_paced_total {len(told)}.0" in shown
            assert api.metrics.snapshot()["sse_connections"] == 100
            assert api.metrics.snapshot()["watch_sessions"] == 1
            api.drain()
            assert await asyncio.gather(*(anext(stream) for stream in streams)) == [DRAIN] * 100
        with pytest.raises(TopicsError) as caught, await api.watches.stream(watch("a"), principal=UNRESTRICTED):
            pass
        assert code(caught) == "shutting_down"
    finally:
        await asyncio.to_thread(commit.stop)


# ----------------------------------------------------------------------- nothing stays


@in_fake_time
async def test_ten_thousand_opens_and_cancels_leave_nothing_behind() -> None:
    world = Watching()
    world.put("p-a", "p-b")
    world.append("p-a", 3)
    wid = await world.session("p-*", "p-a", heartbeat_ms=1000)
    loop = asyncio.get_running_loop()
    assert isinstance(loop, FakeTimeLoop)

    async def connect(number: int) -> None:
        request = watch("p-a", "p-*", heartbeat_ms=1000)
        opened = (
            world.api.open(wid, {"p-a": 1}, principal=UNRESTRICTED)
            if number % 2
            else world.api.stream(request, principal=UNRESTRICTED)
        )
        with await opened as stream:
            async for _ in stream:
                pass

    for batch in range(100):
        tasks = [asyncio.create_task(connect(number)) for number in range(100)]
        await steps(batch % 7)
        world.overload_ms = 1000 * (batch % 3 == 2)
        world.append("p-b")
        await steps(batch % 5)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert all(task.cancelled() for task in tasks)
        assert world.statistics.streams == world.statistics.connections == 0
    await steps(3)
    log = world.engine.catalog.visible("p-a").log
    assert not log._parked
    assert not world.engine.catalog.on_created
    assert not world.api._streams
    dispatcher = world.api._dispatcher
    assert dispatcher.is_idle
    assert not dispatcher._queues
    assert not [timer for timer in loop._scheduled if not timer.cancelled()]  # type: ignore[attr-defined]
    assert len(asyncio.all_tasks()) == 1
    del tasks, task
    gc.collect()
    assert not [thing for thing in gc.get_objects() if isinstance(thing, WatchStream)]
    assert world.api._sessions.find(wid).streams == []
