"""A data directory that becomes a cluster's."""

from pathlib import Path

import pytest

from topics_backup.errors import BackupError
from topics_cluster import objects
from topics_cluster.checkpoint import CheckpointError, standing_in
from topics_cluster.founding import found
from topics_cluster.log import START, Position
from topics_cluster.memory import MemoryBucket
from topics_cluster.objects import Batch, Header, Kind, LogObject, Op
from topics_cluster.restore import restore_newest
from topics_cluster.store import ShardStore
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


async def test_a_directory_becomes_checkpoint_number_one_and_stays(directory: Path, tmp_path: Path) -> None:
    bucket = MemoryBucket()
    made = await found(bucket, SHARD, directory, "a", "boot")
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
    assert (await found(bucket, SHARD, directory, "a", "boot")).position == START
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
        await found(bucket, SHARD, directory, "a", "boot")
    assert [each.name for each in await bucket.list("")] == [name]


async def test_a_directory_without_a_database_or_in_use_is_refused(directory: Path, tmp_path: Path) -> None:
    bucket = MemoryBucket()
    with pytest.raises(BackupError, match="is not a data directory"):
        await found(bucket, SHARD, tmp_path / "nowhere", "a", "boot")
    store = RocksStore(directory)
    try:
        with pytest.raises(BackupError, match="open already"):
            await found(bucket, SHARD, directory, "a", "boot")
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
