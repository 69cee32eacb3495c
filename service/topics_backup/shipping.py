"""Archiving the write-ahead log: copies new data of a directory's log files to the target.

The server may be running, stopped or restarting: files are only read. Data is made durable before it is archived, so
the archive never exceeds the directory after a power cut.
"""

import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from topics_backup import log
from topics_backup.errors import BackupError
from topics_backup.log import PIECE_BYTES, Piece
from topics_backup.target import Target
from topics_service.storage import shardfiles
from topics_service.storage.store import StoreOpenError
from topics_service.storage.wal import archive
from topics_service.storage.wal.archive import Line
from topics_service.storage.wal.batches import batches, written_ms


class Shipped(NamedTuple):
    """The result of one run: pieces, bytes, the time (ms) up to which the archive is complete, and `holes` in words."""

    line: str
    pieces: int
    bytes: int
    until_ms: int
    holes: list[str]


def line_of(data_dir: Path) -> Line | None:
    """The line of a directory. Raises BackupError."""
    try:
        return archive.line_of(data_dir)
    except (OSError, ValueError) as error:
        raise BackupError(str(error)) from error


def ship_all(target: Target, data_dir: Path) -> list[Shipped]:
    """Archive the logs of all shards of a directory, or of one without. Raises as `ship` does."""
    try:
        return [ship(target, each) for each in shardfiles.directories(data_dir) or [data_dir]]
    except StoreOpenError as error:
        raise BackupError(str(error)) from error


def ship(target: Target, data_dir: Path) -> Shipped:
    """Archive the part of the log in `data_dir` that the target lacks. Raises BackupError, and OSError for files."""
    line = line_of(data_dir)
    if line is None:
        raise BackupError(
            f"{data_dir} has no log to archive: start its server with TOPICS_WAL_ARCHIVE_SECONDS, and name its "
            "data directory"
        )
    now = time.time_ns() // 1_000_000
    files = archive.log_files(data_dir)
    there = log.chains(log.lines(target).get(line.id, ()))
    _check_same(target, data_dir, line, there, files[-1].number if files else 0)
    first = max(line.first, min(there, default=0))  # earlier files were pruned
    last: Piece | None = None
    count = size = 0
    holes: list[str] = []
    before = log.until(target, line.id)
    until = log.Until(now, 0) if before is None else log.Until(now, before.next_seq, before.holes)
    for number in sorted({file.number for file in files} | set(there)):
        chain = there.get(number, [])
        last = chain[-1] if chain else last
        file = next((file for file in files if file.number == number), None)
        if number < first or file is None or file.size <= (chain[-1].stop if chain else 0):
            continue
        for piece, data in _news(data_dir, line, number, chain[-1].stop if chain else 0, last):
            target.put(piece.key, data)
            if last is not None and last.next_seq != piece.seq:
                holes.append(f"{log.shown(last.last_ms)} to {log.shown(piece.min_ms)}")
                if until.next_seq <= last.next_seq:  # else the missing files have been archived and removed
                    until.holes.append((last.next_seq, piece.seq))
            last = piece
            count += 1
            size += len(data)
    until.next_seq = max(until.next_seq, 0 if last is None else last.next_seq)
    log.record_until(target, line.id, until)
    return Shipped(line.id, count, size, now, holes)


def _news(
    data_dir: Path, line: Line, number: int, start: int, last: Piece | None
) -> Iterator[tuple[Piece, bytes]]:  # fmt: skip
    """Yield the pieces of a log file from byte `start` on, as far as it is complete."""
    try:
        handle = archive.open_log(data_dir, number)
    except FileNotFoundError:  # its time is over: the next one shows the hole
        return
    try:
        size = os.fstat(handle).st_size
        os.fsync(handle)
        want = PIECE_BYTES
        last_ms = 0 if last is None else last.last_ms
        while start < size:
            data = os.pread(handle, min(want, size - start), start)
            found = _piece(line, number, start, data, last_ms)
            if found is not None:
                yield found, data[: found.size]
                start, last_ms, want = found.stop, found.last_ms, PIECE_BYTES
            elif start + len(data) < size and data:
                want *= 2  # a batch that is larger
            else:
                return
    finally:
        os.close(handle)


def _piece(line: Line, number: int, start: int, data: bytes, last_ms: int) -> Piece | None:
    """The piece of the batches in `data`; None if not one is whole."""
    min_ms, stop, first, next_seq = None, start, 0, 0
    for batch in batches(data, start):
        last_ms = written_ms(batch) or last_ms
        min_ms = last_ms if min_ms is None else min(min_ms, last_ms)
        first = batch.seq if stop == start else first
        stop, next_seq = batch.stop, batch.next_seq
    if min_ms is None:
        return None
    sha256 = hashlib.sha256(data[: stop - start]).hexdigest()
    return Piece(line.id, number, start, stop, first, next_seq, min_ms, last_ms, sha256)


def _check_same(target: Target, data_dir: Path, line: Line, there: dict[int, list[Piece]], newest: int) -> None:
    """Check that the last archived log is still in the directory, unless it expired. Otherwise an older state of the
    directory was put back, and the two histories would be mixed."""
    if not there:
        return
    piece = there[max(there)][-1]
    same = piece.number <= newest
    if same:
        try:
            handle = archive.open_log(data_dir, piece.number)
        except FileNotFoundError:
            return
        try:
            same = hashlib.sha256(os.pread(handle, piece.size, piece.start)).hexdigest() == piece.sha256
        finally:
            os.close(handle)
    if not same:
        raise BackupError(
            f"the log in {data_dir} is not the one that {target} has of it, so an older state of the directory was put "
            f"back: stop the server, remove {data_dir / 'topics-log.json'}, start it, and make a backup"
        )
