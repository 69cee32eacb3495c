"""Retention of backups: outdated manifests are removed, then the files that no manifest needs.

Other processes make backups at the same time, without a lock, and rely on files that they find. So a file goes in two
steps. A prune writes a list of the files that no manifest needs; a later one, `GRACE_SECONDS` after, removes those on
the list that are still not needed and were not written since. A backup that begins after the list was written takes the
listed files for absent and writes them again; one that began before has written its manifest by the end of the grace,
since it checks again after half of it (`creation.create`). All times are those of the target.

Pieces of the log belong to no backup. They are removed when no backup continues with them: the log files before that of
the oldest backup of their line, and all of a line without backups, if they are older than the grace.
"""

import secrets
import time
from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from topics_backup import log, repository
from topics_backup.errors import AbsentError, BackupError
from topics_backup.log import LOG
from topics_backup.manifest import FILES, Manifest
from topics_backup.target import Target

GRACE_SECONDS: Final = 86_400.0
LISTS: Final = "unneeded/"
_TICK_SECONDS: Final = 1.0  # clocks of object stores have seconds: a file with the second of the list may be later
_DAY_MS: Final = 86_400_000


class Pruned(NamedTuple):
    """The result of a prune: removed backups and files, their bytes, and the files that a later prune removes."""

    backups: list[str]
    files: int
    bytes: int
    waiting: int


def prune(
    target: Target, *, keep: int | None = None, keep_days: float | None = None, grace: float = GRACE_SECONDS,
    now_ms: int | None = None,
) -> Pruned:  # fmt: skip
    """Remove backups: all but the newest `keep` and those of the last `keep_days`; then unneeded files.

    The newest backup always stays. Raises BackupError, and removes nothing, if a manifest can't be read: its files are
    unknown. A `grace` below the default is for when no backup is being made.
    """
    found = list(repository.listed(target))
    for each in found:
        if each.manifest is None:
            raise BackupError(f"{each.error}; nothing was removed: remove its manifest first if it is not wanted")
    backups = [each.manifest for each in found if each.manifest is not None]
    goes = _outdated(backups, keep, keep_days, time.time_ns() // 1_000_000 if now_ms is None else now_ms)
    target.delete(backup.key for backup in goes)
    removed, size, waiting = _collect(target, grace)
    target.clean(max(grace, 1.0))
    return Pruned([backup.id for backup in goes], removed, size, waiting)


def doomed(target: Target) -> frozenset[str]:
    """Return the files that a prune has listed. A backup that needs one has to write it again."""
    return frozenset(name for entry in target.list(LISTS) for name in _listed(target, entry.name))


def _outdated(backups: list[Manifest], keep: int | None, keep_days: float | None, now_ms: int) -> list[Manifest]:
    kept = {backup.id for backup in backups[-max(1, keep or 0) :]}
    if keep_days is not None:
        kept.update(backup.id for backup in backups if backup.created_ms >= now_ms - keep_days * _DAY_MS)
    return [backup for backup in backups if backup.id not in kept]


def _collect(target: Target, grace: float) -> tuple[int, int, int]:
    needed: set[str] = set()
    first: dict[str, int] = {}
    for backup_id in repository.ids(target):  # read again: some may have come since
        try:
            backup = repository.load(target, backup_id)
        except AbsentError:
            continue
        for each in backup.databases:
            needed.update(file.key for file in each.files)
            if each.log is not None:
                first[each.log.line] = min(each.log.number, first.get(each.log.line, each.log.number))
    unneeded = {entry.name: entry for entry in target.list(FILES) if entry.name not in needed}
    mine = f"{LISTS}{secrets.token_hex(8)}.json"
    target.put(mine, msgspec.json.encode(sorted(unneeded)))
    lists = sorted(target.list(LISTS), key=lambda entry: entry.modified)
    now = next(entry.modified for entry in lists if entry.name == mine)
    goes: dict[str, int] = {}
    over = [entry for entry in lists if now - entry.modified >= grace]
    for entry in over:
        for name in _listed(target, entry.name):
            file = unneeded.get(name)
            if file is not None and (entry.name == mine or file.modified < entry.modified - _TICK_SECONDS):
                goes[name] = file.size
    goes |= _outdated_log(target, first, now - grace)
    target.delete(goes)
    target.delete(entry.name for entry in over)
    waiting = len(unneeded.keys() - goes.keys())
    if not waiting:
        target.delete([mine])
    return len(goes), sum(goes.values()), waiting


def _outdated_log(target: Target, first: Mapping[str, int], before: float) -> dict[str, int]:
    """Return the pieces that no backup needs, with sizes. `first` is the position of the oldest backup of each line."""
    goes = {}
    for entry in target.list(LOG):
        line = entry.name.removeprefix(LOG).partition("/")[0]
        piece = log.piece_of(entry.name)
        if line not in first:
            outdated = entry.modified <= before
        else:
            outdated = piece is not None and piece.number < first[line]
        if outdated:
            goes[entry.name] = entry.size
    return goes


def _listed(target: Target, name: str) -> list[str]:
    """Return the files on a list; none if it is missing or unreadable."""
    try:
        return msgspec.json.decode(b"".join(target.read(name)), type=list[str])
    except (AbsentError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return []
