"""Checkpoints at their time, by the log that is there."""

from pathlib import Path

import pytest

from support.shards import SHARD, Member, rows
from topics_cluster import checkpoint, objects
from topics_cluster.checkpoint import Schedule
from topics_cluster.follower import Follower
from topics_cluster.housekeeping import Housekeeper
from topics_cluster.memory import MemoryBucket
from topics_cluster.restore import restore


class Bucket(MemoryBucket):
    """A bucket whose time is set."""

    def __init__(self) -> None:
        self.now = 1e6
        super().__init__(lambda: self.now)

    async def log(self, number: int, nbytes: int) -> None:
        """An object of the log, of this length."""
        await self.create(objects.name(SHARD, number), [bytes(nbytes)])


@pytest.fixture
def bucket() -> Bucket:
    return Bucket()


def keeper(bucket: MemoryBucket, folder: Path, **schedule: float) -> Housekeeper:
    made = Schedule(log_bytes=1_000_000, seconds=600.0, least_seconds=60.0)._replace(**schedule)
    return Housekeeper(bucket, SHARD, folder / "copies", "a", made)


async def test_without_data_none_is_due(bucket: Bucket, tmp_path: Path) -> None:
    house = keeper(bucket, tmp_path, least_seconds=0.0)
    assert not await house.is_due()
    await bucket.log(1, objects.HEADER_BYTES)
    bucket.now += 1e6
    await bucket.log(17, objects.HEADER_BYTES)
    assert not await house.is_due(), "fences alone"


async def test_bytes_and_time_since_the_newest_one_count(bucket: Bucket, tmp_path: Path) -> None:
    house = keeper(bucket, tmp_path)
    await bucket.create(checkpoint.name_of(SHARD, 5), [b""])
    await bucket.log(4, 5_000_000)
    bucket.now += 59
    await bucket.log(5, 5_000_000)
    assert not await house.is_due(), "too soon"
    bucket.now += 1
    await bucket.log(6, 200_000)
    assert await house.is_due()
    await bucket.create(checkpoint.name_of(SHARD, 7), [b""])
    bucket.now += 599
    await bucket.log(7, 200_000)
    assert not await house.is_due(), "neither long nor old"
    bucket.now += 1
    await bucket.log(8, 200_000)
    assert await house.is_due()


async def test_small_objects_count_for_the_requests_that_they_cost(bucket: Bucket, tmp_path: Path) -> None:
    house = keeper(bucket, tmp_path)
    await bucket.create(checkpoint.name_of(SHARD, 1), [b""])
    bucket.now += 100
    for number in range(1, 31):
        await bucket.log(number, 100)
    assert not await house.is_due()
    await bucket.log(31, 100)
    assert await house.is_due()


async def test_an_owner_waits_twice_as_long(bucket: Bucket, tmp_path: Path) -> None:
    house = keeper(bucket, tmp_path)
    await bucket.create(checkpoint.name_of(SHARD, 5), [b""])
    bucket.now += 1000
    await bucket.log(5, 500_000)
    assert await house.is_due()
    assert not await house.is_due(owner=True)
    bucket.now += 200
    await bucket.log(6, 500_000)
    assert await house.is_due(owner=True)


async def test_an_owner_and_its_follower_make_checkpoints_that_the_log_continues(tmp_path: Path) -> None:
    bucket = MemoryBucket()
    with Member(bucket, tmp_path / "owner") as owner, Member(bucket, tmp_path / "follower") as follower:
        await owner.own()
        for number in range(20):
            owner.put(b"%d" % number, bytes(10_000))
        by_owner = await keeper(bucket, tmp_path / "1").make(owner.store)
        assert by_owner is not None
        assert by_owner.applied == 20
        owner.put(b"more", b"1")
        await owner.sync()
        await catch_up(follower)
        by_follower = await keeper(bucket, tmp_path / "2").make(follower.store)
        assert by_follower is not None
        assert (by_follower.position.ticket, by_follower.applied) == (21, 21)
        owner.put(b"last", b"2")
        await owner.sync()
        for made in (by_owner, by_follower):
            await restore(bucket, made, tmp_path / f"from-{made.number}")
            with Member(bucket, tmp_path / f"from-{made.number}") as restored:
                await catch_up(restored)
                assert rows(restored.store) == rows(owner.store)


async def test_what_is_collected_afterwards_is_behind_the_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    windows: list[float] = []

    async def note(_bucket: MemoryBucket, _shard: int, _nonce: str, window_seconds: float) -> None:
        windows.append(window_seconds)

    monkeypatch.setattr("topics_cluster.housekeeping.collect", note)
    bucket = MemoryBucket()
    with Member(bucket, tmp_path / "owner") as owner:
        await owner.own()
        owner.put(b"a", b"1")
        await Housekeeper(bucket, SHARD, tmp_path / "copies", "a", log_seconds=7200).make(owner.store)
    assert windows == [7200]


async def catch_up(member: Member) -> None:
    await Follower(member.bucket, member.store, SHARD).catch_up()
