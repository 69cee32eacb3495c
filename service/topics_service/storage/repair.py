"""Opens a damaged data directory to read its intact parts, through copies and links: nothing in it changes."""

import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from rocksdict import Cache, DBRecoveryMode, Rdict

from topics_service.storage import clean_shutdown, damagedfiles, manifest, tablelist, tablemend, tables, verify
from topics_service.storage.boot import boot_id
from topics_service.storage.familyids import family_ids
from topics_service.storage.manifest import TableFacts
from topics_service.storage.rocks import _FORMAT, _FORMAT_KEY, _FORMATS, ReadingStore
from topics_service.storage.rocks_options import _name, _options
from topics_service.storage.starting import find_damage
from topics_service.storage.store import Family, StoreError, StoreOpenError
from topics_service.storage.wal import quarantine, validation

_CACHE_BYTES: Final = 16 << 20
_LINKED: Final = ".sst"  # RocksDB never changes one
_FAMILY: Final = re.compile(r'^\[CFOptions "(.+)"\]$', re.MULTILINE)
_FAMILY_TABLES: Final = re.compile(r'^\[TableOptions/BlockBasedTable "(.+)"\]$', re.MULTILINE)  # the same, once more
_STRICT: Final = DBRecoveryMode.tolerate_corrupted_tail_records()
_LENIENT: Final = DBRecoveryMode.skip_any_corrupted_record()


class Opened(NamedTuple):
    """The rows that can be read. `notes`: the measures taken, in words. `log_damaged`: writes at the end may be
    missing. `lost`: tables that are missing, unreadable, or of unknown extent. `revived`: in these families rows can be
    back whose range had been removed.
    """

    source: verify.DirectorySource
    notes: list[str]
    log_damaged: bool
    lost: list[str]
    revived: frozenset[Family]


class _Way(NamedTuple):
    """Outcome of one way to open a directory, as Opened has it."""

    notes: list[str]
    lost: list[str]
    revived: frozenset[Family] = frozenset()


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
            done = way(path, own)
            store = _ScratchStore(own, _STRICT if way is _as_it_is else _LENIENT)
            found = store.get(Family.META, _FORMAT_KEY)
            if found not in (*_FORMATS, None):
                raise StoreOpenError(f"the data directory {path} has the format {found!r}, this repairs {_FORMAT!r}")
        except StoreError as error:
            if store is not None:
                store.close()
            failures.append(str(error).replace(str(own), str(path)))
            continue
        damage = _log_damage(path) if failures else None
        if damage is not None:
            done.notes.append(f"{damage}: what was written there is lost, what follows is not")
        try:
            source = verify.DirectorySource(store, path, own, live=False)
            yield Opened(source, failures[:1] + done.notes, damage is not None, done.lost, done.revived)
        finally:
            store.close()
        return
    raise StoreOpenError("; ".join(failures))


def _links(path: Path, own: Path) -> None:
    """A directory with the files of the database: tables as links, others as copies."""
    own.mkdir()
    for file in path.iterdir():
        if not file.is_file() or not clean_shutdown.is_of_database(file.name):
            continue
        if file.suffix == _LINKED:
            (own / file.name).symlink_to(file.absolute())
        else:
            shutil.copyfile(file, own / file.name)


def _log_damage(path: Path) -> str | None:
    """Describe damage of the write-ahead log that a start would not skip."""
    if clean_shutdown.is_closed(path):
        return None
    if not validation.needed_by(path).families:
        return validation.named_damage(path)
    try:
        validation.find_break(path, boot_id())
    except validation.LostLogError as error:
        return str(error)
    return None


def _as_it_is(path: Path, own: Path) -> _Way:
    """As a server opens it, and every part of every table is sound."""
    broken = find_damage(path, boot_id())
    if broken is not None:
        quarantine.set_aside(own, broken)
    damage = next(damagedfiles.damaged_tables(path), None)
    if damage is not None:
        raise StoreOpenError(damage)
    return _Way([text for text in (clean_shutdown.damaged_list(path),) if text is not None], [])


def _past_damage(path: Path, own: Path) -> _Way:
    """Tables are made readable, the log is replayed past its damage; everything else is there."""
    notes = _make_current(path, own)
    try:
        listed = tablelist.live_tables(own)
    except (OSError, ValueError) as error:
        raise StoreOpenError(str(error).replace(str(own), str(path))) from None
    mended = _mend_tables(path, own, {f"{number:06}.sst": facts for number, facts in listed.items()})
    damage = clean_shutdown.find_damage(own, but=mended.sizes)
    if damage is not None:
        raise StoreOpenError(damage.replace(str(own), str(path)))
    resized = [
        (facts, mended.sizes[name]) for number, facts in listed.items() if (name := f"{number:06}.sst") in mended.sizes
    ]
    tablelist.resize(manifest.path_in(own), resized)
    return _Way(notes + mended.way.notes, mended.way.lost, mended.way.revived)


def _make_current(path: Path, own: Path) -> list[str]:
    """Let CURRENT lead to the manifest, where there is one and it does not."""
    damage = clean_shutdown.current_damage(own)
    manifests = list(own.glob("MANIFEST-*"))
    if (damage is None and not clean_shutdown.is_headless(own)) or len(manifests) != 1:
        return []
    (own / "CURRENT").write_text(f"{manifests[0].name}\n")
    return [f"{path / 'CURRENT'} is rebuilt: it leads to {manifests[0].name}"]


def _rebuilt(path: Path, own: Path) -> _Way:
    """Make another manifest, of the tables that are there and of the log."""
    known = clean_shutdown.known_files(path)
    gone: list[str] = []
    if known is not None:
        for file in own.glob("*.sst"):
            if file.name not in known:
                file.unlink()  # one that was to be removed
        gone = [name for name in known if name.endswith(".sst") and not (own / name).exists()]
    for file in [*own.glob("MANIFEST-*"), own / "CURRENT"]:
        file.unlink(missing_ok=True)
    mended = _mend_tables(path, own, {file.name: None for file in own.glob("*.sst")})
    notes = [*mended.way.notes, "the manifest is rebuilt from the existing tables"]
    unknown = _make_families_known(own)
    if unknown is not None:
        notes.append(unknown)
    try:
        Rdict.repair(str(own), _options(Family.META, Cache(_CACHE_BYTES), 0))
    except Exception as error:  # rocksdict raises bare Exception
        raise StoreOpenError(f"no manifest can be made of the tables: {error}") from error
    lost = {*gone, *(file.name for file in (own / "lost").glob("*.sst"))}
    notes += [f"the table {name} is lost as a whole" for name in sorted(lost)]
    return _Way(notes, sorted(lost | {*mended.way.lost}), mended.way.revived)


class _Mended(NamedTuple):
    """The sizes of the rebuilt tables, by name."""

    way: _Way
    sizes: dict[str, int]


def _mend_tables(path: Path, own: Path, listed: Mapping[str, TableFacts | None]) -> _Mended:
    """Put readable files in the place of tables that are damaged around their rows. What is known of them helps."""
    notes, lost, revived, sizes = list[str](), list[str](), set[Family](), dict[str, int]()
    for name, facts in sorted(listed.items()):
        file = own / name
        part = tables.damaged_part(file) if file.exists() else None
        if part is None:
            continue
        mended = tablemend.mend(file.read_bytes(), None if facts is None else facts.last_key)
        if mended is None:
            continue
        file.unlink()
        file.write_bytes(mended.data)
        sizes[name] = len(mended.data)
        how = (
            "one byte is put right"
            if part == "range deletions" and not mended.ranges_lost
            else "its rows are read without"
        )
        notes.append(f"the {part} of the table {path / name}: {how}")
        if mended.end_lost:
            notes.append(f"it is lost how many rows the table {path / name} had: it may have had more than can be read")
            lost.append(name)
        if mended.ranges_lost:
            notes.append(f"the table {path / name} removed ranges of rows, and it is lost which")
            revived |= _families_of(own, facts)
    return _Mended(_Way(notes, lost, frozenset(revived)), sizes)


def _families_of(own: Path, facts: TableFacts | None) -> set[Family]:
    """The family of a table; all of them if that is not known."""
    try:
        families = {number: family for family, number in family_ids(own).items()} if facts is not None else {}
    except (OSError, ValueError):
        families = {}
    return {families[facts.family]} if facts is not None and facts.family in families else set(Family)


def _make_families_known(own: Path) -> str | None:
    """Add a table to each family, with nothing but the removal of a row that is not there; or say why not.

    RocksDB takes the families from the tables, and drops rows of others from the log. Its options file has them
    in the order of their numbers.
    """
    files = sorted(own.glob("OPTIONS-*"), key=lambda file: int(file.name.rpartition("-")[2].partition(".")[0]))
    text = files[-1].read_text(errors="replace") if files else ""
    names = _FAMILY.findall(text)
    known = {_name(family) for family in Family}
    if names[:1] != ["default"] or not set(names) <= known or names != _FAMILY_TABLES.findall(text):
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


class _ScratchStore(ReadingStore):
    """A database in a directory of our own, which is thrown away."""

    _IS = "a database under repair"

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
            raise StoreOpenError(damagedfiles.named(own, str(error))) from error
        self._path = own
        self._take_families(list(Family))
