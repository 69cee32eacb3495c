"""Taking over: who may own, what is read before, and what is no log to own."""

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from support.held_bucket import Fate, HeldBucket
from support.shards import SHARD, Member, rows
from support.waiting import until
from topics_cluster import objects
from topics_cluster.bucket import ObjectEntry
from topics_cluster.follower import BehindCheckpointError, Newest
from topics_cluster.log import EARLY_BYTES, MAX_WINDOW, START, Position, Tail
from topics_cluster.takeover import (
    BrokenLogError,
    GivenWayError,
    Ownership,
    StoreAheadError,
    hand_over,
    new_nonce,
    take_over,
)
from topics_cluster.uploader import FencedError


class Cluster:
    """A bucket and the stores that a test opens on it."""

    def __init__(self, path: Path) -> None:
        self.bucket = HeldBucket()
        self.path = path
        self.members: list[Member] = []

    def member(self, name: str) -> Member:
        self.members.append(Member(self.bucket, self.path / name))
        return self.members[-1]

    async def owner(self, count: int, name: str = "a") -> Member:
        """An owner that has made as many objects."""
        member = self.member(name)
        await member.own()
        await write(member, count)
        return member

    def names(self) -> list[str]:
        return sorted(self.bucket._objects)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    cluster = Cluster(tmp_path)
    yield cluster
    for member in cluster.members:
        member.kill()


async def write(owner: Member, count: int) -> None:
    for _ in range(count):
        owner.put(b"%d" % owner.store.ticket, b"value")
        await owner.sync()


def checkpoint(position: Position | None) -> Newest:
    async def newest() -> Position | None:
        return position

    return newest


async def test_the_first_owner_of_an_empty_log(cluster: Cluster) -> None:
    first = cluster.member("a")
    nonce = new_nonce()
    ownership = await first.own(nonce)
    assert ownership == Ownership(SHARD, Position(1, 1 + MAX_WINDOW, 0), nonce, version=1)
    assert ownership.epoch == 1
    assert first.store.position == ownership.position
    assert cluster.names() == [objects.name(SHARD, 1)]


async def test_the_next_owner_has_everything_and_the_former_one_nothing_more(cluster: Cluster) -> None:
    former = await cluster.owner(3)
    successor = cluster.member("b")
    ownership = await successor.own()
    assert ownership.position == Position(2, former.store.position.number + MAX_WINDOW, 3)
    assert rows(successor.store) == rows(former.store)
    with pytest.raises(FencedError):
        await write(former, 1)
    await write(successor, 1)
    assert successor.store.position == Position(2, ownership.position.number + 1, 4)


async def test_an_owner_that_restarts_fences_its_own_epoch(cluster: Cluster) -> None:
    former = await cluster.owner(3)
    former.kill()
    again = cluster.member("a")
    assert (await again.own()).epoch == 2
    await write(again, 1)
    assert again.store.ticket == 4


async def test_an_owner_that_restarts_with_more_than_the_log_does_not_own_it(cluster: Cluster) -> None:
    former = await cluster.owner(3)
    cluster.bucket.fate = lambda _name: "held"
    former.put(b"not", b"in the log")
    former.kill()
    cluster.bucket.fate = lambda _name: "made"
    with pytest.raises(StoreAheadError, match="ends at ticket 4, the log ends at 3"):
        await cluster.member("a").own()
    assert len(cluster.names()) == 4, "no fence"


async def test_an_owner_that_restarts_reads_what_landed_after_it_ended(cluster: Cluster) -> None:
    """Its last object is there, although it never heard so."""
    former = await cluster.owner(2)
    cluster.bucket.fate = lambda _name: "lost"
    former.put(b"lost", b"answer")
    await until(lambda: len(cluster.names()) >= 4)
    former.kill()
    cluster.bucket.fate = lambda _name: "made"
    again = cluster.member("a")
    ownership = await again.own()
    assert ownership.position.ticket == 3
    assert again.get(b"lost") == b"answer"


async def test_a_fence_whose_answer_is_lost_counts(cluster: Cluster) -> None:
    cluster.bucket.fate = lambda _name: "lost"
    ownership = await cluster.member("a").own()
    assert ownership.epoch == 1
    assert len(cluster.names()) == 1


async def test_it_waits_where_the_bucket_is_away(cluster: Cluster) -> None:
    cluster.bucket.away = True
    taking = asyncio.create_task(cluster.member("a").own())
    await asyncio.sleep(0.12)
    assert not taking.done()
    cluster.bucket.away = False
    assert (await taking).epoch == 1


async def test_of_two_at_once_one_gives_way(cluster: Cluster) -> None:
    former = await cluster.owner(3)
    contenders = [cluster.member(name) for name in "bc"]
    results = await asyncio.gather(*(each.own() for each in contenders), return_exceptions=True)
    owners = [result for result in results if isinstance(result, Ownership)]
    assert [type(result) for result in results if not isinstance(result, Ownership)] == [GivenWayError]
    assert [each.epoch for each in owners] == [2]
    with pytest.raises(FencedError):
        await write(former, 1)
    loser = contenders[0] if isinstance(results[1], Ownership) else contenders[1]
    assert (await loser.own()).epoch == 3, "it may, and then it is a takeover like any other"


async def test_many_contenders_one_owner_an_epoch(cluster: Cluster) -> None:
    await (await cluster.owner(1)).sync()
    contenders = [cluster.member(f"c{number}") for number in range(5)]
    results = await asyncio.gather(*(each.own() for each in contenders), return_exceptions=True)
    assert {type(result) for result in results} <= {Ownership, GivenWayError}
    epochs = [result.epoch for result in results if isinstance(result, Ownership)]
    assert epochs
    assert len(set(epochs)) == len(epochs)


async def test_a_fence_without_an_owner_is_followed_by_another(cluster: Cluster) -> None:
    """A contender died between its fence and its announcement."""
    former = await cluster.owner(1)
    fence = Tail(SHARD, former.store.position).fence(new_nonce())
    assert await cluster.bucket.create(fence.name, fence.parts)
    assert (await cluster.member("b").own()).epoch == 3


async def test_an_owner_that_is_always_faster_is_stopped(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is cut off from the coordinator alone, and writes as fast as it can."""
    owner, successor, create = await cluster.owner(2), cluster.member("b"), cluster.bucket.create
    beaten = 0

    async def late(name: str, parts: Sequence[bytes]) -> bool:
        nonlocal beaten
        if threading.current_thread().name != "log-uploader" and name == objects.name(
            SHARD, owner.store.position.number
        ):
            beaten += 1
            with suppress(FencedError):
                await write(owner, 1)
        return await create(name, parts)

    monkeypatch.setattr(cluster.bucket, "create", late)
    ownership = await asyncio.wait_for(successor.own(), 30)
    assert 1 < beaten <= MAX_WINDOW
    with pytest.raises(FencedError):
        await write(owner, 1)
    assert ownership.position.ticket == owner.store.position.ticket
    await write(successor, 2)
    third = cluster.member("c")
    await third.own()
    assert rows(third.store) == rows(successor.store)


async def test_an_owner_that_dies_before_the_fence_ahead_is_fenced_where_it_ended(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, successor, create = await cluster.owner(2), cluster.member("b"), cluster.bucket.create
    end = owner.store.position.number

    async def late(name: str, parts: Sequence[bytes]) -> bool:
        if name == objects.name(SHARD, end) and threading.current_thread().name != "log-uploader":
            await write(owner, 3)
        return await create(name, parts)

    monkeypatch.setattr(cluster.bucket, "create", late)
    ownership = await successor.own()
    assert objects.name(SHARD, end + MAX_WINDOW - 1) in cluster.names()
    assert ownership.position == Position(2, end + 3 + MAX_WINDOW, 5)
    with pytest.raises(FencedError):
        await write(owner, 1)
    await write(successor, 20)
    third = cluster.member("c")
    assert (await third.own()).position.ticket == 25
    assert rows(third.store) == rows(successor.store)


async def test_what_the_former_owner_had_under_way_is_never_read(cluster: Cluster) -> None:
    former = await cluster.owner(1)
    first = former.store.position.number
    cluster.bucket.fate = lambda name: "held" if name >= objects.name(SHARD, first) else "made"
    former.put(b"a", b"under way")
    for number in range(4):
        await until(lambda: len(set(cluster.bucket.tried)) >= 3 + number)  # noqa: B023  # awaited here
        former.put(b"b%d" % number, bytes(EARLY_BYTES))
    held = {objects.name(SHARD, first + number) for number in range(4)}
    assert set(cluster.bucket.tried[-4:]) == held, "as many as the window"

    def hold_oldest(name: str) -> Fate:
        is_former = threading.current_thread().name == "log-uploader"
        return "held" if is_former and name == objects.name(SHARD, first) else "made"

    cluster.bucket.fate = hold_oldest
    successor = cluster.member("b")
    await until(lambda: len(cluster.names()) >= 2 + 3)
    ownership = await successor.own()
    assert ownership.position == Position(2, first + MAX_WINDOW, 1)
    cluster.bucket.fate = lambda _name: "made"
    with pytest.raises(FencedError):
        await former.sync()
    assert former.store.position.ticket == 1
    await write(successor, 3)
    third = cluster.member("c")
    await third.own()
    assert rows(third.store) == rows(successor.store)
    assert third.get(b"a") is third.get(b"b1") is None


async def test_a_handover_passes_the_fence(cluster: Cluster) -> None:
    former, successor, nonce = await cluster.owner(3), cluster.member("b"), new_nonce()
    former.resign()
    assert await hand_over(cluster.bucket, former.store, SHARD, nonce)
    assert await hand_over(cluster.bucket, former.store, SHARD, nonce), "the answer of the first may be lost"
    ownership = await successor.own(nonce)
    assert ownership.epoch == 2
    assert len(cluster.names()) == 1 + 3 + 1
    await write(successor, 1)
    assert (await former.own()).epoch == 3, "its store follows as any other"
    assert former.get(b"3") == b"value"


async def test_a_handover_that_was_not_wanted_is_fenced_over(cluster: Cluster) -> None:
    former = await cluster.owner(3)
    former.resign()
    assert await hand_over(cluster.bucket, former.store, SHARD, new_nonce())
    assert (await cluster.member("c").own()).epoch == 3


async def test_nothing_is_handed_over_that_is_not_in_the_log(cluster: Cluster) -> None:
    former = await cluster.owner(1)
    cluster.bucket.fate = lambda _name: "held"
    former.put(b"not", b"acknowledged")
    former.resign()
    assert not await hand_over(cluster.bucket, former.store, SHARD, new_nonce())
    assert len(cluster.names()) == 2


async def test_a_handover_comes_after_a_takeover(cluster: Cluster) -> None:
    former, taker = await cluster.owner(1), cluster.member("b")
    former.resign()
    await taker.own()
    assert not await hand_over(cluster.bucket, former.store, SHARD, new_nonce())


async def test_a_newer_checkpoint_sends_it_back(cluster: Cluster) -> None:
    """The log was collected up to the checkpoint, while the store is behind it."""
    await cluster.owner(5)
    newest = checkpoint(Position(1, 1 + MAX_WINDOW + 5, 5))
    late = cluster.member("b")
    for name in cluster.names()[3:]:
        cluster.bucket.drop(name)
    with pytest.raises(BehindCheckpointError, match="ticket 5, read was 2"):
        await take_over(cluster.bucket, late.store, SHARD, new_nonce(), newest=newest)


async def test_a_checkpoint_is_looked_for_after_the_fence(cluster: Cluster) -> None:
    """The stretch goes between the last look at the log and the fence."""
    await cluster.owner(5)
    late, stretch = cluster.member("b"), cluster.names()[3:]
    looks: list[int] = []

    async def newest() -> Position | None:
        looks.append(len(cluster.names()))
        return Position(1, 1 + MAX_WINDOW + 5, 5)

    hidden = {name: cluster.bucket._objects.pop(name)[0] for name in stretch}
    with pytest.raises(BehindCheckpointError):
        await late.own(newest=newest)
    assert looks == [len(cluster.names())], "the fence is there when it looks"
    assert len(hidden) == 3


async def test_checkpoints_that_it_has_read_past_are_fine(cluster: Cluster) -> None:
    former, warm = await cluster.owner(5), cluster.member("b")
    newest = checkpoint(former.store.position)
    assert (await warm.own(newest=newest)).epoch == 2


async def test_a_store_of_a_checkpoint_needs_nothing_below_it(cluster: Cluster) -> None:
    former = await cluster.owner(5)
    position = former.store.position
    former.resign()
    for name in cluster.names():
        cluster.bucket.drop(name)
    assert (await former.own(newest=checkpoint(position))).epoch == 2


async def test_a_log_with_a_hole_is_not_owned(cluster: Cluster) -> None:
    await cluster.owner(20)
    hole = cluster.names()[2]
    cluster.bucket.drop(hole)
    before = cluster.names()
    with pytest.raises(BrokenLogError, match=f"{hole} is missing"):
        await cluster.member("b").own()
    assert cluster.names() == before


async def test_objects_that_come_while_it_looks_are_no_hole(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, successor = await cluster.owner(1), cluster.member("b")
    list_ = cluster.bucket.list
    busy = [True]

    async def slow_list(prefix: str, after: str = "") -> Sequence[ObjectEntry]:
        if busy:
            busy.pop()
            await write(owner, 20)
        return await list_(prefix, after)

    monkeypatch.setattr(cluster.bucket, "list", slow_list)
    assert (await successor.own()).position.ticket == 21


@pytest.mark.parametrize("lost", [1, 5, MAX_WINDOW - 1, MAX_WINDOW, 20])
async def test_a_bucket_that_was_put_back_is_not_owned(cluster: Cluster, lost: int) -> None:
    owner = await cluster.owner(30)
    owner.resign()
    for name in cluster.names()[-lost:]:
        cluster.bucket.drop(name)
    with pytest.raises(BrokenLogError, match="has become shorter"):
        await owner.own()
    assert len(cluster.names()) == 31 - lost


async def test_an_epoch_that_is_not_there_any_more_is_not_owned(cluster: Cluster) -> None:
    await cluster.owner(1)
    with pytest.raises(BrokenLogError, match="ends in epoch 1, there was an epoch 4"):
        await cluster.member("b").own(least_epoch=4)
    with pytest.raises(BrokenLogError, match="ends in epoch 0"):
        await Cluster(cluster.path).member("c").own(least_epoch=1)
    assert START.epoch == 0


async def test_an_empty_epoch_is_followed_by_the_next(cluster: Cluster) -> None:
    first = await cluster.owner(0)
    first.resign()
    assert (await first.own()).epoch == 2
    first.resign()
    assert (await first.own()).position == Position(3, 1 + 3 * MAX_WINDOW, 0)
