"""Families that came later: databases of an earlier format, and of one that is not known yet."""

import re
from pathlib import Path

import pytest
from rocksdict import Options, Rdict

from support import kept_directory
from topics_service.storage import manifest, rocks, verify
from topics_service.storage.familyids import family_ids
from topics_service.storage.rocks import RocksStore
from topics_service.storage.secondary import SecondaryStore
from topics_service.storage.store import FIRST_FAMILIES, Family, StoreOpenError
from topics_service.storage.wal import archive

KEY = bytes(24)
ADDED = sorted(set(Family) - set(FIRST_FAMILIES))


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A directory of the first format."""
    directory = kept_directory.unpack(tmp_path)
    assert sorted(manifest.read(directory).families) == sorted(rocks._name(family) for family in FIRST_FAMILIES)
    return directory


def test_families_that_are_not_there_are_read_as_empty(old: Path, tmp_path: Path) -> None:
    follower = SecondaryStore(old, tmp_path / "follower")
    follower.catch_up()
    assert follower.get(Family.META, b"format") == b"topics-rocksdb-1"
    with verify.opened(old) as source:
        for family in ADDED:
            assert (follower.get(family, b"a"), source.get(family, b"a")) == (None, None)
            assert (follower.floor(family, b"a"), source.floor(family, b"a")) == (None, None)
            assert list(follower.scan(family, b"", b"\xff")) == list(source.rows(family)) == []
    follower.close()
    assert set(family_ids(old)) == set(FIRST_FAMILIES)


def test_a_move_to_the_format_adds_the_families_and_begins_a_new_line_of_the_log(old: Path) -> None:
    before = archive.line_of(old)
    assert before is not None
    store = RocksStore(old, keep_log=True)
    batch = store.batch()
    for family in ADDED:
        batch.put(family, KEY, b"1")
    store.write(batch)
    store.close()
    moved = archive.line_of(old)
    assert moved is not None
    assert (moved.id != before.id, moved.first > before.first) == (True, True)
    assert set(family_ids(old)) == set(Family)
    store = RocksStore(old, keep_log=True)
    assert [store.get(family, KEY) for family in ADDED] == [b"1"] * len(ADDED)
    store.close()
    assert archive.line_of(old) == moved


@pytest.mark.parametrize("step", ["_write_format", "sync"])
def test_a_move_that_breaks_off_begins_the_line_again(old: Path, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = archive.line_of(old)

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RocksStore, step, die)
        with pytest.raises(KeyboardInterrupt):
            RocksStore(old, keep_log=True)
    store = RocksStore(old, keep_log=True)
    store.close()
    assert archive.line_of(old) not in (None, before)


def test_a_family_of_a_later_version_is_refused_in_words(tmp_path: Path) -> None:
    store = RocksStore(tmp_path)
    store.close()
    families = {rocks._name(family): Options(raw_mode=True) for family in Family}
    later = Rdict(str(tmp_path), Options(raw_mode=True), column_families=families)
    later.create_column_family("later", Options(raw_mode=True))
    later.close()
    (tmp_path / "topics-files.json").unlink()
    with pytest.raises(StoreOpenError, match=re.escape("a later version wrote it") + ".*later"):
        RocksStore(tmp_path)
