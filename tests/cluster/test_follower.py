"""A follower: what it applies, how it finds out that there is more, and when it has to start over."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from support.held_bucket import HeldBucket
from support.shards import SHARD, Member, rows
from support.waiting import until
from topics_cluster import follower as follower_module
from topics_cluster import objects
from topics_cluster.bucket import BucketError
from topics_cluster.follower import BehindCheckpointError, Follower, MissingObjectError
from topics_cluster.log import OutOfOrderError, Position
from topics_cluster.objects import DamagedObjectError, Kind, LogObject


class CountingBucket(HeldBucket):
    """Counts the GETs, and how many ran at once."""

    def __init__(self) -> None:
        super().__init__()
        self.gets: list[str] = []
        self.running = self.most = 0

    async def get(self, name: str) -> bytes | None:
        self.gets.append(name)
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0)
        self.running -= 1
        return await super().get(name)


@pytest.fixture
def bucket() -> CountingBucket:
    return CountingBucket()


@pytest.fixture
async def owner(bucket: CountingBucket, tmp_path: Path) -> AsyncIterator[Member]:
    with Member(bucket, tmp_path / "owner") as owner:
        await owner.own()
        yield owner


@pytest.fixture
def standby(bucket: CountingBucket, tmp_path: Path) -> Iterator[Member]:
    with Member(bucket, tmp_path / "standby") as standby:
        yield standby


async def write(owner: Member, count: int) -> None:
    """Write objects of one row each."""
    for _ in range(count):
        owner.put(b"%d" % owner.store.ticket, bytes(10))
        await owner.sync()


async def test_far_behind_it_fetches_several_objects_at_once(
    bucket: CountingBucket, owner: Member, standby: Member
) -> None:
    await write(owner, 40)
    bucket.gets.clear()
    assert await Follower(bucket, standby.store, SHARD).catch_up() == 41
    assert bucket.most == 8
    assert rows(standby.store) == rows(owner.store)
    assert len(bucket.gets) < 41 + 2 * 8


async def test_at_the_end_it_looks_for_one_object(bucket: CountingBucket, owner: Member, standby: Member) -> None:
    follower = Follower(bucket, standby.store, SHARD)
    await follower.catch_up()
    bucket.gets.clear()
    assert await follower.catch_up() == 0
    assert bucket.gets == [objects.name(SHARD, standby.store.position.number)]


async def test_a_notice_says_how_many_there_are(bucket: CountingBucket, owner: Member, standby: Member) -> None:
    follower = Follower(bucket, standby.store, SHARD)
    await follower.catch_up()
    await write(owner, 3)
    last = owner.store.position.number - 1
    follower.notice(last)
    assert follower.behind == 3
    bucket.gets.clear()
    assert await follower.catch_up() == 3
    assert bucket.most >= 3
    assert follower.behind == 0
    follower.notice(last - 1)
    assert follower.behind == 0


async def test_it_tells_of_each_object(bucket: CountingBucket, owner: Member, standby: Member) -> None:
    follower, found = Follower(bucket, standby.store, SHARD), list[LogObject]()
    follower.on_applied = found.append
    await write(owner, 2)
    await follower.catch_up()
    assert [each.header.kind for each in found] == [Kind.FENCE, Kind.DATA, Kind.DATA]
    assert [batch.ticket for each in found for batch in each.batches] == [1, 2]
    assert follower.last == found[-1]


async def test_it_follows_notices_and_looks_by_itself(
    bucket: CountingBucket, owner: Member, standby: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower_module, "_POLL_SECONDS", 3600)
    follower = Follower(bucket, standby.store, SHARD)
    running = asyncio.create_task(follower.run())
    try:
        await until(lambda: standby.store.position.epoch > 0)
        await write(owner, 1)
        follower.notice(owner.store.position.number - 1)
        await until(lambda: standby.store.position == owner.store.position)
        monkeypatch.setattr(follower_module, "_POLL_SECONDS", 0.01)
        follower._notice.set()
        await write(owner, 1)
        await until(lambda: standby.store.position == owner.store.position)
    finally:
        running.cancel()


async def test_it_waits_where_the_bucket_is_away(
    bucket: CountingBucket, owner: Member, standby: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower_module, "_POLL_SECONDS", 0.01)
    await write(owner, 1)
    bucket.away = True
    follower = Follower(bucket, standby.store, SHARD)
    with pytest.raises(BucketError):
        await follower.catch_up()
    running = asyncio.create_task(follower.run())
    await asyncio.sleep(0.03)
    assert not running.done()
    bucket.away = False
    await until(lambda: standby.store.position == owner.store.position)
    running.cancel()


async def test_a_damaged_object_is_named_and_nothing_of_it_applied(
    bucket: CountingBucket, owner: Member, standby: Member
) -> None:
    await write(owner, 3)
    name = objects.name(SHARD, owner.store.position.number - 2)
    whole = await bucket.get(name)
    assert whole is not None
    bucket.put(name, whole[:-1] + bytes([whole[-1] ^ 1]))
    follower = Follower(bucket, standby.store, SHARD)
    with pytest.raises(DamagedObjectError, match=name):
        await follower.catch_up()
    assert standby.store.ticket == 1
    with pytest.raises(DamagedObjectError, match=name):
        await follower.catch_up()
    bucket.put(name, whole)
    assert await follower.catch_up() == 2
    assert rows(standby.store) == rows(owner.store)


async def test_an_object_of_another_epoch_is_out_of_order(
    bucket: CountingBucket, owner: Member, standby: Member
) -> None:
    await Follower(bucket, standby.store, SHARD).catch_up()
    number = standby.store.position.number
    header = objects.Header(Kind.DATA, SHARD, 2, number, number + 4, 1, bytes(16))
    bucket.put(objects.name(SHARD, number), b"".join(objects.encode(header, [objects.batch_start(1, 0)])))
    with pytest.raises(OutOfOrderError, match="data of epoch 2 follows epoch 1"):
        await Follower(bucket, standby.store, SHARD).catch_up()


async def test_it_goes_over_a_fence_and_leaves_out_what_is_behind_it(
    bucket: CountingBucket, owner: Member, standby: Member, tmp_path: Path
) -> None:
    follower = Follower(bucket, standby.store, SHARD)
    await write(owner, 20)
    with Member(bucket, tmp_path / "next") as successor:
        await successor.own()
        number = successor.store.position.number
        bucket.put(objects.name(SHARD, number - 5), b"under way at the former owner")
        await write(successor, 20)
        await follower.catch_up()
        assert rows(standby.store) == rows(successor.store)
        assert standby.store.position == successor.store.position


async def test_a_stretch_that_was_deleted_is_no_end(bucket: CountingBucket, owner: Member, standby: Member) -> None:
    await write(owner, 5)
    newest: Position | None = None

    async def checkpoint() -> Position | None:
        return newest

    follower = Follower(bucket, standby.store, SHARD, checkpoint)
    await follower.catch_up()
    await follower.check()
    await write(owner, 5)
    newest = owner.store.position
    await follower.check()  # it is only a little behind
    for entry in await bucket.list(objects.prefix(SHARD), objects.name(SHARD, standby.store.position.number - 1)):
        bucket.drop(entry.name)
    assert await follower.catch_up() == 0
    with pytest.raises(BehindCheckpointError, match=f"checkpoint {newest.number}"):
        await follower.check()


async def test_an_object_that_is_missing_is_named(bucket: CountingBucket, owner: Member, standby: Member) -> None:
    await write(owner, 5)
    name = objects.name(SHARD, owner.store.position.number - 2)
    bucket.drop(name)
    follower = Follower(bucket, standby.store, SHARD)
    assert await follower.catch_up() == 4
    await follower.check()  # it may be under way
    follower.notice(owner.store.position.number - 1)
    with pytest.raises(MissingObjectError, match=f"{name} is damaged: it is missing"):
        await asyncio.wait_for(follower.run(), 10)


async def test_a_cancelled_follower_leaves_no_object_half_way(
    bucket: CountingBucket, owner: Member, standby: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner.put(b"large", bytes(100_000))
    await owner.sync()
    apply, begun, proceed = standby.store.apply, threading.Event(), threading.Event()

    def slow(found: LogObject, position: Position) -> None:
        if found.batches:
            begun.set()
            assert proceed.wait(10)
        apply(found, position)

    monkeypatch.setattr(standby.store, "apply", slow)
    following = asyncio.create_task(Follower(bucket, standby.store, SHARD).catch_up())
    await asyncio.to_thread(begun.wait, 10)
    following.cancel()
    await asyncio.sleep(0.01)
    assert not following.done()
    proceed.set()
    with pytest.raises(asyncio.CancelledError):
        await following
    assert standby.store.position == owner.store.position
    monkeypatch.undo()
    assert await Follower(bucket, standby.store, SHARD).catch_up() == 0


async def test_it_checks_by_itself_when_nothing_comes(
    bucket: CountingBucket, owner: Member, standby: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower_module, "_POLL_SECONDS", 0.001)
    monkeypatch.setattr(follower_module, "_CHECK_SECONDS", 0.01)
    await Follower(bucket, standby.store, SHARD).catch_up()

    async def checkpoint() -> Position | None:
        return Position(1, 500, 77)

    with pytest.raises(BehindCheckpointError):
        await asyncio.wait_for(Follower(bucket, standby.store, SHARD, checkpoint).run(), 10)
