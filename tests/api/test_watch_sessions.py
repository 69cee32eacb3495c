"""Watch sessions: access, end, and the start of the next stream."""

import asyncio
import re
from contextlib import AbstractContextManager, ExitStack

import pytest

from support.fake_time import in_fake_time
from support.watching import Watching, code, key, quiet, tell, watch
from topics_service.api.access.auth import UNRESTRICTED
from topics_service.api.watch import EngineSource
from topics_service.engine.engine import Engine
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.limits import Limits
from topics_service.engine.model import TagMatch
from topics_service.engine.watch.frames import ErrorFrame, WatchRequest, WatchTopic

MINUTES = 60

# --------------------------------------------------------------------- creation


@in_fake_time
async def test_a_session_says_where_it_stands() -> None:
    world = Watching()
    world.put("a", "b")
    world.append("a", 3)
    session = await world.api.create(watch("b", "a", tail=True), principal=UNRESTRICTED)
    assert re.fullmatch(r"wid_[A-Za-z0-9_-]{22}", session.wid)
    assert session.ttl_ms == 300_000
    assert [(name, at.from_seq, at.head_seq) for name, at in session.positions.items()] == [("a", 3, 3), ("b", 0, 0)]
    assert world.statistics.sessions == 1
    assert world.statistics.streams == world.statistics.connections == 0


@in_fake_time
async def test_what_is_wrong_is_told_in_the_order_of_the_contract() -> None:
    world = Watching(Limits(max_watch_topics=2), max_sessions=1)
    world.put("a-1", "b-1")
    mine = key("k", "a-")
    for topics, reason in (
        ((), "invalid_request"),
        (("b-1", "b-2", "b-3"), "invalid_request"),
        (("b-2",), "forbidden"),
        (("a-1", "b-1"), "forbidden"),
        (("a-2",), "topic_not_found"),
        (("a-1", "a-2"), "topic_not_found"),
        (("b*",), "forbidden"),
        (("*",), "forbidden"),
        (("a*",), "forbidden"),
        (("a-*x",), "invalid_request"),
    ):
        with pytest.raises(TopicsError) as caught:
            await world.session(*topics, principal=mine)
        assert code(caught) == reason, topics
    await world.session("a-*", principal=mine)
    with pytest.raises(TopicsError) as caught:
        await world.session("a-2", principal=mine)
    assert code(caught) == "topic_not_found"
    with pytest.raises(TopicsError) as caught:
        await world.session("a-1", principal=mine)
    assert code(caught) == "throttled"
    assert caught.value.detail == {"limit": "max_watch_sessions", "max": 1}
    assert world.statistics.sessions == 1


@in_fake_time
async def test_a_forbidden_name_is_named() -> None:
    world = Watching()
    with pytest.raises(TopicsError) as caught:
        await world.session("a-1", "b-*", principal=key("k", "a-", "b-*"))  # a star in a key's prefix is only a star
    assert caught.value.detail == {"topic": "b-*"}


@in_fake_time
async def test_lenient_leaves_unknown_topics_out() -> None:
    world = Watching()
    world.put("a")
    session = await world.api.create(watch("a", "ghost", lenient=True), principal=UNRESTRICTED)
    assert set(session.positions) == {"a"}
    world.put("ghost")
    assert await world.visit(session.wid) == [("a", "caught up")]
    nothing = await world.session("ghost2", lenient=True)
    assert await world.visit(nothing) == []


@in_fake_time
async def test_heartbeats_are_clamped() -> None:
    world = Watching()
    world.put("a")
    for given, kept in ((0, 1000), (999, 1000), (15_000, 15_000), (60_001, 60_000), (None, None)):
        session = await world.api.create(watch("a", heartbeat_ms=given), principal=UNRESTRICTED)
        assert session.request.heartbeat_ms == kept
    lower = Watching(min_heartbeat_ms=50)
    lower.put("a")
    session = await lower.api.create(watch("a", heartbeat_ms=1), principal=UNRESTRICTED)
    assert session.request.heartbeat_ms == 50


@in_fake_time
async def test_a_session_keeps_nothing_that_it_has_no_use_for() -> None:
    world = Watching()
    world.put("a", "p-a")
    topics = {name: WatchTopic() for name in ("a", "p-*", "x" * 5000)}
    asked = WatchRequest(topics=topics, cursor={"a": 0, "y" * 5000: 1}, lenient=True)
    session = await world.api.create(asked, principal=UNRESTRICTED)
    assert (list(session.request.topics), session.request.cursor) == (["a", "p-*"], {})
    assert await world.visit(session.wid) == [("a", "caught up"), ("p-a", "caught up")]


@in_fake_time
async def test_filters_are_bounded() -> None:
    world = Watching(Limits(max_node_bytes=3, max_tag_bytes=3))
    world.put("a")
    await world.session("a", nodes=(b"abc",) * 1000, filter=TagMatch(op="Glob", value=b"abc"))
    for more in (
        {"nodes": (b"a",) * 1001},
        {"nodes": (b"a", b"abcd")},
        {"filter": TagMatch(op="Eq", value=b"abcd")},
    ):
        with pytest.raises(TopicsError) as caught:
            await world.session("a", **more)
        assert code(caught) == "invalid_request"
    assert world.statistics.sessions == 1


# ------------------------------------------------------------------ time to live


@in_fake_time
async def test_a_session_without_a_stream_lives_for_five_minutes() -> None:
    world = Watching(max_sessions=1)
    world.put("a")
    wid = await world.session("a")
    await asyncio.sleep(5 * MINUTES - 1)
    assert await world.visit(wid) == [("a", "caught up")]
    await asyncio.sleep(5 * MINUTES - 1)  # its time started again
    with pytest.raises(TopicsError, match="as many watch sessions"):
        await world.session("a")
    await asyncio.sleep(1)
    assert world.statistics.sessions == 1, "only calls collect"
    with pytest.raises(TopicsError) as caught:
        await world.visit(wid)
    assert code(caught) == "not_found"
    assert world.statistics.sessions == 0
    await world.session("a")
    await asyncio.sleep(5 * MINUTES)
    await world.session("a")


@in_fake_time
async def test_a_session_with_a_stream_lives_on() -> None:
    world = Watching()
    world.put("a")
    wid = await world.session("a")
    with await world.api.open(wid, {}, principal=UNRESTRICTED), await world.api.open(wid, {}, principal=UNRESTRICTED):
        await asyncio.sleep(10 * MINUTES)
        assert await world.visit(wid) == [("a", "caught up")]
    assert await world.visit(wid) == [("a", "caught up")]


# ------------------------------------------------------------------------- opening


@in_fake_time
async def test_only_its_key_opens_a_session() -> None:
    world = Watching(max_connections=1)
    world.put("a")
    mine = key("k1")
    wid = await world.session("a", principal=mine)
    with world.api.connection(mine):  # the caps come last
        for principal in (None, key("k2"), UNRESTRICTED):
            with pytest.raises(TopicsError) as caught, await world.api.open("wid_unknown", {}, principal=principal):
                pass
            assert code(caught) == "not_found"
            with pytest.raises(TopicsError) as caught, await world.api.open(wid, {}, principal=principal):
                pass
            assert code(caught) == "unauthorized"
        with pytest.raises(TopicsError) as caught, await world.api.open(wid, {}, principal=mine):
            pass
        assert caught.value.detail == {"limit": "max_sse_connections", "max": 1}
    with await world.api.open(wid, {}, principal=mine) as stream:
        assert tell(await quiet(stream)) == [("a", "caught up")]


async def _entered(connection: AbstractContextManager[None]) -> None:
    with connection:
        pass


@in_fake_time
async def test_connections_are_counted_for_the_whole_and_for_each_key() -> None:
    world = Watching(max_connections=4, max_connections_per_key=2)
    world.put("a")
    k1, k2 = key("k1"), key("k2")
    wid = await world.session("a", principal=k1)
    with ExitStack() as entered:
        entered.enter_context(await world.api.open(wid, {}, principal=k1))
        entered.enter_context(await world.api.stream(watch("a"), principal=k1))
        for refused in (
            world.api.open(wid, {}, principal=k1),
            world.api.stream(watch("a"), principal=k1),
            _entered(world.api.connection(k1)),
        ):
            with pytest.raises(TopicsError) as caught:
                await refused
            assert code(caught) == "throttled"
            assert caught.value.detail == {"limit": "max_sse_connections_per_key", "max": 2}
        with await world.api.stream(watch("a"), principal=k1, slot=False):
            assert world.statistics.connections == 2
            assert world.statistics.streams == 3
        entered.enter_context(world.api.connection(k2))
        entered.enter_context(world.api.connection(UNRESTRICTED))
        with pytest.raises(TopicsError) as caught, world.api.connection(k2):
            pass
        assert caught.value.detail == {"limit": "max_sse_connections", "max": 4}
    assert world.statistics.connections == world.statistics.streams == 0
    for _ in range(10):
        with world.api.connection(k1), pytest.raises(RuntimeError), world.api.connection(k1):
            raise RuntimeError("a handler fails")
    assert not world.api.connections._counts


@in_fake_time
async def test_zero_is_no_cap_and_without_keys_there_is_none_per_key() -> None:
    world = Watching(max_connections=0, max_connections_per_key=1, max_sessions=0)
    world.put("a")
    with ExitStack() as entered:
        for _ in range(50):
            entered.enter_context(world.api.connection(UNRESTRICTED))
            await world.session("a")
        assert world.statistics.connections == world.statistics.sessions == 50


@in_fake_time
async def test_removing_a_keys_sessions_ends_their_streams() -> None:
    world = Watching()
    world.put("a")
    wid, idle, others = [await world.session("a", principal=key(name)) for name in ("k1", "k1", "k2")]
    with (
        await world.api.open(wid, {}, principal=key("k1")) as first,
        await world.api.open(wid, {}, principal=key("k1")) as second,
        await world.api.open(others, {}, principal=key("k2")) as third,
    ):
        for stream in (first, second, third):
            assert tell(await quiet(stream)) == [("a", "caught up")]
        waiting = asyncio.create_task(anext(first))
        await asyncio.sleep(0)
        assert world.api.remove_sessions("k1") == 2
        gone = ErrorFrame(reason=Reason.NOT_FOUND, code=410, message="the watch session was removed")
        assert await waiting == gone
        assert await quiet(first) == []
        assert await quiet(second) == [gone]
        world.append("a")
        assert tell(await quiet(third)) == [("a", [1]), ("a", "caught up")]
    assert world.statistics.sessions == 1
    for removed in (wid, idle):
        with pytest.raises(TopicsError) as caught:
            await world.visit(removed)
        assert code(caught) == "not_found"
    assert world.api.remove_sessions("k1") == 0


# ------------------------------------------------------------------- resuming


@in_fake_time
async def test_the_next_stream_begins_behind_what_was_handed_over() -> None:
    world = Watching()
    world.put("a")
    world.append("a", 4)
    wid = await world.session("a", limit=1)
    with await world.api.open(wid, {}, principal=UNRESTRICTED) as stream:
        got = [await anext(stream) for _ in range(3)]
    assert tell(got) == [("a", [1]), ("a", [2]), ("a", [3])]
    # 3 was handed to the transport, which did not ask for more: it may or may not have been sent.
    assert (await world.visit(wid))[0] == ("a", [3])
    assert await world.visit(wid) == [("a", "caught up")]


@in_fake_time
async def test_filtered_records_move_the_session_too() -> None:
    world = Watching()
    world.put("a", "b")
    wid = await world.session("a", "b", nodes=(b"me",))
    world.append("a", 5, nodes=b"me")
    assert await world.visit(wid) == [("a", "caught up"), ("b", "caught up")]
    assert world.api._sessions.find(wid).cursors == {"a": 5, "b": 0}


@in_fake_time
async def test_an_id_takes_the_session_back_topic_by_topic() -> None:
    world = Watching()
    world.put("a", "b")
    world.append("a", 3)
    world.append("b", 3)
    wid = await world.session("a", "b")
    await world.visit(wid)
    told = await world.visit(wid, {"a": 1, "b": 99, "ghost": 0})
    assert told == [("a", [2, 3]), ("a", "caught up"), ("b", "caught up")]
    world.append("b")
    assert ("b", [4]) in await world.visit(wid, {"a": 3})


@in_fake_time
async def test_an_id_ahead_has_no_effect_but_that_of_the_frame_that_was_sent() -> None:
    world = Watching()
    world.put("a")
    world.append("a", 4)
    wid = await world.session("a", limit=2)
    with await world.api.open(wid, {}, principal=UNRESTRICTED) as stream:
        assert tell([await anext(stream)]) == [("a", [1, 2])]
    assert (await world.visit(wid, {"a": 3}))[0] == ("a", [1, 2])
    wid = await world.session("a", limit=2)
    with await world.api.open(wid, {}, principal=UNRESTRICTED) as stream:
        await anext(stream)
    assert await world.visit(wid, {"a": 2}) == [("a", [3, 4]), ("a", "caught up")]


@in_fake_time
async def test_only_the_newest_stream_moves_the_session() -> None:
    """A connection that the client has lost may stay open for a while: it must not take records from the new one."""
    world = Watching()
    world.put("a")
    wid = await world.session("a")
    with await world.api.open(wid, {}, principal=UNRESTRICTED) as lost:
        await quiet(lost)
        world.append("a", 2)
        with await world.api.open(wid, {}, principal=UNRESTRICTED) as new:
            assert tell([await anext(new)]) == [("a", [1, 2])]
            assert tell(await quiet(lost)) == [("a", [1, 2]), ("a", "caught up")]
        assert tell(await quiet(lost)) == []
    assert await world.visit(wid) == [("a", [1, 2]), ("a", "caught up")]


@in_fake_time
async def test_a_topic_that_was_deleted_meanwhile_is_told() -> None:
    world = Watching()
    world.put("a", "b")
    world.append("a", 3)
    wid = await world.session("a", "b")
    await world.visit(wid)
    world.append("a", 2)
    with await world.api.open(wid, {}, principal=UNRESTRICTED) as stream:
        await anext(stream)
    world.drop("a")
    assert await world.visit(wid) == [("a", "deleted", 5), ("b", "caught up")]
    world.drop("b")
    assert set(await world.visit(wid)) >= {("b", "deleted", 0)}


@in_fake_time
async def test_a_topic_that_was_made_again_meanwhile_is_told() -> None:
    world = Watching()
    world.put("a")
    world.append("a", 3)
    wid = await world.session("a")
    await world.visit(wid)
    world.recreate("a")
    world.append("a", 5)  # its head has passed the cursor: only the epoch shows it
    with await world.api.open(wid, {}, principal=UNRESTRICTED) as stream:
        assert (await anext(stream)).tombstone.reason == "recreated"  # type: ignore[union-attr]
    told = await world.visit(wid)  # the tombstone may not have been sent, so it comes again
    assert told[0][:2] == ("a", "recreated")
    assert told[1:] == [("a", [1, 2, 3, 4, 5]), ("a", "caught up")]
    assert await world.visit(wid) == [("a", "caught up")]


@in_fake_time
async def test_a_pattern_keeps_the_cursors_of_topics_that_joined() -> None:
    world = Watching()
    world.put("p-a", "other")
    world.append("p-a", 2)
    wid = await world.session("p-*", tail=True)
    with await world.api.open(wid, {}, principal=UNRESTRICTED) as stream:
        assert tell(await quiet(stream)) == [("p-a", "caught up")]
        world.put("p-b")
        world.append("p-b", 2)
        assert tell(await quiet(stream)) == [("p-b", [1, 2]), ("p-b", "caught up")]
    assert await world.visit(wid) == [("p-a", "caught up"), ("p-b", "caught up")]
    world.put("p-c")
    world.append("p-c")
    assert ("p-c", [1]) in await world.visit(wid), "made while nobody was connected: read from its first record"
    assert ("p-b", [2]) in await world.visit(wid, {"p-b": 1})
    world.drop("p-b")
    assert ("p-b", "deleted", 2) in await world.visit(wid)
    assert await world.visit(wid) == [("p-a", "caught up"), ("p-c", "caught up")]


@in_fake_time
async def test_the_server_must_take_calls() -> None:
    world = Watching()
    world.put("a")
    wid = await world.session("a")

    def refuse() -> Engine:
        raise TopicsError(Reason.SHUTTING_DOWN, "the server is shutting down")

    world.api._source = EngineSource(refuse)
    for call in (world.api.open(wid, {}, principal=UNRESTRICTED), world.api.stream(watch("a"), principal=UNRESTRICTED)):
        with pytest.raises(TopicsError) as caught:
            await call
        assert code(caught) == "shutting_down"
    with pytest.raises(TopicsError):
        await world.session("a")
