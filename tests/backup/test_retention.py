"""Files that a prune removes and keeps, also during a backup; on both kinds of target."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec import structs
from obstore.store import MemoryStore

from topics_backup import creation, pruning, repository, restoring
from topics_backup.errors import BackupError
from topics_backup.inventory import Found
from topics_backup.log import Piece, lines
from topics_backup.manifest import BACKUPS, FILES, LogPoint, Manifest, encode
from topics_backup.objects import Objects
from topics_backup.target import Entry, Folder, Target

DAY = 86_400.0


class Aging:
    """A target whose clock can be moved, to look at what would be of it a day later."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self.now = 1e9
        self._modified: dict[str, float] = {}
        self.before_put: Callable[[str], None] = lambda _name: None

    def put(self, name: str, data: bytes) -> None:
        self.before_put(name)
        self._target.put(name, data)
        self._modified[name] = self.now

    def put_file(self, name: str, source: Path) -> None:
        self.before_put(name)
        self._target.put_file(name, source)
        self._modified[name] = self.now

    def read(self, name: str) -> Iterator[bytes]:
        return self._target.read(name)

    def list(self, prefix: str) -> Iterator[Entry]:
        for entry in self._target.list(prefix):
            yield entry._replace(modified=self._modified[entry.name])

    def delete(self, names: "list[str]") -> None:
        self._target.delete(names)

    def clean(self, seconds: float) -> None:
        self._target.clean(seconds)


@pytest.fixture(params=["folder", "objects"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Aging:
    return Aging(Folder(tmp_path / "target") if request.param == "folder" else Objects(MemoryStore(), "memory"))


class Source:
    """Makes backups, each with one file of its own and one that all share, without a database."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        folder.mkdir()
        self.folder = folder
        (folder / "shared.sst").write_bytes(b"shared")
        (folder / "CURRENT").write_bytes(b"MANIFEST")
        monkeypatch.setattr(creation.inventory, "read", lambda _directory: Found([], 1, 0))

    def backup(self, target: Target, own: str, created_ms: int = 0) -> Manifest:
        for path in self.folder.glob("own*"):
            path.unlink()
        (self.folder / f"own-{own}.sst").write_bytes(own.encode())
        return creation.create(target, self.folder, created_ms, self.folder)


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Source:
    return Source(tmp_path / "checkpoint", monkeypatch)


def intact(target: Target) -> list[str]:
    found = restoring.verify(target)
    assert not [each.damage for each in found if each.damage]
    return sorted(each.id for each in found)


def stored(target: Target) -> int:
    return len(list(target.list(FILES)))


def test_the_newest_are_kept(target: Aging, source: Source) -> None:
    made = [source.backup(target, f"{number}", number * 1000).id for number in range(6)]
    done = pruning.prune(target, keep=2)
    assert done.backups == made[:4]
    assert done.files == 0
    assert done.waiting == 4
    assert intact(target) == made[4:]
    assert stored(target) == 8


def test_those_of_the_last_days_are_kept(target: Aging, source: Source) -> None:
    made = [source.backup(target, f"{number}", int(number * DAY * 1000)).id for number in range(10)]
    assert pruning.prune(target, keep_days=3, now_ms=int(10 * DAY * 1000)).backups == made[:7]
    assert pruning.prune(target, keep=2, keep_days=1, now_ms=int(10 * DAY * 1000)).backups == [made[7]]
    assert pruning.prune(target, keep_days=1, now_ms=int(1000 * DAY * 1000)).backups == [made[8]]
    assert intact(target) == [made[9]], "the newest stays, however old it is"


def test_files_go_a_day_after_they_were_seen_to_be_unneeded(target: Aging, source: Source) -> None:
    for number in range(3):
        source.backup(target, f"{number}", number)
    target.now += 10
    assert pruning.prune(target, keep=1).waiting == 2
    target.now += DAY - 1
    assert pruning.prune(target, keep=1)[1:] == (0, 0, 2)
    target.now += 1
    done = pruning.prune(target, keep=1)
    assert done[1:] == (2, 2, 0)
    assert stored(target) == 3
    assert not list(target.list(pruning.LISTS)) or len(list(target.list(pruning.LISTS))) == 1
    target.now += DAY
    assert pruning.prune(target, keep=1)[1:] == (0, 0, 0)
    assert not list(target.list(pruning.LISTS))
    assert len(intact(target)) == 1


def test_at_once_where_nobody_makes_one(target: Aging, source: Source) -> None:
    for number in range(3):
        source.backup(target, f"{number}", number)
    assert pruning.prune(target, keep=1, grace=0)[1:] == (2, 2, 0)
    assert len(intact(target)) == 1


def test_a_backup_writes_again_what_is_to_go(target: Aging, source: Source) -> None:
    source.backup(target, "a", 1)
    source.backup(target, "b", 2)
    target.now += 10
    pruning.prune(target, keep=1)  # the file of `a` is on a list
    target.now += 10
    assert source.backup(target, "a", 3).new_bytes == 1
    target.now += 2 * DAY
    pruning.prune(target, keep=1)
    assert len(intact(target)) == 1
    assert stored(target) == 4  # that of `b` is on a list now
    target.now += 2 * DAY
    pruning.prune(target, keep=1)
    assert stored(target) == 3
    assert len(intact(target)) == 1


def test_a_prune_beside_a_backup_that_found_a_file_there(target: Aging, source: Source) -> None:
    source.backup(target, "a", 1)
    source.backup(target, "b", 2)
    target.now += 10

    def prune_now(name: str) -> None:
        if name.startswith(BACKUPS):  # all files are there, the manifest is not
            target.before_put = lambda _name: None
            for _ in range(3):
                pruning.prune(target, keep=1)
                target.now += DAY / 2 - 1

    target.before_put = prune_now
    assert source.backup(target, "a", 3).new_bytes == 0
    for _ in range(3):
        pruning.prune(target, keep=2)
        target.now += DAY
    assert len(intact(target)) == 2


def test_a_backup_that_took_long_looks_again(target: Aging, source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    source.backup(target, "a", 1)
    source.backup(target, "b", 2)
    target.now += 10
    clock = [0.0]
    monkeypatch.setattr(creation.time, "monotonic", lambda: clock[0])
    (source.folder / "zzz.sst").write_bytes(b"slow")

    def slow(name: str) -> None:
        if name.startswith(FILES):
            target.before_put = lambda _name: None
            pruning.prune(target, keep=1)
            target.now += 2 * DAY
            clock[0] += 2 * DAY
            assert pruning.prune(target, keep=1).files == 1

    target.before_put = slow
    source.backup(target, "a", 3)
    pruning.prune(target, keep=2)
    assert len(intact(target)) == 2


def test_what_a_killed_backup_left_goes(target: Aging, source: Source) -> None:
    source.backup(target, "a", 1)

    class KilledError(Exception):
        pass

    def kill(name: str) -> None:
        if name.startswith(BACKUPS):
            raise KilledError

    target.before_put = kill
    with pytest.raises(KilledError):
        source.backup(target, "b", 2)
    target.before_put = lambda _name: None
    target.now += 10
    assert len(intact(target)) == 1
    assert pruning.prune(target, keep=5).waiting == 1
    target.now += DAY
    assert pruning.prune(target, keep=5).files == 1
    assert stored(target) == 3


def test_nothing_is_removed_where_a_manifest_can_not_be_read(target: Aging, source: Source) -> None:
    made = [source.backup(target, f"{number}", number) for number in range(3)]
    target.put(made[0].key, encode(made[0])[:-20])
    with pytest.raises(BackupError, match=f"{made[0].id}.*nothing was removed"):
        pruning.prune(target, keep=1, grace=0)
    assert repository.ids(target) == sorted(each.id for each in made)
    assert stored(target) == 5


def test_the_log_goes_with_the_backups_that_it_follows(target: Aging, source: Source) -> None:
    """Of a line without backups only when it is old: one may be being made."""
    pieces = [Piece(line, number, 0, 1, 1, 2, 0, 0, "0" * 64) for line in ("kept", "lost") for number in (3, 5, 7)]
    for piece in pieces:
        target.put(piece.key, b"x")
    for number in (3, 5):
        backup = structs.replace(source.backup(target, str(number), number), log=LogPoint("kept", number, 1, 0))
        target.put(backup.key, encode(backup))

    def left() -> dict[str, list[int]]:
        return {line: sorted(piece.number for piece in found) for line, found in lines(target).items()}

    pruning.prune(target, keep=2)
    assert left() == {"kept": [3, 5, 7], "lost": [3, 5, 7]}
    pruning.prune(target, keep=1)
    assert left() == {"kept": [5, 7], "lost": [3, 5, 7]}
    target.now += DAY - 1
    pruning.prune(target, keep=1)
    assert left() == {"kept": [5, 7], "lost": [3, 5, 7]}
    target.now += 1
    pruning.prune(target, keep=1)
    assert left() == {"kept": [5, 7]}
