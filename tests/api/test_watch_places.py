"""Cursors of a session's client, after frames about changed topics were lost."""

import pytest

from support.fake_time import in_fake_time
from support.watching import Watching, quiet, tell
from topics_service.api.access.auth import UNRESTRICTED

Place = dict[str, int]


async def lose(world: Watching, wid: str) -> None:
    """A stream opens and hands over all that there is, of which nothing reaches the client."""
    await world.visit(wid)


async def take(world: Watching, wid: str) -> Place:
    """A stream opens, its client reads what there is; where that has led to."""
    with await world.api.open(wid, {}, principal=UNRESTRICTED) as stream:
        await quiet(stream)
        return dict(stream.resume_cursors)


@in_fake_time
@pytest.mark.parametrize("head", [2, 9])
async def test_a_client_that_missed_the_new_beginning_of_a_topic_is_told_of_it(head: int) -> None:
    """Though the new log may have passed the client's cursor, and its records were handed over to somebody."""
    world = Watching()
    world.put("a")
    world.append("a", 5)
    wid = await world.session("a")
    place = await take(world, wid)
    assert place == {"a": 5}
    world.recreate("a")
    world.append("a", head)
    await lose(world, wid)
    again = [("a", "recreated", 1, head), ("a", list(range(1, head + 1))), ("a", "caught up")]
    assert await world.visit(wid, place) == again
    assert await world.visit(wid, place) == again, "for as long as it says so"


@in_fake_time
async def test_a_place_names_the_instance_of_what_was_made_after_the_session() -> None:
    world = Watching()
    world.put("a")
    world.append("a", 5)
    wid = await world.session("a")
    await take(world, wid)
    world.recreate("a")
    world.append("a", 3)
    with await world.api.open(wid, {}, principal=UNRESTRICTED) as stream:
        assert stream.resume_cursors == {"a": 5}, "the cursor is one of the old instance still"
    place = await take(world, wid)
    assert place.pop("a#") == world.engine.catalog.topics["a"].number
    assert place == {"a": 3}


@in_fake_time
async def test_a_client_that_has_heard_of_the_new_beginning_goes_on_from_there() -> None:
    world = Watching()
    world.put("a")
    world.append("a", 5)
    wid = await world.session("a", limit=2)
    await world.visit(wid)
    world.recreate("a")
    world.append("a", 9)
    with await world.api.open(wid, {}, principal=UNRESTRICTED) as stream:
        assert tell([await anext(stream), await anext(stream)]) == [("a", "recreated", 1, 9), ("a", [1, 2])]
        place = dict(stream.resume_cursors)
    await lose(world, wid)
    assert (await world.visit(wid, place))[0] == ("a", [3, 4])


@in_fake_time
async def test_a_topic_that_joined_unheard_is_read_from_its_first_record() -> None:
    world = Watching()
    world.put("p-a")
    wid = await world.session("p-*")
    place = await take(world, wid)
    world.put("p-b")
    world.append("p-b", 3)
    await lose(world, wid)
    assert ("p-b", [1, 2, 3]) in await world.visit(wid, place)


@in_fake_time
async def test_a_topic_that_left_a_pattern_unheard_is_told_to_be_gone() -> None:
    world = Watching()
    world.put("p-a", "p-b")
    world.append("p-b", 3)
    wid = await world.session("p-*")
    place = await take(world, wid)
    world.drop("p-b")
    await lose(world, wid)
    assert await world.visit(wid, place) == [("p-b", "deleted", 3), ("p-a", "caught up")]
    assert await world.visit(wid) == [("p-a", "caught up")]


@in_fake_time
async def test_a_topic_that_left_a_pattern_and_came_back_unheard_is_told_to_be_another() -> None:
    world = Watching()
    world.put("p-b")
    world.append("p-b", 3)
    wid = await world.session("p-*")
    place = await take(world, wid)
    world.drop("p-b")
    await lose(world, wid)
    world.put("p-b")
    world.append("p-b", 7)
    await lose(world, wid)
    told = await world.visit(wid, place)
    assert told[:2] == [("p-b", "recreated", 1, 7), ("p-b", [1, 2, 3, 4, 5, 6, 7])]


@in_fake_time
async def test_a_place_ahead_of_the_log_where_the_session_began_is_a_place() -> None:
    """The tombstone that took the session back was lost on the way."""
    world = Watching()
    world.put("a", "b")
    world.append("a", 4)
    wid = await world.session("a", "b", from_seq=9)
    with await world.api.open(wid, {}, principal=UNRESTRICTED) as stream:
        await anext(stream)
    await lose(world, wid)
    told = await world.visit(wid, {"a": 9, "b": 0})
    assert told[:2] == [("a", "recreated", 1, 4), ("a", [1, 2, 3, 4])]


@in_fake_time
async def test_frames_that_go_together_are_handed_over_together() -> None:
    world = Watching()
    world.put("a")
    world.append("a", 6)
    wid = await world.session("a", limit=2)
    with await world.api.open(wid, {}, principal=UNRESTRICTED) as stream:
        first = [stream.poll(), stream.poll(handed_over=False), stream.poll(handed_over=False)]
        assert tell(frame for frame in first if frame) == [("a", [1, 2]), ("a", [3, 4]), ("a", [5, 6])]
    assert (await world.visit(wid))[:3] == tell(frame for frame in first if frame)


@in_fake_time
async def test_what_came_of_frames_that_went_together_counts() -> None:
    world = Watching()
    world.put("a")
    world.append("a", 6)
    wid = await world.session("a", limit=2)
    with await world.api.open(wid, {}, principal=UNRESTRICTED) as stream:
        for i in range(3):
            stream.poll(handed_over=not i)
    assert (await world.visit(wid, {"a": 4}))[0] == ("a", [5, 6])
    assert await world.visit(wid, {"a": 7}) == [("a", "caught up")], "it was never sent that"


@in_fake_time
async def test_the_end_of_a_topic_comes_before_its_new_beginning() -> None:
    """Also in the cursors: else a client that disconnects in between would miss it."""
    world = Watching()
    world.put("p-a", "p-b")
    world.append("p-b", 3)
    wid = await world.session("p-*")
    place = await take(world, wid)
    world.drop("p-a"), world.drop("p-b")
    with await world.api.open(wid, place, principal=UNRESTRICTED) as stream:
        world.put("p-b")
        world.append("p-b", 1)
        assert tell([await anext(stream)]) == [("p-a", "deleted", 0)]
        assert stream.resume_cursors == {"p-a": 0, "p-b": 3}
        assert tell([await anext(stream)]) == [("p-b", "deleted", 3)]
        assert stream.resume_cursors["p-b"] == 0
        assert tell(await quiet(stream)) == [("p-b", [1]), ("p-b", "caught up")]
