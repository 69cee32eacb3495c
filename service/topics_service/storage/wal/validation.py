"""Validation of write-ahead logs before a database is opened: that they have everything a killed server wrote.

RocksDB itself takes any end of a log for its end, and continues with the next one. A killed server leaves all that it
wrote: then only the newest log can end within a record, and that one was not acknowledged. After a power cut a log can
end sooner, but not before its synced end.

Each batch begins with the sequence number behind the one before, also in the next file. That shows a log that is cut,
lost or in the place of another; the end of the newest is known from the mark (`end_mark`).
"""

from pathlib import Path
from typing import Final, NamedTuple

from msgspec import Struct

from topics_service.storage import manifest
from topics_service.storage.manifest import Manifest
from topics_service.storage.wal import end_mark
from topics_service.storage.wal.archive import numbered
from topics_service.storage.wal.batches import Batch, batches
from topics_service.storage.wal.end_mark import Mark
from topics_service.storage.wal.records import has_record, mapped, stop_behind

_NEVER: Final = 1 << 64
_THE_LOG: Final = "the write-ahead log"


class Break(NamedTuple):
    """End of the intact part of the logs. `number`: of the log file, which may not be there. `keep`: the number of its
    bytes in whole batches. `next_log`: the first that was begun behind the row that is missing.
    """

    number: int
    keep: int
    next_log: int
    text: str


class LostLogError(Exception):
    """Acknowledged writes are missing; the message names the file, and the byte where there is one."""


class _Torn(NamedTuple):
    number: int
    broken: Break


class Read(Struct):
    """Result of reading: the end of the whole log, its file and byte, the first break, the ends within a record after
    which the next file continues (or nothing does), and where the newest file is damaged, if the break is that.
    """

    first_seq: int | None = None
    next_seq: int | None = None
    end: str = ""
    broken: Break | None = None
    damaged: tuple[Path, int] | None = None
    torn: list[_Torn] = []


def find_break(directory: Path, boot: str) -> Break | None:
    """Find the byte at which the logs must be cut before the database is opened, after a power cut.

    None if they are complete, or if the manifest is unreadable: RocksDB then refuses to open.
    `boot` is the boot of the machine; "" for unknown, which is taken for another one than that of the last end. Raises
    LostLogError and OSError.
    """
    needed = needed_by(directory)
    if not needed.families:
        return None  # RocksDB will say so
    mark = end_mark.read(directory)
    logs = _logs(directory, needed)
    found = read(logs)
    if mark is None:
        _check_unmarked(found)
        return None
    if mark.starting and needed.first_log > mark.starting and found.broken is None:
        return None  # a start that was killed had taken in everything; its own log has nothing yet
    missing = _missing(directory, needed, mark, logs, found)
    end = found.next_seq if found.next_seq is not None and missing is None else _begun(needed, mark)
    if boot and mark.boot == boot:
        _check_killed(directory, mark, logs, found, missing, end)
        return None
    broken = missing or found.broken
    if end < mark.synced or (broken is not None and any(first >= broken.next_log for first in needed.logs.values())):
        why = broken.text if broken is not None else _ends_early(directory, found, end, mark.synced)
        raise LostLogError(f"{why}; what follows was synced before the machine went down")
    return broken


def named_damage(directory: Path) -> str | None:
    """Describe damage of the logs themselves, regardless of rows already in tables. Raises OSError."""
    found = read(_logs(directory, needed_by(directory)))
    if found.broken is not None:
        return found.broken.text
    mark = end_mark.read(directory)
    if mark is None or found.next_seq is None or found.next_seq >= mark.written:
        return None
    return _ends_early(directory, found, found.next_seq, mark.written)


def needed_by(directory: Path) -> Manifest:
    """Return the manifest; if it is unreadable, every log may be needed."""
    try:
        return manifest.read(directory)
    except (FileNotFoundError, IsADirectoryError, ValueError):
        return Manifest(families={}, logs={0: 0})


def _logs(directory: Path, needed: Manifest) -> list[tuple[int, Path]]:
    return sorted(each for each in numbered(directory) if each[0] >= needed.first_log)


def starting(directory: Path, mark: Mark) -> int:
    """Return the newest log file of the last running server: later ones are of starts that were killed."""
    if mark.starting and needed_by(directory).first_log <= mark.starting:
        return mark.starting
    return max((number for number, _ in numbered(directory)), default=0)


def _begun(needed: Manifest, mark: Mark) -> int:
    """The row that the logs begin with, or one behind that."""
    return max(needed.flushed_seq + 1, mark.first_seq)


def _missing(directory: Path, needed: Manifest, mark: Mark, logs: list[tuple[int, Path]], found: Read) -> Break | None:
    """The log that has to be the first one, where it or its beginning is not there."""
    wanted = max(needed.first_log, mark.first)
    path = directory / f"{wanted:06}.log"
    if wanted not in dict(logs):
        return Break(wanted, 0, wanted + 1, f"{_THE_LOG} {path} is missing")
    begun = mark.first_seq if wanted == mark.first else min(_begun(needed, mark), mark.begins.get(wanted, _NEVER))
    if found.first_seq is not None and found.first_seq > begun:
        if found.torn and found.torn[0].number == wanted:
            return found.torn[0].broken
        return Break(
            wanted, 0, wanted + 1, f"{_THE_LOG} {path} has no row before {found.first_seq}, and began with {begun}"
        )
    return None


def _ends_early(directory: Path, found: Read, end: int, wanted: int) -> str:
    where = found.end or str(directory)
    return f"{_THE_LOG} {where} ends with row {end - 1}, and rows up to {wanted - 1} had been written"


def _check_unmarked(found: Read) -> None:
    """A version that made no mark has written them, or they are of a copy: the newest may end in anything."""
    if found.broken is None:
        return
    if found.damaged is not None:
        path, at = found.damaged
        with mapped(path) as data:
            if not has_record(data, at + 1):
                return
    raise LostLogError(found.broken.text)


def _check_killed(
    directory: Path, mark: Mark, logs: list[tuple[int, Path]], found: Read, missing: Break | None, end: int
) -> None:
    broken = missing or found.broken
    if broken is not None:
        raise LostLogError(broken.text)
    for torn in found.torn:
        if torn.number not in (logs[-1][0], mark.starting):
            raise LostLogError(torn.broken.text)
    if end < mark.written:
        raise LostLogError(_ends_early(directory, found, end, mark.written))


def read(logs: list[tuple[int, Path]]) -> Read:
    """Read the log files, in this order, up to the first break. Raises OSError."""
    found = Read()
    before: _Torn | None = None
    for number, path in logs:
        with mapped(path) as data:
            stop = 0
            for batch in batches(data):
                if found.next_seq is None:
                    found.first_seq = batch.seq
                elif batch.seq != found.next_seq:
                    found.broken = before.broken if before else _gap(number, path, stop, found, batch)
                    return found
                before = None
                stop, found.next_seq = batch.stop, batch.next_seq
                found.end = f"{path} (byte {stop})"
            wrong = stop_behind(data, stop)
            if wrong is None:
                continue
            text = f"{_THE_LOG} {path} is {'cut' if wrong.torn else 'damaged'} at byte {wrong.at}"
            if found.next_seq is not None:
                text = f"{text}, behind row {found.next_seq - 1}"
            broken = Break(number, stop, number + 1, text)
            if not wrong.torn:
                found.broken = broken
                found.damaged = (path, wrong.at) if number == logs[-1][0] else None
                return found
            before = _Torn(number, broken)
            found.torn.append(before)
    return found


def _gap(number: int, path: Path, stop: int, found: Read, batch: Batch) -> Break:
    at = f"{_THE_LOG} {path} continues with row {batch.seq} at byte {stop}"
    text = f"{at}, in place of {found.next_seq}; what came before ends in {found.end}"
    return Break(number, stop, number + 1 if stop else number, text)
