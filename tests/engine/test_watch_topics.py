"""Topics that go, come again and come new while they are watched, and sessions that are opened again."""

import pytest
from engine_support import CrashStore, World, code
from msgspec.structs import replace
from watch_support import Watcher

from topics_service.engine.errors import TopicsError
from topics_service.engine.watch.frames import WatchTopic

# -------------------------------------------------------------------- deletion


def test_a_deleted_topic_is_told_at_once_with_its_last_head(world: World) -> None:
    for name in ("a", "b"):
        world.append(1, 1, topic=name)
    watcher = Watcher(world, {"a": 0, "b": 0})
    watcher.frames()
    watcher.wakes.clear()
    world.engine.delete_topic("a")
    assert watcher.wakes == ["a"]
    assert watcher.frames() == [("deleted", "a", 2)]
    assert watcher.watch.cursors == {"a": 2, "b": 2}, "its cursor stays"
    assert watcher.watch.heads == {"a": 2, "b": 2}
    assert not watcher.watch.finished
    world.append(1, topic="b")
    assert watcher.events() == [("b", 3), ("b", "caught-up")]
    world.engine.delete_topic("b")
    assert not watcher.watch.finished
    assert watcher.frames() == [("deleted", "b", 3)]
    assert watcher.watch.finished
    assert watcher.next() is None


@pytest.mark.parametrize("frames", [0, 1, 2])
def test_a_topic_is_deleted_in_the_middle(world: World, frames: int) -> None:
    world.append(1, 1, 1)
    watcher = Watcher(world, limit=2)
    for _ in range(frames):
        watcher.next()
    world.engine.delete_topic("t")
    assert watcher.frames() == [("deleted", "t", 3)]
    assert watcher.watch.cursors == {"t": (0, 2, 3)[frames]}


def test_what_was_never_visible_does_not_count_in_the_last_head() -> None:
    world = World(CrashStore())
    world.put(durability="fsync")
    world.append(1)
    world.append(1, sync=False)
    watcher = Watcher(world)
    watcher.frames()
    world.engine.delete_topic("t")
    assert watcher.frames() == [("deleted", "t", 1)]


@pytest.mark.parametrize("records", [1, 3, 5])
def test_a_recreated_topic_is_another_one(world: World, records: int) -> None:
    """However far it has come: the cursor is not taken for one of its own."""
    world.append(1, 1, 1)
    watcher = Watcher(world)
    watcher.frames()
    world.engine.delete_topic("t")
    world.append(*[1] * records)
    assert watcher.frames() == [("deleted", "t", 3)]
    assert watcher.watch.finished


# -------------------------------------------------------------------- sessions


def test_a_session_goes_on_where_it_was(world: World) -> None:
    world.append(1, 1)
    first = Watcher(world, limit=1)
    first.next()
    again = Watcher(world, cursor=first.watch.cursors, epochs=first.watch.epochs, heads=first.watch.heads)
    assert again.frames() == [("records", "t", [2], 1, 2, 2), ("caught-up", "t", 2)]


@pytest.mark.parametrize("records", [0, 1, 3, 9])
def test_a_session_of_a_recreated_topic_reads_it_from_its_earliest_record(world: World, records: int) -> None:
    world.append(1, 1, 1)
    first = Watcher(world)
    first.frames()
    world.engine.delete_topic("t")
    world.put()
    if records:
        world.append(*[1] * records)
    again = Watcher(world, cursor=first.watch.cursors, epochs=first.watch.epochs, heads=first.watch.heads)
    assert again.watch.positions["t"].from_seq == 3
    assert again.watch.epochs == first.watch.epochs, "the cursor is still one of the old instance"
    assert again.next() == ("lost", "t", 1, records, "recreated", True)
    assert again.watch.cursors == {"t": 0}
    assert again.watch.epochs != first.watch.epochs
    expected = [("t", *range(1, records + 1))] if records else []
    assert again.events() == [*expected, ("t", "caught-up")]
    third = Watcher(world, cursor=again.watch.cursors, epochs=again.watch.epochs, heads=again.watch.heads)
    assert third.events() == [("t", "caught-up")]


def test_a_recreated_topic_that_lost_records_already(world: World) -> None:
    world.append(1)
    first = Watcher(world)
    first.frames()
    world.engine.delete_topic("t")
    world.put(cap_records=1)
    world.append(1, 1, 1)
    again = Watcher(world, cursor=first.watch.cursors, epochs=first.watch.epochs, heads=first.watch.heads)
    assert again.frames() == [
        ("lost", "t", 1, 3, "recreated", True),
        ("records", "t", [3], 1, 3, 3),
        ("caught-up", "t", 3),
    ]


def test_a_session_whose_topics_are_gone_is_told_so_and_ends(world: World) -> None:
    for name in ("a", "b", "c"):
        world.append(1, topic=name)
    first = Watcher(world, {"a": 0, "b": 0, "c": 0})
    first.next()
    for name in ("a", "c"):
        world.engine.delete_topic(name)
    again = Watcher(
        world, {"a": 0, "b": 0, "c": 0}, cursor=first.watch.cursors, epochs=first.watch.epochs, heads=first.watch.heads
    )
    assert list(again.watch.positions) == ["b"]
    assert again.watch.cursors == {"a": 1, "b": 0, "c": 0}
    assert again.frames() == [
        ("deleted", "a", 1),
        ("deleted", "c", 1),
        ("records", "b", [1], 0, 1, 1),
        ("caught-up", "b", 1),
    ]
    assert (again.watch.heads, again.watch.epochs) == (first.watch.heads, first.watch.epochs)
    world.engine.delete_topic("b")
    third = Watcher(
        world, {"a": 0, "b": 0, "c": 0}, cursor=again.watch.cursors, epochs=again.watch.epochs, heads=again.watch.heads
    )
    assert not third.watch.finished
    assert third.frames() == [("deleted", "a", 1), ("deleted", "b", 1), ("deleted", "c", 1)]
    assert third.watch.finished


def test_a_session_does_not_see_a_topic_before_its_creation_is_durable(world: World) -> None:
    world.append(1)
    first = Watcher(world)
    first.frames()
    world.engine.delete_topic("t")
    world.put(sync=False)
    again = Watcher(world, epochs=first.watch.epochs, heads=first.watch.heads)
    assert again.frames() == [("deleted", "t", 1)]
    assert again.watch.finished


def test_a_session_follows_only_what_was_asked_for(world: World) -> None:
    for name in ("a", "b"):
        world.append(1, topic=name)
    watcher = Watcher(world, {"a": 0}, heads={"a": 1, "b": 1, "c": 7})
    assert watcher.events() == [("a", 1), ("a", "caught-up")]


def test_a_session_that_left_a_topic_out_does_not_follow_it_later(world: World) -> None:
    world.put("a")
    first = Watcher(world, {"a": 0, "b": 0}, lenient=True)
    world.append(1, topic="b")
    again = Watcher(world, {"a": 0, "b": 0}, lenient=True, epochs=first.watch.epochs, heads=first.watch.heads)
    assert again.frames() == [("caught-up", "a", 0)]


def test_a_session_is_told_the_highest_head_that_it_knew(world: World) -> None:
    world.append(1)
    first = Watcher(world)
    first.frames()
    world.append(1, 1)
    assert first.watch.heads == {"t": 3}
    first.watch.close()
    world.append(1)
    world.engine.delete_topic("t")
    assert Watcher(world, heads=first.watch.heads).frames() == [("deleted", "t", 3)]


# -------------------------------------------------------------------- patterns


def test_a_pattern_follows_what_begins_with_it(world: World) -> None:
    for name in ("a", "a:1", "a:2", "ab", "b"):
        world.append(1, topic=name)
    watcher = Watcher(world, {"a:*": 0})
    assert list(watcher.watch.positions) == list(watcher.watch.cursors) == ["a:1", "a:2"]
    assert watcher.events() == [("a:1", 1), ("a:1", "caught-up"), ("a:2", 1), ("a:2", "caught-up")]
    assert list(Watcher(world, {"*": 0}).watch.positions) == ["a", "a:1", "a:2", "ab", "b"]
    assert list(Watcher(world, {"a*": 0, "ab*": 0, "b": 0}).watch.positions) == ["a", "a:1", "a:2", "ab", "b"]


def test_a_pattern_may_match_nothing_yet(world: World) -> None:
    watcher = Watcher(world, {"a*": 0})
    assert (watcher.watch.positions, watcher.frames(), watcher.watch.finished) == ({}, [], False)


def test_a_name_and_the_longest_pattern_say_where_to_start(world: World) -> None:
    for name in ("a", "ab", "abc", "abd"):
        world.append(1, 1, 1, topic=name)
    watcher = Watcher(world, {"a*": 1, "ab*": None, "abd": 2})
    assert [watcher.watch.cursors[name] for name in ("a", "ab", "abc", "abd")] == [1, 3, 3, 2]


def test_topics_join_when_readers_may_know_of_them(world: World) -> None:
    watcher = Watcher(world, {"a*": None})
    world.try_append(1, topic="a1")
    world.try_append(1, topic="b1")
    assert (watcher.wakes, watcher.frames()) == ([], [])
    world.engine.sync()
    assert watcher.wakes == ["a1"]
    assert watcher.frames() == [("records", "a1", [1], 0, 1, 1), ("caught-up", "a1", 1)]
    assert watcher.watch.cursors == {"a1": 1}
    world.append(1, topic="a1")
    assert watcher.events() == [("a1", 2), ("a1", "caught-up")]


def test_a_topic_that_is_empty_joins_too(world: World) -> None:
    watcher = Watcher(world, {"*": 0})
    world.put("a")
    assert watcher.frames() == [("caught-up", "a", 0)]


def test_loss_before_the_first_read_of_one_that_joined(world: World) -> None:
    watcher = Watcher(world, {"*": 0})
    world.put("a", cap_records=1)
    world.append(1, 1, topic="a")
    assert watcher.frames()[0] == ("lost", "a", 1, 1, "cap", False), "no cursor of the client was stale"


def test_one_that_joined_and_is_deleted_leaves_and_can_join_again(world: World) -> None:
    world.append(1, 1, topic="a")
    watcher = Watcher(world, {"*": 0})
    watcher.frames()
    world.engine.delete_topic("a")
    assert watcher.next() == ("deleted", "a", 2)
    assert watcher.watch.cursors == {"a": 2}
    assert watcher.next() is None
    assert (watcher.watch.cursors, watcher.watch.epochs, watcher.watch.heads) == ({}, {}, {}), "nothing piles up"
    assert not watcher.watch.finished
    world.append(1, topic="a")
    assert watcher.frames() == [("records", "a", [1], 0, 1, 1), ("caught-up", "a", 1)]
    assert watcher.watch.cursors == {"a": 1}


@pytest.mark.parametrize("durable", [False, True])
def test_one_that_is_recreated_before_its_end_was_told(world: World, durable: bool) -> None:
    world.append(1, 1, topic="a")
    watcher = Watcher(world, {"*": 0})
    watcher.frames()
    epochs = dict(watcher.watch.epochs)
    world.engine.delete_topic("a")
    world.append(1, topic="a", sync=durable)
    assert watcher.next() == ("deleted", "a", 2)
    assert watcher.watch.cursors == {"a": 0 if durable else 2}
    if durable:
        assert watcher.watch.epochs["a"] > epochs["a"]
    world.engine.sync()
    assert watcher.frames() == [("records", "a", [1], 0, 1, 1), ("caught-up", "a", 1)]


def test_a_named_topic_that_a_pattern_matches_joins_again(world: World) -> None:
    world.append(1, 1, topic="a")
    watcher = Watcher(world, {"*": 0, "a": 1})
    assert watcher.events() == [("a", 2), ("a", "caught-up")]
    world.engine.delete_topic("a")
    watcher.frames()
    assert watcher.watch.cursors == {"a": 2}
    world.append(1, topic="a")
    assert watcher.events() == [("a", 1), ("a", "caught-up")]


def test_too_many_matches(world: World) -> None:
    world.engine.limits = replace(world.engine.limits, max_watch_topics=2)
    for name in ("a1", "a2", "b"):
        world.append(1, topic=name)
    with pytest.raises(TopicsError) as error:
        Watcher(world, {"a*": 0, "b": 0})
    assert code(error) == "invalid_request"
    assert world.engine.catalog.on_created == []
    watcher = Watcher(world, {"a*": 0})
    assert len(watcher.frames()) == 4
    for name in ("a4", "a3"):
        world.append(1, topic=name)
    assert watcher.wakes == ["a4", "a3"]
    assert watcher.frames() == [("error", "throttled", 429, ("a4", "a3"), False)]
    assert watcher.frames() == [], "told once"
    assert list(watcher.watch.cursors) == ["a1", "a2"]
    world.engine.delete_topic("a1")
    assert watcher.frames() == [("deleted", "a1", 1)]
    world.append(1, topic="a5")
    assert watcher.events() == [("a5", 1), ("a5", "caught-up")], "there is room again"


def test_what_waits_to_be_refused_is_bounded(world: World) -> None:
    world.engine.limits = replace(world.engine.limits, max_watch_topics=3)
    watcher = Watcher(world, {"*": 0})
    for i in range(9):
        world.put(f"t{i}")
    assert watcher.frames()[0] == ("error", "throttled", 429, ("t3", "t4", "t5"), False)


def test_a_pattern_is_dropped_with_what_it_brought(world: World) -> None:
    for name in ("a1", "ab1", "b1", "n1"):
        world.put(name)
    watcher = Watcher(world, {"a*": 0, "ab*": 0, "b*": 0, "a1": 0})
    watcher.frames()
    assert watcher.watch.drop("b*")
    assert not watcher.watch.drop("b*")
    assert not watcher.watch.drop("n*")
    assert sorted(watcher.watch.cursors) == ["a1", "ab1"]
    assert watcher.watch.drop("a*")
    assert sorted(watcher.watch.cursors) == ["a1", "ab1"], "a name and another pattern hold on to them"
    for name in ("a2", "ab2", "b2"):
        world.put(name)
    assert watcher.events() == [("ab2", "caught-up")]
    assert watcher.watch.drop("ab*")
    assert list(watcher.watch.cursors) == ["a1"]
    assert world.engine.catalog.on_created == []
    assert watcher.watch.drop("a1")
    assert watcher.watch.finished
    watcher.watch.close()


def test_a_resumed_pattern_reads_what_is_new_from_its_first_record(world: World) -> None:
    for name in ("a1", "b1"):
        world.append(1, 1, topic=name)
    watcher = Watcher(world, {"a*": None, "b*": None}, cursor={"a0": 7})
    assert watcher.watch.cursors == {"a1": 0, "b1": 2}, "a1 was made since; of b nothing is known"


def test_a_session_with_a_pattern(world: World) -> None:
    for name in ("a1", "a2"):
        world.append(1, 1, topic=name)
    first = Watcher(world, {"a*": None})
    first.frames()
    session = {"cursor": dict(first.watch.cursors), "epochs": first.watch.epochs, "heads": first.watch.heads}
    first.watch.close()
    world.engine.delete_topic("a1")
    world.append(1, topic="a2")
    world.append(1, topic="a3")
    again = Watcher(world, {"a*": None}, **session)
    assert again.frames() == [
        ("deleted", "a1", 2),
        ("records", "a2", [3], 2, 3, 3),
        ("caught-up", "a2", 3),
        ("records", "a3", [1], 0, 1, 1),
        ("caught-up", "a3", 1),
    ]
    assert again.watch.cursors == {"a2": 3, "a3": 1}


def test_a_session_is_told_of_a_deletion_before_the_topic_joins_again(world: World) -> None:
    world.append(1, 1, topic="a1")
    first = Watcher(world, {"a*": 0})
    first.frames()
    world.engine.delete_topic("a1")
    again = Watcher(world, {"a*": 0}, epochs=first.watch.epochs, heads=first.watch.heads)
    world.append(1, topic="a1")
    assert again.frames() == [("deleted", "a1", 2), ("records", "a1", [1], 0, 1, 1), ("caught-up", "a1", 1)]
    assert again.watch.cursors == {"a1": 1}


def test_a_session_keeps_its_topics_when_too_many_have_come(world: World) -> None:
    world.engine.limits = replace(world.engine.limits, max_watch_topics=2)
    for name in ("a8", "a9"):
        world.put(name)
    first = Watcher(world, {"a*": 0})
    first.frames()
    for name in ("a1", "a2", "a3"):
        world.put(name)
    again = Watcher(world, {"a*": 0}, epochs=first.watch.epochs, heads=first.watch.heads)
    assert again.frames() == [
        ("error", "throttled", 429, ("a1", "a2"), False),
        ("caught-up", "a8", 0),
        ("caught-up", "a9", 0),
    ]


def test_new_topics_do_not_hold_up_those_that_wait(world: World) -> None:
    for name in ("a", "b", "c"):
        world.append(1, 1, topic=name)
    watcher = Watcher(world, {"*": WatchTopic()}, limit=1)
    watcher.next()
    world.put("new", priority=1000)
    world.append(1, topic="new")
    assert [frame[0] for frame in watcher.events()][:3] == ["b", "c", "new"]
