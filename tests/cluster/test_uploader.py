"""The thread that makes objects: same bytes until they are there, acknowledgements in order, a stop at the fence."""

import asyncio
import logging
import threading
import time
from collections.abc import Iterator, Sequence

import pytest

from support.held_bucket import HeldBucket
from support.waiting import poll
from topics_cluster import objects, uploader
from topics_cluster.bucket import BucketError
from topics_cluster.log import EARLY_BYTES, Position, Tail
from topics_cluster.uploader import FencedError, Uploader
from topics_service.storage.store import Family, StoreError

NONCE = b"n" * 16
FIRST = 17


class Uploads:
    """An uploader with a list of what it told."""

    def __init__(self, bucket: HeldBucket, linger: float = 0.0) -> None:
        self.bucket = bucket
        self.uploader = Uploader(bucket, 0, Position(1, FIRST, 0), NONCE, linger=linger)
        self.acknowledged: list[int] = []
        self.failures: list[Exception] = []
        self.uploader.on_acknowledged = self.acknowledged.append
        self.uploader.on_failed = self.failures.append
        self.tickets = 0

    def add(self, nbytes: int = 10) -> None:
        self.tickets += 1
        self.uploader.add((self.tickets, [(objects.Op.PUT, Family.ROWS, b"k", bytes(nbytes))]))
        self.uploader.wake()

    def begun(self, count: int) -> None:
        """Wait until so many objects were begun."""
        poll(lambda: len(set(self.bucket.tried)) == count)


@pytest.fixture
def bucket() -> HeldBucket:
    return HeldBucket()


@pytest.fixture
def uploads(bucket: HeldBucket) -> Iterator[Uploads]:
    uploads = Uploads(bucket)
    yield uploads
    uploads.uploader.stop()


def test_each_batch_gets_into_the_log_once(uploads: Uploads) -> None:
    for _ in range(50):
        uploads.add()
    uploads.uploader.wait(50, 10)
    tail, tickets = Tail(0, Position(1, FIRST, 0)), []
    for data in uploads.bucket.objects():
        found = tail.read(data)
        assert found is not None
        tickets += [batch.ticket for batch in found.batches]
    assert tickets == list(range(1, 51))
    assert uploads.uploader.position == tail.position
    assert uploads.acknowledged == sorted(uploads.acknowledged)
    assert uploads.acknowledged[-1] == 50
    statistics = uploads.uploader.statistics
    assert statistics.objects == statistics.latency.count == tail.next - FIRST
    assert (statistics.retries, uploads.uploader.unacknowledged_bytes) == (0, 0)


def test_an_idle_uploader_makes_nothing(uploads: Uploads) -> None:
    uploads.add()
    uploads.uploader.wait(1, 10)
    for _ in range(3):
        uploads.uploader.wake()
    uploads.uploader.wait(1, 10)
    assert len(uploads.bucket.tried) == 1
    assert uploads.uploader.waiting_seconds() == 0


def test_objects_are_made_side_by_side_and_acknowledged_in_order(uploads: Uploads) -> None:
    first = objects.name(0, FIRST)
    uploads.bucket.fate = lambda name: "held" if name == first else "made"
    uploads.add()
    uploads.begun(1)
    for count in (2, 3, 4):
        uploads.add(EARLY_BYTES)
        uploads.begun(count)
    uploads.add(EARLY_BYTES)
    poll(lambda: uploads.uploader.statistics.objects == 3)
    assert uploads.acknowledged == []
    assert len(set(uploads.bucket.tried)) == 4, "a window of four"
    assert uploads.uploader.waiting_seconds() > 0
    uploads.bucket.fate = lambda _name: "made"
    uploads.uploader.wait(5, 10)
    assert uploads.acknowledged == [4, 5]


def test_a_small_write_beside_a_slow_object_begins_after_a_while(uploads: Uploads) -> None:
    uploads.bucket.fate = lambda name: "held" if name == objects.name(0, FIRST) else "made"
    uploads.add()
    uploads.begun(1)
    uploads.add()
    uploads.begun(2)
    poll(lambda: uploads.uploader.statistics.objects == 1)
    uploads.bucket.fate = lambda _name: "made"
    uploads.uploader.wait(2, 10)


@pytest.mark.parametrize("fate", ["error", "lost"])
def test_the_same_object_is_tried_until_it_is_there(uploads: Uploads, fate: str) -> None:
    left = [fate] * 3

    def fate_of(_name: str) -> str:
        return left.pop() if left else "made"

    uploads.bucket.fate = fate_of  # type: ignore[assignment]
    uploads.add()
    uploads.uploader.wait(1, 10)
    assert set(uploads.bucket.tried) == {objects.name(0, FIRST)}
    assert uploads.uploader.statistics.retries > 0
    assert uploads.acknowledged == [1]


def test_nothing_is_acknowledged_while_the_store_is_away(uploads: Uploads, caplog: pytest.LogCaptureFixture) -> None:
    uploads.bucket.away = True
    for _ in range(3):
        uploads.add()
    poll(lambda: uploads.uploader.statistics.retries > 2)
    assert uploads.acknowledged == []
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1, "one a second"
    assert f"can't make the object {objects.name(0, FIRST)}" in warnings[0].getMessage()
    uploads.bucket.away = False
    uploads.uploader.wait(3, 10)
    assert uploads.acknowledged[-1] == 3


def test_a_store_that_never_answers_is_asked_again(uploads: Uploads, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploader, "_ATTEMPT_SECONDS", 0.02)
    uploads.bucket.fate = lambda _name: "held"
    uploads.add()
    poll(lambda: len(uploads.bucket.tried) > 2)
    uploads.bucket.fate = lambda _name: "made"
    uploads.uploader.wait(1, 10)


async def test_a_fence_ends_it(uploads: Uploads) -> None:
    uploads.add()
    uploads.uploader.wait(1, 10)
    fence = Tail(0, uploads.uploader.position).fence(b"o" * 16)
    assert await uploads.bucket.create(fence.name, fence.parts)
    uploads.add()
    with pytest.raises(FencedError, match=f"another node owns shard 0: the object {fence.name}"):
        uploads.uploader.wait(2, 10)
    poll(lambda: uploads.failures)
    assert uploads.acknowledged == [1]
    uploads.add()
    with pytest.raises(FencedError):
        uploads.uploader.wait(3, 10)
    assert len(uploads.failures) == 1
    assert len(set(uploads.bucket.tried)) == 2


def test_an_object_that_lands_behind_a_fence_is_not_acknowledged(uploads: Uploads) -> None:
    """An owner with two objects under way, the first of which is fenced off."""
    held = {objects.name(0, FIRST), objects.name(0, FIRST + 1)}
    uploads.bucket.fate = lambda name: "held" if name in held else "made"
    uploads.add()
    uploads.begun(1)
    uploads.add(EARLY_BYTES)
    uploads.begun(2)
    held.discard(objects.name(0, FIRST + 1))
    poll(lambda: uploads.uploader.statistics.objects == 1)
    fence = Tail(0, Position(1, FIRST, 0)).fence(b"o" * 16)
    uploads.bucket.put(fence.name, b"".join(fence.parts))
    held.clear()
    poll(lambda: uploads.failures)
    assert uploads.acknowledged == []
    assert isinstance(uploads.failures[0], FencedError)


def test_an_unexpected_error_ends_it_too(uploads: Uploads, monkeypatch: pytest.MonkeyPatch) -> None:
    async def create(_name: str, _parts: Sequence[bytes]) -> bool:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(uploads.bucket, "create", create)
    uploads.add()
    with pytest.raises(StoreError, match="the log can't be written: a bug"):
        uploads.uploader.wait(1, 10)
    poll(lambda: uploads.failures)
    assert isinstance(uploads.failures[0], ZeroDivisionError)


def test_stop_ends_the_thread_whatever_the_store_does(bucket: HeldBucket) -> None:
    bucket.fate = lambda _name: "held"
    uploads = Uploads(bucket)
    uploads.add()
    uploads.begun(1)
    uploads.uploader.stop()
    uploads.uploader.stop()
    uploads.uploader.wake()
    assert not [thread for thread in threading.enumerate() if thread.name == "log-uploader"]
    with pytest.raises(StoreError, match="stopped"):
        uploads.uploader.wait(1, 10)
    assert (uploads.acknowledged, uploads.failures) == ([], [])


async def test_errors_of_a_lookup_are_tried_again_too(uploads: Uploads, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer of a create is lost, and it can't be seen at once whose object is there."""
    get, errors = uploads.bucket.get, [BucketError("500"), BucketError("500")]

    async def failing(name: str) -> bytes | None:
        if errors:
            raise errors.pop()
        return await get(name)

    monkeypatch.setattr(uploads.bucket, "get", failing)
    fates = ["lost"]
    uploads.bucket.fate = lambda _name: "lost" if fates and fates.pop() else "made"
    uploads.add()
    uploads.uploader.wait(1, 10)
    assert uploads.acknowledged == [1]
    assert not errors


def test_small_batches_that_come_all_the_time_share_objects_that_linger() -> None:
    class Slow(HeldBucket):
        async def create(self, name: str, parts: Sequence[bytes]) -> bool:
            await asyncio.sleep(0.01)
            return await super().create(name, parts)

    bucket = Slow()
    uploads = Uploads(bucket, linger=0.2)
    end, pause = time.monotonic() + 2, threading.Event()
    while time.monotonic() < end:
        uploads.add()
        pause.wait(0.001)
    uploads.uploader.wait(uploads.tickets, 10)
    assert len(bucket.objects()) < 30, "about 8 until it is known that they can be shared, then 5 a second"
    uploads.uploader.stop()
