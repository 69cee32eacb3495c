"""Reads of an owner: served while its lease holds, and else only after a look into the log."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from support.waiting import until
from topics_cluster import objects
from topics_cluster.bucket import BucketError
from topics_cluster.memory import MemoryBucket
from topics_cluster.objects import Header, Kind
from topics_server.node.gate import MARGIN_SECONDS, LostShardError, ReadGate
from topics_service.engine.errors import Reason, TopicsError

MINE, OTHER = b"m" * 16, b"o" * 16


class Parts:
    """A gate at number 17, with 17 to 19 under way, in epoch 1, with a clock and a lease that the test sets."""

    def __init__(self) -> None:
        self.now = 100.0
        self.until = 102.0
        self.session: Any = SimpleNamespace(holds_until=lambda _shard: self.until)
        self.bucket = MemoryBucket()
        self.uploader: Any = SimpleNamespace(shard=0, position=SimpleNamespace(number=17), next=20)
        self.gate = ReadGate(self.session, self.bucket, self.uploader, MINE, lambda: self.now)

    async def put(self, number: int, kind: Kind, nonce: bytes) -> None:
        header = Header(kind, 0, 1 if kind is Kind.DATA else 2, number, number + 4, 9, nonce)
        body = [objects.batch_start(9, 0)] if kind is Kind.DATA else []
        assert await self.bucket.create(objects.name(0, number), objects.encode(header, body))


@pytest.fixture
def parts() -> Parts:
    return Parts()


async def test_it_is_open_until_shortly_before_the_end_of_the_lease(parts: Parts) -> None:
    assert parts.gate.is_open
    parts.now = 102.0 - MARGIN_SECONDS
    assert not parts.gate.is_open
    parts.until = 104.0
    assert parts.gate.is_open


async def test_a_look_passes_where_the_log_ends_with_what_the_owner_has_put(parts: Parts) -> None:
    await parts.gate.look()
    await parts.put(17, Kind.DATA, MINE)
    await parts.put(18, Kind.DATA, MINE)
    await parts.gate.look()
    assert parts.gate.probes == 2


async def test_a_fence_and_the_object_of_another_owner_end_the_ownership(parts: Parts) -> None:
    await parts.put(17, Kind.DATA, MINE)
    await parts.put(18, Kind.FENCE, OTHER)
    with pytest.raises(LostShardError, match="00018 is another owner's"):
        await parts.gate.look()


@pytest.mark.parametrize("fenced", [18, 19, 20])
async def test_a_fence_is_met_behind_objects_that_were_made_and_are_deleted(parts: Parts, fenced: int) -> None:
    """As for an owner that slept for hours before it heard that they were made."""
    await parts.put(fenced, Kind.FENCE, OTHER)
    with pytest.raises(LostShardError):
        await parts.gate.look()


async def test_a_doubted_lease_is_of_no_use_until_a_look(parts: Parts) -> None:
    parts.gate.doubt()
    assert not parts.gate.is_open
    await parts.gate.trust()
    assert parts.gate.is_open


async def test_a_call_shares_only_looks_that_begin_after_it(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    parts.uploader.next = 17
    answers = [asyncio.Event(), asyncio.Event()]
    asked = 0

    async def get(_name: str) -> None:
        nonlocal asked
        asked += 1
        await answers[asked - 1].wait()

    monkeypatch.setattr(parts.bucket, "get", get)
    first = asyncio.create_task(parts.gate.look())
    await until(lambda: asked == 1)
    later = [asyncio.create_task(parts.gate.look()) for _ in range(3)]
    answers[0].set()
    await first
    await until(lambda: asked == 2)
    assert not any(task.done() for task in later)
    answers[1].set()
    await asyncio.gather(*later)
    assert asked == parts.gate.probes == 2


async def test_without_an_answer_of_the_bucket_a_call_is_not_ready(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def get(_name: str) -> None:
        raise BucketError("away")

    monkeypatch.setattr(parts.bucket, "get", get)
    with pytest.raises(TopicsError) as error:
        await parts.gate.look()
    assert error.value.reason is Reason.NOT_READY
