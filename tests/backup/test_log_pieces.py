"""The write-ahead log as RocksDB writes it, read batch by batch; and the pieces of it that are archived."""

import os
import random
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support.waiting import poll
from topics_backup import creation, inventory, log, moments, pointintime, shipping
from topics_backup.errors import BackupError
from topics_backup.log import PIECE_BYTES, Piece
from topics_backup.manifest import LogPoint
from topics_backup.target import Folder
from topics_service.storage import checkpoint, keys, rocks
from topics_service.storage.familyids import family_ids
from topics_service.storage.rocks import RocksStore
from topics_service.storage.store import Family
from topics_service.storage.wal import archive
from topics_service.storage.wal.batches import MOMENT_KEY, batches, rows, written_ms

FAMILIES = sorted(set(Family) - {Family.BLOCKS, Family.SEGMENTS})  # whose rows go to the log as they are


@dataclass
class Clock:
    """A wall clock that stands still between two ticks."""

    ms: int = 1_000_000

    def time_ns(self) -> int:
        return self.ms * 1_000_000


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(rocks.time, "time_ns", clock.time_ns)
    return clock


def put(store: RocksStore, family: Family, key: bytes, value: bytes) -> None:
    batch = store.batch()
    batch.put(family, key, value)
    store.write(batch)


def read_log(directory: Path, number: int) -> bytes:
    handle = archive.open_log(directory, number)
    try:
        return os.read(handle, 1 << 30)
    finally:
        os.close(handle)


def test_every_row_is_read_back_in_order_across_files(tmp_path: Path, clock: Clock) -> None:
    chance = random.Random(3)
    store = RocksStore(tmp_path / "data", keep_log=True)
    ids = family_ids(tmp_path / "data")
    written = []
    for number in range(60):
        clock.ms += number % 3
        batch = store.batch()
        for row in range(chance.randrange(1, 4)):
            family = chance.choice(FAMILIES)
            key, value = keys.pair(number, row), chance.randbytes(chance.choice([0, 10, 5000, 40_000, 200_000]))
            batch.put(family, key, value)
            written.append((ids[family], key, value))
        batch.delete(Family.BLOCKS, b"gone")
        written.append((ids[Family.BLOCKS], b"gone", None))
        batch.delete_range(Family.TAGS, b"a", b"b")
        store.write(batch)
        if number % 20 == 19:
            checkpoint.create(store, tmp_path / "data" / "checkpoints" / str(number))
    store.close()

    found, next_seq, moments = [], None, []
    files = archive.log_files(tmp_path / "data")
    assert len(files) >= 4
    for file in files:
        data = read_log(tmp_path / "data", file.number)
        assert len(data) == file.size
        for batch in batches(data):
            assert next_seq in (None, batch.seq)
            next_seq = batch.next_seq
            found += [tuple(row) for row in rows(batch) if row.key != MOMENT_KEY and row.key != b"format"]
            moments += [moment for moment in [written_ms(batch)] if moment is not None]
    assert found == written
    assert moments == sorted(set(moments))
    assert moments[-1] == clock.ms
    with pytest.raises(FileNotFoundError):
        archive.open_log(tmp_path / "data", 999_999)


@pytest.mark.parametrize("sizes", [(10,), (32_768 - 40,), (32_768 - 33, 5, 70_000), (100_000, 1)])
def test_a_log_that_is_cut_or_changed_anywhere_ends_behind_a_batch(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    store = RocksStore(tmp_path / "data", keep_log=True)
    for size in sizes:
        put(store, Family.BLOCKS, b"key", bytes(size))
    file = archive.log_files(tmp_path / "data")[-1]
    data = read_log(tmp_path / "data", file.number)
    store.close()
    stops = [0, *(batch.stop for batch in batches(data))]
    assert stops[-1] == len(data)
    for cut in {*range(0, len(data), 997), *(stop + by for stop in stops for by in (-8, -1, 1, 8))}:
        if 0 <= cut < len(data):
            assert [0, *(batch.stop for batch in batches(data[:cut]))] == [stop for stop in stops if stop <= cut]
            changed = data[:cut] + bytes([data[cut] ^ 0xFF]) + data[cut + 1 :]
            assert [0, *(batch.stop for batch in batches(changed))] == [stop for stop in stops if stop <= cut]
    for start in stops:  # the end of each batch is a position to resume from
        assert [batch.stop for batch in batches(data[start:], start)] == [stop for stop in stops if stop > start]


def test_a_time_in_a_value_is_not_taken_for_the_batchs_own(tmp_path: Path, clock: Clock) -> None:
    store = RocksStore(tmp_path / "data", keep_log=True)
    forged = bytes([1, len(MOMENT_KEY)]) + MOMENT_KEY + bytes([8]) + keys.u64(7)
    put(store, Family.BLOCKS, b"key", forged)
    put(store, Family.BLOCKS, b"key", b"x" + forged)
    store.close()
    (data,) = (read_log(tmp_path / "data", file.number) for file in archive.log_files(tmp_path / "data") if file.size)
    assert [written_ms(batch) for batch in batches(data)] == [clock.ms, None, None]  # the first holds the format


def test_what_is_larger_than_a_piece_is_one_and_the_rest_is_cut(tmp_path: Path, clock: Clock) -> None:
    store = RocksStore(tmp_path / "data", keep_log=True)
    for size in (PIECE_BYTES // 3, PIECE_BYTES // 3, PIECE_BYTES // 2, 2 * PIECE_BYTES, 10):
        clock.ms += 1
        put(store, Family.BLOCKS, b"key", bytes(size))
    target = Folder(tmp_path / "target")
    done = shipping.ship(target, tmp_path / "data")
    (run,) = log.runs(target)
    assert done.pieces == len(run.pieces) == 3  # two thirds; the half; what is too large for one, and a little
    assert [piece.last_ms for piece in run.pieces] == sorted(piece.last_ms for piece in run.pieces)
    (file,) = (file for file in archive.log_files(tmp_path / "data") if file.size)
    assert b"".join(log.content(target, piece) for piece in run.pieces) == read_log(tmp_path / "data", file.number)
    assert shipping.ship(target, tmp_path / "data").pieces == 0
    store.close()


def test_a_time_that_was_there_twice_means_the_later_one(tmp_path: Path, clock: Clock) -> None:
    """The clock goes 0, 10, 20, is set back to 5, and continues to 15 and 30; the backup is of 0."""
    store = RocksStore(tmp_path / "data", keep_log=True)
    begin = clock.ms
    cp = tmp_path / "data" / "checkpoints" / "one"
    checkpoint.create(store, cp)
    target = Folder(tmp_path / "target")
    creation.create(target, cp, begin, tmp_path / "data")
    ends = {}
    for ms in (10, 20, 5, 15, 30):
        for key in (b"a", b"b"):  # two batches of one millisecond
            clock.ms = begin + ms
            put(store, Family.BLOCKS, key, bytes(10))
        ends[ms] = store.next_sequence
        shipping.ship(target, tmp_path / "data")
    clock.ms = begin + 100
    shipping.ship(target, tmp_path / "data")
    store.close()
    wanted = {0: None, 4: None, 5: 5, 9: 5, 10: 5, 14: 5, 15: 15, 19: 15, 20: 15, 29: 15, 30: 30, 99: 30}
    for ms, last in wanted.items():
        [[way]] = moments.at_time(target, begin + ms).ways
        cut = way.cut()
        assert cut.next_seq == (ends[last] if last else way.base.point.next_seq), ms
        assert cut.written_ms == begin + (last or 0), ms
    with pytest.raises(BackupError, match="can't be restored: the restorable moments are"):
        moments.at_time(target, begin + 101)
    with pytest.raises(BackupError, match="can't be restored: the restorable moments are"):
        moments.at_time(target, begin - 1)


def test_an_open_that_does_not_say_goes_on_as_before(tmp_path: Path) -> None:
    for keep, wanted in ((None, False), (True, True), (None, True), (False, False), (None, False)):
        store = RocksStore(tmp_path, keep_log=keep)
        put(store, Family.BLOCKS, b"key", b"value")
        store.close()
        assert (archive.line_of(tmp_path) is not None) == wanted
        assert bool(list(tmp_path.glob("archive/*.log"))) == wanted


def test_a_long_log_is_compacted_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """RocksDB takes it in as tables of level 0, by tiny write buffers here, and then takes no writes for a while."""
    store = RocksStore(tmp_path / "data", keep_log=True)
    for number in range(400):  # tables whose keys overlap: RocksDB moves others without a compaction
        put(store, Family.TAGS, keys.u64(number * 99 % 400), random.Random(number).randbytes(20_000))
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    next_seq = store.next_sequence
    store.close()
    (tmp_path / "copy" / "topics-log.json").unlink()
    stalls = []
    options, wait = rocks._options, inventory._wait_for_room

    def tiny(family: Family, *others: Any) -> Any:
        made = options(family, *others)
        made.set_write_buffer_size(64 << 10)
        made.set_ratelimiter(4 << 20, 100_000, 10)  # bytes/s: the compaction of 8 MB is not over before it is seen
        return made

    def waited(store: RocksStore) -> None:
        stalls.append(store.is_stalled())
        wait(store)
        stalls.append(store.is_stalled())

    monkeypatch.setattr(rocks, "_options", tiny)
    monkeypatch.setattr(inventory, "_wait_for_room", waited)
    inventory.settle(tmp_path / "copy", next_seq=next_seq)
    assert stalls == [True, False]


def test_trim_removes_the_oldest(tmp_path: Path) -> None:
    folder = tmp_path / "archive"
    folder.mkdir()
    for number in range(1, 6):
        (folder / f"{number:06}.log").write_bytes(bytes(100))
        os.utime(folder / f"{number:06}.log", (1, archive.time.time() - 100 * (6 - number)))
    (folder / "other").touch()

    def left() -> list[str]:
        return sorted(path.name for path in folder.iterdir())

    assert archive.trim(tmp_path, 1000, 1000)[:2] == (5, 500)
    assert archive.trim(tmp_path, 450, 1000)[:2] == (4, 400)
    assert archive.trim(tmp_path, 1000, 250)[:2] == (2, 200)
    assert left() == ["000004.log", "000005.log", "other"]
    assert archive.trim(tmp_path, 1000, 0)[:2] == (0, 0)
    assert archive.trim(tmp_path / "none", 1000, 0)[:2] == (0, 0)


def test_a_damaged_line_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "topics-log.json").write_text("{")
    with pytest.raises(BackupError, match="remove it"):
        shipping.ship(Folder(tmp_path / "target"), tmp_path)


def piece(number: int, start: int, stop: int, seq: int, next_seq: int) -> Piece:
    return Piece("line", number, start, stop, seq, next_seq, 1, 2, "0" * 64)


def test_a_piece_is_told_by_its_name() -> None:
    one = piece(7, 10, 300, 5, 9)
    assert log.piece_of(one.key) == one
    assert log.piece_of(one.key.replace("line", "..")) is None
    assert log.piece_of("log/line/until.json") is None


def test_pieces_of_two_that_archived_at_once_make_one_chain() -> None:
    """Any way through them will do, and the one that leads farthest is taken."""
    a, b, c = piece(7, 0, 10, 1, 2), piece(7, 0, 15, 1, 3), piece(7, 10, 20, 2, 4)
    d, e = piece(7, 15, 18, 3, 4), piece(7, 30, 40, 9, 10)
    assert log.chains([e, d, c, b, a]) == {7: [a, c]}
    assert log.chains([e, d, b]) == {7: [b, d]}
    assert log.chains([c, d]) == {}


def test_a_backup_goes_on_only_with_a_log_that_leaves_nothing_out() -> None:
    first, second, third = piece(4, 0, 10, 1, 5), piece(6, 0, 10, 5, 8), piece(9, 0, 10, 8, 12)
    run = log.Run([first, second, third], 100)
    assert run.behind(LogPoint("line", 4, 3, 0)) == [first, second, third]
    assert run.behind(LogPoint("line", 6, 5, 0)) == [second, third]
    assert run.behind(LogPoint("line", 7, 8, 0)) == [third]  # its own file is empty
    assert run.behind(LogPoint("line", 10, 12, 0)) == []
    assert run.behind(LogPoint("other", 6, 5, 0)) is None
    assert run.behind(LogPoint("line", 10, 13, 0)) is None
    assert log.Run([second, third], 100).behind(LogPoint("line", 4, 3, 0)) is None
    assert log.Run([third], 100).behind(LogPoint("line", 6, 7, 0)) is None


class Archived:
    """A backup, and the log behind it in nine pieces of three files; the server's own is trimmed on request."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self.path, self.clock = path, clock
        self.target = Folder(path / "target")
        self.store = RocksStore(path / "data", keep_log=True)
        self.backup()
        for _ in range(3):
            for _ in range(3):
                self.ship()
            self.switch()

    def backup(self) -> None:
        self.clock.ms += 1000
        cp = self.path / "data" / "checkpoints" / str(self.clock.ms)
        checkpoint.create(self.store, cp)
        creation.create(self.target, cp, self.clock.ms, self.path / "data")

    def switch(self) -> None:
        """The next write goes to another file."""
        for family in self.store.families:
            family.flush(True)

    def ship(self) -> shipping.Shipped:
        for _ in range(2):
            self.clock.ms += 1
            put(self.store, Family.BLOCKS, keys.u64(self.clock.ms), bytes(100))
        return shipping.ship(self.target, self.path / "data")

    def trim(self) -> None:
        """The server removes what it has of log: RocksDB moves it to the archive some time after the flush."""
        self.switch()
        poll(lambda: len(list((self.path / "data").glob("*.log"))) == 1)
        archive.trim(self.path / "data", 0, 0)

    @property
    def pieces(self) -> list[Path]:
        """Those behind the first backup: one is older."""
        return sorted((self.path / "target").rglob("*.wal"))[1:]

    def damage(self) -> str:
        (found,) = pointintime.verify(self.target)
        return found.damage


@pytest.fixture
def archived(tmp_path: Path, clock: Clock) -> Any:
    made = Archived(tmp_path, clock)
    yield made
    made.store.close()


def test_verify_misses_every_piece_that_is_gone(archived: Archived) -> None:
    """The first, each in the middle, and the last, which the archive says there was; and all of them."""
    assert archived.damage() == ""
    pieces = archived.pieces
    assert len(pieces) == 9
    assert len({path.name[:12] for path in pieces}) == 3
    for path in pieces:
        whole = path.read_bytes()
        path.unlink()
        assert "the archived log" in archived.damage(), path.name
        path.write_bytes(whole)
    assert archived.damage() == ""
    for number in range(0, 9, 3):  # whole files
        gone = {path: path.read_bytes() for path in pieces[number : number + 3]}
        for path in gone:
            path.unlink()
        assert "the archived log" in archived.damage()
        for path, whole in gone.items():
            path.write_bytes(whole)
    for path in pieces:
        path.unlink()
    assert "had been archived to row" in archived.damage()


def test_verify_finds_what_is_cut_changed_or_in_the_place_of_another(archived: Archived) -> None:
    pieces = archived.pieces
    for number, path in enumerate(pieces):
        whole, other = path.read_bytes(), pieces[number - 1].read_bytes()
        for data in (whole[:-1], b"", whole + whole, whole[:50] + b"?" + whole[51:], other):
            path.write_bytes(data)
            assert path.name in archived.damage()
        path.write_bytes(whole)
    assert archived.damage() == ""


def test_pieces_that_are_there_twice_or_overlap_are_no_damage(archived: Archived) -> None:
    """Two have archived at once: any way through will do, as long as each piece is what it says."""
    first, second = (log.piece_of(f"log/{path.parent.name}/{path.name}") for path in archived.pieces[:2])
    assert first is not None
    assert second is not None
    both = log.content(archived.target, first) + log.content(archived.target, second)
    joined = shipping._piece(archive.Line(first.line, 0), first.number, 0, both, 0)
    assert joined is not None
    archived.target.put(joined.key, both)
    assert archived.damage() == ""
    archived.pieces[0].unlink()
    archived.pieces[1].unlink()
    (archived.path / "target" / joined.key).unlink(missing_ok=True)
    assert archived.damage() != ""


def test_a_hole_that_the_archive_was_told_of_is_no_damage_and_one_that_it_was_not_is(archived: Archived) -> None:
    put(archived.store, Family.BLOCKS, b"never archived", b"")
    archived.trim()
    assert len(archived.ship().holes) == 1
    assert archived.damage() == ""
    last = archived.pieces[-1]
    last.unlink()  # it had been archived and removed from the server
    archived.trim()
    assert len(archived.ship().holes) == 1
    assert "are lost" in archived.damage()


def test_what_a_prune_that_was_killed_has_left_is_no_damage(archived: Archived) -> None:
    """It removes what is older than the oldest backup."""
    for path in (archived.path / "target" / "backups").iterdir():
        path.unlink()
    archived.backup()
    archived.ship()
    assert archived.damage() == ""
    archived.pieces[4].unlink()
    assert archived.damage() == ""
    archived.pieces[-1].unlink()
    assert "had been archived to row" in archived.damage()
