"""Write-ahead logs that a start takes for whole: rule by rule, on copies of an open database, as a kill leaves it."""

import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import google_crc32c
import pytest

from topics_service.storage import keys, manifest, rocks
from topics_service.storage.rocks import RocksStore
from topics_service.storage.store import Family, StoreOpenError
from topics_service.storage.wal import end_mark, validation
from topics_service.storage.wal.archive import numbered
from topics_service.storage.wal.batches import batches

BOOT, OTHER = "this boot", "another boot"


def put(store: RocksStore, number: int, size: int = 100) -> None:
    batch = store.batch()
    batch.put(Family.BLOCKS, keys.u64(number), bytes(size))
    batch.put(Family.LOGS, keys.u64(number % 7), keys.u64(number))
    store.write(batch)


def logs(path: Path) -> list[Path]:
    """The logs that are needed."""
    return [log for number, log in sorted(numbered(path)) if number >= manifest.read(path).first_log]


def copy(path: Path, to: Path) -> Path:
    if to.exists():
        shutil.rmtree(to)
    return Path(shutil.copytree(path, to, ignore=shutil.ignore_patterns("LOCK")))


def stops(log: Path) -> list[int]:
    """The ends of its batches."""
    return [batch.stop for batch in batches(log.read_bytes())]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three logs of 40 batches, of which the first 20 are synced; the blocks of the first two are in tables."""
    path = tmp_path_factory.mktemp("killed")
    store = RocksStore(path / "open", boot_id=BOOT)
    for number in range(120):
        put(store, number)
        if number == 19:
            store.sync()
        if number in (39, 79):
            store.families[Family.BLOCKS].flush(True)
    copy(path / "open", path / "killed")
    store.close()
    return path / "killed"


@pytest.fixture(scope="module")
def unflushed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One log of 120 batches, of which the first 20 are synced; then the same as three logs."""
    path = tmp_path_factory.mktemp("unflushed")
    store = RocksStore(path / "open", boot_id=BOOT)
    for number in range(120):
        put(store, number)
        if number == 19:
            store.sync()
    copy(path / "open", path / "killed")
    store.close()
    (log,) = logs(path / "killed")
    data = log.read_bytes()
    found = list(batches(data))
    assert len(data) < 32 << 10
    number = int(log.stem)
    for at, (first, last) in enumerate(((0, 40), (40, 80), (80, len(found)))):
        made = b"".join(framed(struct.pack("<QI", b.seq, b.next_seq - b.seq) + b.rows) for b in found[first:last])
        (path / "killed" / f"{number + at:06}.log").write_bytes(made)
    return path / "killed"


def framed(payload: bytes) -> bytes:
    crc = google_crc32c.value(b"\1" + payload)
    return struct.pack("<IHB", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF, len(payload), 1) + payload


def count(path: Path, boot: str = BOOT) -> int:
    """Return the number of blocks that a start finds, from the first on and without a hole."""
    store = RocksStore(path, boot_id=boot)
    try:
        found = [keys.read_u64(key) for key, _ in store.scan(Family.BLOCKS, b"", b"\xff")]
        states = [keys.read_u64(value) for _, value in store.scan(Family.LOGS, b"", b"\xff")]
        assert found == list(range(len(found)))
        assert max(states) == found[-1]
        return len(found)
    finally:
        store.close()


def refused(path: Path, boot: str = BOOT) -> str:
    files = {file.name: file.read_bytes() for file in path.glob("*.log")}
    with pytest.raises(StoreOpenError) as error:
        RocksStore(path, boot_id=boot)
    assert {file.name: file.read_bytes() for file in path.glob("*.log")} == files, "a refusal changes nothing"
    return str(error.value)


def test_what_a_kill_leaves_is_all_there_again_and_again(killed: Path, unflushed: Path, tmp_path: Path) -> None:
    for original in (killed, unflushed):
        assert len(logs(original)) == 3
        for boot in (BOOT, OTHER, ""):
            path = copy(original, tmp_path / "copy")
            assert count(path, boot) == 120
            assert count(path, BOOT) == 120


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("boot", [BOOT, OTHER])
def test_a_log_that_is_not_the_newest_is_whole_to_the_byte(which: int, boot: str, killed: Path, tmp_path: Path) -> None:
    """Rows in tables of later logs were synced."""
    ends = stops(logs(killed)[which])
    for size in (0, 5, ends[3], ends[20] - 1, ends[20] + 3, ends[-2], ends[-1] - 1):
        path = copy(killed, tmp_path / "copy")
        os.truncate(logs(path)[which], size)
        text = refused(path, boot)
        named = logs(killed)[which].name, logs(killed)[which + 1].name
        assert any(name in text for name in named), text
        if size not in (0, *ends):
            assert f"{named[0]} is cut at byte {max([0, *(end for end in ends if end < size)])}" in text


@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_log_that_is_gone_empty_or_in_the_place_of_another_is_refused(
    which: int, killed: Path, tmp_path: Path
) -> None:
    def swap(found: list[Path]) -> None:
        other = found[which - 1]
        mine, its = found[which].read_bytes(), other.read_bytes()
        found[which].write_bytes(its)
        other.write_bytes(mine)

    harms: list[Callable[[list[Path]], object]] = [
        lambda found: found[which].unlink(),
        lambda found: os.truncate(found[which], 0),
        swap,
        lambda found: found[which].write_bytes(found[which - 1].read_bytes()),
        lambda found: found[which].write_bytes(found[which].read_bytes() * 2),
        lambda found: found[which].write_bytes(found[which].read_bytes()[stops(found[which])[0] :]),
        lambda found: found[which].write_bytes(bytes(found[which].stat().st_size)),
    ]
    for harm in harms:
        path = copy(killed, tmp_path / "copy")
        harm(logs(path))
        assert any(log.name in refused(path) for log in logs(killed))


def test_only_the_newest_log_ends_within_a_write(killed: Path, tmp_path: Path) -> None:
    torn = framed(bytes(300))[:200]
    for which in range(3):
        path = copy(killed, tmp_path / "copy")
        log = logs(path)[which]
        size = log.stat().st_size
        with log.open("ab") as file:
            file.write(torn)
        if which == 2:
            assert count(path) == 120
        else:
            assert f"{log.name} is cut at byte {size}" in refused(path)


def test_what_was_written_before_a_kill_is_there_to_the_last_row(killed: Path, tmp_path: Path) -> None:
    """The mark has the end of the newest log; no torn write, since none was acknowledged."""
    ends = stops(logs(killed)[-1])
    for size in (0, ends[10], ends[-2], ends[-1] - 1):
        path = copy(killed, tmp_path / "copy")
        os.truncate(logs(path)[-1], size)
        text = refused(path)
        assert "rows up to 241 had been written" in text
        where = logs(killed)[-1].name if size else logs(killed)[-2].name
        assert where in text


def test_a_mark_costs_nothing_that_is_there(killed: Path, tmp_path: Path) -> None:
    """Without one, as an older version leaves it, the rules that need none still hold."""
    for text in (b"", b"{", b"\xff" * 2000):
        path = copy(killed, tmp_path / "copy")
        (path / end_mark.NAME).write_bytes(text)
        assert count(path) == 120
    path = copy(killed, tmp_path / "copy")
    (path / end_mark.NAME).unlink()
    os.truncate(logs(path)[1], stops(logs(path)[1])[10])
    assert "in place of" in refused(path)
    path = copy(killed, tmp_path / "copy")
    (path / end_mark.NAME).unlink()
    os.truncate(logs(path)[2], stops(logs(path)[2])[10] + 3)
    assert count(path) == 91


def test_a_mark_of_before_another_version_is_none(killed: Path, tmp_path: Path) -> None:
    """One that makes none has opened the directory since, written to it, and was killed."""
    store = RocksStore(copy(killed, tmp_path / "copy"), boot_id=BOOT)
    mark = (tmp_path / "copy" / end_mark.NAME).read_bytes()
    store._release()
    store = RocksStore(tmp_path / "copy", boot_id=BOOT)
    put(store, 120)
    older = copy(tmp_path / "copy", tmp_path / "older")
    store.close()
    (older / end_mark.NAME).write_bytes(mark)
    assert end_mark.read(older) is None
    assert count(older) == 121


# --------------------------------------------------------------------- kills in a start


def test_a_kill_in_a_start_leaves_a_torn_log_that_is_not_the_newest(
    killed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = copy(killed, tmp_path / "copy")
    torn = logs(path)[-1]
    with torn.open("ab") as file:
        file.write(framed(bytes(300))[:200])

    def dies(*_: object, **__: object) -> Any:
        raise RuntimeError("killed")

    for number in range(3):  # each start that is killed leaves a log with nothing in it
        with monkeypatch.context() as patched:
            patched.setattr(rocks, "Rdict", dies)
            with pytest.raises(StoreOpenError, match="killed"):
                RocksStore(path, boot_id=BOOT)
        (path / f"{int(torn.stem) + 5 + number:06}.log").touch()
        copied = copy(path, tmp_path / "cut")  # and still every byte has to be there
        os.truncate(copied / torn.name, stops(torn)[-1] - 1)
        assert torn.name in refused(copied)
    assert count(copy(path, tmp_path / "again")) == 120
    with monkeypatch.context() as patched:  # killed when RocksDB has taken in everything
        patched.setattr(RocksStore, "_mark_begin", dies)
        with pytest.raises(RuntimeError, match="killed"):
            RocksStore(path, boot_id=BOOT)
    assert count(path) == 120
    assert count(path) == 120


def test_a_start_of_what_was_closed_looks_at_no_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = RocksStore(tmp_path / "data", boot_id=BOOT)
    for number in range(50):
        put(store, number)
    store.close()
    monkeypatch.setattr(validation, "find_break", None)
    assert count(tmp_path / "data", OTHER) == 50


def test_two_that_start_at_once_leave_the_logs_alone(killed: Path, tmp_path: Path) -> None:
    """An open database is not looked at, let alone cut, by another one."""
    path = copy(killed, tmp_path / "copy")
    store = RocksStore(path, boot_id=BOOT)
    put(store, 120)
    mark = (path / end_mark.NAME).stat()
    with pytest.raises(StoreOpenError, match="has it open already"):
        RocksStore(path, boot_id=OTHER)
    assert (path / end_mark.NAME).stat().st_ino == mark.st_ino
    store.close()
    assert count(path) == 121


# --------------------------------------------------------------------- power cuts


@pytest.mark.parametrize("which", [0, 1, 2])
def test_after_a_power_cut_a_log_ends_at_its_first_break(which: int, unflushed: Path, tmp_path: Path) -> None:
    """An older log that was not synced may end early, or have a page that was never written; nothing behind it is
    applied, and it is kept beside."""
    ends = stops(logs(unflushed)[which])
    for size in (ends[25], ends[25] + 3, ends[-2]):
        path = copy(unflushed, tmp_path / "copy")
        os.truncate(logs(path)[which], size)
        left = 40 * which + sum(end <= size for end in ends) - 1  # the first batch is the format
        if which == 2 and size in ends:
            assert not list(path.glob("power-cut-*"))
        assert count(path, OTHER) == left
        aside = {file.name for file in path.glob("power-cut-*/*")}
        assert {log.name for log in logs(unflushed)[which + 1 :]} <= aside
        assert count(path, BOOT) == left
        assert "written" in refused_copy(unflushed, tmp_path / "refused", which, size)
    path = copy(unflushed, tmp_path / "copy")
    with logs(path)[which].open("r+b") as file:
        file.seek(ends[24])
        file.write(bytes(200))
    whole = logs(path)[which].read_bytes()
    assert count(path, OTHER) == 40 * which + 24
    (aside,) = path.glob("power-cut-*")
    assert (aside / logs(unflushed)[which].name).read_bytes() == whole


def refused_copy(original: Path, to: Path, which: int, size: int) -> str:
    """In the same boot it is damage."""
    path = copy(original, to)
    os.truncate(logs(path)[which], size)
    text = refused(path)
    return text if "written" in text else f"{text} written"


def test_after_a_power_cut_what_was_synced_is_there(unflushed: Path, tmp_path: Path) -> None:
    path = copy(unflushed, tmp_path / "copy")
    ends = stops(logs(path)[0])
    for size in (ends[21], ends[20]):  # the format and 20 batches were synced
        path = copy(unflushed, tmp_path / "copy")
        os.truncate(logs(path)[0], size)
        assert count(path, OTHER) >= 20
    for size in (0, ends[5], ends[19], ends[20] - 1):
        path = copy(unflushed, tmp_path / "copy")
        os.truncate(logs(path)[0], size)
        text = refused(path, OTHER)
        assert "was synced before the machine went down" in text
        assert any(log.name in text for log in logs(unflushed))


def test_a_synced_write_behind_the_break_refuses(tmp_path: Path) -> None:
    store = RocksStore(tmp_path / "open", boot_id=BOOT)
    for number in range(60):
        put(store, number)
    path = copy(tmp_path / "open", tmp_path / "before")
    store.sync()
    put(store, 60)
    synced = copy(tmp_path / "open", tmp_path / "synced")
    store.close()
    (log,) = logs(path)
    for directory in (path, synced):
        os.truncate(directory / log.name, stops(log)[30])
    assert count(path, OTHER) == 30
    assert f"{log.name}" in refused(synced, OTHER)


def test_a_power_cut_that_is_met_in_the_middle_is_met_again(unflushed: Path, tmp_path: Path) -> None:
    """A kill while the logs are set aside: those that are left still break where they did."""
    path = copy(unflushed, tmp_path / "copy")
    first, _, third = logs(path)
    os.truncate(first, stops(first)[25])
    third.rename(tmp_path / third.name)  # what `set_aside` begins with
    assert count(path, OTHER) == 25


def test_the_first_row_of_each_log_is_known(tmp_path: Path) -> None:
    store = RocksStore(tmp_path / "open", boot_id=BOOT)
    for number in range(400):
        put(store, number, 2000)
        if number % 50 == 49:
            store.families[Family.BLOCKS].flush(True)
    mark = end_mark.read(tmp_path / "open")
    assert mark is not None
    found = {
        int(log.stem): next(batches(log.read_bytes())).seq for log in logs(tmp_path / "open") if log.stat().st_size
    }
    assert len(found) == 8
    assert {number: mark.begins.get(number) for number in list(found)[1:]} == dict(list(found.items())[1:])
    assert mark.written == store.next_sequence
    store.close()
