"""A follower of a database: what it sees, when, and what it never does."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.waiting import poll
from topics_service.storage import keys
from topics_service.storage.rocks import RocksStore
from topics_service.storage.secondary import SecondaryStore
from topics_service.storage.store import Family, StoreError, StoreOpenError


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[RocksStore]:
    store = RocksStore(tmp_path / "data")
    yield store
    store.close()


@pytest.fixture
def follower(writer: RocksStore, tmp_path: Path) -> Iterator[SecondaryStore]:
    store = SecondaryStore(tmp_path / "data", tmp_path / "own")
    yield store
    store.close()


def put(store: RocksStore, *numbers: int, family: Family = Family.BLOCKS) -> None:
    batch = store.batch()
    for number in numbers:
        batch.put(family, keys.u64(number), b"v%d" % number)
    store.write(batch)


def numbers(store: RocksStore, family: Family = Family.BLOCKS) -> list[int]:
    return [keys.read_u64(key) for key, _ in store.scan(family, b"", b"\xff" * 9)]


class Moving:
    """A database whose writer flushes during the first tries to catch up with it."""

    def __init__(self, db: Any, manifest: Path, times: int) -> None:
        self._db = db
        self._manifest = manifest
        self._times = times
        self.tries = 0

    def try_catch_up_with_primary(self) -> None:
        self._db.try_catch_up_with_primary()
        self.tries += 1
        if self.tries <= self._times:
            with self._manifest.open("ab") as file:
                file.write(bytes(7))

    def latest_sequence_number(self) -> int:
        return int(self._db.latest_sequence_number())

    def close(self) -> None:
        self._db.close()


def test_what_was_written_is_seen_at_once(writer: RocksStore, follower: SecondaryStore) -> None:
    for number in range(300):
        put(writer, number, family=Family(number % len(Family)))
        follower.catch_up()
        assert follower.get(Family(number % len(Family)), keys.u64(number)) == b"v%d" % number
    assert follower.whole


def test_nothing_moves_in_between(writer: RocksStore, follower: SecondaryStore) -> None:
    put(writer, 1, 2, 3, 4)
    follower.catch_up()
    generation = follower.generation
    batch = writer.batch()
    batch.delete_range(Family.BLOCKS, keys.u64(1), keys.u64(3))
    batch.put(Family.BLOCKS, keys.u64(9), b"")
    writer.write(batch)
    assert numbers(follower) == [1, 2, 3, 4]
    assert follower.floor(Family.BLOCKS, keys.u64(8)) == (keys.u64(4), b"v4")
    assert follower.generation == generation
    follower.catch_up()
    assert numbers(follower) == [3, 4, 9]
    assert follower.floor(Family.BLOCKS, keys.u64(2)) is None
    assert follower.generation > generation


def test_the_files_that_the_writer_removes_can_be_read(
    writer: RocksStore, follower: SecondaryStore, tmp_path: Path
) -> None:
    for start in range(0, 4000, 1000):
        put(writer, *range(start, start + 1000))
        writer._families[Family.BLOCKS].flush(True)
    follower.catch_up()
    files = set((tmp_path / "data").glob("*.sst"))
    batch = writer.batch()
    batch.delete_range(Family.BLOCKS, keys.u64(0), keys.u64(4000))
    writer.write(batch)
    writer._families[Family.BLOCKS].flush(True)
    writer._db.compact_range(None, None)
    writer._families[Family.BLOCKS].compact_range(None, None)
    poll(lambda: not files & set((tmp_path / "data").glob("*.sst")))  # by another thread of RocksDB's
    assert numbers(follower) == list(range(4000))
    follower.catch_up()
    assert numbers(follower) == []


def test_a_try_counts_if_the_manifest_stood_still(writer: RocksStore, follower: SecondaryStore, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    name = (tmp_path / "data" / "CURRENT").read_text().strip()
    for file in ("CURRENT", name):
        shutil.copy(tmp_path / "data" / file, copy / file)
    follower._path = copy
    db = follower._db
    follower._db = moving = Moving(db, copy / name, 3)  # type: ignore[assignment]
    put(writer, 1)
    follower.catch_up()
    assert (moving.tries, follower.whole) == (4, True)
    follower._db = Moving(db, copy / name, 1 << 30)  # type: ignore[assignment]
    with pytest.raises(StoreError, match="its files changed during each try"):
        follower.catch_up()
    assert not follower.whole
    follower._db = db
    follower.catch_up()
    assert follower.whole


def test_what_was_flushed_before_it_was_read_is_not_hidden_by_what_was_there(
    writer: RocksStore, follower: SecondaryStore
) -> None:
    """RocksDB skips the part of a log that is already in a file, and would continue with the older rows in memory."""
    for number in range(20):
        batch = writer.batch()
        batch.put(Family.DELETES, b"chunk", b"%d" % number)
        batch.put(Family.TOPICS, b"topic %d" % number, b"")
        writer.write(batch)
        follower.catch_up()
        batch = writer.batch()
        batch.put(Family.DELETES, b"chunk", b"newer than %d" % number)
        batch.delete(Family.TOPICS, b"topic %d" % number)
        writer.write(batch)
        for family in (Family.DELETES, Family.TOPICS):
            writer._families[family].flush(True)
            writer._families[family].compact_range(None, None)
        put(writer, number)
        follower.catch_up()
        assert follower.get(Family.DELETES, b"chunk") == b"newer than %d" % number
        assert list(follower.scan(Family.DELETES, b"", b"d")) == [(b"chunk", b"newer than %d" % number)]
        assert list(follower.scan(Family.TOPICS, b"", b"u")) == []
        assert numbers(follower) == list(range(number + 1))


def test_a_follower_that_could_not_be_opened_again_tries_it_later(
    writer: RocksStore, follower: SecondaryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def overtake(value: bytes) -> None:
        put(writer, 1, family=Family.TOPICS)
        writer._families[Family.TOPICS].flush(True)
        batch = writer.batch()
        batch.put(Family.BLOCKS, b"new", value)
        writer.write(batch)

    follower.catch_up()
    overtake(b"1")

    def fail() -> None:
        raise OSError("no more files")

    with monkeypatch.context() as patch:
        patch.setattr(follower, "_open", fail)
        for _ in range(2):
            with pytest.raises(StoreError, match="can't follow the writer: no more files"):
                follower.catch_up()
            assert not follower.whole
    follower.catch_up()
    assert (follower.whole, follower.get(Family.BLOCKS, b"new")) == (True, b"1")


def test_it_never_writes(writer: RocksStore, follower: SecondaryStore, tmp_path: Path) -> None:
    before = {file.name: file.stat().st_size for file in (tmp_path / "data").iterdir() if file.name != "LOG"}
    with pytest.raises(StoreError, match="read-only"):
        follower.batch()
    with pytest.raises(StoreError, match="read-only"):
        follower.write(writer.batch())
    follower.sync()
    follower.catch_up()
    assert before == {file.name: file.stat().st_size for file in (tmp_path / "data").iterdir() if file.name != "LOG"}


def test_what_is_no_database(tmp_path: Path) -> None:
    with pytest.raises(StoreOpenError, match="can't follow the data directory"):
        SecondaryStore(tmp_path / "none", tmp_path / "own")
    assert not (tmp_path / "none").exists()
