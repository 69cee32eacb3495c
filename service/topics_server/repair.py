"""`topics repair`: salvages a damaged data directory in place. Offline."""

import shutil
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct

from topics_server.verify import is_database, verify
from topics_service.engine import snapshot
from topics_service.engine.placement import SINGLE, Place
from topics_service.engine.repair import Action, Salvage, Saved, Uncertain
from topics_service.engine.verify import Audit, Problem
from topics_service.engine.verify.findings import DECODING
from topics_service.storage import checksummed, repair_swap, shardfiles
from topics_service.storage import repair as storage
from topics_service.storage.holding import Hold, is_held
from topics_service.storage.private import make_private
from topics_service.storage.rocks import RocksStore
from topics_service.storage.rocks_batch import RocksBatch
from topics_service.storage.rocks_options import _name
from topics_service.storage.store import Family, StoreError, StoreOpenError
from topics_service.storage.wal.repair import what_is_left

_JUMP = 1 << 20  # seqs that are never handed out again, where it is lost how many were
_MOST_RECORDS = 10_000  # of a row that is lost
_BATCH_BYTES = 4 << 20


class RepairError(Exception):
    """It can't be done, and nothing was changed; the message names the cause and the next step."""


class RepairObserver(Struct, kw_only=True):
    """Callbacks of a repair: `note` for the opening of the directory, `problem` for each finding of the audit, `action`
    for each (planned) repair. `begun` takes the estimated number of records, and returns the callback for batches of
    records that were read."""

    note: Callable[[str], None]
    problem: Callable[[Problem], None]
    action: Callable[[Action], None]
    begun: Callable[[int], Callable[[int], None]] = lambda _: lambda _: None


class Report(Struct, kw_only=True):
    """Result of a repair. `applied`: the directory is another now, and `quarantine` has the old files.

    `resumed`: all that was done was to end a repair that was interrupted.
    """

    problems: int = 0
    actions: int = 0
    lost: int = 0
    applied: bool = False
    resumed: bool = False
    quarantine: str | None = None
    topics: int = 0
    partitions: int = 0
    records: int = 0


def repair(
    path: Path,
    observer: RepairObserver,
    *,
    apply: bool = False,
    copy_to: Path | None = None,
    bring_back: bool = False,
    stepped: Callable[[str], None] = lambda _: None,
) -> Report:
    """Report the repair of the data directory `path`, and do it if `apply`; first a copy to `copy_to`.

    Blocks for as long as the disk takes. Raises NotADirectoryError when `path` is no data directory, RepairError, and
    OSError. `stepped` see Swap.
    """
    if not path.is_dir() or not (_is_begun(path) or is_database(path)):
        raise NotADirectoryError(20, "there is no data directory", str(path))
    if not apply:
        if is_held(path):
            raise RepairError(f"a server has {path} open: stop it first, or check a copy")
        scratch = Path(tempfile.mkdtemp(prefix="topics-repair-"))
        try:
            return _plan(path, scratch / "old", observer, bring_back=bring_back)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    try:
        with repair_swap.locked(path):
            return _apply(path, observer, copy_to, bring_back=bring_back, stepped=stepped)
    except BlockingIOError as error:
        raise RepairError(f"a server has {path} open: stop it first") from error


def repair_shards(
    path: Path,
    observer: Callable[[int], RepairObserver],
    *,
    apply: bool = False,
    copy_to: Path | None = None,
    bring_back: bool = False,
) -> list[Report]:
    """Repair one shard after the other of a data directory that has some, as `repair` does; `observer` is called with
    the number of each. The copy is a data directory with shards as well.

    A repair that was killed is run again: what was repaired is intact. What shards say of one another is left to the
    server. Raises as `repair`.
    """
    try:
        count = shardfiles.count_of(path) or 0
        hold = Hold(path) if apply else None
    except BlockingIOError as error:
        raise RepairError(f"a server has {path} open: stop it first") from error
    except StoreOpenError as error:
        raise RepairError(f"{error}: write the number of its directories in {path / 'shards'} there") from error
    own = [shardfiles.directory(path, shard) for shard in range(count)]
    reports: dict[int, Report] = {}
    try:
        for shard, directory in enumerate(own):
            if apply and _is_begun(directory):
                reports[shard] = repair(directory, observer(shard), apply=True)
        left = [shard for shard in range(count) if shard not in reports]
        if copy_to is not None and left:
            if copy_to.exists() and any(copy_to.iterdir()):
                raise RepairError(f"{copy_to} is there already and not empty: name another place for the copy")
            shardfiles.create(copy_to, count)
        for shard in left:
            copy = None if copy_to is None else shardfiles.directory(copy_to, shard)
            reports[shard] = repair(own[shard], observer(shard), apply=apply, copy_to=copy, bring_back=bring_back)
        return [reports[shard] for shard in range(count)]
    finally:
        if hold is not None:
            hold.release()


def _is_begun(path: Path) -> bool:
    """Return whether a repair was interrupted that has to be ended. Raises RepairError."""
    try:
        return path.is_dir() and repair_swap.Swap(path).pending() is not None
    except checksummed.DamagedFileError as error:
        raise RepairError(
            f"{error}, so the progress of an earlier repair is unknown: continue with the copy from before"
        ) from error


def _plan(path: Path, scratch: Path, observer: RepairObserver, *, bring_back: bool) -> Report:
    quarantine = repair_swap.Swap(path).pending()
    if quarantine is not None:
        observer.note(f"a repair was interrupted and will be completed, the old files are in {quarantine}")
        return Report(problems=1, quarantine=quarantine)
    return _salvaged(path, scratch, None, observer, bring_back=bring_back)


def _apply(
    path: Path, observer: RepairObserver, copy_to: Path | None, *, bring_back: bool, stepped: Callable[[str], None]
) -> Report:
    swap = repair_swap.Swap(path, stepped)
    quarantine = swap.pending()
    if quarantine is not None:
        swap.finish()
        observer.note("completed the interrupted repair")
        return Report(applied=True, resumed=True, quarantine=quarantine)
    swap.clear()
    try:
        if copy_to is not None:
            if copy_to.exists() and any(copy_to.iterdir()):
                raise RepairError(f"{copy_to} is there already and not empty: name another place for the copy")
            repair_swap.copy(path, copy_to)
            stepped("copied")
        make_private(swap.work)
        store = RocksStore(swap.new)
        try:
            report = _salvaged(path, swap.work / "old", store, observer, bring_back=bring_back)
        finally:
            store.close()
        shutil.rmtree(swap.work / "old")
        stepped("saved")
        if not report.problems:
            return report
        left = _audit_of(swap.new)
        if left is not None:
            raise RepairError(f"the saved data is not sound ({left.text}); restore a backup, and please report this")
        stepped("checked")
        report.quarantine = f"quarantine-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
        swap.begin(report.quarantine)
        swap.finish()
        report.applied = True
        return report
    finally:
        if swap.pending() is None:
            swap.clear()


def _salvaged(
    path: Path, scratch: Path, store: RocksStore | None, observer: RepairObserver, *, bring_back: bool
) -> Report:
    """Salvage into `store`, or only report."""
    report = Report()

    def problem(found: Problem) -> None:
        report.problems += 1
        observer.problem(found)

    def action(done: Action) -> None:
        report.actions += 1
        report.lost += done.kind == "lost"
        observer.action(done)

    try:
        with storage.opened(path, scratch) as opened:
            for note in opened.notes:
                report.problems += 1
                observer.note(note)
            audit = Audit(opened.source, problem, deep=True)
            audit.begin()
            audit.progress = observer.begun(audit.expected)
            audit.run()
            if not report.problems:
                return report
            sink = _Sink(store)
            saved = Salvage(
                opened.source, sink, action, end=uncertain(path, opened), bring_back=bring_back, place=_place(path)
            ).run()  # fmt: skip
            sink.flush()
            _take(report, saved)
    except StoreOpenError as error:
        raise RepairError(f"nothing can be saved of {path}: {error}; restore a backup") from error
    except StoreError as error:
        raise RepairError(f"the repair of {path} could not continue: {error}") from error
    return report


def _place(path: Path) -> Place:
    """The shard of a database, if it is one of a data directory with shards."""
    found = shardfiles.place_of(path)
    return SINGLE if found is None else Place(*found)


def _take(report: Report, saved: Saved) -> None:
    report.topics, report.partitions, report.records = saved.topics, saved.partitions, saved.records


def uncertain(path: Path, opened: storage.Opened) -> Uncertain:
    """Unknown parts of the end of the log."""
    if not opened.log_damaged and not opened.lost:
        return Uncertain(revived=opened.revived)
    if not opened.log_damaged:
        return Uncertain(jump=_JUMP, one_table=len(opened.lost) == 1, revived=opened.revived)
    left = what_is_left(path)
    heads: dict[int, int] = {}
    states = left.families.get(_name(Family.LOGS))
    for row in left.last if not opened.lost else ():
        if len(row.key) == 8 and row.value is not None and states in (None, row.family):
            try:
                heads[int.from_bytes(row.key)] = snapshot.decode(row.value).head
            except DECODING:
                continue  # of another family
    return Uncertain(jump=max(_JUMP, left.lost_rows * _MOST_RECORDS), heads=heads, revived=opened.revived)


def _audit_of(path: Path) -> Problem | None:
    """The first problem of the database in `path`, or None."""
    found: list[Problem] = []
    verify(path, found.append, deep=True)
    return found[0] if found else None


class _Sink:
    """Implements Sink on a store, in batches; without one it only takes the rows."""

    def __init__(self, store: RocksStore | None) -> None:
        self._store = store
        self._batch: RocksBatch | None = None
        self._nbytes = 0

    def put(self, family: Family, key: bytes, value: bytes) -> None:
        """See Sink."""
        if self._store is None:
            return
        self._batch = self._batch or self._store.batch()
        self._batch.put(family, key, value)
        self._nbytes += len(key) + len(value)
        if self._nbytes > _BATCH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write the gathered rows."""
        if self._store is not None and self._batch is not None:
            self._store.write(self._batch)
        self._batch, self._nbytes = None, 0
