"""Following partitions: each is a place of its own, `t` or `t@2`, beside the topics of the subscription."""

from typing import Any

import pytest
from engine_support import World, code
from watch_support import Watcher

from topics_service.engine.errors import TopicsError
from topics_service.engine.limits import Limits
from topics_service.engine.model import ConfigInput, DeleteRequest, TagMatch
from topics_service.engine.watch.frames import (
    CaughtUpFrame,
    RecordsFrame,
    TombstoneFrame,
    TopicDeletedFrame,
    WatchTopic,
)
from topics_service.engine.watch.scope import by_topic_partition
from topics_service.engine.watch.topic_partition import format_topic_partition, parse_topic_partition


def put(world: World, count: int = 3, topic: str = "t", **config: Any) -> None:
    world.engine.put_topic(topic, ConfigInput(**config), count)
    world.engine.sync()


def told(watcher: Watcher) -> list[tuple[Any, ...]]:
    """What is due, in brief: topic, partition, and seqs or what happened."""
    found: list[tuple[Any, ...]] = []
    while True:
        watcher.wakes.clear()
        frame = watcher.watch.next()
        if frame is None:
            if not watcher.wakes:
                return found
            continue
        match frame:
            case RecordsFrame():
                seqs = [part.block.base_seq + i for part in frame.slices for i in range(part.start, part.stop)]
                found.append((frame.topic, frame.partition, *seqs))
            case TombstoneFrame(tombstone=lost):
                found.append((frame.topic, frame.partition, lost.reason, lost.gap_from, lost.gap_to))
            case CaughtUpFrame():
                found.append((frame.topic, frame.partition, "caught-up"))
            case TopicDeletedFrame():
                found.append((frame.topic, frame.partition, "deleted", frame.head_seq))
            case _:
                raise AssertionError(frame)


def resumed(world: World, before: Watcher, topics: Any) -> Watcher:
    """A session that is opened again."""
    watch = before.watch
    watch.close()
    return Watcher(world, topics, cursor=watch.cursors, epochs=watch.epochs, heads=watch.heads)


@pytest.mark.parametrize(("topic", "partition", "place"), [("t", 0, "t"), ("t", 2, "t@2"), ("a.b:c", 4294967295, None)])
def test_places(topic: str, partition: int, place: str | None) -> None:
    made = format_topic_partition(topic, partition)
    assert made == (place or made)
    assert parse_topic_partition(made) == (topic, partition)


@pytest.mark.parametrize(
    "text", ["t", "t@", "t@0", "t@02", "t@x", "t@-1", "t@1@2", "@", "t@" + "9" * 30, "t@1*", "t@²"]
)
def test_what_has_another_form_is_a_name(text: str) -> None:
    assert parse_topic_partition(text) == (text, 0)


def test_a_topic_may_say_its_partition_in_two_ways() -> None:
    start = WatchTopic(from_seq=5)
    starts = [("t", 2, start), ("t", 0, start), ("u@3", 0, start), ("v@3", 3, start), ("p*", 0, start)]
    assert by_topic_partition(starts) == {
        "t@2": start, "t": start, "u@3": start, "v@3": start, "p*": start,
    }  # fmt: skip


@pytest.mark.parametrize("starts", [[("t", 2), ("t@2", 0)], [("t@2", 3)], [("t*", 1)], [("*", 1)]])
def test_contradictions_are_refused(starts: list[tuple[str, int]]) -> None:
    with pytest.raises(TopicsError) as error:
        by_topic_partition((key, partition, WatchTopic()) for key, partition in starts)
    assert code(error) == "invalid_request"


def test_partitions_are_followed_each_by_itself(world: World) -> None:
    put(world)
    world.append(b"a", b"b", partition=0)
    world.append(b"c", partition=2)
    watcher = Watcher(world, {"t": 1, "t@2": 0})
    assert {place: at.head_seq for place, at in watcher.watch.positions.items()} == {"t": 2, "t@2": 1}
    assert told(watcher) == [("t", 0, 2), ("t", 0, "caught-up"), ("t", 2, 1), ("t", 2, "caught-up")]
    world.append(b"x", partition=1)
    assert watcher.wakes == []
    world.append(b"d", partition=2)
    assert watcher.wakes == ["t@2"]
    assert told(watcher) == [("t", 2, 2), ("t", 2, "caught-up")]
    assert watcher.watch.cursors == watcher.watch.heads == {"t": 2, "t@2": 2}


def test_frames_name_no_partition_where_there_is_one(world: World) -> None:
    put(world, 1)
    world.append(b"a")
    watcher = Watcher(world, "t")
    assert told(watcher) == [("t", None, 1), ("t", None, "caught-up")]
    put(world, 2)
    world.append(b"b")
    assert told(watcher) == [("t", 0, 2), ("t", 0, "caught-up")]


def test_many_partitions_of_equal_priority_take_turns(world: World) -> None:
    put(world, 9)
    places = {format_topic_partition("t", n): 0 for n in range(9)}
    for n in range(9):
        world.append(*[b"x"] * 10, partition=n)
    watcher = Watcher(world, places, limit=5)
    frames = told(watcher)
    for n in range(9):
        own = [frame[2:] for frame in frames if frame[1] == n]
        assert own == [(1, 2, 3, 4, 5), (6, 7, 8, 9, 10), ("caught-up",)]
    assert [frame[1] for frame in frames[:9]] == list(range(9))
    for _ in range(3):
        for n in reversed(range(9)):
            world.append(b"y", partition=n)
        assert len(told(watcher)) == 18


def test_a_pattern_means_partition_0(world: World) -> None:
    put(world, topic="ta")
    watcher = Watcher(world, {"t*": 0, "ta@1": 0})
    world.append(b"x", topic="ta", partition=1)
    world.append(b"x", topic="ta", partition=2)
    put(world, topic="tb")
    world.append(b"x", topic="tb")
    world.append(b"x", topic="tb", partition=1)
    assert set(told(watcher)) == {
        ("ta", 0, "caught-up"), ("ta", 1, 1), ("ta", 1, "caught-up"), ("tb", 0, 1), ("tb", 0, "caught-up"),
    }  # fmt: skip
    assert set(watcher.watch.cursors) == {"ta", "ta@1", "tb"}
    assert watcher.watch.drop("t*")
    assert set(watcher.watch.cursors) == {"ta@1"}
    assert watcher.watch.drop("ta@1")
    assert watcher.watch.finished


def test_unknown_partitions(world: World) -> None:
    put(world)
    for key, reason in (("t@3", "partition_not_found"), ("u@1", "topic_not_found"), ("t@01", "topic_not_found")):
        with pytest.raises(TopicsError) as error:
            Watcher(world, {"t": 0, key: 0})
        assert code(error) == reason
        watcher = Watcher(world, {"t": 0, key: 0}, lenient=True)
        assert set(watcher.watch.positions) == {"t"}
    with pytest.raises(TopicsError) as error:
        Watcher(world, {"t@1*": 0})
    assert code(error) == "invalid_request"


def test_every_place_counts() -> None:
    world = World(limits=Limits(max_watch_topics=2))
    put(world)
    Watcher(world, {"t": 0, "t@1": 0})
    with pytest.raises(TopicsError) as error:
        Watcher(world, {"t": 0, "t@1": 0, "t@2": 0})
    assert code(error) == "invalid_request"


def test_losses_deletes_and_filters_are_of_the_partition(world: World) -> None:
    put(world, cap_records=2)
    world.append(b"1", b"2", b"3", partition=1, tags=[b"a", b"b", b"a"])
    watcher = Watcher(world, {"t@1": 0}, filter=TagMatch("Eq", b"a"))
    assert told(watcher) == [("t", 1, "cap", 1, 1), ("t", 1, 3), ("t", 1, "caught-up")]
    world.append(b"4", b"5", partition=1, tags=[b"a", b"a"])
    world.engine.delete_records(DeleteRequest(topic="t", partition=1, before_seq=5))
    assert told(watcher) == [("t", 1, 5), ("t", 1, "caught-up")]


def test_a_deleted_topic_ends_each_partition(world: World) -> None:
    put(world)
    world.append(b"x", partition=2)
    watcher = Watcher(world, {"t": 0, "t@2": 0, "t*": 0})
    told(watcher)
    world.engine.delete_topic("t")
    put(world, 3)
    world.append(b"y", partition=2)
    world.append(b"y")
    found = told(watcher)
    assert ("t", 2, "deleted", 1) in found
    assert [frame for frame in found if frame[1] == 0] == [
        ("t", 0, "deleted", 0), ("t", 0, 1), ("t", 0, "caught-up"),
    ], "through the pattern"  # fmt: skip
    assert [frame for frame in found if frame[1] == 2] == [("t", 2, "deleted", 1)]
    assert watcher.watch.cursors == {"t": 1, "t@2": 1}


def test_a_session_goes_on_in_its_partition(world: World) -> None:
    put(world)
    world.append(b"a", partition=2)
    first = Watcher(world, {"t@2": 0})
    told(first)
    world.append(b"b", partition=2)
    world.append(b"z", partition=0)
    again = resumed(world, first, {"t@2": 0})
    assert told(again) == [("t", 2, 2), ("t", 2, "caught-up")]
    world.restart()
    third = resumed(world, again, {"t@2": 0})
    assert told(third) == [("t", 2, "caught-up")]


def test_a_session_is_told_of_a_topic_that_was_made_again(world: World) -> None:
    put(world)
    world.append(*[b"a"] * 5, partition=2)
    first = Watcher(world, {"t@2": 0})
    told(first)
    world.engine.delete_topic("t")
    put(world)
    world.append(b"b", partition=2)
    again = resumed(world, first, {"t@2": 0})
    assert told(again) == [("t", 2, "recreated", 1, 1), ("t", 2, 1), ("t", 2, "caught-up")]


def test_a_topic_made_again_without_the_partition_counts_as_deleted(world: World) -> None:
    put(world)
    world.append(*[b"a"] * 5, partition=2)
    first = Watcher(world, {"t@2": 0, "t": 0})
    told(first)
    world.engine.delete_topic("t")
    put(world, 2)
    world.append(b"b")
    again = resumed(world, first, {"t@2": 0, "t": 0})
    assert set(again.watch.positions) == {"t"}
    assert told(again) == [
        ("t", 2, "deleted", 5), ("t", 0, "recreated", 1, 1), ("t", 0, 1), ("t", 0, "caught-up"),
    ]  # fmt: skip
    with pytest.raises(TopicsError) as error:
        Watcher(world, {"t@2": 0}, cursor={"t@2": 5})
    assert code(error) == "partition_not_found"


def test_a_cursor_is_of_one_partition_only(world: World) -> None:
    put(world)
    world.append(b"a", b"b", partition=0)
    world.append(b"a", b"b", partition=1)
    watcher = Watcher(world, {"t": 0, "t@1": 0}, cursor={"t@1": 2, "t@2": 1})
    assert watcher.watch.cursors == {"t": 0, "t@1": 2}
    assert told(watcher) == [("t", 0, 1, 2), ("t", 0, "caught-up"), ("t", 1, "caught-up")]


def test_a_strong_watcher_waits_for_its_partition(world: World) -> None:
    put(world)
    watcher = Watcher(world, {"t@1": 0}, strong=True)
    assert told(watcher) == [("t", 1, "caught-up")]
    world.append(b"a", partition=1, sync=False)
    assert told(watcher) == []
    world.engine.sync()
    assert told(watcher) == [("t", 1, 1), ("t", 1, "caught-up")]
