"""A damaged data directory opened for what can still be read of it, through copies and links: nothing in it changes."""

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from rocksdict import Cache, DBRecoveryMode, Rdict

from topics_service.storage import closing, verify, walaside, walcheck
from topics_service.storage.boot import boot_id
from topics_service.storage.rocks import _FORMAT, _FORMAT_KEY, RocksStore, _name, _options, find_damage
from topics_service.storage.store import Family, StoreError, StoreOpenError, WriteBatch

_CACHE_BYTES: Final = 16 << 20
_LINKED: Final = ".sst"  # RocksDB never changes one
_FAMILY: Final = re.compile(r'^\[CFOptions "(.+)"\]$', re.MULTILINE)
_STRICT: Final = DBRecoveryMode.tolerate_corrupted_tail_records()
_LENIENT: Final = DBRecoveryMode.skip_any_corrupted_record()


class Opened(NamedTuple):
    """The rows that can be read. `notes`: what had to be done for it, in words. `log_damaged`: writes at the end may be
    missing. `lost`: tables that are gone or can't be read at all."""

    source: verify.DirectorySource
    notes: list[str]
    log_damaged: bool
    lost: list[str]


@contextmanager
def opened(path: Path, scratch: Path) -> Iterator[Opened]:
    """The data directory `path`, however damaged it is. `scratch` is made, on any file system, and left behind.

    Needs the space of the write-ahead log (64 MiB), twice. Raises StoreOpenError when nothing helps, and OSError.
    """
    scratch.mkdir(parents=True)
    failures: list[str] = []
    for number, way in enumerate((_as_it_is, _past_damage, _rebuilt)):
        own = scratch / str(number)
        _links(path, own)
        store: _ScratchStore | None = None
        try:
            notes, lost = way(path, own)
            store = _ScratchStore(own, _STRICT if way is _as_it_is else _LENIENT)
            found = store.get(Family.META, _FORMAT_KEY)
            if found not in (_FORMAT, None):
                raise StoreOpenError(f"the data directory {path} has the format {found!r}, this repairs {_FORMAT!r}")
        except StoreError as error:
            if store is not None:
                store.close()
            failures.append(str(error).replace(str(own), str(path)))
            continue
        damage = _log_damage(path) if failures else None
        if damage is not None:
            notes.append(f"{damage}: what was written there is lost, what follows is not")
        try:
            source = verify.DirectorySource(store, path, own, live=False)
            yield Opened(source, failures[:1] + notes, damage is not None, lost)
        finally:
            store.close()
        return
    raise StoreOpenError("; ".join(failures))


def _links(path: Path, own: Path) -> None:
    """A directory with the files of the database: tables as links, others as copies."""
    own.mkdir()
    for file in path.iterdir():
        if not file.is_file() or not closing.is_of_database(file.name):
            continue
        if file.suffix == _LINKED:
            (own / file.name).symlink_to(file.absolute())
        else:
            shutil.copyfile(file, own / file.name)


def _as_it_is(path: Path, own: Path) -> tuple[list[str], list[str]]:
    """As a server opens it."""
    broken = find_damage(path, boot_id())
    if broken is not None:
        walaside.set_aside(own, broken)
    return [], []


def _log_damage(path: Path) -> str | None:
    """What is wrong with the write-ahead log, in words, that a start would not pass over."""
    if closing.is_closed(path):
        return None
    if not walcheck.needed_by(path).families:
        return walcheck.named_damage(path)
    try:
        walcheck.find_break(path, boot_id())
    except walcheck.LostLogError as error:
        return str(error)
    return None


def _past_damage(path: Path, own: Path) -> tuple[list[str], list[str]]:
    """The log is replayed past its damage; everything else is there."""
    damage = closing.find_damage(path)
    if damage is not None:
        raise StoreOpenError(damage)
    if closing.is_headless(path):
        raise StoreOpenError(f"the file {path / 'CURRENT'} is missing")
    return [], []


def _rebuilt(path: Path, own: Path) -> tuple[list[str], list[str]]:
    """Make another manifest, of the tables that are there and of the log."""
    known = closing.known_files(path)
    gone: list[str] = []
    if known is not None:
        for file in own.glob("*.sst"):
            if file.name not in known:
                file.unlink()  # one that was to be removed
        gone = [name for name in known if name.endswith(".sst") and not (own / name).exists()]
    for file in [*own.glob("MANIFEST-*"), own / "CURRENT"]:
        file.unlink(missing_ok=True)
    notes = ["the manifest is made anew, of the tables that are there"]
    unknown = _make_families_known(own)
    if unknown is not None:
        notes.append(unknown)
    try:
        Rdict.repair(str(own), _options(Family.META, Cache(_CACHE_BYTES), 0))
    except Exception as error:  # rocksdict raises bare Exception
        raise StoreOpenError(f"no manifest can be made of the tables: {error}") from error
    lost = sorted({*gone, *(file.name for file in (own / "lost").glob("*.sst"))})
    return [*notes, *(f"the table {name} is lost as a whole" for name in lost)], lost


def _make_families_known(own: Path) -> str | None:
    """Add a table to each family, with nothing but the removal of a row that is not there; or say why not.

    RocksDB takes from tables which families there are, and drops what the log has of others. Its options file has them
    in the order of their numbers.
    """
    files = sorted(own.glob("OPTIONS-*"), key=lambda file: int(file.name.rpartition("-")[2].partition(".")[0]))
    names = _FAMILY.findall(files[-1].read_text(errors="replace")) if files else []
    if names[:1] != ["default"] or not set(names) <= {_name(family) for family in Family}:
        return (
            "no OPTIONS file tells the families of rows in the write-ahead log: of those without a table they are lost"
        )
    seeds, cache = own / "seeds", Cache(_CACHE_BYTES)
    store = Rdict(
        str(seeds), _options(Family.META, cache, 0), column_families={"default": _options(Family.META, cache, 0)}
    )
    for name in names:
        rows = store.get_column_family("default") if name == "default" else store.create_column_family(
            name, _options(Family.META, cache, 0)
        )  # fmt: skip
        rows.delete(b"\xff" * 40)
        rows.flush(True)
    del rows
    store.close()
    number = max((int(file.stem) for pattern in ("*.sst", "*.log") for file in own.glob(pattern)), default=0)
    for file in sorted(seeds.glob("*.sst")):
        number += 1
        file.rename(own / f"{number:06}.sst")
    shutil.rmtree(seeds)
    return None


class _ScratchStore(RocksStore):
    """A database in a directory of our own, which is thrown away."""

    def __init__(self, own: Path, recovery: DBRecoveryMode) -> None:
        """Raises StoreOpenError."""
        cache = Cache(_CACHE_BYTES)
        families = {_name(family): _options(family, cache, 0) for family in Family}
        default = _options(Family.META, cache, 0)
        for options in (default, *families.values()):
            options.set_wal_recovery_mode(recovery)
            options.set_disable_auto_compactions(True)
        try:
            self._db = Rdict(str(own), default, column_families=families)
        except Exception as error:  # rocksdict raises bare Exception
            raise StoreOpenError(str(error)) from error
        self._families = [self._db.get_column_family(_name(family)) for family in Family]
        self._handles = []

    def write(self, batch: WriteBatch) -> None:
        """Not here: raises StoreError."""
        raise StoreError("what is repaired is not written")

    def close(self) -> None:
        """Release the files."""
        self._release()
