"""Local directories that may be used again, and those that may not."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.held_bucket import HeldBucket
from support.shards import SHARD, Member, rows
from topics_cluster.follower import Follower, no_checkpoint
from topics_cluster.log import Position
from topics_cluster.reuse import is_of_log


class Cluster:
    """An owner that was killed with a write under way, `made` or not, and its directory opened again."""

    def __init__(self, path: Path) -> None:
        self.bucket = HeldBucket()
        self.path = path
        self.members: list[Member] = []

    def member(self, name: str) -> Member:
        self.members.append(Member(self.bucket, self.path / name))
        return self.members[-1]

    async def killed(self, *, made: bool) -> Member:
        """The directory of the owner."""
        owner = self.member("a")
        await owner.own()
        owner.put(b"1", b"1")
        await owner.sync()
        if not made:
            self.bucket.fate = lambda _name: "held"
        owner.put(b"2", b"2")
        owner.put(b"3", b"3" * 5000)
        if made:
            await owner.sync()
        owner.kill()
        self.bucket.fate = lambda _name: "made"
        return self.member("a")


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    cluster = Cluster(tmp_path)
    yield cluster
    for member in cluster.members:
        member.kill()


async def may(member: Member) -> bool:
    return await is_of_log(member.bucket, member.store, SHARD, no_checkpoint)


async def test_an_empty_directory_and_that_of_a_follower_may(cluster: Cluster) -> None:
    assert await may(cluster.member("new"))
    owner = cluster.member("a")
    await owner.own()
    owner.put(b"1", b"1")
    await owner.sync()
    follower = cluster.member("b")
    await Follower(cluster.bucket, follower.store, SHARD).catch_up()
    follower.kill()
    assert await may(cluster.member("b"))


async def test_a_killed_owner_whose_writes_are_in_the_log_may(cluster: Cluster) -> None:
    """Its last row says less than what was acknowledged: the log has the answer, and nothing is applied twice."""
    again = await cluster.killed(made=True)
    assert again.store.is_ahead
    assert await may(again)
    fresh = cluster.member("fresh")
    await Follower(cluster.bucket, fresh.store, SHARD).catch_up()
    assert again.store.position == fresh.store.position
    assert rows(again.store) == rows(fresh.store)


async def test_a_killed_owner_whose_writes_are_in_the_log_may_after_a_takeover(cluster: Cluster) -> None:
    again = await cluster.killed(made=True)
    successor = cluster.member("b")
    await successor.own()
    successor.put(b"4", b"4")
    await successor.sync()
    assert await may(again)
    assert rows(again.store) == rows(successor.store)


async def test_a_killed_owner_with_a_write_that_is_nowhere_else_may(cluster: Cluster) -> None:
    again = await cluster.killed(made=False)
    assert await may(again)
    assert again.store.is_ahead


async def test_a_killed_owner_whose_write_met_a_fence_may_not(cluster: Cluster) -> None:
    again = await cluster.killed(made=False)
    successor = cluster.member("b")
    await successor.own()
    for each in range(5):  # more tickets than the former owner had
        successor.put(b"%d" % each, b"other")
        await successor.sync()
    assert not await may(again)


async def test_a_directory_that_the_log_has_left_behind_may_not(cluster: Cluster) -> None:
    """The log behind it was collected, and is in a checkpoint."""
    again = await cluster.killed(made=False)
    for name in list(cluster.bucket._objects):
        await cluster.bucket.delete([name])

    async def newest() -> Position:
        return Position(5, 500, 5000)

    assert not await is_of_log(cluster.bucket, again.store, SHARD, newest)
