"""A data directory that becomes a cluster's, with shards and without."""

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from topics_backup.errors import BackupError
from topics_cluster import founding, identity, objects
from topics_cluster.bucket import Bucket, BucketError
from topics_cluster.checkpoint import Checkpoint, CheckpointError, load, standing_in
from topics_cluster.log import START, Position
from topics_cluster.memory import MemoryBucket
from topics_cluster.objects import Batch, Header, Kind, LogObject, Op
from topics_cluster.restore import restore_newest
from topics_cluster.store import ShardStore
from topics_service.storage import shardfiles
from topics_service.storage.holding import Hold
from topics_service.storage.rocks import RocksStore
from topics_service.storage.store import Family, StoreError

SHARD = 0
KEY, VALUE = b"a key", b"a value" * 1000


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory with a row, closed."""
    store = RocksStore(tmp_path / "data")
    batch = store.batch()
    batch.put(Family.ROWS, KEY, VALUE)
    store.write(batch)
    store.close()
    return tmp_path / "data"


def value_in(directory: Path) -> bytes | None:
    store = RocksStore(directory)
    try:
        return store.get(Family.ROWS, KEY)
    finally:
        store.close()


async def found(bucket: Bucket, directory: Path) -> Checkpoint:
    """Make a cluster with one shard; return its first checkpoint."""
    size = await founding.make(bucket, 1, directory)
    made = await load(bucket, SHARD, 1)
    assert made is not None
    assert made.nbytes == size
    return made


async def test_a_directory_becomes_checkpoint_number_one_and_stays(directory: Path, tmp_path: Path) -> None:
    bucket = MemoryBucket()
    made = await found(bucket, directory)
    assert (made.number, made.position, made.applied) == (1, START, 0)
    assert value_in(directory) == VALUE
    assert not (directory / "checkpoints").exists()
    assert await restore_newest(bucket, SHARD, tmp_path / "node") == made
    store = ShardStore(tmp_path / "node")
    assert (store.position, store.ticket, store.get(Family.ROWS, KEY)) == (START, 0, VALUE)
    store.close()


async def test_one_of_another_cluster_begins_a_log_anew(directory: Path, tmp_path: Path) -> None:
    store = ShardStore(directory)
    header = Header(Kind.DATA, SHARD, 7, 1, 2, 99, bytes(16))
    store.apply(LogObject(header, [Batch(99, [(Op.PUT, Family.ROWS, b"more", b"1")])]), Position(7, 41, 99))
    store.join("one")
    store.close()
    bucket = MemoryBucket()
    assert (await found(bucket, directory)).position == START
    assert standing_in(directory) == (Position(7, 41, 99), 99, 0)
    await restore_newest(bucket, SHARD, tmp_path / "node")
    assert standing_in(tmp_path / "node") == (START, 0, 0)
    assert value_in(tmp_path / "node") == VALUE
    store = ShardStore(tmp_path / "node")
    store.join("two")
    with pytest.raises(StoreError, match="the data of another cluster, two, and this is one"):
        store.join("one")
    store.close()


@pytest.mark.parametrize("name", [objects.name(SHARD, 1), f"s{SHARD}/ckpt/{1:020}"])
async def test_a_shard_that_has_something_is_left_alone(directory: Path, name: str) -> None:
    bucket = MemoryBucket()
    await bucket.create(name, [b"x"])
    with pytest.raises(CheckpointError, match=f"shard 0 is not empty: there is {name}"):
        await founding.make(bucket, 1, directory)
    assert [each.name for each in await bucket.list("")] == [name]


async def test_a_directory_without_a_database_or_in_use_is_refused(directory: Path, tmp_path: Path) -> None:
    bucket = MemoryBucket()
    with pytest.raises(BackupError, match="is not a data directory"):
        await founding.make(bucket, 1, tmp_path / "nowhere")
    store = RocksStore(directory)
    try:
        with pytest.raises(BackupError, match="open already"):
            await founding.make(bucket, 1, directory)
    finally:
        store.close()
    assert list(await bucket.list("")) == []


def test_the_rows_of_a_single_server_are_in_no_log(tmp_path: Path) -> None:
    """A node with such a directory would lose them, or have what others lack."""
    store = ShardStore(tmp_path / "node")
    assert store.is_of_cluster
    header = Header(Kind.DATA, SHARD, 1, 1, 2, 1, bytes(16))
    store.apply(LogObject(header, [Batch(1, [(Op.PUT, Family.TOPICS, b"t", b"1")])]), Position(1, 18, 1))
    assert store.is_of_cluster
    store.close()
    single = RocksStore(tmp_path / "single")
    batch = single.batch()
    batch.put(Family.TOPICS, b"t", b"1")
    single.write(batch)
    single.close()
    store = ShardStore(tmp_path / "single")
    assert not store.is_of_cluster
    store.close()


# ------------------------------------------------------------------- shards


SHARDS = 3


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    """A directory with shards, each with a row of its own."""
    path = tmp_path / "sharded"
    shardfiles.create(path, SHARDS)
    for shard in range(SHARDS):
        put(shardfiles.directory(path, shard), b"%d" % shard)
    return path


def put(directory: Path, value: bytes) -> None:
    store = RocksStore(directory)
    batch = store.batch()
    batch.put(Family.ROWS, KEY, value)
    store.write(batch)
    store.close()


class FailingBucket(MemoryBucket):
    """A bucket that refuses all requests once some objects are made."""

    def __init__(self, creates: int) -> None:
        super().__init__()
        self.left = creates
        self.keeps = False
        """True while it refuses to delete."""

    async def create(self, name: str, parts: Sequence[bytes]) -> bool:
        self.left -= 1
        if self.left < 0:
            raise BucketError("away")
        return await super().create(name, parts)

    async def delete(self, names: Iterable[str]) -> None:
        if self.keeps:
            raise BucketError("away")
        await super().delete(names)


async def values(bucket: Bucket, tmp_path: Path) -> list[bytes | None]:
    """The row of each shard, as a node gets it that begins with the newest checkpoint."""
    found = []
    for shard in range(SHARDS):
        made = await restore_newest(bucket, shard, tmp_path / f"node-{shard}")
        assert made is not None
        assert (made.number, made.position) == (1, START)
        found.append(value_in(tmp_path / f"node-{shard}"))
        shutil.rmtree(tmp_path / f"node-{shard}")
    return found


async def test_each_shard_of_a_directory_becomes_one_of_the_cluster(sharded: Path, tmp_path: Path) -> None:
    bucket = MemoryBucket()
    assert await founding.make(bucket, SHARDS, sharded)
    assert (await identity.load(bucket)).shards == SHARDS
    assert await values(bucket, tmp_path) == [b"0", b"1", b"2"]
    assert [value_in(shardfiles.directory(sharded, shard)) for shard in range(SHARDS)] == [b"0", b"1", b"2"]
    assert await bucket.get(founding.BEGUN) is None
    assert await founding.make(bucket, SHARDS, sharded) is None, "there is one now"


@pytest.mark.parametrize("creates", [1, 2, SHARDS + 1])
async def test_one_that_ended_between_two_shards_is_made_again(sharded: Path, tmp_path: Path, creates: int) -> None:
    """With what is in the directory by then."""
    bucket = FailingBucket(creates)
    with pytest.raises(BucketError):
        await founding.make(bucket, SHARDS, sharded)
    assert await bucket.get(identity.NAME) is None
    bucket.left = 1000
    put(shardfiles.directory(sharded, 0), b"later")
    assert await founding.make(bucket, SHARDS, sharded)
    assert await values(bucket, tmp_path) == [b"later", b"1", b"2"]
    assert await bucket.get(founding.BEGUN) is None


async def test_one_that_ended_is_left_alone_by_others(sharded: Path, directory: Path) -> None:
    bucket = FailingBucket(SHARDS)
    with pytest.raises(BucketError):
        await founding.make(bucket, SHARDS, sharded)
    bucket.left = 1000
    there = await bucket.list("")
    for source in (None, directory):
        with pytest.raises(
            CheckpointError, match=f"is being made here since .* of {sharded} on .*: if that was killed"
        ):
            await founding.make(bucket, 1, source)
    assert await bucket.list("") == there


async def test_one_that_ended_right_after_it_was_made_is_a_cluster(sharded: Path, tmp_path: Path) -> None:
    """Its object `init.json` is still there, and must not lead to the removal of checkpoints."""
    bucket = FailingBucket(SHARDS + 2)
    bucket.keeps = True
    with pytest.raises(BucketError):
        await founding.make(bucket, SHARDS, sharded)
    assert await bucket.get(founding.BEGUN) is not None
    assert await bucket.get(identity.NAME) is not None
    bucket.left, bucket.keeps = 1000, False
    assert await founding.make(bucket, SHARDS, sharded) is None
    assert await values(bucket, tmp_path) == [b"0", b"1", b"2"]


async def test_a_log_that_has_begun_is_no_leftover(sharded: Path) -> None:
    bucket = FailingBucket(SHARDS)
    with pytest.raises(BucketError):
        await founding.make(bucket, SHARDS, sharded)
    bucket.left = 1000
    await bucket.create(objects.name(1, 1), [b"x"])
    with pytest.raises(CheckpointError, match="shard 1 is not empty: there is s1/log/"):
        await founding.make(bucket, SHARDS, sharded)
    assert await bucket.get(identity.NAME) is None


@pytest.mark.parametrize(("shards", "has"), [(1, "3 shards"), (2, "3 shards"), (64, "3 shards")])
async def test_another_number_of_shards_is_refused(sharded: Path, shards: int, has: str) -> None:
    bucket = MemoryBucket()
    with pytest.raises(BackupError, match=f"has {has}, and the cluster is to have {shards}"):
        await founding.make(bucket, shards, sharded)
    assert list(await bucket.list("")) == []


async def test_a_directory_that_lacks_a_shard_or_is_damaged_or_in_use_is_refused(sharded: Path) -> None:
    bucket = MemoryBucket()
    store = RocksStore(shardfiles.directory(sharded, 2))
    with pytest.raises(BackupError, match="open already"):
        await founding.make(bucket, SHARDS, sharded)
    store.close()
    hold = Hold(sharded)  # as `topics serve --processes` has it
    with pytest.raises(BackupError, match=f"{sharded}: this process has it open already"):
        await founding.make(bucket, SHARDS, sharded)
    hold.release()
    shutil.rmtree(shardfiles.directory(sharded, 1))
    with pytest.raises(BackupError, match="shards/1 is not a data directory: it has no CURRENT file"):
        await founding.make(bucket, SHARDS, sharded)
    (sharded / shardfiles.NAME).write_text("{")
    with pytest.raises(StoreError, match="is damaged"):
        await founding.make(bucket, SHARDS, sharded)
    assert list(await bucket.list("")) == []
