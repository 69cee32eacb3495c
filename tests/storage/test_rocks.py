"""The store on disk: one owner, kill -9, torn and damaged files."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rocksdict import ReadOptions

from topics_service.engine.blocks import BlockCache, LogBlocks
from topics_service.engine.errors import TopicsError
from topics_service.storage import keys
from topics_service.storage.block import build, encode
from topics_service.storage.memory import MemoryStore
from topics_service.storage.rocks import RocksStore
from topics_service.storage.store import Family, StoreError, StoreOpenError

B = Family.BLOCKS
_CHILD = """
import sys
from pathlib import Path
from topics_service.storage.rocks import RocksStore
from topics_service.storage.store import Family, StoreOpenError
try:
    store = RocksStore(Path(sys.argv[1]))
except StoreOpenError as error:
    print("refused", error, flush=True)
    sys.exit(3)
for i in range(int(sys.argv[2])):
    batch = store.batch()
    batch.put(Family.BLOCKS, b"%06d" % i, b"value-%06d-" % i * int(sys.argv[4]))
    store.write(batch)
    if sys.argv[3] == "sync":
        store.sync()
print("written", flush=True)
sys.stdin.read()
"""


def child(path: Path, rows: int, sync: str = "", times: int = 20) -> "subprocess.Popen[str]":
    """A process that owns the directory and has written `rows` rows."""
    process = subprocess.Popen(
        [sys.executable, "-c", _CHILD, str(path), str(rows), sync, str(times)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "written\n"
    return process


def kill(process: "subprocess.Popen[str]") -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()


def killed(path: Path, rows: int, sync: str = "", times: int = 20) -> Path:
    """A directory that a killed process left; the path of its only log that holds data."""
    kill(child(path, rows, sync, times))
    return max(path.glob("*.log"), key=lambda log: log.stat().st_size)


def row(i: int, times: int = 20) -> tuple[bytes, bytes]:
    return b"%06d" % i, b"value-%06d-" % i * times


def rows(path: Path) -> list[tuple[bytes, bytes]]:
    store = RocksStore(path)
    try:
        return list(store.scan(B, b"", b"\xff"))
    finally:
        store.close()


def rows_or_refusal(path: Path) -> tuple[list[tuple[bytes, bytes]], str]:
    try:
        return rows(path), ""
    except StoreOpenError as error:
        return [], str(error)


def flip(path: Path, at: int) -> None:
    value = bytearray(path.read_bytes())
    value[at] ^= 0x40
    path.write_bytes(value)


def test_what_was_written_is_there_after_close(tmp_path: Path) -> None:
    store = RocksStore(tmp_path / "db")
    batch = store.batch()
    batch.put(B, b"k", b"v")
    batch.put(Family.TAGS, b"t", b"v")
    store.write(batch)
    store.close()
    store = RocksStore(tmp_path / "db")
    assert (store.get(B, b"k"), store.get(Family.TAGS, b"t")) == (b"v", b"v")
    store.close()


def test_a_second_process_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "db"
    store = RocksStore(path)
    second = subprocess.run(
        [sys.executable, "-c", _CHILD, str(path), "1", "", "1"], capture_output=True, text=True, check=False
    )
    assert second.returncode == 3
    assert str(path) in second.stdout
    batch = store.batch()
    batch.put(B, *row(0))
    store.write(batch)
    store.close()
    assert rows(path) == [row(0)]


def test_a_second_open_in_the_same_process_is_refused(tmp_path: Path) -> None:
    store = RocksStore(tmp_path / "db")
    with pytest.raises(StoreOpenError, match="db"):
        RocksStore(tmp_path / "db")
    store.close()


def test_the_directory_is_locked_until_its_owner_dies(tmp_path: Path) -> None:
    path = tmp_path / "db"
    process = child(path, 10)
    with pytest.raises(StoreOpenError):
        RocksStore(path)
    kill(process)
    assert len(rows(path)) == 10


@pytest.mark.parametrize("sync", ["", "sync"])
def test_kill_9_loses_nothing_that_was_written(tmp_path: Path, sync: str) -> None:
    path = tmp_path / "db"
    killed(path, 300, sync)
    assert rows(path) == [row(i) for i in range(300)]
    assert rows(path) == [row(i) for i in range(300)], "nor does a second start"


@pytest.mark.parametrize("cut", [1, 100, 300])
def test_a_torn_tail_is_cut(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "db"
    log = killed(path, 300)
    os.truncate(log, log.stat().st_size - cut)
    found = rows(path)
    assert found == [row(i) for i in range(len(found))]
    assert 297 <= len(found) < 300


@pytest.mark.parametrize("where", [0.2, 0.5])
def test_damage_in_the_middle_of_the_log_refuses_to_open(tmp_path: Path, where: float) -> None:
    path = tmp_path / "db"
    log = killed(path, 600, "sync")
    flip(log, int(log.stat().st_size * where))
    before = log.read_bytes()
    with pytest.raises(StoreOpenError) as error:
        RocksStore(path)
    assert log.name in str(error.value)
    assert log.read_bytes() == before, "the evidence is left alone"


def test_no_flipped_byte_near_the_end_of_the_log_is_taken_for_a_torn_tail(tmp_path: Path) -> None:
    path = tmp_path / "db"
    log = killed(path, 8, "sync", times=1)
    copies = tmp_path / "copies"
    size, lost = log.stat().st_size, []
    assert size < 32 << 10
    for at in range(size - 100, size):
        copy = copies / str(at)
        shutil.copytree(path, copy)
        flip(copy / log.name, at)
        found, refusal = rows_or_refusal(copy)
        shutil.rmtree(copy)
        if refusal:
            assert log.name in refusal
            continue
        assert found == [row(i, 1) for i in range(7)], "only the very last record may look torn"
        lost.append(at)
    assert len(lost) <= 2  # the two bytes of its length


def test_another_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "db"
    store = RocksStore(path)
    batch = store.batch()
    batch.put(Family.META, b"format", b"topics-rocksdb-9")
    store.write(batch)
    store.close()
    with pytest.raises(StoreOpenError, match="topics-rocksdb-9"):
        RocksStore(path)
    with pytest.raises(StoreOpenError, match="topics-rocksdb-9"):  # the refusal released the lock
        RocksStore(path)


def test_a_path_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "db").write_bytes(b"")
    with pytest.raises(StoreOpenError, match="db"):
        RocksStore(tmp_path / "db")


@pytest.mark.parametrize("name", ["CURRENT", "MANIFEST-*"])
def test_a_damaged_manifest_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "db"
    killed(path, 10)
    flip(next(path.glob(name)), 3)
    with pytest.raises(StoreOpenError, match=str(path)):
        RocksStore(path)


@pytest.fixture
def damaged(tmp_path: Path) -> RocksStore:
    """60 blocks of one log in an SST whose middle has a flipped byte."""
    path = tmp_path / "db"
    store = RocksStore(path)
    for i in range(60):
        block = build(1, 1 + i, 5, [os.urandom(3000)], None, None, None, None, 0)
        batch = store.batch()
        batch.put(B, keys.pair(1, 1 + i), encode(block))
        store.write(batch)
    store.close()
    sst = max(path.glob("*.sst"), key=lambda file: file.stat().st_size)
    flip(sst, sst.stat().st_size // 2)
    return RocksStore(path)


def refusal(read: Callable[[bytes], object], seq: int) -> str:
    """What the read of a block says: nothing if all is well; anything but a store error fails the test."""
    try:
        read(keys.pair(1, seq))
    except StoreError as error:
        return str(error)
    return ""


def test_a_scan_walks_no_deleted_rows_behind_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def impatient() -> ReadOptions:
        options = ReadOptions()
        options.set_max_skippable_internal_keys(10)
        return options

    store = RocksStore(tmp_path / "data")
    batch = store.batch()
    for i in range(1000):
        batch.put(B, b"%04d" % i, b"value")
        if i:
            batch.delete(B, b"%04d" % i)
    store.write(batch)
    monkeypatch.setattr("topics_service.storage.rocks.ReadOptions", impatient)
    with pytest.raises(StoreError, match="Too many internal keys"):
        list(store.scan(B, b"0001", b"9999"))
    assert list(store.scan(B, b"0001", b"0002")) == []
    assert list(store.scan(B, b"0000", b"0002")) == [(b"0000", b"value")]
    store.close()


def test_bounds_of_scans_live_as_long_as_the_scans(tmp_path: Path) -> None:
    store = RocksStore(tmp_path / "data")
    batch = store.batch()
    for i in range(1000):
        batch.put(B, b"%04d" % i, b"")
    store.write(batch)
    scans = [(i, store.scan(B, b"%04d" % i, b"%04d" % (i + i % 7))) for i in range(900)]
    firsts = [next(rows, None) for _, rows in scans]
    junk = [bytes(4 + i % 60) for i in range(10_000)]
    for (i, rows), first in zip(scans, firsts, strict=True):
        found = [row[0] for row in (first, *rows) if row is not None]
        assert found == [b"%04d" % (i + n) for n in range(i % 7)]
    assert junk
    store.close()


@pytest.mark.parametrize("how", ["get", "floor", "scan"])
def test_a_damaged_table_fails_only_the_reads_that_need_it(damaged: RocksStore, how: str) -> None:
    ways: dict[str, Callable[[bytes], object]] = {
        "get": lambda key: damaged.get(B, key),
        "floor": lambda key: damaged.floor(B, key),
        "scan": lambda key: list(damaged.scan(B, key, key + b"\x00")),
    }
    refusals = [said for seq in range(1, 61) if (said := refusal(ways[how], seq))]
    assert 0 < len(refusals) <= 3
    assert all("Corruption" in said and ".sst" in said for said in refusals)
    damaged.close()


def test_the_engine_names_the_record_that_a_damaged_table_held(damaged: RocksStore) -> None:
    blocks = LogBlocks(1, BlockCache(0), damaged, MemoryStore())
    lost = {}
    for seq in range(1, 61):
        try:
            assert blocks.find(seq).base_seq == seq
        except TopicsError as error:
            lost[seq] = error
    assert 0 < len(lost) <= 3
    for seq, error in lost.items():
        assert error.reason.code == "internal"
        assert f"record {seq} of log 1" in error.message
    damaged.close()
