"""Making a data directory of any moment that the archived log covers: a backup, and the log behind it up to there."""

import errno
import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from topics_backup import holes, inventory, log, moments, restoring
from topics_backup.errors import BackupError, DamagedError, LogError
from topics_backup.manifest import Manifest, Topic
from topics_backup.moments import Base, Cut, Moment, Way, at_end, bases
from topics_backup.restoring import Verified
from topics_backup.target import Target
from topics_service.engine.placement import SINGLE, Place
from topics_service.storage import shardfiles
from topics_service.storage.wal.batches import batches


class Restored(NamedTuple):
    """A finished restore: its backup, the bytes of log replayed, and `written_ms`, the time of the last batch."""

    backup: Manifest
    log_bytes: int
    written_ms: int
    topics: list[Topic]


def restore(
    target: Target,
    directory: Path,
    moment: Moment,
    *,
    jump: int = 0,
    report: Callable[[str], None] = lambda _text: None,
) -> list[Restored]:
    """Make `directory` a data directory of the moment, durable on return; return what was done for each database.

    A damaged backup is replaced by the one before it, which leads to the same moment, and `report` is called with the
    reason. Hashes are checked, and that RocksDB replayed the log to its last row. The directory appears complete or not
    at all. With `jump` as `restoring.restore`. Raises BackupError; for a damaged log it names the moments before that.
    """
    restoring.check_free(directory)
    if moment.shards is None:
        return [_restore(target, directory, moment.ways[0], SINGLE, jump, report)]
    made = []
    with restoring.replacing(directory, "shards") as begun:
        shardfiles.create(begun, moment.shards)
        for shard, ways in enumerate(moment.ways):
            own, place = shardfiles.directory(begun, shard), Place(shard, moment.shards)
            try:
                made.append(_restore(target, own, ways, place, jump, report))
            except BackupError as error:
                raise BackupError(f"shard {shard}: {error}") from error
    return made


def _restore(
    target: Target, directory: Path, ways: list[Way], place: Place, jump: int, report: Callable[[str], None]
) -> Restored:
    for way in ways:
        base, put = way.base, 0
        try:
            cut = way.cut()
            put = sum(piece.size for piece in _needed(base, cut))
            put_log = partial(_put_log, target, base, cut)
            restoring.make(target, directory, base.backup, put_log, jump, place=place)
        except DamagedError as error:
            if way is ways[-1]:
                raise BackupError(f"{error}; no other backup leads to that moment") from error
            report(f"{error}; using an older one")
            continue
        except LogError as error:
            raise moments.explain(base.from_ms, error) from error
        return Restored(base.backup, put, cut.written_ms, inventory.read(directory).topics)
    raise BackupError("no backup leads to that moment")


def verify(target: Target, *, deep: bool = False, scratch: Path | None = None) -> list[Verified]:
    """Look at every piece of the archived log, whether it is what it was, and that none is missing; by line.

    With `deep` the newest line is also restored to its end, in a directory below `scratch`, and read to the last
    record. Raises BackupError for faults of the target or the scratch directory.
    """
    found = []
    points = [base.point for base in bases(target)]
    names = sorted({entry.name.split("/")[1] for entry in target.list(log.LOG)} | {point.line for point in points})
    until = {line: log.until(target, line) for line in names}  # before the pieces, since more may be added
    pieces = log.lines(target)
    for line in names:
        mine = sorted(pieces.get(line, ()))
        wrong = holes.find(line, mine, until[line], [point for point in points if point.line == line])
        size, damage = 0, next(wrong, "")
        for piece in mine:
            try:
                _check(target, piece)
                size += piece.size
            except LogError as error:
                damage = damage or str(error)
        if mine or damage:
            found.append(Verified(f"log {line}", size, None, damage))
    if deep and found and not found[-1].damage and any(f"log {point.line}" == found[-1].id for point in points):
        found[-1] = _read_deep(target, found[-1], scratch)
    return found


def _check(target: Target, piece: log.Piece) -> None:
    stop, next_seq = piece.start, piece.seq
    for batch in batches(log.content(target, piece), piece.start):
        if batch.seq != next_seq:
            break
        stop, next_seq = batch.stop, batch.next_seq
    if (stop, next_seq) != (piece.stop, piece.next_seq):
        raise LogError(piece.min_ms, f"{piece.key} breaks off at byte {stop} of its log file")


def _read_deep(target: Target, found: Verified, scratch: Path | None) -> Verified:
    with tempfile.TemporaryDirectory(prefix="topics-verify-", dir=scratch) as own:
        directory = Path(own) / "data"
        try:
            moment = at_end(target)
            records = 0
            for shard, made in enumerate(restore(target, directory, moment)):
                path = directory if moment.shards is None else shardfiles.directory(directory, shard)
                records += inventory.read_everything(path, made.topics, Place(shard, moment.shards or 1))
            return found._replace(records=records)
        except BackupError as error:
            if os.strerror(errno.ENOSPC) in str(error):
                raise
            return found._replace(damage=f"{found.id}: {error}")


def _needed(base: Base, cut: Cut) -> list[log.Piece]:
    return [piece for piece in base.pieces if (piece.number, piece.start) < (cut.number, cut.stop)]


def _put_log(target: Target, base: Base, cut: Cut, directory: Path) -> int:
    pieces = _needed(base, cut)
    if pieces:
        for path in directory.glob("*.log"):  # beginnings of the next ones
            path.unlink()
    for piece in pieces:
        data = log.content(target, piece)
        if piece.number == cut.number:
            data = data[: cut.stop - piece.start]
        with (directory / f"{piece.number:06}.log").open("ab") as out:
            out.write(data)
    return cut.next_seq
