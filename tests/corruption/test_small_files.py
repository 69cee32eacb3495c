"""A changed byte in the server's small files: it is reported, and never misread."""

from pathlib import Path

import msgspec
import pytest
from corruption.harness import flip
from corruption.test_clean_shutdown import filled

from topics_backup import log
from topics_backup.log import Piece
from topics_backup.target import Folder
from topics_server.repair import RepairError, RepairObserver, repair
from topics_server.verify import verify
from topics_service.engine.verify import Problem
from topics_service.storage import checksummed, clean_shutdown
from topics_service.storage import repair as storage
from topics_service.storage.repair_swap import Swap
from topics_service.storage.rocks import RocksStore
from topics_service.storage.store import StoreOpenError

QUIET = RepairObserver(note=lambda _: None, problem=lambda _: None, action=lambda _: None)


def changed(data: bytes, at: int, bit: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]


def test_no_changed_bit_is_taken_for_content() -> None:
    data = checksummed.encode(b'{"current": "MANIFEST-000005\\n", "files": {"000008.sst": 1241}}')
    for at in range(len(data)):
        for bit in range(8):
            with pytest.raises(checksummed.DamagedFileError, match="the file list is damaged"):
                checksummed.decode(changed(data, at, bit), "list")


def test_no_changed_byte_of_the_list_of_files_names_a_table_that_never_was(tmp_path: Path) -> None:
    """The file is ignored: an audit reports it, and a start continues without it."""
    filled(tmp_path).close()
    path = tmp_path / "topics-files.json"
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(changed(whole, at, at % 8))
        assert clean_shutdown.find_damage(tmp_path) is None
        assert clean_shutdown.known_files(tmp_path) is None
        assert str(path) in str(clean_shutdown.damaged_list(tmp_path))
    found: list[Problem] = []
    verify(tmp_path, found.append)
    assert path.name in {problem.file for problem in found}
    with storage.opened(tmp_path, tmp_path / "scratch") as opened:
        assert path.name in opened.notes[0]
    RocksStore(tmp_path).close()
    assert clean_shutdown.known_files(tmp_path) is not None


def test_a_list_of_an_older_version_counts_and_is_doubted(tmp_path: Path) -> None:
    filled(tmp_path).close()
    path = tmp_path / "topics-files.json"
    path.write_bytes(checksummed.decode(path.read_bytes(), ""))
    RocksStore(tmp_path).close()
    assert checksummed.has_checksum(path)
    path.write_bytes(checksummed.decode(path.read_bytes(), "").replace(b".sst", b".ssu", 1))
    with pytest.raises(StoreOpenError, match=r"\.ssu is missing, or .*topics-files.json is damaged"):
        RocksStore(tmp_path)


def test_a_note_of_damage_accuses_no_other_file(tmp_path: Path) -> None:
    """It keeps its meaning, that nothing is compacted, and not its words."""
    clean_shutdown.note_damage(tmp_path, "Corruption: in 000014.sst")
    assert clean_shutdown.known_damage(tmp_path) == "Corruption: in 000014.sst"
    flip(tmp_path / "topics-damage.txt", 20)
    for _ in range(2):
        damage = clean_shutdown.known_damage(tmp_path)
        assert damage is not None
        assert ".sst" not in damage
        (tmp_path / "topics-damage.txt").write_text("Corruption: in 000015.sst")  # as older versions did


def test_a_damaged_marker_of_a_repair_is_refused_and_nothing_is_removed(tmp_path: Path) -> None:
    """It was taken for none: then the new files were removed while the old ones were in the quarantine already."""
    filled(tmp_path).close()
    swap = Swap(tmp_path)
    swap.new.mkdir(parents=True)
    filled(swap.new).close()
    swap.begin("quarantine-1")
    marker = tmp_path / "topics-repair.json"
    whole = marker.read_bytes()
    before = sorted(tmp_path.rglob("*"))
    for at in range(0, len(whole), 7):
        marker.write_bytes(changed(whole, at, 2))
        for apply in (False, True):
            with pytest.raises(RepairError, match=r"topics-repair\.json is damaged"):
                repair(tmp_path, QUIET, apply=apply)
    assert sorted(tmp_path.rglob("*")) == [*before, tmp_path / "LOCK"] or sorted(tmp_path.rglob("*")) == before
    marker.write_bytes(whole)
    assert repair(tmp_path, QUIET, apply=True).resumed


def test_a_families_list_with_a_changed_header_is_not_counted_through(tmp_path: Path) -> None:
    """The families after it would each be taken for the one before."""
    filled(tmp_path).close()
    options = max(tmp_path.glob("OPTIONS-*"))
    options.write_text(options.read_text().replace('[CFOptions "logs"]', '[CFOptionr "logs"]'))
    (tmp_path / "CURRENT").unlink()
    for path in tmp_path.glob("MANIFEST-*"):
        path.unlink()
    with storage.opened(tmp_path, tmp_path / "scratch") as opened:
        assert any("OPTIONS" in note for note in opened.notes)


def test_a_changed_byte_does_not_say_that_more_of_a_log_is_archived(tmp_path: Path) -> None:
    target = Folder(tmp_path)
    piece = Piece("line", 1, 0, 10, 1, 5, 1000, 2000, "0" * 64)
    log.record_until(target, "line", log.Until(3000, 5))
    assert log._until_ms(target, "line", piece) == 3000
    path = tmp_path / "log" / "line" / "until.json"
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(changed(whole, at, at % 8))
        assert log._until_ms(target, "line", piece) == 0
    path.write_bytes(msgspec.json.encode({"ms": 4000, "next_seq": 5}))  # as older versions did
    assert log._until_ms(target, "line", piece) == 4000
