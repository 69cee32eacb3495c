"""One changed byte in each part of a table, and in every file of a small directory: it is named, or costs nothing."""

import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from corruption.harness import cut, flip, zero

from topics_server.verify import verify
from topics_service.engine.errors import TopicsError
from topics_service.engine.verify import Problem
from topics_service.engine.writer import Writer
from topics_service.storage import clean_shutdown, keys, tablemend, tables
from topics_service.storage import repair as storage
from topics_service.storage.damagedfiles import named_file
from topics_service.storage.rocks import RocksStore
from topics_service.storage.store import Family, StoreError, StoreOpenError
from topics_service.storage.verify import Damage

LAST = b"\xff" * 300
ROWS = 400
FORGOTTEN = range(100, 200)  # keys that were removed as a range
Rows = dict[Family, list[Any]]


class Sample(NamedTuple):
    """A closed database. `name` is the table of IDEMPOTENCY, with blocks of rows and every other part that there is."""

    directory: Path
    name: str
    rows: Rows

    @property
    def parts(self) -> dict[str, tuple[int, int]]:
        """The first and the last byte of each part of the table around its rows."""
        data = (self.directory / self.name).read_bytes()
        footer = tables.read_footer(data)
        assert footer is not None
        listed = tables.read_metaindex(data, footer)
        assert listed is not None
        found = {name.decode(): (handle.offset, handle.stop - 1) for name, handle in listed.items()}
        return found | {
            "metaindex": (footer.metaindex.offset, footer.metaindex.stop - 1),
            "footer": (footer.metaindex.stop, len(data) - 1),
        }


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    """Its rows in two tables, the older with values that the newer removes: by their keys, and by their range."""
    directory = tmp_path_factory.mktemp("sample") / "data"
    store, source = RocksStore(directory), random.Random(1)
    write(store, {keys.pair(1, number): source.randbytes(60) for number in range(ROWS)})
    store.families[Family.IDEMPOTENCY].flush(True)
    batch = store.batch()
    batch.delete_range(Family.IDEMPOTENCY, keys.pair(1, FORGOTTEN.start), keys.pair(1, FORGOTTEN.stop))
    for number in range(10):
        batch.delete(Family.IDEMPOTENCY, keys.pair(1, number))
    store.write(batch)
    write(store, {keys.pair(2, number): source.randbytes(60) for number in range(ROWS)})
    store.close()
    store = RocksStore(directory)
    rows = rows_of(store)
    store.close()
    assert len(rows[Family.IDEMPOTENCY]) == 2 * ROWS - 10 - len(FORGOTTEN)
    newest = max(
        (path for path in directory.glob("*.sst") if tables.RANGES in path.read_bytes()), key=lambda path: path.name
    )
    return Sample(directory, newest.name, rows)


def write(store: RocksStore, rows: dict[bytes, bytes]) -> None:
    batch = store.batch()
    for key, value in rows.items():
        batch.put(Family.IDEMPOTENCY, key, value)
    batch.put(Family.META, b"a fact", b"of some length")
    store.write(batch)


def rows_of(store: RocksStore) -> Rows:
    return {family: list(store.scan(family, b"", LAST)) for family in Family}


def damaged(sample: Sample, tmp_path: Path) -> Path:
    """A fresh copy."""
    directory = Path(tempfile.mkdtemp(dir=tmp_path))
    shutil.copytree(sample.directory, directory, dirs_exist_ok=True)
    return directory


def check(sample: Sample, directory: Path, name: str, scratch: Path) -> tuple[bool, bool, Rows]:
    """Return the refusal of a start, the finding of an audit, and the rows that a repair has.

    Where a start, an audit or a repair does not name the file, it has every row; none names another one.
    """
    told: list[Problem] = []
    verify(directory, told.append)
    found = [problem for problem in told if problem.kind == "unreadable"]  # the rows are of no topic
    assert {problem.file for problem in found} <= {name}, "no other file is accused"
    with storage.opened(directory, scratch) as opened:
        saved = {family: list(opened.source.rows(family)) for family in Family}
        notes = opened.notes + [row.file or "" for rows in saved.values() for row in rows if isinstance(row, Damage)]
    shutil.rmtree(scratch)
    assert saved == sample.rows or any(name in note for note in notes)
    error = started(sample, directory)
    if error is None:
        return False, bool(found), saved
    assert named_file(str(error).replace(str(directory), "")) == name, "no other file is accused"
    assert found, "an audit finds it as well"
    return isinstance(error, StoreOpenError), True, saved


def started(sample: Sample, directory: Path) -> StoreError | None:
    """Return the error of opening or reading the database; None: it has every row."""
    try:
        store = RocksStore(directory)
    except StoreOpenError as error:
        return error
    try:
        assert rows_of(store) == sample.rows
    except StoreError as error:
        return error
    finally:
        store._release()
    return None


def test_every_part_of_a_table_around_its_rows(sample: Sample, tmp_path: Path) -> None:
    """Each is named, and a repair has every row that there was, and none that had been removed."""
    parts = sample.parts
    assert parts.keys() == {
        *("fullfilter.rocksdb.BuiltinBloomFilter", "rocksdb.index", "rocksdb.properties", "rocksdb.range_del"),
        *("metaindex", "footer"),
    }
    for part, (first, last) in parts.items():
        for at in {first, (first + last) // 2, last}:
            directory = damaged(sample, tmp_path)
            flip(directory / sample.name, at)
            refused, told, saved = check(sample, directory, sample.name, tmp_path / "scratch")
            assert told, (part, at)
            assert refused or "filter" in part, (part, at)
            assert saved == sample.rows, (part, at)


def test_parts_of_a_table_that_are_lost_together(sample: Sample, tmp_path: Path) -> None:
    """Zeros over everything behind the rows: these are there, but for ranges that can't be known to be removed."""
    directory = damaged(sample, tmp_path)
    first = min(first for first, _ in sample.parts.values())
    zero(directory / sample.name, first, 1 << 20)
    _, told, saved = check(sample, directory, sample.name, tmp_path / "scratch")
    assert told
    rows = [row for row in saved[Family.IDEMPOTENCY] if not isinstance(row, Damage)]
    assert {row for row in rows if row[0] >= keys.u64(2)} >= {
        row for row in sample.rows[Family.IDEMPOTENCY] if row[0] >= keys.u64(2)
    }
    with storage.opened(directory, tmp_path / "scratch") as opened:
        assert opened.revived == {Family.IDEMPOTENCY}
        assert opened.lost == [sample.name]
    gone = {keys.pair(1, number) for number in range(10)}
    assert not gone & {row[0] for row in rows}, "what was removed by its key stays away"


def test_a_table_that_is_cut(sample: Sample, tmp_path: Path) -> None:
    """Rows in front of the cut are there; the rest is a stretch that can't be read, up to its greatest key."""
    directory = damaged(sample, tmp_path)
    cut(directory / sample.name, (directory / sample.name).stat().st_size // 2)
    with storage.opened(directory, tmp_path / "scratch") as opened:
        found = list(opened.source.rows(Family.IDEMPOTENCY))
    rows = [row for row in found if not isinstance(row, Damage)]
    (hole,) = (row for row in found if isinstance(row, Damage))
    assert set(rows) < {*sample.rows[Family.IDEMPOTENCY], *((key, value) for key, value in rows if key < keys.u64(2))}
    assert ROWS // 4 < len([row for row in rows if row[0] >= keys.u64(2)]) < ROWS
    assert (hole.file, hole.before) == (sample.name, None)


def test_rows_and_parts_of_a_table_that_are_damaged_both(sample: Sample, tmp_path: Path) -> None:
    """Damaged parts are skipped one by one: only the rows of one block are lost."""
    for part in ("rocksdb.index", "rocksdb.properties", "metaindex", "footer"):
        directory = damaged(sample, tmp_path)
        flip(directory / sample.name, sample.parts[part][0] + 9)
        flip(directory / sample.name, 10_000)
        _, told, saved = check(sample, directory, sample.name, tmp_path / "scratch")
        assert told
        (hole,) = (row for row in saved[Family.IDEMPOTENCY] if isinstance(row, Damage))
        assert hole.file == sample.name
        lost = len(sample.rows[Family.IDEMPOTENCY]) - len(saved[Family.IDEMPOTENCY]) + 1
        assert 0 < lost < 70, part


def test_a_changed_byte_in_any_file(sample: Sample, tmp_path: Path) -> None:
    """Also of the files around the tables, at random places of each: two dozen files, some milliseconds each."""
    source = random.Random(2)
    clean_shutdown.note_damage(sample.directory, "Corruption: in 000001.sst")
    for path in sorted(sample.directory.iterdir()):
        size = path.stat().st_size
        if path.name == "LOCK" or not size:
            continue
        for at in {source.choice((0, source.randrange(size))), size - 1}:
            directory = damaged(sample, tmp_path)
            flip(directory / path.name, at)
            check(sample, directory, path.name, tmp_path / "scratch")


@pytest.mark.parametrize("at", range(12, 16))
def test_a_current_with_another_number_is_blamed_itself(at: int, sample: Sample, tmp_path: Path) -> None:
    """Not the manifest that it names, which never was. A repair takes the one that is there."""
    directory = damaged(sample, tmp_path)
    path = directory / "CURRENT"
    text = bytearray(path.read_bytes())
    text[at - 1] ^= 1
    path.write_bytes(text)
    assert check(sample, directory, "CURRENT", tmp_path / "scratch") == (True, True, sample.rows)


def test_a_manifest_that_is_damaged_at_its_end_is_told_before_rocksdb_reads_it(sample: Sample, tmp_path: Path) -> None:
    """It would take a bad length for the end of the file, and never come back from a bad checksum."""
    name = (sample.directory / "CURRENT").read_text().strip()
    size = (sample.directory / name).stat().st_size
    for at in range(size - 30, size, 7):
        directory = damaged(sample, tmp_path)
        flip(directory / name, at)
        assert check(sample, directory, name, tmp_path / "scratch") == (True, True, sample.rows), at


def test_so_is_one_beside_a_server(sample: Sample, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topics_service.storage.verify.is_held", lambda _: True)
    directory, found = damaged(sample, tmp_path), list[Problem]()
    path = directory / (directory / "CURRENT").read_text().strip()
    flip(path, path.stat().st_size - 3)
    verify(directory, found.append)
    assert [problem.file for problem in found] == [path.name]


@pytest.fixture
def broken(sample: Sample, tmp_path: Path) -> Iterator[tuple[RocksStore, str]]:
    """An open store whose table is damaged afterwards, where RocksDB does not look again."""
    directory = damaged(sample, tmp_path)
    store = RocksStore(directory)
    flip(directory / sample.name, sample.parts["rocksdb.properties"][0] + 20)
    yield store, sample.name
    store._release()


def test_writes_that_fail_for_a_damaged_table_name_it(
    broken: tuple[RocksStore, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """RocksDB's words don't, and blame the manifest."""
    store, name = broken
    failing = type("Failing", (), {"write": lambda *_: refuse(), "__getattr__": lambda _, key: getattr(real, key)})
    real = store._db

    def refuse() -> None:
        raise Exception("Corruption: properties unsorted  The file /data/MANIFEST-000009 may be corrupted.")

    monkeypatch.setattr(store, "_db", failing())
    writer = Writer(store)
    batch = writer.begin()
    batch.put(Family.META, b"more", b"")
    for _ in range(2):
        with pytest.raises(TopicsError, match=f"read-only after a storage failure: the file {name} is damaged"):
            writer.commit(batch)
        batch = store.batch()
        batch.put(Family.META, b"more", b"")
    noted = clean_shutdown.known_damage(store._path)
    assert noted is not None
    assert name in noted
    assert "MANIFEST" not in noted


def test_what_is_no_table_is_not_made_one() -> None:
    assert tablemend.mend(b"") is None
    assert tablemend.mend(random.Random(3).randbytes(5000)) is None
    assert tablemend.mend(bytes(5000)) is None
