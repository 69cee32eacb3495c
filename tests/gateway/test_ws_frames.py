"""Frames as JSON texts, and the texts that sockets share."""

import json
from typing import Any

from topics_gateway.render import Parts, RenderCache
from topics_gateway.socket_frames import SocketFrames
from topics_service.api.access.auth import UNRESTRICTED
from topics_service.api.topics import TopicsApi
from topics_service.engine.errors import Reason
from topics_service.engine.model import AppendRequest, Batch, DiffRequest, Tombstone
from topics_service.engine.watch.frames import (
    CaughtUpFrame,
    ErrorFrame,
    HeartbeatFrame,
    RecordsFrame,
    TombstoneFrame,
    TopicDeletedFrame,
)

ALL = Parts(tags=True, metas=True)


async def records(api: TopicsApi, topic: str, *datas: bytes, since: int = 0) -> RecordsFrame:
    """The frames of a watch after a write."""
    await api.append(AppendRequest(topic=topic, batch=Batch(datas=list(datas))), principal=UNRESTRICTED)
    page = await api.diff(DiffRequest(topic=topic, from_seq=since))
    head = page.head_seq
    return RecordsFrame(topic=topic, slices=page.slices, from_seq=since, to_seq=head, head_seq=head)


async def test_the_same_records_are_the_same_text(api: TopicsApi) -> None:
    frames = SocketFrames(RenderCache(1 << 20))
    frame = await records(api, "t", b"1", b'"x"')
    text = frames.text(frame, ALL)
    shown = json.loads(text)
    assert list(shown) == ["op", "topic", "from_seq", "to_seq", "head_seq", "records"]
    assert [record["data"] for record in shown["records"]] == [1, "x"]
    assert frames.text(await records_again(api, frame), ALL) is text
    assert frames.text(frame, Parts(tags=False, metas=True)) is not text
    assert (frames.cache.statistics.hits, frames.cache.statistics.misses) == (1, 2)
    later = await records(api, "t", b"3", since=2)
    assert b'"from_seq":2,"to_seq":3' in frames.text(later, ALL)
    assert frames.text(frame, ALL) is not text  # only a topic's last one is kept
    assert frames.text(frame, ALL) == text


async def records_again(api: TopicsApi, frame: RecordsFrame) -> RecordsFrame:
    page = await api.diff(DiffRequest(topic=frame.topic, from_seq=frame.from_seq))
    return RecordsFrame(
        topic=frame.topic, slices=page.slices, from_seq=frame.from_seq, to_seq=frame.to_seq, head_seq=frame.head_seq
    )


async def test_what_is_kept_is_bounded(api: TopicsApi) -> None:
    frames = SocketFrames(RenderCache(1 << 20), max_bytes=100_000)
    for i in range(100):
        frames.text(await records(api, f"t{i}", b'"%b"' % (b"x" * 5000)), ALL)
        assert frames.cache.size <= 100_000
    assert frames.cache.size > 80_000
    before = frames.cache.size
    frames.text(await records(api, "large", b'"%b"' % (b"x" * 50_000)), ALL)
    assert frames.cache.size == before
    assert sum(1000 + len(entry.made) for entry in frames.cache._kept.values()) == before


def test_other_frames() -> None:
    frames = SocketFrames(RenderCache(1 << 20))

    def shown(frame: Any) -> Any:
        return json.loads(frames.text(frame, ALL))

    assert shown(CaughtUpFrame(topic='a"b', head_seq=5)) == {"op": "caught_up", "topic": 'a"b', "head_seq": 5}
    assert shown(TopicDeletedFrame(topic="t", head_seq=9)) == {
        "op": "topic_deleted",
        "topic": "t",
        "head_seq": 0,
        "reason": "deleted",
    }
    lost = Tombstone(gap_from=1, gap_to=3, reason="ttl", missed_estimate=3, earliest_seq=4, head_seq=5)
    assert list(shown(TombstoneFrame(topic="t", tombstone=lost, opening=True)).items()) == [
        ("op", "tombstone"),
        ("topic", "t"),
        ("reason", "ttl"),
        ("gap_from", 1),
        ("gap_to", 3),
        ("earliest_seq", 4),
        ("head_seq", 5),
    ]
    paced = ErrorFrame(
        reason=Reason.THROTTLED, code=429, message="slow", retry_after_ms=1500, topics=("t",), terminal=False
    )
    assert shown(paced) == {
        "op": "error",
        "request_id": None,
        "code": "throttled",
        "message": "slow",
        "retry_after_ms": 1500,
        "topics": ["t"],
    }
    assert "topics" not in shown(ErrorFrame(reason=Reason.NOT_FOUND, code=410, message="gone"))
    assert frames.text(HeartbeatFrame(ts=1), ALL) == b""
