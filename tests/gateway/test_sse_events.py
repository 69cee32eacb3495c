"""The frames of a watch as events: what streams share, and that sharing changes nothing."""

import itertools
import json
import random
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any

import pytest

from topics_gateway.render import Parts, RenderCache
from topics_gateway.watch_events import WatchEvents, cursor_id, read_cursor_id
from topics_service.engine.errors import Reason
from topics_service.engine.model import Slice, Tombstone
from topics_service.engine.watch.frames import (
    CaughtUpFrame,
    ErrorFrame,
    Frame,
    HeartbeatFrame,
    RecordsFrame,
    TombstoneFrame,
    TopicDeletedFrame,
    WatchRequest,
)
from topics_service.storage.block import Block, build


class Stream:
    """As much of a stream as its encoder sees: it gives frames that move the cursors."""

    def __init__(self, cursors: dict[str, int], **request: Any) -> None:
        self.request = WatchRequest(topics={}, **request)
        self.cursors = cursors
        self.frames: list[tuple[Frame, dict[str, int]]] = []

    over = property(lambda self: not self.frames)
    resume_cursors = property(lambda self: self.cursors)

    def poll(self, *, handed_over: bool = True) -> Frame | None:
        if not self.frames:
            return None
        frame, moved = self.frames.pop(0)
        self.cursors |= moved
        return frame


async def events(shared: WatchEvents, stream: Any, *frames: tuple[Frame, dict[str, int]]) -> list[bytes]:
    """The events that the stream's client receives for these frames, at each of which the cursors move."""
    source = shared.for_stream(stream)
    got = []
    for frame in frames:
        stream.frames = [frame]
        got.append(await anext(source))
    return got


def block(base_seq: int, count: int = 1, log_id: int = 1, size: int = 10) -> Block:
    datas = [b'"%b"' % (b"x" * size)] * count
    return build(log_id, base_seq, 5, datas, [b"t"] * count, None, [b'{"m":1}'] * count, None, 0)


def records(at: Block, topic: str = "t", head: int | None = None, start: int = 0) -> tuple[Frame, dict[str, int]]:
    to = at.end_seq - 1
    frame = RecordsFrame(
        topic=topic, slices=[Slice(at, start, at.count)], from_seq=at.base_seq + start - 1, to_seq=to,
        head_seq=head or to,
    )  # fmt: skip
    return frame, {topic: to}


def caught_up(seq: int, topic: str = "t") -> tuple[Frame, dict[str, int]]:
    return CaughtUpFrame(topic=topic, head_seq=seq), {}


async def test_streams_of_one_topic_share_the_whole_event() -> None:
    shared = WatchEvents(RenderCache(1 << 20))
    one, two = [await events(shared, Stream({"t": 0}), records(block(1, 3)), caught_up(3)) for _ in range(2)]
    assert one[0] is two[0]
    assert one[1] is two[1]
    assert one[0] == (
        b'id: eyJ0IjozfQ\nevent: record\ndata: {"topic":"t","records":['
        b'{"$seq":1,"$ts":5,"data":"xxxxxxxxxx","meta":{"m":1}},{"$seq":2,"$ts":5,"data":"xxxxxxxxxx","meta":{"m":1}},'
        b'{"$seq":3,"$ts":5,"data":"xxxxxxxxxx","meta":{"m":1}}],"from_seq":0,"to_seq":3,"head_seq":3}\n\n'
    )
    assert one[1] == b'id: eyJ0IjozfQ\nevent: caught-up\ndata: {"topic":"t","head_seq":3}\n\n'
    assert (shared.cache.statistics.hits, shared.cache.statistics.misses) == (1, 1)


async def test_what_is_shared_is_what_would_have_been_made() -> None:
    """Frames in every order through one cache, each compared with what a cache of its own makes of it."""
    shared = WatchEvents(RenderCache(1 << 20))
    blocks = [block(1, 4), block(1, 4, log_id=2), block(1, 3), block(1, 4)]
    frames = [records(blocks[0]), records(blocks[1]), records(blocks[2]), records(blocks[0], head=9),
              records(blocks[0], start=1), records(blocks[0], topic="u"), caught_up(4), caught_up(5),
              caught_up(4, "u"), records(blocks[3])]  # fmt: skip
    ways: list[dict[str, Any]] = [{}, {"include_tags": True}, {"include_metas": False}, {"include_data": False}]
    places = [{"t": 0}, {"t": 0, "u": 0}, {"t": 7}]
    every = list(itertools.product(frames, ways, places))
    order = random.Random(1)
    for (frame, moved), way, place in order.choices(every, k=300) + [each for each in every for _ in range(2)]:
        if frame.topic not in place:  # type: ignore[union-attr]
            continue
        if isinstance(frame, CaughtUpFrame):
            moved = {frame.topic: frame.head_seq}
        alone = WatchEvents(RenderCache(1 << 20))
        expected = await events(alone, Stream(dict(place), **way), (frame, moved))
        assert await events(shared, Stream(dict(place), **way), (frame, moved)) == expected
        at = cursor_id(place | moved)
        assert expected[0].startswith(b"id: %b\n" % at)
    assert shared.cache.statistics.hits > 50


async def test_streams_of_more_topics_share_the_data_and_not_the_id() -> None:
    shared = WatchEvents(RenderCache(1 << 20))
    [one] = await events(shared, Stream({"a": 1, "t": 0}), records(block(1)))
    [two] = await events(shared, Stream({"a": 2, "t": 0}), records(block(1)))
    assert one.partition(b"\n")[2] == two.partition(b"\n")[2]
    assert one != two
    assert shared.cache.statistics.hits == 1


async def test_what_is_kept_is_bounded() -> None:
    shared = WatchEvents(RenderCache(1 << 20), max_bytes=100_000)
    for i in range(500):
        await events(shared, Stream({f"t{i}": 0}), records(block(1), topic=f"t{i}"))
        assert shared.cache.size <= 100_000
    assert shared.cache.size > 90_000
    [big] = await events(shared, Stream({"t499": 1}), records(block(2, 100, size=1000), topic="t499"))
    assert len(big) > 100_000  # it is sent, and not kept, and neither is the one that it follows
    assert (await events(shared, Stream({"t499": 0}), records(block(1), topic="t499")))[0]
    for i in range(500):
        await events(shared, Stream({"t": 0}), records(block(i + 1)))
    assert shared.cache.size <= 100_000


async def test_frames_of_many_slices_are_not_kept() -> None:
    shared = WatchEvents(RenderCache(1 << 20))
    slices = [Slice(block(seq), 0, 1) for seq in range(1, 41)]
    frame = RecordsFrame(topic="t", slices=slices, from_seq=0, to_seq=40, head_seq=40)
    one, two = [(await events(shared, Stream({"t": 0}), (frame, {"t": 40})))[0] for _ in range(2)]
    assert one == two
    assert one.count(b'"$seq":') == 40
    assert shared.cache.size == 0


async def test_what_is_due_at_the_same_time_comes_together_up_to_a_bound() -> None:
    shared = WatchEvents(RenderCache(1 << 20))
    stream: Any = Stream({"t": 0})
    stream.frames = [records(block(1)), caught_up(1), records(block(2, 30, size=1000)), caught_up(31)]
    source = shared.for_stream(stream)
    assert (await anext(source)).count(b"event: ") == 3
    assert (await anext(source)).count(b"event: ") == 1
    with pytest.raises(StopAsyncIteration):
        await anext(source)
    stream.frames = [records(block(1)), caught_up(1)]
    source = shared.for_stream(stream, together=False)
    assert (await anext(source)).count(b"event: ") == 1
    assert (await anext(source)).count(b"event: ") == 1


@pytest.mark.parametrize(
    ("reason", "opening", "shown"),
    [("cap", True, "from_seq_too_old"), ("ttl", True, "from_seq_too_old"), ("mixed", True, "from_seq_too_old"),
     ("recreated", True, "recreated"), ("source_trim", True, "source_trim"), ("cap", False, "cap"),
     ("ttl", False, "ttl"), ("mixed", False, "mixed"), ("recreated", False, "recreated")],
)  # fmt: skip
async def test_tombstones(reason: Any, opening: bool, shown: str) -> None:
    lost = Tombstone(gap_from=2, gap_to=3, reason=reason, missed_estimate=2, earliest_seq=4, head_seq=5)
    frame = TombstoneFrame(topic="t", tombstone=lost, opening=opening)
    [text] = await events(WatchEvents(RenderCache(1)), Stream({"t": 1}), (frame, {"t": 3}))
    assert text.decode() == (
        f'id: eyJ0IjozfQ\nevent: tombstone\ndata: {{"topic":"t","reason":"{shown}","gap_from":2,"gap_to":3,'
        '"earliest_seq":4,"head_seq":5}\n\n'
    )


async def test_the_rest() -> None:
    shared = WatchEvents(RenderCache(1))
    frames: list[tuple[Frame, dict[str, int]]] = [
        (TopicDeletedFrame(topic="t", head_seq=12), {}),
        (HeartbeatFrame(ts=7), {}),
        (ErrorFrame(reason=Reason.NOT_FOUND, code=410, message="gone"), {}),
    ]
    assert await events(shared, Stream({"t": 9}), *frames) == [
        b'id: eyJ0Ijo5fQ\nevent: topic-deleted\ndata: {"topic":"t","head_seq":12,"reason":"deleted"}\n\n',
        b": hb 7\n\n",
        b'event: error\ndata: {"code":410,"error":"gone"}\n\n',
    ]


def test_ids() -> None:
    # From docs/contract.md, 8.4.
    assert cursor_id({"jobs": 4098}) == b"eyJqb2JzIjo0MDk4fQ"
    assert read_cursor_id(b"eyJqb2JzIjo1MjEwLCJldmVudHMiOjg4MTMwfQ") == {"jobs": 5210, "events": 88130}
    assert read_cursor_id(cursor_id({"b": 1, "a": (1 << 64) - 1})) == {"a": (1 << 64) - 1, "b": 1}
    assert cursor_id({"b": 1, "a": 2}) == cursor_id({"a": 2, "b": 1})
    for bad in (b"", b"e30=", b"e", b"a b", b"W10", b"NQ", b"eyJhIjp0cnVlfQ", b"eyJhIjoxLjB9", b"\xff", b"eyJhIjoxfXg"):
        assert read_cursor_id(bad) is None, bad


def test_ids_that_say_which_instance_of_a_topic_they_mean() -> None:
    place = {"a": 3, "a#": 17, "a-b": 1, "b": 2}
    text = urlsafe_b64decode(cursor_id(place) + b"==")
    assert text == b'{"a":3\t \t,"a-b":1,"b":2}', "17 in base 4 is 101"
    assert json.loads(text) == {"a": 3, "a-b": 1, "b": 2}, "what a client makes of it"
    assert read_cursor_id(cursor_id(place)) == place
    assert read_cursor_id(urlsafe_b64encode(b'{"a":17,"a":3}').rstrip(b"=")) == {"a": 3}, "as older servers wrote it"


def test_records_without_data() -> None:
    cache, page = RenderCache(1 << 20), block(1, 20)
    bare = Parts(tags=False, metas=False, datas=False)
    for start, stop in ((0, 20), (0, 1), (3, 17), (19, 20), (9, 10)):
        text = b",".join(cache.records([Slice(page, start, stop)], bare))
        assert text == b",".join(b'{"$seq":%d,"$ts":5}' % seq for seq in range(start + 1, stop + 1))
    binary = build(1, 1, 5, [b"\x00", b"1"], None, [b"n", b"n"], None, b"\x02\x01", 0)
    text = b",".join(cache.records([Slice(binary, 0, 2)], bare))
    assert text == b'{"$seq":1,"$ts":5,"$node":"n"},{"$seq":2,"$ts":5,"$node":"n"}'
