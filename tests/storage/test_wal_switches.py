"""Counting the log files that RocksDB begins."""

from pathlib import Path

from topics_service.storage.rocks import RocksStore
from topics_service.storage.store import Family
from topics_service.storage.wal.switches import SwitchCounter


def test_new_numbers_count_once(tmp_path: Path) -> None:
    for name in ("000004.log", "LOG", "x.log", "000009.sst"):
        (tmp_path / name).touch()
    files = SwitchCounter(tmp_path)
    assert files.switches() == 0
    (tmp_path / "000011.log").touch()
    (tmp_path / "000012.log").touch()
    (tmp_path / "000004.log").unlink()
    assert files.switches() == 2
    assert files.switches() == 2


def test_a_store_that_switches(tmp_path: Path) -> None:
    store = RocksStore(tmp_path / "db", write_buffer_bytes=64 << 10)
    assert store.wal_switches() == 0
    while not store.wal_switches():  # full memtables are flushed, each into a new log
        batch = store.batch()
        batch.put(Family.BLOCKS, b"k", bytes(1 << 20))
        store.write(batch)
    store.close()
