"""Checkpoints of a shard: made, shared, restored, and damaged."""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from topics_backup.manifest import seal
from topics_cluster import checkpoint, restore
from topics_cluster.bucket import BucketError
from topics_cluster.checkpoint import Checkpoint, CheckpointError, Maker, Schedule
from topics_cluster.log import Position
from topics_cluster.memory import MemoryBucket
from topics_cluster.objects import Batch, DamagedObjectError, Header, Kind, LogObject, Op
from topics_cluster.store import ShardStore
from topics_cluster.uploader import Uploader
from topics_service.storage import keys
from topics_service.storage.store import Family

SHARD = 3


class Failing(MemoryBucket):
    """Fails from its `fuse`-th change on; -1 is never. Notes what is sent, and how many files are under way at most."""

    def __init__(self, fuse: int = -1) -> None:
        super().__init__()
        self.fuse = fuse
        self.sent: list[str] = []
        self.under_way = self.most = 0

    def _burn(self) -> None:
        if self.fuse == 0:
            raise BucketError("the store does not answer")
        self.fuse -= self.fuse > 0

    async def create(self, name: str, parts: Sequence[bytes]) -> bool:
        self._burn()
        return await super().create(name, parts)

    async def put_file(self, name: str, source: Path) -> None:
        self._burn()
        self.sent.append(name)
        async with _Counted(self):
            await super().put_file(name, source)

    async def get_file(self, name: str, target: Path) -> bool:
        async with _Counted(self):
            return await super().get_file(name, target)

    def replace(self, name: str, data: bytes) -> None:
        """Damage an object."""
        self._objects[name] = data, 0.0


class _Counted:
    def __init__(self, bucket: Failing) -> None:
        self._bucket = bucket

    async def __aenter__(self) -> None:
        self._bucket.under_way += 1
        self._bucket.most = max(self._bucket.most, self._bucket.under_way)

    async def __aexit__(self, *_: object) -> None:
        self._bucket.under_way -= 1


class Shard:
    """The store of a follower, and the maker of its checkpoints."""

    def __init__(self, folder: Path, bucket: MemoryBucket) -> None:
        self.store = ShardStore(folder / "data")
        if not self.store.position.epoch:
            fence = Header(Kind.FENCE, SHARD, 1, self.store.position.number, 17, 0, bytes(16))
            self.store.apply(LogObject(fence, []), Position(1, 17, 0))
        self.seconds = 0.0
        self.maker = Maker(bucket, SHARD, folder / "copies", "a", lambda: self.seconds)

    def write(self, count: int) -> None:
        """Apply objects of one batch each."""
        for _ in range(count):
            ticket = self.store.ticket + 1
            number = 16 + ticket
            header = Header(Kind.DATA, SHARD, 1, number, number + 1, ticket, bytes(16))
            rows = [
                (Op.PUT, Family.LOGS, keys.u64(ticket), bytes(100)),
                (Op.PUT, Family.BLOCKS, keys.u64(ticket), block(ticket)),
            ]
            self.store.apply(LogObject(header, [Batch(ticket, rows)]), Position(1, number + 1, ticket))

    async def make(self) -> Checkpoint:
        """A checkpoint, which is the first of its number."""
        made = await self.maker.make(self.store)
        assert made is not None
        return made


def block(ticket: int) -> bytes:
    return hashlib.sha256(keys.u64(ticket)).digest() * 200


def rows(directory: Path) -> list[int]:
    """The tickets in a directory, of which each is whole."""
    store = ShardStore(directory)
    try:
        found = [keys.read_u64(key) for key, _ in store.scan(Family.LOGS, b"", b"\xff" * 9)]
        blocks = {keys.read_u64(key): value for key, value in store.scan(Family.BLOCKS, b"", b"\xff" * 9)}
        assert blocks == {ticket: block(ticket) for ticket in found}
        assert store.position == Position(1, 17 + len(found), len(found))
        return found
    finally:
        store.close()


@pytest.fixture
def bucket() -> Failing:
    return Failing()


@pytest.fixture
def shard(tmp_path: Path, bucket: Failing) -> Iterator[Shard]:
    made = Shard(tmp_path, bucket)
    yield made
    made.store.close()


async def names(bucket: MemoryBucket, prefix: str) -> list[str]:
    return [each.name for each in await bucket.list(prefix)]


async def test_what_is_restored_is_what_was_there(shard: Shard, bucket: Failing, tmp_path: Path) -> None:
    shard.write(20)
    made = await shard.make()
    shard.write(5)
    assert (made.position, made.applied, made.node) == (Position(1, 37, 20), 20, "a")
    assert await checkpoint.newest_position(bucket, SHARD) == made.position
    restored = await restore.restore_newest(bucket, SHARD, tmp_path / "other")
    assert restored == made
    assert rows(tmp_path / "other") == list(range(1, 21))
    assert names_in(tmp_path) == ["copies", "data", "other"]
    assert names_in(tmp_path / "copies") == []


async def test_a_shard_without_checkpoints_restores_nothing(shard: Shard, bucket: Failing, tmp_path: Path) -> None:
    assert await restore.restore_newest(bucket, SHARD, tmp_path / "other") is None
    assert names_in(tmp_path) == ["data"]


async def test_the_highest_number_counts_and_the_rest_of_the_folder_does_not(shard: Shard, bucket: Failing) -> None:
    for _ in range(3):
        shard.write(1)
        await shard.make()
    await bucket.create(f"s{SHARD}/ckpt/later", [b"none of ours"])
    await bucket.create(f"s{SHARD + 1}/ckpt/{99:020}", [b"of another shard"])
    assert [number for number, _ in await checkpoint.entries(bucket, SHARD)] == [18, 19, 20]


async def test_files_are_shared_and_tables_read_once(shard: Shard, bucket: Failing, tmp_path: Path) -> None:
    shard.write(50)
    first = await shard.make()
    bucket.sent.clear()
    shard.write(1)
    second = await shard.make()
    tables = {file.sha256 for file in first.files if file.name.endswith(".sst")}
    assert tables
    assert tables < {file.sha256 for file in second.files}
    assert not [name for name in bucket.sent if name.rpartition("/")[2] in tables]
    assert (await restore.restore_newest(bucket, SHARD, tmp_path / "other")) == second
    assert rows(tmp_path / "other") == list(range(1, 52))


async def test_one_of_the_same_number_is_left_as_it_is(shard: Shard, bucket: Failing) -> None:
    shard.write(1)
    made = await shard.make()
    assert await shard.maker.make(shard.store) is None
    assert await checkpoint.load(bucket, SHARD, made.number) == made


async def test_nothing_is_published_that_is_not_in_the_log(shard: Shard, bucket: Failing, tmp_path: Path) -> None:
    """Of a former owner, whose last batch met a fence."""
    shard.write(3)
    uploader = Uploader(Failing(fuse=0), SHARD, shard.store.position, bytes(16))
    shard.store.own(uploader)
    batch = shard.store.batch()
    batch.put(Family.LOGS, b"late", b"")
    shard.store.write(batch)
    uploader.stop()
    shard.store.disown()
    with pytest.raises(CheckpointError, match="has what is not in the log"):
        await shard.maker.make(shard.store)
    assert await names(bucket, "") == []
    assert names_in(tmp_path / "copies") == []


async def test_a_maker_that_ends_at_any_step_leaves_no_manifest(shard: Shard, bucket: Failing, tmp_path: Path) -> None:
    shard.write(30)
    made = await shard.make()
    await bucket.delete([checkpoint.name_of(SHARD, made.number)])
    for fuse in (0, 1, len(made.files) - 1, len(made.files)):
        bucket.fuse = fuse
        with pytest.raises(BucketError):
            await shard.make()
        assert await names(bucket, checkpoint.folder_of(SHARD)) == []
        assert names_in(tmp_path / "copies") == []
    bucket.fuse = -1
    await shard.make()
    assert rows_of(await restored(bucket, tmp_path)) == 30


def names_in(directory: Path) -> list[str]:
    return sorted(each.name for each in directory.iterdir())


async def restored(bucket: MemoryBucket, tmp_path: Path) -> Path:
    assert await restore.restore_newest(bucket, SHARD, tmp_path / "other") is not None
    return tmp_path / "other"


def make(directory: Path) -> None:
    directory.mkdir(parents=True)
    (directory / "CURRENT").write_text("of before")


def rows_of(directory: Path) -> int:
    return len(rows(directory))


async def test_copies_of_a_maker_that_was_killed_go(shard: Shard, tmp_path: Path) -> None:
    make(tmp_path / "copies" / "of-a-killed-one")
    await shard.make()
    assert names_in(tmp_path / "copies") == []


async def test_transfers_are_bounded(shard: Shard, bucket: Failing, tmp_path: Path) -> None:
    for _ in range(6):
        shard.write(3)
        for family in shard.store.families:
            family.flush(True)
    made = await shard.make()
    await restored(bucket, tmp_path)
    assert len(made.files) > checkpoint.PARALLEL
    assert 1 < bucket.most <= checkpoint.PARALLEL


async def test_a_long_pass_is_followed_by_another(
    shard: Shard, bucket: Failing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of the two newest checkpoints of the beginning of a long pass may be gone at its end."""
    shard.write(30)
    first = await shard.make()
    put_file, listings = MemoryBucket.put_file, 0

    async def slow(self: MemoryBucket, name: str, source: Path) -> None:
        shard.seconds += checkpoint.PASS_SECONDS + 1
        await put_file(self, name, source)

    async def entries(*_: object) -> list[checkpoint.Entry]:
        nonlocal listings
        listings += 1
        return [checkpoint.Entry(first.number, 0)] if listings == 1 else []

    monkeypatch.setattr(MemoryBucket, "put_file", slow)
    monkeypatch.setattr(checkpoint, "entries", entries)
    bucket.sent.clear()
    shard.write(1)
    made = await shard.make()
    assert listings == 3, "one to begin with, one after a long pass, one that found all of it sent"
    assert set(bucket.sent) == {checkpoint.file_name(SHARD, file) for file in made.files}


async def test_a_checkpoint_that_takes_too_long_is_given_up(
    shard: Shard, bucket: Failing, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_file = MemoryBucket.put_file

    async def slow(self: MemoryBucket, name: str, source: Path) -> None:
        shard.seconds += checkpoint.LIMIT_SECONDS
        await put_file(self, name, source)

    monkeypatch.setattr(MemoryBucket, "put_file", slow)
    shard.write(1)
    with pytest.raises(CheckpointError, match="took longer than 43200 seconds"):
        await shard.make()
    assert await names(bucket, checkpoint.folder_of(SHARD)) == []


# --------------------------------------------------------------------------- damage


async def test_a_damaged_or_missing_object_is_named(shard: Shard, bucket: Failing, tmp_path: Path) -> None:
    """Each of them, in each way, and nothing is left of the attempt."""
    shard.write(10)
    made = await shard.make()
    manifest = checkpoint.name_of(SHARD, made.number)
    for name in [manifest, *(checkpoint.file_name(SHARD, file) for file in made.files)]:
        whole = await bucket.get(name)
        assert whole is not None
        flipped = bytes(each ^ 1 for each in whole[:1]) + whole[1:]
        for damaged in {flipped, whole[:-2], whole + b"x", b""} - {whole}:
            bucket.replace(name, damaged)
            with pytest.raises(DamagedObjectError) as caught:
                await restore.restore_newest(bucket, SHARD, tmp_path / "other")
            assert caught.value.name == name
        if name != manifest:
            await bucket.delete([name])
            with pytest.raises(DamagedObjectError, match="missing") as caught:
                await restore.restore_newest(bucket, SHARD, tmp_path / "other")
            assert caught.value.name == name
        bucket.replace(name, whole)
    assert names_in(tmp_path / "other") == []
    await restored(bucket, tmp_path)


async def test_the_one_before_takes_the_place_of_a_damaged_one(
    shard: Shard, bucket: Failing, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shard.write(10)
    before = await shard.make()
    shard.write(10)
    newest = await shard.make()
    bucket.replace(checkpoint.name_of(SHARD, newest.number), b"{}")
    assert await restore.restore_newest(bucket, SHARD, tmp_path / "other") == before
    assert rows_of(tmp_path / "other") == 10
    assert f"checkpoint {newest.number} of shard {SHARD} can't be restored" in caplog.text


async def test_a_manifest_that_contradicts_itself_is_damaged(shard: Shard, bucket: Failing) -> None:
    shard.write(1)
    made = await shard.make()
    [table, *rest] = made.files
    current = next(file for file in made.files if file.name == "CURRENT")
    for wrong in (
        msgspec.structs.replace(made, number=made.number + 1),
        msgspec.structs.replace(made, shard=SHARD + 1),
        msgspec.structs.replace(made, files=[file for file in made.files if file is not current]),
        msgspec.structs.replace(made, files=[table, *rest, table]),
        msgspec.structs.replace(made, files=[msgspec.structs.replace(table, name="../CURRENT"), *rest]),
        msgspec.structs.replace(made, files=[msgspec.structs.replace(table, sha256="../../x"), *rest]),
        msgspec.structs.replace(made, files=[msgspec.structs.replace(table, size=-1), *rest]),
    ):
        bucket.replace(checkpoint.name_of(SHARD, made.number), seal(msgspec.json.encode(wrong)))
        with pytest.raises(DamagedObjectError, match="contradicts itself"):
            await checkpoint.load(bucket, SHARD, made.number)


async def test_a_later_format_is_refused(shard: Shard, bucket: Failing, tmp_path: Path) -> None:
    shard.write(1)
    made = await shard.make()
    for later, why in (
        (msgspec.structs.replace(made, format=2), "has the format 2, this version reads 1"),
        (msgspec.structs.replace(made, store_format="topics-rocksdb-9"), "'topics-rocksdb-9': use the version"),
    ):
        bucket.replace(checkpoint.name_of(SHARD, made.number), seal(msgspec.json.encode(later)))
        with pytest.raises(CheckpointError, match=why):
            await restore.restore_newest(bucket, SHARD, tmp_path / "other")
    assert names_in(tmp_path) == ["copies", "data"]


async def test_a_disk_without_room_is_told_before_anything_is_read(
    shard: Shard, bucket: Failing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard.write(1)
    made = await shard.make()
    monkeypatch.setattr(restore, "_ROOM_BYTES", 1 << 60)
    bucket.most = 0
    with pytest.raises(CheckpointError, match=f"bytes left, and checkpoint {made.number} takes"):
        await restore.restore_newest(bucket, SHARD, tmp_path / "other")
    assert bucket.most == 0
    assert names_in(tmp_path / "other") == []


async def test_what_was_in_the_directory_goes(shard: Shard, bucket: Failing, tmp_path: Path) -> None:
    shard.write(2)
    await shard.make()
    for former in ("other", "other/restoring"):
        make(tmp_path / former)
    assert rows_of(await restored(bucket, tmp_path)) == 2


# ------------------------------------------------------------------------- schedule


@pytest.mark.parametrize(
    ("log_bytes", "seconds", "due"),
    [
        (0, 1e9, False),
        (1, 599.0, False),
        (1, 600.0, True),
        (256 << 20, 60.0, True),
        ((256 << 20) - 1, 60.0, False),
        (1 << 40, 59.0, False),
    ],
)
def test_when_a_checkpoint_is_due(log_bytes: int, seconds: float, due: bool) -> None:
    assert Schedule().is_due(log_bytes, seconds) is due
