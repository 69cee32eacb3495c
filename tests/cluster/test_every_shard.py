"""Moments of a cluster with several shards: a directory with shards comes back as each shard was, and is served."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.shards import Member
from topics_backup.errors import AbsentError, BackupError
from topics_cluster import every_shard, founding, identity, objects
from topics_cluster.checkpoint import Maker
from topics_cluster.commit import LogCommit
from topics_cluster.memory import MemoryBucket
from topics_cluster.moments import Cut, Range
from topics_cluster.restore import restore_newest
from topics_server.processes.serving import ShardedServer
from topics_server.settings import Settings
from topics_server.verify import verify
from topics_service.engine.clock import SystemClock
from topics_service.engine.engine import Engine
from topics_service.engine.model import AppendRequest, Batch
from topics_service.engine.placement import Place, home_of, shard_of
from topics_service.storage import shardfiles
from topics_service.storage.rocks import RocksStore
from topics_service.storage.store import Family

SHARDS = 3
NAMES = [next(f"t-{n}" for n in range(100) if home_of(f"t-{n}", SHARDS) == shard) for shard in range(SHARDS)]
"""A topic of each shard."""
WIDE = "wide"


class Time:
    """The clock of all owners, which is set."""

    def __init__(self) -> None:
        self.ms = 1_900_000_000_000

    def now_ms(self) -> int:
        return self.ms


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Time:
    clock = Time()
    for module in ("store", "moments"):
        monkeypatch.setattr(f"topics_cluster.{module}.now_ms", clock.now_ms)
    return clock


def settings(path: Path) -> Settings:
    return Settings(data_dir=str(path), port=0, grpc_port=0, drain_seconds=1, processes=1, shards=SHARDS)


async def call(http: httpx.AsyncClient, server: ShardedServer, method: str, path: str, body: Any = None) -> Any:
    reply = await http.request(method, f"http://127.0.0.1:{server.http_port}{path}", json=body)
    assert reply.status_code < 300, reply.text
    return reply.json()


async def records(http: httpx.AsyncClient, server: ShardedServer, topic: str, partition: int = 0) -> list[Any]:
    body = {"from_seq": 0, "partition": partition}
    page = await call(http, server, "POST", f"/v0/topics/{topic}/diff", body)
    return [each["data"] for each in page["records"]]


class Owner:
    """One shard as its owner writes it: each write is a batch of its log."""

    def __init__(self, member: Member, engine: Engine, commit: LogCommit) -> None:
        self.member = member
        self.engine = engine
        self._commit = commit

    @classmethod
    async def begin(cls, bucket: MemoryBucket, shard: int, path: Path) -> "Owner":
        await restore_newest(bucket, shard, path)
        member = Member(bucket, path, shard=shard)
        ownership = await member.own()
        engine = Engine(member.store, SystemClock(), recover=False, place=Place(shard, SHARDS))
        commit = LogCommit.for_engine(engine, member.store)
        for _ in engine.recover(f"epoch {ownership.epoch}"):
            pass
        await member.sync()
        return cls(member, engine, commit)

    async def append(self, topic: str, data: bytes, partition: int = 0) -> None:
        self.engine.append(AppendRequest(topic=topic, batch=Batch(datas=[data]), partition=partition))
        await self.member.sync()

    async def end(self) -> None:
        await asyncio.to_thread(self._commit.stop)
        self.member.kill()


class World:
    """A bucket, and the owners of its shards."""

    def __init__(self, bucket: MemoryBucket, owners: list[Owner], folder: Path) -> None:
        self.bucket = bucket
        self.owners = owners
        self.folder = folder
        self.told: list[str] = []

    async def append(self, topic: str, data: str, partition: int = 0) -> None:
        owner = self.owners[shard_of(topic, partition, SHARDS)]
        await owner.append(topic, f'"{data}"'.encode(), partition)

    async def archives(self) -> Any:
        count = await every_shard.count_of(self.bucket)
        return await every_shard.archives(self.bucket, count, self.told.append)


@pytest.fixture
async def world(tmp_path: Path, clock: Time) -> AsyncIterator[World]:
    """It begins with a directory with shards, and owners that have written nothing yet."""
    path, bucket = tmp_path / "before", MemoryBucket(lambda: clock.ms / 1000)
    async with httpx.AsyncClient() as http, ShardedServer(settings(path)) as server:
        for name in NAMES:
            await call(http, server, "PUT", f"/v0/topics/{name}", {"durability": "fsync"})
            await call(http, server, "POST", f"/v0/topics/{name}", {"records": [{"data": "before"}]})
        await call(http, server, "PUT", f"/v0/topics/{WIDE}", {"durability": "fsync", "partition_count": SHARDS})
        for partition in range(SHARDS):  # a part is made by the first write
            body = {"records": [{"data": "before"}], "partition": partition}
            await call(http, server, "POST", f"/v0/topics/{WIDE}", body)
        await call(http, server, "PUT", "/v0/routers/r", {"source": NAMES[0], "dest": "copies"})
    assert await founding.make(bucket, SHARDS, path)
    clock.ms += 1000
    owners = [await Owner.begin(bucket, shard, tmp_path / f"owner-{shard}") for shard in range(SHARDS)]
    clock.ms += 1000
    yield World(bucket, owners, tmp_path)
    for owner in owners:
        await owner.end()


async def served(directory: Path, partitions: bool = True) -> dict[str, list[Any]]:
    """The records that a server with shards reads from a directory."""
    problems: list[Any] = []
    verify(directory, problems.append, deep=True)
    assert problems == []
    async with httpx.AsyncClient() as http, ShardedServer(settings(directory)) as server:
        found = {name: await records(http, server, name) for name in NAMES}
        for partition in range(SHARDS):
            found[f"{WIDE}@{partition}"] = await records(http, server, WIDE, partition)
        return found


async def test_each_shard_is_as_it_was_at_that_time(world: World, clock: Time) -> None:
    moments: list[tuple[int, dict[str, list[Any]]]] = []
    there: dict[str, list[Any]] = {name: ["before"] for name in NAMES} | {
        f"{WIDE}@{n}": ["before"] for n in range(SHARDS)
    }
    for turn in range(3):
        for shard, name in enumerate(NAMES):
            await world.append(name, f"{turn}")
            await world.append(WIDE, f"{turn}", shard)
            there[name] = [*there[name], f"{turn}"]
            there[f"{WIDE}@{shard}"] = [*there[f"{WIDE}@{shard}"], f"{turn}"]
            moments.append((clock.ms, dict(there)))
            clock.ms += 10
        if turn == 1:
            owner = world.owners[1].member
            assert await Maker(world.bucket, 1, world.folder / "copies", "a").make(owner.store)
    for number, (ms, state) in enumerate((moments[1], moments[4], moments[-1])):
        each = await world.archives()
        made = await every_shard.restore(each, world.folder / f"new-{number}", await every_shard.at_time(each, ms))
        assert len(made) == SHARDS
        assert max(shard.written_ms for shard in made) == ms
        assert shardfiles.count_of(world.folder / f"new-{number}") == SHARDS
        assert await served(world.folder / f"new-{number}") == state
    each = await world.archives()
    made = await every_shard.restore(each, world.folder / "last", await every_shard.at_end(each))
    assert [shard.checkpoint > 1 for shard in made] == [False, True, False]
    assert await served(world.folder / "last") == moments[-1][1]
    assert world.told == []


@pytest.mark.parametrize("partition", range(SHARDS))
async def test_a_seq_of_any_partition_is_a_moment_of_all(world: World, clock: Time, partition: int) -> None:
    ms = []
    for turn in range(2):
        for shard in range(SHARDS):
            await world.append(WIDE, f"{turn}", shard)
            ms.append(clock.ms)
            clock.ms += 10
    each = await world.archives()
    cuts = await every_shard.at_seq(each, WIDE, partition, 2, world.folder)
    await every_shard.restore(each, world.folder / "new", cuts)
    found = await served(world.folder / "new")
    for n in range(SHARDS):
        assert found[f"{WIDE}@{n}"] == ["before", "0"][: 2 if n <= partition else 1]
    with pytest.raises(AbsentError, match=f"shard {shard_of(WIDE, partition, SHARDS)}: the log does not show how"):
        await every_shard.at_seq(each, WIDE, partition, 4, world.folder)


async def test_a_restore_that_fails_at_a_shard_leaves_nothing_and_is_repeated(world: World, clock: Time) -> None:
    await world.append(NAMES[2], "more")
    each, target = await world.archives(), world.folder / "new"
    cuts = await every_shard.at_end(each)
    with pytest.raises(BackupError, match="shard 2: no checkpoint leads to that moment"):
        await every_shard.restore(each, target, [*cuts[:2], Cut(-1, 0)])
    assert not target.exists()
    left = target.with_name(".new.shards.part")  # of one that was killed
    shardfiles.create(left, SHARDS)
    (shardfiles.directory(left, 0)).mkdir()
    await every_shard.restore(each, target, cuts)
    assert not left.exists()
    assert (await served(target))[NAMES[2]] == ["before", "more"]
    with pytest.raises(BackupError, match="is not empty"):
        await every_shard.restore(each, target, cuts)


async def test_objects_of_shards_that_are_missing_or_damaged(world: World, clock: Time) -> None:
    await world.append(NAMES[1], "a")
    await world.append(NAMES[1], "b")
    bucket = world.bucket
    [*_, last] = [each.name for each in await bucket.list(objects.prefix(1)) if each.size > objects.HEADER_BYTES]
    data = await bucket.get(last)
    assert data is not None
    await bucket.delete([last])
    await bucket.create(last, [data[:-1], bytes([data[-1] ^ 1])])
    each = await world.archives()
    with pytest.raises(BackupError, match=f"^shard 1: .*{last}"):
        await every_shard.at_end(each)
    await bucket.delete([f"{each.name}" for shard in (1, 2) for each in await bucket.list(f"s{shard}/")])
    with pytest.raises(BackupError, match="neither a log nor a checkpoint of 2 shards of 3: 1, 2"):
        await world.archives()
    await bucket.delete([each.name for each in await bucket.list("s")])
    with pytest.raises(AbsentError, match="the logs are empty"):
        await world.archives()


async def test_the_number_of_shards_is_known_or_asked_for(world: World) -> None:
    bucket = world.bucket
    for given in (None, SHARDS):
        assert await every_shard.count_of(bucket, given) == SHARDS
    with pytest.raises(BackupError, match="the cluster has 3 shards, not 4"):
        await every_shard.count_of(bucket, 4)
    content = await bucket.get(identity.NAME)
    assert content is not None
    await bucket.delete([identity.NAME])
    await bucket.create(identity.NAME, [content[:10]])
    with pytest.raises(identity.IdentityError, match=r"cluster\.json is damaged"):
        await every_shard.count_of(bucket, SHARDS)
    await bucket.delete([identity.NAME])
    with pytest.raises(BackupError, match=r"cluster\.json is missing, .* there are objects of shard 2: give --shards"):
        await every_shard.count_of(bucket)
    assert await every_shard.count_of(bucket, SHARDS) == SHARDS
    assert await every_shard.count_of(MemoryBucket()) == 1


async def test_a_shard_whose_log_begins_later_is_empty_before(tmp_path: Path, clock: Time) -> None:
    """The owners of a new cluster take one shard after the other."""
    bucket = MemoryBucket(lambda: clock.ms / 1000)
    await identity.create(bucket, 2)
    times = []
    for shard in range(2):
        with Member(bucket, tmp_path / f"owner-{shard}", shard=shard) as member:
            await member.own()
            member.put(b"key", b"value")
            await member.sync()
            times.append(clock.ms)
            clock.ms += 1000
    each = await every_shard.archives(bucket, 2, print)
    assert [cut.ticket for cut in await every_shard.at_time(each, times[0])] == [1, 0]
    assert [cut.ticket for cut in await every_shard.at_time(each, times[1])] == [1, 1]
    with pytest.raises(AbsentError, match="before the first write of all shards"):
        await every_shard.at_time(each, times[0] - 1)
    with pytest.raises(BackupError, match="can't be restored"):
        await every_shard.at_time(each, clock.ms + 1)
    await every_shard.restore(each, tmp_path / "new", [Cut(1, times[0]), Cut(0, 0)])
    stores = [RocksStore(shardfiles.directory(tmp_path / "new", shard)) for shard in range(2)]
    assert [store.get(Family.ROWS, b"key") for store in stores] == [b"value", None]
    for store in stores:
        store.close()


def test_times_that_all_shards_cover() -> None:
    spans = every_shard.spans
    one, other = Range(10, 50, 1, 0), Range(20, 40, 1, 0)
    assert spans([[one]]) == [(10, 50)]
    assert spans([[one], [other]]) == [(20, 50)], "the other one was silent since"
    assert spans([[one], []]) == []
    assert spans([[Range(0, 15, 1, 0), Range(30, 50, 1, 0)], [other]]) == [(30, 50)]
    assert spans([[Range(0, 25, 1, 0), Range(30, 50, 1, 0)], [other]]) == [(20, 25), (30, 50)]
