"""Points in time: finds the position at which the archived log is cut for a time or a seq of a topic, and the backups
from which that position can be reached."""

import struct
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import UNSET

from topics_backup import log, repository
from topics_backup.errors import AbsentError, BackupError, DamagedError, LogError
from topics_backup.log import Piece, Run
from topics_backup.manifest import LogPoint, Manifest
from topics_backup.reaching import Put, Reaching, shown, stood
from topics_backup.target import Target
from topics_service.engine.placement import shard_of
from topics_service.storage.familyids import family_ids
from topics_service.storage.store import Family
from topics_service.storage.wal.batches import Batch, batches, rows, written_ms


class Base(NamedTuple):
    """A backup that the log continues from: the pieces it needs, and the restorable times."""

    backup: Manifest
    point: LogPoint
    pieces: list[Piece]
    from_ms: int
    until_ms: int


class Cut(NamedTuple):
    """The end of the last batch that is taken: its file and byte (0, 0: the log is not needed), the sequence number
    behind it, and when it was written."""

    number: int
    stop: int
    next_seq: int
    written_ms: int


class Way(NamedTuple):
    """A backup, and where its log is cut. `cut` reads the log, and raises BackupError."""

    base: Base
    cut: Callable[[], Cut]


class Whole(NamedTuple):
    """A backup, and the log of each of its databases: of the shards, or of the one that it has."""

    backup: Manifest
    each: list[Base]

    @property
    def lines(self) -> list[str]:
        """The lines of its databases."""
        return [base.point.line for base in self.each]

    @property
    def from_ms(self) -> int:
        """The first time that can be restored."""
        return max(base.from_ms for base in self.each)

    @property
    def until_ms(self) -> int:
        """The last time that can be restored. Of several shards it is before the one up to which the first of them was
        archived: the others may have what came of a later write."""
        until = min(base.until_ms for base in self.each)
        return until if self.backup.shards is UNSET else max(self.from_ms, until - 1)


class Moment(NamedTuple):
    """A moment, by the ways to it of each database, and the number of shards; None if there are none."""

    ways: list[list[Way]]
    shards: int | None


class Range(NamedTuple):
    """Times that can be restored, of a line, from these backups on; `bytes` of log are archived for it. Of several
    shards it is the line of the first."""

    line: str
    from_ms: int
    until_ms: int
    bytes: int
    backups: list[str]


def bases(target: Target) -> list[Base]:
    """Return the databases of all backups that have a position in a log, ordered by that."""
    found = [base for whole in wholes(target) for base in whole.each]
    return sorted(found, key=lambda base: (base.point.line, base.point.next_seq))


def wholes(target: Target) -> list[Whole]:
    """Return every backup with a position in a log, or in one for each shard, ordered by that."""
    there = log.runs(target)
    found = []
    for listed in repository.listed(target):
        if listed.manifest is None:
            continue
        databases = listed.manifest.databases
        each = [_base(database, database.log, there) for database in databases if database.log is not None]
        if len(each) == len(databases):
            found.append(Whole(listed.manifest, each))
    return sorted(found, key=lambda whole: [(base.point.line, base.point.next_seq) for base in whole.each])


def _base(backup: Manifest, point: LogPoint, there: list[Run]) -> Base:
    until_ms = max(point.written_ms, backup.created_ms)
    for run in there:
        pieces = run.behind(point)
        if pieces is not None:
            return Base(backup, point, pieces, point.written_ms, max(until_ms, run.until_ms))
    return Base(backup, point, [], point.written_ms, until_ms)


def ranges(target: Target) -> list[Range]:
    """Return the restorable ranges in order; between two ranges of a line there is a hole."""
    found: list[Range] = []
    lines: list[str] = []
    for whole in wholes(target):
        size = sum(piece.size for base in whole.each for piece in base.pieces)
        last = found[-1] if found else None
        if last is not None and lines == whole.lines and whole.from_ms <= last.until_ms:
            found[-1] = last._replace(
                until_ms=max(last.until_ms, whole.until_ms), backups=[*last.backups, whole.backup.id]
            )
        else:
            found.append(Range(whole.lines[0], whole.from_ms, whole.until_ms, size, [whole.backup.id]))
        lines = whole.lines
    return found


def at_time(target: Target, ms: int) -> Moment:
    """Everything up to the last batch that was written at `ms` or before, from the nearest backup first.

    All shards of a server have one clock, so what one of them wrote because of another one is there only together with
    that. Raises BackupError if that moment can't be restored.
    """
    return _at_time(target, wholes(target), ms)


def _at_time(target: Target, every: list[Whole], ms: int) -> Moment:
    fitting = [whole for whole in every if whole.from_ms <= ms <= whole.until_ms]
    if not fitting:
        raise BackupError(f"{log.shown(ms)} can't be restored: {_what_can(target)}")
    mine = [whole for whole in fitting if whole.lines == fitting[-1].lines]
    return _moment(mine, lambda base: Way(base, partial(_last_until, target, base, ms)))


def _moment(mine: list[Whole], way: Callable[[Base], Way]) -> Moment:
    """The moment to which these lead, the nearest last."""
    shards = mine[-1].backup.shards
    ways = [[way(whole.each[number]) for whole in mine[::-1]] for number in range(len(mine[-1].each))]
    return Moment(ways, None if shards is UNSET else len(shards))


def _last_until(target: Target, base: Base, ms: int) -> Cut:
    at = base.point.next_seq
    cut = Cut(0, 0, at, base.point.written_ms)
    found = [i for i, piece in enumerate(base.pieces) if piece.min_ms <= ms and piece.next_seq > at]
    if not found:
        return cut
    piece = base.pieces[found[-1]]
    before = base.pieces[found[-1] - 1].last_ms if found[-1] else piece.min_ms
    for batch, written in _timed(target, piece, before):
        if written <= ms and batch.next_seq > at:
            cut = Cut(piece.number, batch.stop, batch.next_seq, written)
    return cut


def at_end(target: Target) -> Moment:
    """All that is archived of the newest line; of several shards, what is archived of all. Raises BackupError if there
    is nothing."""
    every = wholes(target)
    if not every:
        raise BackupError(f"there is no end of a log: {_what_can(target)}")
    last = every[-1]  # the others of its line that come to the same end
    mine = [whole for whole in every if (whole.lines, whole.until_ms) == (last.lines, last.until_ms)]
    if last.backup.shards is UNSET:
        return _moment(mine, lambda base: Way(base, partial(_end, base)))
    return _at_time(target, mine, last.until_ms)


def _end(base: Base) -> Cut:
    if not base.pieces or base.pieces[-1].next_seq <= base.point.next_seq:
        return Cut(0, 0, base.point.next_seq, base.point.written_ms)
    last = base.pieces[-1]
    return Cut(last.number, last.stop, last.next_seq, last.last_ms)


def at_seq(target: Target, topic: str, partition: int, seq: int) -> Moment:
    """Everything up to the batch with which a partition reached `seq`, from the nearest backup first; of several shards
    up to the time of that batch.

    Of successive topics with that name, the last one that reached it counts. Raises BackupError, and
    AbsentError where the log does not show it.
    """
    every = wholes(target)
    for _, group in groupby(reversed(every), lambda whole: whole.lines):
        mine = list(group)[::-1]
        count = len(mine[-1].each)
        first = shard_of(topic, partition, count)
        for number in (first, *(number for number in range(count) if number != first)):  # the others if it is placed
            found = _at_seq(target, [whole.each[number] for whole in mine], topic, partition, seq)
            if found is None:
                continue
            if mine[-1].backup.shards is UNSET:
                return Moment([found], None)
            return _at_time(target, mine, found[0].cut().written_ms)
    raise AbsentError(f"the log does not show how {shown(topic, partition)} reached seq {seq}: {_what_can(target)}")


def _at_seq(target: Target, every: list[Base], topic: str, partition: int, seq: int) -> list[Way] | None:
    """The ways among those of one line; None if the seq was not reached."""
    for i in range(len(every) - 1, -1, -1):
        base = every[i]
        after = every[i + 1] if i + 1 < len(every) else None
        if after is not None and not _passed(base, after, topic, partition, seq):
            continue
        ids = _family_ids(target, [each.backup for each in every])
        stop_seq = None if after is None else after.point.next_seq
        try:
            cut = _reached(target, base, stop_seq, ids, topic, partition, seq)
        except LogError as error:
            raise explain(base.from_ms, error) from error
        if cut is not None:
            mine = [each for each in every[: i + 1] if any(_is_in(cut, piece) for piece in each.pieces)]
            return [Way(each, partial(_same, cut)) for each in mine[::-1]]
    return None


def explain(from_ms: int, error: LogError) -> BackupError:
    """Return the error with the operator's remedy: the last moment before the damage to which a backup of `from_ms`
    leads."""
    before = log.shown(max(from_ms, error.min_ms - 1))
    return BackupError(f"{error}; writes until {before} can be restored: --at {before}")


def _is_in(cut: Cut, piece: Piece) -> bool:
    return piece.number == cut.number and piece.start < cut.stop <= piece.stop


def _same(cut: Cut) -> Cut:
    return cut


def _passed(base: Base, after: Base, topic: str, partition: int, seq: int) -> bool:
    """Return whether the seq may have been reached between two backups, according to them."""
    before, behind = stood(base.backup.topics, topic, partition), stood(after.backup.topics, topic, partition)
    if before is None or behind is None or before.log_id != behind.log_id:
        return True  # only the log can tell
    return before.head_seq < seq <= behind.head_seq


def _reached(
    target: Target,
    base: Base,
    stop_seq: int | None,
    ids: Mapping[Family, int],
    topic: str,
    partition: int,
    seq: int,
) -> Cut | None:
    """The last batch behind a backup with which a log of that name reached the seq."""
    families = {number: family for family, number in ids.items()}
    reaching, cut = Reaching(topic, partition, seq, stood(base.backup.topics, topic, partition)), None
    for piece, batch, written in _behind(target, base):
        if stop_seq is not None and batch.seq >= stop_seq:
            break
        if not reaching.may_concern(batch.rows):
            continue
        with _readable(piece):
            puts = [
                Put(families[row.family], row.key, row.value)
                for row in rows(batch)
                if row.value is not None and row.family in families
            ]
            if reaching.take(puts):
                cut = Cut(piece.number, batch.stop, batch.next_seq, written)
    return cut


def _behind(target: Target, base: Base) -> Iterator[tuple[Piece, Batch, int]]:
    """The batches behind a backup, and when they were written."""
    before = base.pieces[0].min_ms if base.pieces else 0
    for piece in base.pieces:
        if piece.next_seq > base.point.next_seq:
            for batch, written in _timed(target, piece, before):
                if batch.next_seq > base.point.next_seq:
                    yield piece, batch, written
        before = piece.last_ms


def _timed(target: Target, piece: Piece, before: int) -> Iterator[tuple[Batch, int]]:
    for batch in batches(log.content(target, piece), piece.start):
        with _readable(piece):
            before = written_ms(batch) or before
        yield batch, before


@contextmanager
def _readable(piece: Piece) -> Iterator[None]:
    """Rows that this version can't read: of a later one, since its checksums held."""
    try:
        yield
    except (ValueError, struct.error, msgspec.MsgspecError) as error:
        raise LogError(piece.min_ms, f"{piece.key} can't be read: {error}") from error


def _family_ids(target: Target, backups: list[Manifest]) -> Mapping[Family, int]:
    """The numbers of families in a line, from the newest of its backups that is not damaged."""
    for backup in backups[::-1]:
        with tempfile.TemporaryDirectory(prefix="topics-backup-") as own, suppress(DamagedError, OSError, ValueError):
            for file in backup.files:
                if file.name == "CURRENT" or file.name.startswith("MANIFEST-"):
                    (Path(own) / file.name).write_bytes(b"".join(repository.content(target, backup, file)))
            return family_ids(Path(own))
    raise BackupError("no backup of that server is intact: topics backup verify lists the damage")


def _what_can(target: Target) -> str:
    found = [f"{log.shown(each.from_ms)} to {log.shown(each.until_ms)}" for each in ranges(target)]
    if not found:
        return "no backup in the target is of a server with TOPICS_WAL_ARCHIVE_SECONDS"
    return f"the restorable moments are {', '.join(found)}"
