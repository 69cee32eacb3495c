"""The frames of a watch: what is read, what was lost, and when it is caught up."""

from typing import Any

import pytest
from engine_support import CrashStore, FaultyStore, World, code, seqs
from msgspec.structs import replace
from watch_support import Watcher

from topics_service.engine.errors import TopicsError
from topics_service.engine.model import TagMatch
from topics_service.engine.transaction import Transaction
from topics_service.engine.watch.frames import Position, RecordsFrame, WatchTopic
from topics_service.storage.store import Family

# ------------------------------------------------------------------- one topic


def test_an_empty_topic_is_caught_up_at_once(world: World) -> None:
    world.put()
    watcher = Watcher(world)
    assert watcher.watch.positions == {"t": Position(from_seq=0, head_seq=0, earliest_seq=1)}
    assert watcher.wakes == []
    assert watcher.frames() == [("caught-up", "t", 0)]
    assert watcher.frames() == []
    assert not watcher.watch.finished


def test_a_backlog_comes_in_frames_of_the_limit_and_ends_with_caught_up(world: World) -> None:
    world.append(1, 1, 1)
    world.append(1, 1)
    watcher = Watcher(world, limit=2)
    assert watcher.frames() == [
        ("records", "t", [1, 2], 0, 2, 5),
        ("records", "t", [3, 4], 2, 4, 5),
        ("records", "t", [5], 4, 5, 5),
        ("caught-up", "t", 5),
    ]


def test_the_cursor_moves_with_each_frame(world: World) -> None:
    world.append(1, 1, 1)
    watcher = Watcher(world, limit=2)
    assert watcher.watch.cursors == {"t": 0}
    found = []
    while watcher.next():
        found.append(watcher.watch.cursors["t"])
    assert found == [2, 3, 3]


def test_every_live_batch_is_followed_by_caught_up(world: World) -> None:
    world.put()
    watcher = Watcher(world)
    watcher.frames()
    for seq in (1, 2):
        world.append(1)
        assert watcher.wakes == ["t"]
        assert watcher.frames() == [("records", "t", [seq], seq - 1, seq, seq), ("caught-up", "t", seq)]
        watcher.wakes.clear()


def test_a_slow_watcher_is_woken_once_and_gets_larger_frames(world: World) -> None:
    world.put()
    watcher = Watcher(world)
    watcher.frames()
    for _ in range(3):
        world.append(1)
    assert watcher.wakes == ["t"]
    assert watcher.events() == [("t", 1, 2, 3), ("t", "caught-up")]


def test_what_comes_before_caught_up_could_be_told_goes_first(world: World) -> None:
    world.append(1)
    watcher = Watcher(world)
    assert watcher.next() == ("records", "t", [1], 0, 1, 1)
    world.append(1)
    assert watcher.frames() == [("records", "t", [2], 1, 2, 2), ("caught-up", "t", 2)]


@pytest.mark.parametrize(
    ("start", "request_", "expected"),
    [
        (3, {}, ("t", 4, 5)),
        (5, {}, None),
        (None, {}, None),
        (WatchTopic(from_seq=2, tail=True), {}, None),
        (0, {"cursor": {"t": 4, "other": 1}}, ("t", 5)),
        (None, {"cursor": {"t": 4}}, ("t", 5)),
        (3, {"cursor": {"t": 0}}, ("t", 1, 2, 3, 4, 5)),
    ],
)
def test_where_it_starts(world: World, start: Any, request_: dict[str, Any], expected: Any) -> None:
    world.append(1, 1, 1, 1, 1)
    watcher = Watcher(world, {"t": start}, **request_)
    assert watcher.events() == [*([expected] if expected else []), ("t", "caught-up")]
    world.append(1)
    assert watcher.events() == [("t", 6), ("t", "caught-up")]


def test_positions_say_where_the_log_stands(world: World) -> None:
    world.append(1, 1, 1, 1, 1)
    world.delete(3)
    assert Watcher(world, {"t": 1}).watch.positions["t"] == Position(from_seq=1, head_seq=5, earliest_seq=3)
    assert Watcher(world, {"t": None}).watch.positions["t"] == Position(from_seq=5, head_seq=5, earliest_seq=3)
    assert Watcher(world, {"t": 9}).watch.positions["t"] == Position(from_seq=9, head_seq=5, earliest_seq=3)


@pytest.mark.parametrize(("limit", "first"), [(0, 256), (1, 1), (1000, 1000), (5000, 1000)])
def test_limits_have_a_default_and_a_bound(world: World, limit: int, first: int) -> None:
    world.append(*[1] * 1200)
    frame = Watcher(world, limit=limit).next()
    assert frame is not None
    assert len(frame[2]) == first


@pytest.mark.parametrize(("budget", "first"), [(None, 2), (0, 10), (1, 1), (310_000, 3), (1 << 40, 81)])
def test_the_byte_budget_has_a_default_and_a_bound(world: World, budget: int | None, first: int) -> None:
    world.append(*[100 << 10] * 100)
    frame = Watcher(world, limit=1000, max_batch_bytes=budget).next()
    assert frame is not None
    assert len(frame[2]) == first


def test_delivery_counts_as_consumption(world: World) -> None:
    world.append(1)
    watcher = Watcher(world)
    assert world.state().effective_priority == 0
    watcher.next()
    assert (world.state().effective_priority, world.state().last_read_ts) == (500, world.clock.now)


# ------------------------------------------------------------------------ loss


def test_a_stale_cursor_meets_a_tombstone_first(world: World) -> None:
    world.put(cap_records=2)
    world.append(1, 1, 1, 1, 1)
    watcher = Watcher(world, {"t": 1})
    assert watcher.next() == ("lost", "t", 2, 3, "cap", True)
    assert watcher.watch.cursors == {"t": 3}
    assert watcher.frames() == [("records", "t", [4, 5], 1, 5, 5), ("caught-up", "t", 5)]


def test_only_the_first_records_after_a_tombstone_name_the_cursor_before_it(world: World) -> None:
    world.put(cap_records=2)
    world.append(1, 1, 1, 1, 1)
    assert [frame[:5] for frame in Watcher(world, limit=1).frames()[1:3]] == [
        ("records", "t", [4], 0, 4),
        ("records", "t", [5], 4, 5),
    ]


def test_a_later_gap_is_not_opening(world: World) -> None:
    world.put(cap_records=2)
    watcher = Watcher(world)
    watcher.frames()
    world.append(1, 1, 1, 1)
    assert watcher.frames() == [
        ("lost", "t", 1, 2, "cap", False),
        ("records", "t", [3, 4], 0, 4, 4),
        ("caught-up", "t", 4),
    ]


def test_what_is_lost_while_it_waits_shows_too(world: World) -> None:
    world.put(ttl_ms=100)
    world.append(1, 1, 1)
    watcher = Watcher(world, limit=1)
    assert watcher.next() == ("records", "t", [1], 0, 1, 3)
    world.clock.advance(101)
    assert watcher.frames() == [("lost", "t", 2, 3, "ttl", False), ("caught-up", "t", 3)]


def test_a_gap_grows_between_its_tombstone_and_the_records(world: World) -> None:
    world.put(cap_records=2)
    world.append(1, 1, 1)
    watcher = Watcher(world)
    assert watcher.next() == ("lost", "t", 1, 1, "cap", True)
    world.append(1, 1)
    assert watcher.frames() == [
        ("lost", "t", 2, 3, "cap", False),
        ("records", "t", [4, 5], 1, 5, 5),
        ("caught-up", "t", 5),
    ]


def test_deleted_records_are_passed_in_silence(world: World) -> None:
    world.append(1, 1, 1, 1, 1, tags=[None, b"x", None, b"x", b"x"])
    world.delete(2)
    world.delete(eq=b"x")
    watcher = Watcher(world)
    assert watcher.frames() == [("records", "t", [3], 0, 5, 5), ("caught-up", "t", 5)]


def test_a_cursor_from_the_future_is_told_that_the_topic_is_another_one(world: World) -> None:
    world.append(1, 1)
    watcher = Watcher(world, {"t": 7})
    assert watcher.next() == ("lost", "t", 1, 2, "recreated", True)
    assert watcher.watch.cursors == {"t": 0}
    assert watcher.frames() == [("records", "t", [1, 2], 7, 2, 2), ("caught-up", "t", 2)]


def test_a_cursor_from_the_future_of_an_empty_topic(world: World) -> None:
    world.put()
    watcher = Watcher(world, {"t": 7})
    assert watcher.frames() == [("lost", "t", 1, 0, "recreated", True), ("caught-up", "t", 0)]
    world.append(1)
    assert watcher.frames() == [("records", "t", [1], 0, 1, 1), ("caught-up", "t", 1)]


def test_an_interior_gap_stands_between_the_records(small_steps: None) -> None:
    world = World(CrashStore())
    world.append(1, 1)
    world.append(1, sync=False)
    world.cut_power()
    head = world.append(1).head_seq
    assert Watcher(world).frames() == [
        ("records", "t", [1, 2], 0, 2, head),
        ("lost", "t", 3, head - 1, "cap", False),
        ("records", "t", [head], 2, head, head),
        ("caught-up", "t", head),
    ]


def test_seqs_that_never_held_a_record_are_told_when_they_pass(world: World) -> None:
    world.append(1)
    watcher = Watcher(world)
    watcher.frames()
    topic = world.engine.catalog.visible("t")
    with Transaction(world.engine.writer) as tx:
        topic.log.skip_seqs(tx, topic.log.begin(topic.config, world.clock.now), 3, topic.config)
        tx.commit()
    assert watcher.wakes == ["t"]
    assert watcher.frames() == [("lost", "t", 2, 4, "source_trim", False), ("caught-up", "t", 4)]


# --------------------------------------------------------------------- filters


def test_own_records_are_left_out_and_move_the_cursor(world: World) -> None:
    world.append(1, 1, 1, nodes=[b"me", None, b"me"])
    watcher = Watcher(world, nodes=(b"me",))
    assert watcher.frames() == [("records", "t", [2], 0, 3, 3), ("caught-up", "t", 3)]
    world.append(1, nodes=[b"me"])
    assert watcher.frames() == [], "nothing of it was for this watcher"
    assert watcher.watch.cursors == {"t": 4}
    world.append(1)
    assert watcher.frames() == [("records", "t", [5], 4, 5, 5), ("caught-up", "t", 5)]


def test_a_backlog_of_own_records_ends_with_caught_up(world: World) -> None:
    world.append(1, 1, nodes=[b"me", b"me"])
    assert Watcher(world, nodes=(b"me",), limit=1).frames() == [("caught-up", "t", 2)]


def test_a_topic_may_want_echoes(world: World) -> None:
    world.put(dedupe_node=False)
    world.append(1, nodes=[b"me"])
    watcher = Watcher(world, nodes=(b"me",))
    assert watcher.events() == [("t", 1), ("t", "caught-up")]
    world.put(dedupe_node=True)
    world.append(1, nodes=[b"me"])
    assert watcher.events() == []


@pytest.mark.parametrize("sealed", [False, True])
def test_a_tag_filter(world: World, small_steps: None, sealed: bool) -> None:
    for tag in (b"a", b"b", b"ab", None, b"b"):
        world.append(1, tags=[tag])
    if sealed:
        world.seal()
    watcher = Watcher(world, filter=TagMatch("Glob", b"a"))
    assert watcher.frames() == [("records", "t", [1, 3], 0, 5, 5), ("caught-up", "t", 5)]
    world.append(1, 1, tags=[b"b", b"a"])
    assert watcher.frames() == [("records", "t", [7], 5, 7, 7), ("caught-up", "t", 7)]
    world.append(1, tags=[b"b"])
    assert watcher.frames() == []
    assert watcher.watch.cursors == {"t": 8}
    assert Watcher(world, filter=TagMatch("Eq", b"ab")).events() == [("t", 3), ("t", "caught-up")]


def test_much_silence_lets_others_run(world: World) -> None:
    """A frame is not worth reading a whole log for without a break: `wake` says that it goes on."""
    world.append(*[1] * 5000, nodes=[b"me"] * 5000)
    watcher = Watcher(world, nodes=(b"me",))
    assert watcher.next() is None
    assert watcher.wakes == ["t"]
    assert watcher.watch.cursors == {"t": 2048}
    assert watcher.frames() == [("caught-up", "t", 5000)]


def test_silence_that_takes_long_lets_others_run(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"t{i}" for i in range(5)]
    for name in names:
        world.append(1, topic=name, tags=[b"a"])
    watcher = Watcher(world, dict.fromkeys(names, 0), filter=TagMatch("Eq", b"z"))
    watcher.frames()
    for name in names:
        world.append(1, topic=name, tags=[b"a"])
    watcher.wakes.clear()

    def ticking() -> int:
        world.clock.advance(2)
        return world.clock.now

    monkeypatch.setattr(world.clock, "now_ms", ticking)
    assert watcher.next() is None
    assert watcher.wakes == ["t2"], "after more than 5 ms"
    assert watcher.frames() == []
    assert watcher.watch.cursors == dict.fromkeys(names, 2)


def test_silence_of_one_topic_does_not_hold_up_another(world: World) -> None:
    world.append(*[1] * 5000, topic="a", nodes=[b"me"] * 5000)
    world.append(1, topic="b")
    watcher = Watcher(world, {"a": 0, "b": 0}, nodes=(b"me",))
    assert watcher.next() == ("records", "b", [1], 0, 1, 1)
    assert watcher.watch.cursors == {"a": 256, "b": 1}


# ---------------------------------------------------------------------- strong


def test_a_strong_watcher_waits_for_the_fsync_and_asks_for_it() -> None:
    world = World(CrashStore())
    world.put()
    world.append(1)
    asked: list[int] = []
    world.engine.writer.request_sync = asked.append
    watcher, other = Watcher(world, strong=True), Watcher(world)
    assert watcher.frames() == [("records", "t", [1], 0, 1, 1), ("caught-up", "t", 1)]
    world.append(1, sync=False)
    world.append(1, sync=False)
    assert other.events() == [("t", 1, 2, 3), ("t", "caught-up")]
    assert watcher.frames() == []
    assert len(asked) == 1, "one at a time"
    world.append(1, sync=False)
    assert watcher.frames() == []
    assert len(asked) == 1
    watcher.wakes.clear()
    world.engine.synced(asked[0])
    assert watcher.wakes == ["t"]
    assert watcher.frames() == [("records", "t", [2, 3], 1, 3, 4)], "not caught up: there is one more"
    assert len(asked) == 2
    world.engine.sync()
    assert watcher.frames() == [("records", "t", [4], 3, 4, 4), ("caught-up", "t", 4)]


def test_a_strong_watcher_needs_no_fsync_when_one_has_happened(world: World) -> None:
    world.append(1)
    watcher = Watcher(world, strong=True)
    assert watcher.events() == [("t", 1), ("t", "caught-up")]


def test_a_change_of_config_does_not_swallow_the_wake_of_a_strong_watcher() -> None:
    """Its fsync covers the records too, though the log does not grow by it."""
    world = World(CrashStore())
    world.append(1)
    watcher = Watcher(world, strong=True)
    watcher.frames()
    world.append(1, sync=False)
    assert watcher.frames() == []
    watcher.wakes.clear()
    world.put(priority=1)
    assert watcher.wakes == ["t"]
    assert watcher.events() == [("t", 2), ("t", "caught-up")]


def test_a_strong_tail_starts_at_the_visible_head() -> None:
    world = World(CrashStore())
    world.append(1)
    world.append(1, sync=False)
    watcher = Watcher(world, {"t": None}, strong=True)
    assert watcher.watch.positions["t"].from_seq == 2
    assert watcher.frames() == []
    world.engine.sync()
    assert watcher.frames() == [("caught-up", "t", 2)]


def test_a_strong_watcher_of_an_fsync_topic_sees_what_is_visible() -> None:
    world = World(CrashStore())
    world.put(durability="fsync")
    watcher = Watcher(world, strong=True)
    watcher.frames()
    world.append(1, sync=False)
    assert (watcher.wakes, watcher.frames()) == ([], [])
    world.engine.sync()
    assert watcher.events() == [("t", 1), ("t", "caught-up")]


def test_a_strong_watcher_of_an_ephemeral_topic_can_have_no_more() -> None:
    world = World(CrashStore())
    world.put(durability="ephemeral")
    world.append(1)
    watcher = Watcher(world, strong=True)
    watcher.frames()
    world.append(1, topic="other", sync=False)  # something that an fsync would have to cover
    world.append(1, sync=False)
    assert watcher.events() == [("t", 2), ("t", "caught-up")]


def test_a_strong_watcher_is_told_of_loss_as_far_as_it_is_durable() -> None:
    world = World(CrashStore())
    world.put(cap_records=1)
    world.append(1, 1)
    watcher = Watcher(world, strong=True)
    watcher.frames()
    world.append(1, sync=False)
    world.append(1, sync=False)
    assert watcher.frames() == []
    world.engine.sync()
    assert watcher.events() == [("t", "cap", 3, 3), ("t", 4), ("t", "caught-up")]


# ----------------------------------------------------------------- many topics


def test_the_first_pass_is_in_name_order(world: World) -> None:
    for name in ("c", "a", "b"):
        world.put(name, priority={"a": -1000, "b": 0, "c": 1000}[name])
        world.append(1, topic=name)
    watcher = Watcher(world, {"b": 0, "c": 0, "a": 0})
    assert list(watcher.watch.positions) == list(watcher.watch.cursors) == ["a", "b", "c"]
    assert watcher.events() == [
        ("a", 1), ("a", "caught-up"), ("b", 1), ("b", "caught-up"), ("c", 1), ("c", "caught-up"),
    ]  # fmt: skip


def test_later_priority_decides(world: World) -> None:
    for name, priority in (("a", -1), ("b", 2), ("c", 1)):
        world.put(name, priority=priority)
    watcher = Watcher(world, {"a": 0, "b": 0, "c": 0})
    watcher.frames()
    for name in ("a", "b", "c"):
        world.append(1, topic=name)
    assert watcher.wakes == ["a", "b", "c"]
    assert watcher.events()[::2] == [("b", 1), ("c", 1), ("a", 1)]


def test_a_huge_backlog_does_not_hold_up_others(world: World) -> None:
    world.put("a", priority=1000)
    world.append(*[1] * 10, topic="a")
    world.append(1, topic="b")
    watcher = Watcher(world, {"a": 0, "b": 0}, limit=3)
    watcher.next()
    assert watcher.next() == ("records", "b", [1], 0, 1, 1)
    assert watcher.next() == ("caught-up", "b", 1)
    assert watcher.next() == ("records", "a", [4, 5, 6], 3, 6, 10)
    world.append(1, topic="b")
    assert watcher.events() == [
        ("b", 2), ("b", "caught-up"), ("a", 7, 8, 9), ("a", 10), ("a", "caught-up"),
    ]  # fmt: skip


def test_one_that_never_ends_does_not_hold_up_others(world: World) -> None:
    world.put("a", priority=1000)
    world.put("b", priority=-1000)
    watcher = Watcher(world, {"a": 0, "b": 0})
    watcher.frames()
    world.append(1, topic="a")
    world.append(1, topic="b")
    found = []
    for _ in range(3):  # something new in `a` before each frame
        found.append(watcher.next())
        world.append(1, topic="a")
    assert [frame[1] for frame in found if frame] == ["a", "b", "b"]


def test_loss_that_never_ends_does_not_hold_up_others(world: World) -> None:
    world.put("a", priority=1000, cap_records=1)
    world.append(1, 1, topic="a")
    world.append(1, topic="b")
    watcher = Watcher(world, {"a": 0, "b": 0})
    found = []
    for _ in range(3):
        found.append(watcher.next())
        world.append(1, 1, topic="a")
    assert [frame[:2] for frame in found if frame] == [("lost", "a"), ("lost", "a"), ("records", "b")]


def test_a_wake_costs_nothing_for_the_other_topics(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"t{i:03}" for i in range(256)]
    for name in names:
        world.put(name, sync=False)
    world.engine.sync()
    watcher = Watcher(world, dict.fromkeys(names, 0))
    assert len(watcher.frames()) == 256
    steps: list[str] = []
    original = type(watcher.watch)._step

    def counted(watch: Any, follow: Any, now: int, *, fresh: bool) -> Any:
        steps.append(follow.name)
        return original(watch, follow, now, fresh=fresh)

    monkeypatch.setattr(type(watcher.watch), "_step", counted)
    world.append(1, topic="t077")
    assert len(watcher.frames()) == 2
    assert steps == ["t077"] * 2


# ------------------------------------------------------------------ bad topics


def damage(world: World, topic: str, seq: int) -> None:
    """Flip a byte of the block that begins at `seq`."""
    log = world.engine.catalog.visible(topic).log
    key, value = next(
        (key, value)
        for key, value in world.rows(Family.BLOCKS)
        if key == log.log_id.to_bytes(8, "big") + seq.to_bytes(8, "big")
    )
    assert isinstance(world.store, FaultyStore)
    world.store._rows[Family.BLOCKS][key] = value[:-1] + bytes([value[-1] ^ 1])
    world.engine.blocks.drop_log(log.log_id)


@pytest.mark.parametrize("ttl_ms", [0, 1 << 40])
def test_a_topic_that_cannot_be_read_does_not_end_the_others(world: World, ttl_ms: int) -> None:
    for name in ("a", "b", "c"):
        world.put(name, ttl_ms=ttl_ms)
        world.append(1, topic=name)
    damage(world, "b", 1)
    watcher = Watcher(world, {"a": 0, "b": 0, "c": 0})
    assert watcher.frames() == [
        ("records", "a", [1], 0, 1, 1),
        ("caught-up", "a", 1),
        ("error", "internal", 500, ("b",), False),
        ("records", "c", [1], 0, 1, 1),
        ("caught-up", "c", 1),
    ]
    assert (watcher.watch.cursors["b"], watcher.watch.heads["b"]) == (0, 1)
    assert not world.engine.catalog.visible("b").log._parked, "it is not followed any more"
    assert not watcher.watch.finished


def test_damage_further_on_shows_where_it_is_met(world: World) -> None:
    world.append(1)
    world.append(1)
    damage(world, "t", 2)
    watcher = Watcher(world, limit=1)
    assert watcher.frames() == [("records", "t", [1], 0, 1, 2), ("error", "internal", 500, ("t",), False)]
    assert watcher.watch.finished


@pytest.mark.parametrize(
    ("topics", "expected"),
    [
        ({}, "invalid_request"),
        ({f"t{i}": 0 for i in range(257)}, "invalid_request"),
        ({"a*b": 0}, "invalid_request"),
        ({"a**": 0}, "invalid_request"),
        ({"**": 0}, "invalid_request"),
        ({"a b*": 0}, "invalid_request"),
        ({":*": 0}, "invalid_request"),
        ({"a" * 256 + "*": 0}, "invalid_request"),
        ({"t": 0, "none": 0}, "topic_not_found"),
        ({"not a name": 0}, "topic_not_found"),
        ({"": 0}, "topic_not_found"),
    ],
)
def test_bad_requests(world: World, topics: dict[str, int], expected: str) -> None:
    world.put()
    with pytest.raises(TopicsError) as error:
        Watcher(world, topics)
    assert code(error) == expected
    assert not world.engine.catalog.visible("t").log._parked
    assert world.engine.catalog.on_created == []


def test_lenient_leaves_unknown_topics_out(world: World) -> None:
    world.put()
    watcher = Watcher(world, {"none": 0, "t": 0, "not a name": 0}, lenient=True)
    assert list(watcher.watch.positions) == ["t"]
    assert watcher.events() == [("t", "caught-up")]
    nothing = Watcher(world, {"none": 0}, lenient=True)
    assert (nothing.watch.positions, nothing.watch.finished, nothing.next()) == ({}, True, None)
    with pytest.raises(TopicsError) as error:
        Watcher(world, {"a*b": 0}, lenient=True)
    assert code(error) == "invalid_request"


def test_a_topic_is_not_there_before_its_creation_is_durable(world: World) -> None:
    world.put(sync=False)
    with pytest.raises(TopicsError) as error:
        Watcher(world)
    assert code(error) == "topic_not_found"


def test_a_change_of_class_changes_nothing_for_a_watcher(world: World) -> None:
    world.put(durability="ephemeral")
    watcher = Watcher(world, strong=True)
    expected: list[Any] = [("t", "caught-up")]
    assert watcher.events() == expected
    for seq, durability in enumerate(("disk", "fsync", "memory", "ephemeral"), 1):
        world.append(1)
        world.put(durability=durability)
        assert watcher.events() == [("t", seq), ("t", "caught-up")]


def test_a_watch_gives_the_slices_that_diff_gives(world: World) -> None:
    world.append(1, 1)
    watcher = Watcher(world)
    frame, page = watcher.watch.next(), world.diff()
    assert isinstance(frame, RecordsFrame)
    assert seqs(page) == [1, 2]
    assert list(frame.slices) == list(page.slices)
    assert frame.slices[0].block is page.slices[0].block, "one rendering serves all"


def test_closing_lets_go_of_everything(world: World) -> None:
    world.append(1, topic="a1")
    watcher = Watcher(world, {"a1": 0, "b*": 0})
    watcher.watch.close()
    watcher.watch.close()
    assert (watcher.watch.finished, watcher.next()) == (True, None)
    assert not world.engine.catalog.visible("a1").log._parked
    assert world.engine.catalog.on_created == []
    world.append(1, topic="a1")
    world.append(1, topic="b1")
    assert (watcher.wakes, watcher.next()) == ([], None)


def test_a_watch_that_is_closed_while_others_are_woken_stays_silent(world: World) -> None:
    world.put()
    first = Watcher(world)
    others = [Watcher(world) for _ in range(5)]
    for watcher in (first, *others):
        watcher.frames()

    def close_all(_: str) -> None:
        for other in others:
            other.watch.close()

    first.watch._wake = close_all
    world.append(1)
    assert all(other.next() is None for other in others)
    assert first.events() == [("t", 1), ("t", "caught-up")]


@pytest.mark.parametrize("dropped", ["a", "b"])
def test_a_dropped_topic_is_followed_no_more(world: World, dropped: str) -> None:
    for name in ("a", "b"):
        world.append(1, 1, topic=name)
    watcher = Watcher(world, {"a": 0, "b": 0}, limit=1)
    assert watcher.next() == ("records", "a", [1], 0, 1, 2)
    kept = "ab".replace(dropped, "")
    assert watcher.watch.drop(dropped)
    assert not watcher.watch.drop(dropped)
    assert not watcher.watch.drop("none")
    assert list(watcher.watch.cursors) == list(watcher.watch.epochs) == list(watcher.watch.heads) == [kept]
    expected = [("a", 2)] if kept == "a" else [("b", 1), ("b", 2)]
    assert watcher.events() == [*expected, (kept, "caught-up")]
    world.append(1, topic=dropped)
    world.engine.delete_topic(dropped)
    assert (watcher.wakes, watcher.frames()) == ([], [])
    assert watcher.watch.drop(kept)
    assert watcher.watch.finished


def test_a_topic_that_is_dropped_between_its_frames(world: World) -> None:
    world.append(1)
    watcher = Watcher(world)
    assert watcher.next() == ("records", "t", [1], 0, 1, 1)
    assert watcher.watch.drop("t")
    assert watcher.next() is None


def test_the_limit_of_topics_is_a_setting(world: World) -> None:
    world.engine.limits = replace(world.engine.limits, max_watch_topics=2)
    for name in ("a", "b", "c"):
        world.put(name)
    assert len(Watcher(world, {"a": 0, "b": 0}).frames()) == 2
    with pytest.raises(TopicsError) as error:
        Watcher(world, {"a": 0, "b": 0, "c": 0})
    assert code(error) == "invalid_request"
