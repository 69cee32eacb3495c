"""What a database remembers of its files over a close, and what it makes of them at the next open."""

from pathlib import Path

import pytest

from topics_service.storage import keys
from topics_service.storage.rocks import RocksStore
from topics_service.storage.store import Family, StoreOpenError


def filled(path: Path) -> RocksStore:
    store = RocksStore(path)
    for number in range(300):
        batch = store.batch()
        batch.put(Family.BLOCKS, keys.pair(1, number), bytes([number % 251]) * 997 + number.to_bytes(3, "big"))
        store.write(batch)
    return store


def test_a_closed_database_opens_again_and_again(tmp_path: Path) -> None:
    filled(tmp_path).close()
    for _ in range(3):
        store = RocksStore(tmp_path)
        assert not (tmp_path / "topics-files.json").exists(), "what is open is not known"
        assert len(list(store.scan(Family.BLOCKS, b"", b"\xff"))) == 300
        store.close()


@pytest.mark.parametrize("pattern", ["*.sst", "MANIFEST-*", "*.log"])
def test_a_file_that_is_gone_or_shorter_is_named(pattern: str, tmp_path: Path) -> None:
    filled(tmp_path).close()
    path = max(tmp_path.glob(pattern))
    content = path.read_bytes()
    path.unlink()
    with pytest.raises(StoreOpenError, match=f"{path.name} is missing"):
        RocksStore(tmp_path)
    path.write_bytes(content + b"x")
    with pytest.raises(StoreOpenError, match=f"{path.name} has {len(content) + 1} bytes, and had {len(content)}"):
        RocksStore(tmp_path)
    path.write_bytes(content)
    RocksStore(tmp_path).close()


def test_what_something_else_has_opened_since_is_not_compared(tmp_path: Path) -> None:
    """An older server, or one that was killed while it opened: CURRENT names another manifest then."""
    filled(tmp_path).close()
    known = (tmp_path / "topics-files.json").read_bytes()
    store = RocksStore(tmp_path)
    batch = store.batch()
    batch.put(Family.META, b"more", b"")
    store.write(batch)
    (tmp_path / "topics-files.json").write_bytes(known)
    store._release()  # as a kill leaves it
    RocksStore(tmp_path).close()


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"current": 1, "files": 2}'])
def test_a_list_that_is_damaged_itself_says_nothing(text: str, tmp_path: Path) -> None:
    filled(tmp_path).close()
    (tmp_path / "topics-files.json").write_text(text)
    RocksStore(tmp_path).close()


def test_no_database_is_begun_among_the_files_of_one(tmp_path: Path) -> None:
    filled(tmp_path).close()
    for path in [*tmp_path.glob("*.log"), tmp_path / "CURRENT"]:
        path.unlink()
    tables = sorted(tmp_path.glob("*.sst"))
    with pytest.raises(StoreOpenError, match="CURRENT is missing"):
        RocksStore(tmp_path)
    assert sorted(tmp_path.glob("*.sst")) == tables


def test_the_row_behind_a_damaged_block_is_found_from_behind(tmp_path: Path) -> None:
    """RocksDB reads the row before it, too, to know that it has no other version."""
    filled(tmp_path).close()
    table = max(tmp_path.glob("*.sst"), key=lambda path: path.stat().st_size)
    content = bytearray(table.read_bytes())
    content[len(content) // 2] ^= 0xFF
    table.write_bytes(content)
    store = RocksStore(tmp_path)
    wrong, failed = 0, []
    for number in range(300):
        try:
            found = store.floor(Family.BLOCKS, keys.pair(1, number))
        except Exception:
            failed.append(number)
        else:
            wrong += found is None or found[0] != keys.pair(1, number)
    lost = []
    for number in range(300):
        try:
            store.get(Family.BLOCKS, keys.pair(1, number))
        except Exception:
            lost.append(number)
    store.close()
    assert wrong == 0
    assert lost
    assert failed == lost == list(range(lost[0], lost[-1] + 1))
