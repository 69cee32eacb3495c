"""What every target promises, for a folder and for an object store in memory; and what is left of a killed write."""

import errno
import os
import random
from pathlib import Path

import pytest
from obstore.store import MemoryStore

from topics_backup import objects
from topics_backup import target as target_module
from topics_backup.errors import AbsentError, BackupError
from topics_backup.objects import Objects
from topics_backup.target import Folder, Target, open_target


@pytest.fixture(params=["folder", "objects"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Target:
    return Folder(tmp_path / "a" / "target") if request.param == "folder" else Objects(MemoryStore(), "memory")


def read(target: Target, name: str) -> bytes:
    return b"".join(target.read(name))


def names(target: Target, prefix: str) -> list[str]:
    return sorted(entry.name for entry in target.list(prefix))


def test_what_is_put_is_read_and_listed(target: Target, tmp_path: Path) -> None:
    big = random.Random(1).randbytes(12_345_678)
    (tmp_path / "big").write_bytes(big)
    target.put("x/1", b"one")
    target.put_file("y/ab/big", tmp_path / "big")
    target.put("y/empty", b"")
    assert read(target, "x/1") == b"one"
    assert read(target, "y/ab/big") == big
    assert read(target, "y/empty") == b""
    assert names(target, "x/") == ["x/1"]
    entries = {entry.name: entry for entry in target.list("y/")}
    assert {name: entry.size for name, entry in entries.items()} == {"y/ab/big": len(big), "y/empty": 0}
    assert abs(entries["y/ab/big"].modified - (tmp_path / "big").stat().st_mtime) < 60


def test_the_last_put_wins(target: Target) -> None:
    target.put("x/1", b"one")
    target.put("x/1", b"two")
    assert read(target, "x/1") == b"two"
    assert names(target, "x/") == ["x/1"]


def test_a_file_in_a_folder_has_its_content_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the content is made durable, however small it is."""
    synced: list[tuple[bool, bytes]] = []

    def sync(path: Path) -> None:
        if path.is_file():
            synced.append(((tmp_path / "x" / "1").exists(), path.read_bytes()))

    monkeypatch.setattr(target_module, "sync", sync)
    Folder(tmp_path).put("x/1", b"one")
    assert synced == [(False, b"one")]
    (tmp_path / "given").write_bytes(b"two")
    Folder(tmp_path).put_file("x/2", tmp_path / "given")
    assert synced[1:] == [(True, b"two")]


def test_what_is_not_there(target: Target, tmp_path: Path) -> None:
    assert names(target, "x/") == []
    with pytest.raises(AbsentError):
        read(target, "x/1")
    target.delete(["x/1", "x/2"])
    with pytest.raises(FileNotFoundError):
        target.put_file("x/1", tmp_path / "none")
    assert names(target, "x/") == []


def test_what_is_deleted_is_gone(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "_DELETE", 10)  # in one call
    for number in range(44):
        target.put(f"x/{number}", b"1")
    target.delete([f"x/{number}" for number in range(0, 44, 2)] + ["x/none"])
    assert names(target, "x/") == sorted(f"x/{number}" for number in range(1, 44, 2))
    target.delete(["x/1"])
    with pytest.raises(AbsentError):
        read(target, "x/1")


def test_what_a_killed_writer_left_is_cleaned_after_a_while(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.put("x/1", b"one")
    for name, age in ((".part-old", 5000), (".part-new", 10)):
        (tmp_path / name).write_bytes(b"half")
        stamp = (tmp_path / name).stat().st_mtime - age
        os.utime(tmp_path / name, (stamp, stamp))
    folder.clean(1000)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".part-new", "x"]


def test_a_folder_that_is_full_or_closed_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BackupError, match="file"):
        Folder(tmp_path / "file").put("x", b"1")
    (tmp_path / "folder" / "x").mkdir(parents=True)
    with pytest.raises(BackupError, match="Is a directory"):
        Folder(tmp_path / "folder").put("x", b"1")
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["x"]


def test_in_a_folder_a_file_is_durable_before_it_has_its_name_and_then_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    rename = Path.rename

    def synced(path: Path) -> None:
        steps.append(f"sync {'part' if path.name.startswith('.part-') else path.relative_to(tmp_path)}")

    def renamed(path: Path, to: Path) -> Path:
        steps.append(f"rename {to.relative_to(tmp_path)}")
        return rename(path, to)

    monkeypatch.setattr(target_module, "sync", synced)
    monkeypatch.setattr(Path, "rename", renamed)
    (tmp_path / "source").write_bytes(b"content")
    Folder(tmp_path / "root").put_file("files/ab/1", tmp_path / "source")
    Folder(tmp_path / "root").put("backups/1.json", b"{}")
    assert steps == [
        "sync .",
        "sync part",
        "sync root",
        "sync root/files",
        "rename root/files/ab/1",
        "sync root/files/ab",
        "sync part",
        "sync root",
        "rename root/backups/1.json",
        "sync root/backups",
    ]


def test_names_of_targets(tmp_path: Path) -> None:
    assert str(open_target(str(tmp_path))) == str(tmp_path)
    assert str(open_target(f"file://{tmp_path}")) == str(tmp_path)
    for text in ("", "file://here", "ftp://x/y"):
        with pytest.raises(BackupError):
            open_target(text)


def test_a_directory_that_cannot_be_listed_is_not_an_empty_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a prune that may not read the manifests would take every file for unneeded."""
    folder, scan = Folder(tmp_path), os.scandir
    folder.put("backups/1", b"one")
    folder.put("files/1", b"one")

    def refusing(path: str) -> object:
        if str(path).endswith("backups"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refusing)  # the tests may run as root, which may read everything
    with pytest.raises(BackupError, match=r"backups.*Permission denied"):
        list(folder.list("backups/"))
    assert names(folder, "files/") == ["files/1"]
