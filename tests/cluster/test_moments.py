"""The log of a shard as an archive: every moment comes back as it was, and what can't be restored is refused."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from support.shards import SHARD, Member
from topics_backup.errors import AbsentError, BackupError
from topics_cluster import checkpoint, collect, objects
from topics_cluster.checkpoint import Maker
from topics_cluster.commit import LogCommit
from topics_cluster.follower import Follower
from topics_cluster.log import MAX_WINDOW, Position, Tail
from topics_cluster.memory import MemoryBucket
from topics_cluster.moments import SKEW_MS, Archive, Cut
from topics_cluster.objects import Header, Kind
from topics_cluster.pointintime import Restored, restore
from topics_cluster.store import ShardStore
from topics_cluster.takeover import new_nonce
from topics_service.engine.clock import SystemClock
from topics_service.engine.engine import Engine
from topics_service.engine.model import AppendRequest, Batch, ConfigInput
from topics_service.storage.rocks import RocksStore
from topics_service.storage.store import Family

BEGAN_MS = 1_700_000_000_000


class Moment(NamedTuple):
    """A batch: when it was written, and the rows up to it."""

    ms: int
    rows: dict[bytes, bytes]


class Time:
    """The clock of all machines, which is set."""

    def __init__(self) -> None:
        self.ms = BEGAN_MS

    def now_ms(self) -> int:
        return self.ms


class Bucket(MemoryBucket):
    """A bucket on that clock, which may be damaged."""

    def __init__(self, clock: Time) -> None:
        super().__init__(lambda: clock.ms / 1000)

    def damage(self, name: str) -> None:
        data, at = self._objects[name]
        self._objects[name] = data[:-1] + bytes([data[-1] ^ 1]), at

    def remove(self, name: str) -> None:
        del self._objects[name]

    def copy(self) -> "dict[str, tuple[bytes, float]]":
        return dict(self._objects)

    def data(self) -> list[str]:
        """The names of the log's objects with data."""
        return [
            n for n, (data, _) in sorted(self._objects.items()) if "/log/" in n and len(data) > objects.HEADER_BYTES
        ]


class History:
    """Owners that follow each other and write; every batch is a moment that is noted, and comes to the log alone."""

    def __init__(self, bucket: Bucket, clock: Time, folder: Path) -> None:
        self.bucket = bucket
        self.clock = clock
        self.moments = [Moment(0, {})]
        """By ticket."""
        self.owner: Member | None = None
        self._folder = folder
        self._count = 0

    async def take_over(self) -> None:
        """Kill the owner, and let another node own the shard."""
        if self.owner is not None:
            self.owner.kill()
        self._count += 1
        self.owner = Member(self.bucket, self._folder / f"node-{self._count}")
        await Follower(self.bucket, self.owner.store, SHARD).catch_up()
        await self.owner.own()

    async def write(self, key: bytes, value: bytes | None, *, after_ms: int = 1) -> None:
        """One batch, in the log when this returns."""
        assert self.owner is not None
        self.clock.ms += after_ms
        rows = dict(self.moments[-1].rows)
        batch = self.owner.store.batch()
        if value is None:
            batch.delete(Family.ROWS, key)
            rows.pop(key, None)
        else:
            batch.put(Family.ROWS, key, value)
            rows[key] = value
        self.owner.store.write(batch)
        self.moments.append(Moment(self.clock.ms, rows))
        await self.owner.sync()

    async def writes(self, count: int) -> None:
        for _ in range(count):
            await self.write(b"%d" % len(self.moments), os.urandom(20))

    async def checkpoint(self) -> int:
        """Make one; return its number."""
        assert self.owner is not None
        self.clock.ms += 1
        made = await Maker(self.bucket, SHARD, self._folder / "copies", "a").make(self.owner.store)
        assert made is not None
        return made.number

    @property
    def last(self) -> int:
        """The ticket of the last batch."""
        return len(self.moments) - 1

    def at(self, ms: int) -> int:
        """The ticket of the last batch at that time or before."""
        return next(ticket for ticket in range(self.last, -1, -1) if self.moments[ticket].ms <= ms)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Time:
    clock = Time()
    for module in ("store", "moments"):
        monkeypatch.setattr(f"topics_cluster.{module}.now_ms", clock.now_ms)
    return clock


@pytest.fixture
def bucket(clock: Time) -> Bucket:
    return Bucket(clock)


@pytest.fixture
async def history(bucket: Bucket, clock: Time, tmp_path: Path) -> AsyncIterator[History]:
    history = History(bucket, clock, tmp_path)
    await history.take_over()
    yield history
    if history.owner is not None:
        history.owner.kill()


def rows_in(directory: Path) -> dict[bytes, bytes]:
    store = RocksStore(directory)
    try:
        return dict(store.scan(Family.ROWS, b"", b"\xff" * 32))
    finally:
        store.close()


class Restoring:
    """Restores into directories below a folder, and notes what is reported."""

    def __init__(self, bucket: Bucket, folder: Path) -> None:
        self.bucket = bucket
        self.told: list[str] = []
        self._folder = folder
        self._count = 0

    @property
    def archive(self) -> Archive:
        return Archive(self.bucket, SHARD, self.told.append)

    async def to(self, cut: Cut) -> tuple[Restored, dict[bytes, bytes]]:
        self._count += 1
        directory = self._folder / f"restored-{self._count}"
        before = self.bucket.copy()
        made = await restore(self.archive, directory, cut)
        assert self.bucket.copy() == before
        return made, rows_in(directory)

    async def at(self, ms: int) -> int:
        """The ticket of a time, without a restore."""
        return (await self.archive.at_time(ms)).ticket


@pytest.fixture
def restoring(bucket: Bucket, tmp_path: Path) -> Restoring:
    return Restoring(bucket, tmp_path)


async def test_every_moment_comes_back_as_it_was(history: History, restoring: Restoring, clock: Time) -> None:
    """Over takeovers, fences ahead, checkpoints, and objects that fences leave out."""
    chance = Random(1)
    for turn in range(6):
        for _ in range(chance.randrange(1, 5)):
            key = b"%d" % chance.randrange(6)
            await history.write(key, chance.choice((None, os.urandom(30))), after_ms=chance.choice((0, 1, 700)))
        if chance.random() < 0.5:
            await history.checkpoint()
        assert history.owner is not None
        late = Tail(SHARD, history.owner.store.position)
        ahead = late.fence(new_nonce(), ahead=MAX_WINDOW - 1)
        assert await history.bucket.create(ahead.name, ahead.parts)
        if turn == 3:  # the owner gets there, and stops
            await history.writes(MAX_WINDOW - 1)
            late = Tail(SHARD, Position(late.position.epoch + 1, ahead.number + MAX_WINDOW, history.last))
        await history.take_over()
        for number in (late.next + 1, late.next + 3):  # what the former owner had under way
            header = Header(Kind.DATA, SHARD, late.position.epoch, number, number + 4, 999, bytes(16))
            body = objects.batch_parts(999, [(objects.Op.PUT, Family.ROWS, b"never", b"")])
            assert await history.bucket.create(objects.name(SHARD, number), objects.encode(header, body))
    await history.writes(2)
    assert len(await checkpoint.entries(history.bucket, SHARD)) > 1
    first = (await restoring.archive.ranges())[0].from_ms
    there = [moment for moment in history.moments if moment.ms >= first]
    assert len(there) > 8
    for moment in there:
        assert await restoring.at(moment.ms) == history.at(moment.ms)
    for moment in there[:: len(there) // 4]:
        ticket = history.moments.index(moment)
        assert (await restoring.to(Cut(ticket, moment.ms)))[1] == moment.rows
    made, rows = await restoring.to(await restoring.archive.at_end())
    assert rows == history.moments[-1].rows
    assert made.written_ms == history.moments[-1].ms == clock.ms
    assert restoring.told == []


async def test_without_a_checkpoint_the_log_is_all(history: History, restoring: Restoring, clock: Time) -> None:
    with pytest.raises(AbsentError, match="the log is empty"):
        await restoring.archive.at_end()
    assert await restoring.archive.ranges() == []
    await history.writes(3)
    await history.take_over()
    await history.writes(2)
    for ticket, moment in list(enumerate(history.moments))[1:]:
        assert await restoring.at(moment.ms) == ticket
    made, rows = await restoring.to(await restoring.archive.at_time(history.moments[4].ms))
    assert (made.checkpoint, rows) == (0, history.moments[4].rows)
    [found] = await restoring.archive.ranges()
    assert found[:3] == (history.moments[1].ms, clock.ms, 0)
    with pytest.raises(BackupError, match=r"can't be restored: the restorable moments are 2023-\S+ to 2023-"):
        await restoring.archive.at_time(history.moments[1].ms - 1)


async def test_a_restored_directory_is_that_of_a_single_server(
    history: History, restoring: Restoring, tmp_path: Path
) -> None:
    await history.writes(2)
    await restoring.to(await restoring.archive.at_end())
    store = ShardStore(tmp_path / "restored-1")
    assert (store.position.number, store.ticket) == (1, 0)
    store.close()


async def test_a_moment_in_the_future_and_one_that_was_collected(
    history: History, restoring: Restoring, clock: Time
) -> None:
    await history.writes(2)
    first = await history.checkpoint()
    await history.writes(2)
    await restoring.at(clock.ms)
    with pytest.raises(BackupError, match="can't be restored: the restorable moments are"):
        await restoring.archive.at_time(clock.ms + 1)
    clock.ms += 2 * 3_600_000
    assert await restoring.at(clock.ms) == history.last, "nothing was written since"
    for _ in range(2):
        await history.writes(2)
        await history.checkpoint()
        clock.ms += 2 * 3_600_000
    early = history.moments[3]
    assert await restoring.at(early.ms) == 3
    await collect.collect(history.bucket, SHARD, "1")
    assert first not in [number for number, _ in await checkpoint.entries(history.bucket, SHARD)]
    with pytest.raises(BackupError, match="can't be restored: the restorable moments are"):
        await restoring.archive.at_time(early.ms)
    assert await restoring.at(history.moments[-3].ms) == history.last - 2
    cut = Cut(3, early.ms)
    with pytest.raises(BackupError, match="no checkpoint leads to that moment any more: there is no checkpoint"):
        await restoring.to(cut)


async def test_a_clock_that_went_back_and_one_that_was_wrong(
    history: History, restoring: Restoring, clock: Time
) -> None:
    """Of two moments with one time the later one counts, if the clocks differed by no more than is allowed."""
    await history.writes(1)
    await history.checkpoint()
    await history.write(b"fast", b"", after_ms=SKEW_MS - 10)
    ms = clock.ms
    await history.take_over()
    await history.write(b"slow", b"", after_ms=10 - SKEW_MS)
    await history.write(b"slow again", b"")
    assert await restoring.at(clock.ms) == history.last
    assert await restoring.at(clock.ms - 1) == history.last - 1
    assert await restoring.at(ms) == history.last
    await history.write(b"days ahead", b"", after_ms=3 * 86_400_000)
    await history.write(b"right", b"", after_ms=1 - 3 * 86_400_000)
    await history.checkpoint()
    await history.writes(1)
    assert await restoring.at(clock.ms) == history.last, "a checkpoint behind it leads there"


@pytest.mark.parametrize("how", ["damaged", "missing"])
async def test_a_break_of_the_log_is_refused_with_the_last_moment_before_it(
    history: History, restoring: Restoring, clock: Time, how: str
) -> None:
    await history.writes(1)
    await history.checkpoint()
    first = len(history.bucket.data())
    await history.writes(10)
    name = history.bucket.data()[first + 2]
    (history.bucket.damage if how == "damaged" else history.bucket.remove)(name)
    before, last = 3, history.moments[-1]
    told = f"{name} is {how}.*; writes until (?P<at>\\S+) can be restored: --at (?P=at)$"
    for work in (restoring.archive.at_time(last.ms), restoring.archive.at_end()):
        with pytest.raises(BackupError, match=told):
            await work
    assert restoring.told == []
    assert (await restoring.to(await restoring.archive.at_time(history.moments[before].ms)))[1] == history.moments[
        before
    ].rows
    assert await restoring.at(history.moments[before - 1].ms) == before - 1
    if how == "missing":
        [found] = await restoring.archive.ranges()
        assert found.until_ms == history.moments[before].ms
    assert len(restoring.told) == 2, "each says what comes right behind"
    assert f"{name} is {how}" in restoring.told[0]
    with pytest.raises(BackupError, match=f"{name} is {how}"):
        await restoring.to(Cut(history.last, last.ms))
    await history.checkpoint()  # of a node that has it
    await history.writes(1)
    assert await restoring.at(clock.ms) == history.last
    if how == "missing":
        assert len(await restoring.archive.ranges()) == 2


async def test_an_end_with_objects_under_way_is_no_break(history: History, restoring: Restoring) -> None:
    """An object may be there before the one in front of it, up to the window of its writer."""
    await history.writes(6)
    last = history.bucket.data()[-4:]
    history.bucket.remove(last[0])
    assert (await restoring.archive.at_end()).ticket == history.last - 4
    await history.writes(1)
    with pytest.raises(BackupError, match=f"{last[0]} is missing"):
        await restoring.archive.at_end()


async def test_a_fence_shows_that_an_object_is_missing(history: History, restoring: Restoring) -> None:
    await history.writes(2)
    name = history.bucket.data()[-1]
    await history.take_over()
    history.bucket.remove(name)
    with pytest.raises(BackupError, match=f"{name} is missing"):
        await restoring.archive.at_end()


async def test_a_stale_fence_in_a_stretch_that_is_gone_does_not_hide_it(history: History, restoring: Restoring) -> None:
    """It leads behind the newest checkpoint, to where nothing is."""
    await history.writes(1)
    await history.checkpoint()
    assert history.owner is not None
    late = Tail(SHARD, history.owner.store.position).fence(new_nonce())
    await history.writes(3)
    await history.checkpoint()
    for name in history.bucket.data()[1:]:
        history.bucket.remove(name)
    assert await history.bucket.create(late.name, late.parts)
    with pytest.raises(BackupError, match="is missing"):
        await restoring.archive.at_time(history.moments[2].ms)


async def test_a_damaged_checkpoint_gives_way_to_the_one_before(
    history: History, restoring: Restoring, bucket: Bucket
) -> None:
    await history.writes(2)
    first = await history.checkpoint()
    await history.writes(2)
    second = await history.checkpoint()
    await history.writes(2)
    found = await checkpoint.load(bucket, SHARD, second)
    other = await checkpoint.load(bucket, SHARD, first)
    assert found is not None
    assert other is not None
    own = {file.sha256 for file in found.files} - {file.sha256 for file in other.files}
    bucket.remove(f"{checkpoint.files_of(SHARD)}{min(own)}")
    made, rows = await restoring.to(await restoring.archive.at_end())
    assert (made.checkpoint, rows) == (first, history.moments[-1].rows)
    assert min(own) in restoring.told[-1]
    bucket.damage(checkpoint.name_of(SHARD, second))
    assert (await restoring.archive.at_end()).ticket == history.last
    assert f"{checkpoint.name_of(SHARD, second)} is damaged" in restoring.told[-1]
    bucket.damage(checkpoint.name_of(SHARD, first))
    with pytest.raises(BackupError, match="no checkpoint of shard 0 is intact"):
        await restoring.archive.at_end()


async def test_a_directory_that_is_not_empty_stays(history: History, restoring: Restoring, tmp_path: Path) -> None:
    await history.writes(1)
    (tmp_path / "restored-1").mkdir()
    (tmp_path / "restored-1" / "mine").touch()
    with pytest.raises(BackupError, match="is not empty"):
        await restoring.to(await restoring.archive.at_end())
    assert [path.name for path in (tmp_path / "restored-1").iterdir()] == ["mine"]


async def test_many_batches_in_an_object_are_cut_between_them(
    history: History, restoring: Restoring, clock: Time
) -> None:
    """Those of a millisecond have one time, which the first of them says."""
    owner = history.owner
    assert owner is not None
    await history.writes(1)
    for number in range(20):
        clock.ms += number % 3 == 0
        owner.put(b"n", b"%d" % number)
        history.moments.append(Moment(clock.ms, history.moments[-1].rows | {b"n": b"%d" % number}))
    await owner.sync()
    assert len(history.bucket.data()) < 15
    for moment in history.moments[1:]:
        assert await restoring.at(moment.ms) == history.at(moment.ms)
    for ticket in (8, 13):
        moment = history.moments[ticket]
        assert (await restoring.to(Cut(ticket, moment.ms)))[1] == moment.rows


async def test_a_seq_is_found_in_the_last_topic_that_reached_it(
    bucket: Bucket, clock: Time, restoring: Restoring, tmp_path: Path
) -> None:
    """Over topics of one name, and checkpoints between their writes."""
    tickets: dict[tuple[int, int], int] = {}
    with Member(bucket, tmp_path / "owner") as member:
        ownership = await member.own()
        engine = Engine(member.store, SystemClock(), recover=False)
        commit = LogCommit.for_engine(engine, member.store)
        for _ in engine.recover(f"epoch {ownership.epoch}"):
            pass
        maker = Maker(bucket, SHARD, tmp_path / "copies", "a")
        for life, appends in enumerate((3, 4, 2)):
            engine.put_topic("t", ConfigInput(durability="fsync"))
            for number in range(1, appends + 1):
                clock.ms += 1
                engine.append(AppendRequest(topic="t", batch=Batch(datas=[b"1", b"2"])))
                tickets[life, 2 * number] = member.store.ticket
                await member.sync()
                if number in (1, 3):
                    await maker.make(member.store)
            if life < 2:
                engine.delete_topic("t")
        await asyncio.to_thread(commit.stop)
    assert len(await checkpoint.entries(bucket, SHARD)) == 5
    for seq, found in ((1, (2, 2)), (2, (2, 2)), (3, (2, 4)), (4, (2, 4)), (5, (1, 6)), (8, (1, 8))):
        cut = await restoring.archive.at_seq("t", 0, seq, tmp_path)
        assert cut.ticket == tickets[found], seq
        assert cut.written_ms <= clock.ms
    made = await restore(restoring.archive, tmp_path / "made", await restoring.archive.at_seq("t", 0, 7, tmp_path))
    assert [(topic.topic, topic.partitions[0].head_seq) for topic in made.topics] == [("t", 8)]
    for topic, partition, seq in (("t", 0, 9), ("t", 1, 1), ("none", 0, 1)):
        with pytest.raises(AbsentError, match=r"the log does not show how .* the restorable moments are"):
            await restoring.archive.at_seq(topic, partition, seq, tmp_path)
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]
