"""The store of a shard: a follower has what the owner writes, and nothing is acknowledged that the log has not."""

import asyncio
import random
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from support.held_bucket import HeldBucket
from support.shards import SHARD, Member, rows
from support.waiting import poll, until
from topics_cluster import objects
from topics_cluster import store as store_module
from topics_cluster.follower import Follower
from topics_cluster.log import START, Position
from topics_cluster.store import POSITION_KEY, read_position
from topics_cluster.uploader import FencedError
from topics_service.engine.writer import Writer
from topics_service.storage import keys, segments
from topics_service.storage.store import Family, StoreError, StoreStalledError
from topics_service.storage.wal.batches import MOMENT_KEY


@pytest.fixture
def bucket() -> HeldBucket:
    return HeldBucket()


@pytest.fixture
async def owner(bucket: HeldBucket, tmp_path: Path) -> AsyncIterator[Member]:
    with Member(bucket, tmp_path / "owner") as owner:
        await owner.own()
        yield owner


@pytest.fixture
def standby(bucket: HeldBucket, tmp_path: Path) -> Iterator[Member]:
    with Member(bucket, tmp_path / "standby") as standby:
        yield standby


async def catch_up(member: Member) -> None:
    await Follower(member.bucket, member.store, SHARD).catch_up()


def change_at_random(member: Member, chance: random.Random) -> None:
    """Write a batch of all that a batch can do."""
    batch = member.store.batch()
    for _ in range(chance.randrange(1, 6)):
        family = chance.choice([Family.BLOCKS, Family.LOGS, Family.META, Family.TAGS])
        key = keys.pair(chance.randrange(3), chance.randrange(20))
        size = chance.choice([0, 13, 100, segments.MIN_BYTES, 20_000])
        action = chance.randrange(8)
        if action < 5:
            batch.put(family, key, chance.randbytes(size))
        elif action == 5:
            batch.delete(family, key)
        elif action == 6:
            batch.apply(family, {key: None, keys.pair(9, 9): chance.randbytes(size)})
        elif family is not Family.META:
            batch.delete_range(family, key, keys.pair(keys.read_u64(key), 20))
    member.store.write(batch)


async def test_a_follower_has_every_row_of_the_owner(owner: Member, standby: Member) -> None:
    chance = random.Random(5)
    for step in range(300):
        change_at_random(owner, chance)
        if step % 60 == 0:
            await owner.sync()
            await catch_up(standby)
            assert rows(standby.store) == rows(owner.store)
    await owner.sync()
    await catch_up(standby)
    assert rows(standby.store) == rows(owner.store)
    assert len(rows(owner.store)[Family.BLOCKS]) > 10
    assert standby.store.position == owner.store.position
    assert standby.store.ticket == owner.store.ticket == 300


async def test_each_store_places_large_values_itself(owner: Member, standby: Member) -> None:
    standby.store.usage.next += 1 << 30
    value = random.Random(1).randbytes(segments.MIN_BYTES)
    owner.put(keys.pair(1, 1), value, Family.BLOCKS)
    await owner.sync()
    await catch_up(standby)
    assert standby.store.get(Family.BLOCKS, keys.pair(1, 1)) == value
    references = [dict(each.store._forth(Family.BLOCKS, b"", b"\xff" * 17)) for each in (owner, standby)]
    assert references[0] != references[1]


async def test_the_log_holds_values_of_a_batch_without_a_copy(owner: Member) -> None:
    value = bytes(100_000)
    batch = owner.store.batch()
    batch.put(Family.BLOCKS, b"key", value)
    batch.delete(Family.BLOCKS, b"other")
    parts = objects.batch_parts(1, batch.rows)
    assert [part is value for part in parts] == [False, True, False]


async def test_a_batch_larger_than_an_object_is_one_object(owner: Member, standby: Member) -> None:
    value = random.Random(2).randbytes(9 << 20)
    owner.put(b"large", value)
    owner.put(b"after", b"it")
    await owner.sync()
    sizes = [entry.size for entry in await owner.bucket.list(objects.prefix(SHARD))]
    assert len([size for size in sizes if size > 9 << 20]) == 1
    await catch_up(standby)
    assert (standby.get(b"large"), standby.get(b"after")) == (value, b"it")


async def test_a_range_that_is_removed_goes_at_the_follower_too(owner: Member, standby: Member) -> None:
    for seq in range(10):
        owner.put(keys.pair(1, seq), bytes(segments.MIN_BYTES), Family.BLOCKS)
    batch = owner.store.batch()
    batch.delete_range(Family.BLOCKS, keys.pair(1, 2), keys.pair(1, 9))
    owner.store.write(batch)
    await owner.sync()
    await catch_up(standby)
    left = [keys.read_u64(key, 8) for key in rows(standby.store)[Family.BLOCKS]]
    assert left == [0, 1, 9]


async def test_rows_of_the_directory_stay_out_of_the_log(bucket: HeldBucket, tmp_path: Path) -> None:
    with Member(bucket, tmp_path / "a", keep_log=True) as owner:
        await owner.own()
        owner.put(b"key", b"value")
        await owner.sync()
        assert owner.store.get(Family.META, b"written_ms")
        position = owner.store.position
    shipped = []
    for number in range(1, position.number):
        data = await bucket.get(objects.name(SHARD, number))
        if data is not None:
            shipped += [row for batch in objects.decode(SHARD, number, data).batches for row in batch.rows]
    assert [row for row in shipped if row[2] != MOMENT_KEY] == [(1, Family.ROWS, b"key", b"value")]


async def test_the_first_batch_of_a_millisecond_has_its_time(
    bucket: HeldBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the log, and so at followers; also the first one of an owner, whatever the clock says."""
    times = iter((1000, 1000, 1001, 1001, 1001))
    monkeypatch.setattr("topics_cluster.store.now_ms", lambda: next(times))
    with Member(bucket, tmp_path / "a") as owner, Member(bucket, tmp_path / "b") as next_one:
        await owner.own()
        for number in range(4):
            owner.put(b"%d" % number, b"")
        await owner.sync()
        owner.resign()
        await next_one.own()
        next_one.put(b"last", b"")
        await next_one.sync()
        assert next_one.store.get(Family.META, MOMENT_KEY) == keys.u64(1001)
    found = []
    for entry in await bucket.list(objects.prefix(SHARD)):
        data = await bucket.get(entry.name)
        assert data is not None
        for batch in objects.decode(SHARD, objects.number_of(entry.name), data).batches:
            found += [next((keys.read_u64(value) for _, _, key, value in batch.rows if key == MOMENT_KEY), None)]
    assert found == [1000, None, 1001, None, 1001]


async def test_only_an_owner_writes(owner: Member, standby: Member) -> None:
    with pytest.raises(StoreError, match="does not own"):
        standby.put(b"key", b"value")
    owner.resign()
    with pytest.raises(StoreError, match="does not own"):
        owner.put(b"key", b"value")
    assert (standby.store.ticket, owner.get(b"key")) == (0, None)


async def test_a_directory_remembers_where_it_is(owner: Member, standby: Member, tmp_path: Path) -> None:
    owner.put(b"key", b"value")
    await owner.sync()
    await catch_up(standby)
    position = owner.store.position
    standby.close()
    with Member(owner.bucket, tmp_path / "standby") as again:
        assert (again.store.position, again.store.ticket) == (position, 1)
        assert not again.store.is_ahead
    with Member(owner.bucket, tmp_path / "new") as new:
        assert (new.store.position, new.store.ticket) == (START, 0)
    with pytest.raises(ValueError, match="3 bytes"):
        read_position(b"abc")


async def test_a_killed_owner_knows_what_the_log_had(bucket: HeldBucket, tmp_path: Path) -> None:
    owner = Member(bucket, tmp_path / "a")
    await owner.own()
    owner.put(b"1", b"in the log")
    await owner.sync()
    position = owner.store.position
    bucket.fate = lambda _name: "held"
    owner.put(b"2", b"not in the log")
    owner.put(b"3", b"not in the log")
    owner.kill()
    with Member(bucket, tmp_path / "a") as again:
        assert (again.store.position, again.store.ticket, again.store.is_ahead) == (position, 3, True)
        assert again.get(b"3") is not None
        row = again.store.get(Family.META, POSITION_KEY)
        assert row is not None
        assert read_position(row) == (position, 3)


async def test_sync_ends_with_the_acknowledgement(bucket: HeldBucket, owner: Member) -> None:
    bucket.fate = lambda _name: "held"
    owner.put(b"key", b"value")
    waiting = asyncio.create_task(owner.sync())
    await until(lambda: any(name.endswith("17") for name in bucket.tried))
    assert not waiting.done()
    bucket.fate = lambda _name: "made"
    await waiting
    assert owner.store.position.ticket == 1


async def test_sync_is_bounded(bucket: HeldBucket, owner: Member, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "_SYNC_SECONDS", 0.05)
    bucket.away = True
    owner.put(b"key", b"value")
    with pytest.raises(StoreError, match=r"no answer for 0\.05 s"):
        await owner.sync()


async def test_sync_is_interrupted_by_the_end_of_uploads(bucket: HeldBucket, owner: Member) -> None:
    bucket.away = True
    owner.put(b"key", b"value")
    failures: list[BaseException] = []

    def sync() -> None:
        try:
            owner.store.sync()
        except StoreError as error:
            failures.append(error)

    thread = threading.Thread(target=sync)
    thread.start()
    assert owner.uploader is not None
    owner.uploader.stop()
    thread.join(10)
    assert [str(failure) for failure in failures] == ["the log is not in the object store: the upload was stopped"]


async def test_close_does_not_wait_for_the_object_store(bucket: HeldBucket, tmp_path: Path) -> None:
    for ending in ("close", "abandon"):
        path = tmp_path / ending
        bucket.away = False
        owner = Member(bucket, path)
        await owner.own()
        bucket.away = True
        owner.put(b"key", b"value")
        began = time.monotonic()
        owner.store.close() if ending == "close" else owner.kill()
        assert time.monotonic() - began < 5
        assert owner.uploader is not None
        owner.uploader.stop()
        with Member(bucket, path) as again:
            assert again.get(b"key") == b"value"
            assert again.store.is_ahead


async def test_writes_are_refused_while_too_much_is_not_acknowledged(
    bucket: HeldBucket, owner: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "now_ms", lambda: 0)  # a batch may have its time, and be larger
    monkeypatch.setattr(store_module, "MAX_UNACKNOWLEDGED_BYTES", 300)
    bucket.away = True
    for number in range(3):
        owner.put(b"%d" % number, bytes(100))
    uploader = owner.uploader
    assert uploader is not None
    poll(lambda: uploader.unacknowledged_bytes > 300)
    with pytest.raises(StoreStalledError, match="object store"):
        owner.put(b"refused", bytes(100))
    assert owner.get(b"refused") is None
    assert owner.store.ticket == 3
    bucket.away = False
    await owner.sync()
    owner.put(b"later", bytes(100))
    await owner.sync()
    assert owner.store.position.ticket == 4


async def test_a_failed_write_takes_no_ticket(owner: Member, standby: Member, monkeypatch: pytest.MonkeyPatch) -> None:
    owner.put(b"1", b"")
    batch = owner.store.batch()
    batch.put(Family.ROWS, b"2", b"")
    with monkeypatch.context() as patch:
        patch.setattr(owner.store, "_db", None)
        with pytest.raises(StoreError, match="write failed"):
            owner.store.write(batch)
    owner.put(b"3", b"")
    await owner.sync()
    assert owner.store.ticket == 2
    await catch_up(standby)
    assert sorted(rows(standby.store)[Family.ROWS]) == [b"1", b"3"]


async def test_an_owner_that_is_fenced_writes_and_acknowledges_nothing(owner: Member, standby: Member) -> None:
    owner.put(b"1", b"")
    await owner.sync()
    await standby.own()
    owner.put(b"2", b"")
    with pytest.raises(FencedError, match="another node owns shard 0"):
        await owner.sync()
    with pytest.raises(FencedError):
        owner.put(b"3", b"")
    assert owner.store.position.ticket == 1
    owner.resign()
    assert owner.store.is_ahead


async def test_tickets_go_on_over_takeovers(owner: Member, standby: Member) -> None:
    for number in range(3):
        owner.put(b"%d" % number, b"a")
    await owner.sync()
    ownership = await standby.own()
    assert ownership.position == standby.store.position
    assert (ownership.epoch, ownership.position.ticket) == (2, 3)
    standby.put(b"3", b"b")
    await standby.sync()
    assert standby.store.position == Position(2, ownership.position.number + 1, 4)


async def test_an_object_applies_as_a_whole_or_not_at_all(
    owner: Member, standby: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner.put(b"1", b"")
    owner.put(b"2", b"")
    await owner.sync()
    stalls = [StoreStalledError("Write stall"), StoreStalledError("Write stall")]
    rewrite = standby.store.rewrite

    def stalling(batch: object) -> None:
        if stalls:
            raise stalls.pop()
        rewrite(batch)  # type: ignore[arg-type]

    monkeypatch.setattr(standby.store, "rewrite", stalling)
    await catch_up(standby)
    assert not stalls
    assert rows(standby.store) == rows(owner.store)
    monkeypatch.undo()

    owner.put(b"3", b"")
    await owner.sync()
    before = standby.store.position
    follower = Follower(standby.bucket, standby.store, SHARD)
    with monkeypatch.context() as patch:
        patch.setattr(standby.store, "_db", None)
        with pytest.raises(StoreError, match="write failed"):
            await follower.catch_up()
    assert standby.store.position == before
    assert await follower.catch_up() == 1
    assert standby.get(b"3") == b""


@pytest.mark.parametrize("seed", range(3))
async def test_what_is_durable_is_told_in_the_tickets_of_the_engine(owner: Member, seed: int) -> None:
    """Not every batch is the engine's: its maintenance writes some past its writer."""
    chance = random.Random(seed)
    store, order = owner.store, [0]
    engine = store.engine = Writer(store)
    acknowledged = 0
    for _ in range(400):
        for _ in range(chance.randrange(4)):
            owner.put(b"key", b"")
            engine.written += chance.random() < 0.7
            order.append(engine.written)
        if len(order) > acknowledged:
            acknowledged = chance.randrange(acknowledged, len(order))
            assert store.durable(acknowledged) == order[acknowledged]
    assert store.durable(len(order) - 1) == engine.written
