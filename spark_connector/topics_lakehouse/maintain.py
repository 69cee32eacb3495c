"""Keeping a table's own bookkeeping small: snapshots, manifests, and files that nothing refers to.

Iceberg's expiry of snapshots changes metadata only. Removes unused files: those below the table's location that no
retained snapshot or metadata version refers to, and that are older than a grace. The grace protects a commit in flight,
whose files exist before the table refers to them.
"""

import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from urllib.parse import urlparse

from pyarrow.fs import FileSelector, FileSystem, FileType
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table

from topics_lakehouse.catalog import TOPIC
from topics_lakehouse.history import check_history
from topics_lakehouse.lineage import lineage
from topics_lakehouse.rewrite import merge_manifests

_EXPIRE_AT_ONCE: Final = 20  # a commit that drops 190 takes seconds, and lets others wait
_MIN_SNAPSHOTS: Final = 2  # a committer looks for its last commit in them
_RACES: Final = 20
_KEPT_NAMES: Final = frozenset({"version-hint.text"})


@dataclass(frozen=True, slots=True)
class Maintenance:
    """Retention settings of a table."""

    keep_snapshots: int = 20  # the newest, and any with a tag or branch
    merge_manifests_at: int = 20  # rewrite the manifests when there are more
    orphan_grace_seconds: float = 86400.0  # must be longer than a commit takes from its first file on


@dataclass(frozen=True, slots=True)
class Maintained:
    """The result of one run."""

    snapshots_expired: int = 0
    manifests_merged: int = 0
    files_deleted: int = 0
    bytes_deleted: int = 0

    def __add__(self, other: "Maintained") -> "Maintained":
        return Maintained(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))


@dataclass(frozen=True, slots=True)
class _Stored:
    """A file that was found below the table's location."""

    path: str  # as the file system has it
    modified: float  # seconds since the epoch
    size: int


def maintain(
    table: Table, how: Maintenance = Maintenance(), *, in_flight: Collection[str] = (), now: float | None = None
) -> Maintained:
    """Expire snapshots, merge manifests, delete orphans; `table` is refreshed.

    `in_flight` are locations of files that a commit under way is to add: they stay at any age. `now` is the time in
    seconds since the epoch. Runs concurrently with a pipeline and readers of retained snapshots. Raises
    CommitFailedException after too many lost races; completed steps stay.
    """
    merged = _merge(table.refresh(), how.merge_manifests_at)
    expired = expire(table, how.keep_snapshots)
    before = (time.time() if now is None else now) - how.orphan_grace_seconds
    files, size = delete_orphans(table, before, in_flight=in_flight)
    return Maintained(expired, merged, files, size)


def _merge(table: Table, at: int) -> int:
    snapshot = table.current_snapshot()
    if snapshot is None:
        return 0
    count = len(snapshot.manifests(table.io))
    if count <= at:
        return 0
    merge_manifests(table)
    snapshot = table.refresh().current_snapshot()
    return count - len(snapshot.manifests(table.io)) if snapshot is not None else 0


def expire(table: Table, keep: int) -> int:
    """Drop all snapshots but the newest `keep`, those that a branch or tag points to, and those that tell which commit
    the current one holds; returns how many.

    Raises RolledBackError for a table that was rolled back: the snapshots to drop may be needed to repair it.
    """
    done = lost = 0
    while True:
        metadata = table.refresh().metadata
        if TOPIC in table.properties:
            check_history(table)
        pinned = {ref.snapshot_id for ref in metadata.refs.values()}
        line = lineage(metadata, table.current_snapshot())
        if line.mark:
            pinned |= {each.snapshot_id for each in line.path}
        by_age = sorted(metadata.snapshots, key=lambda snapshot: (snapshot.sequence_number or 0, snapshot.timestamp_ms))
        old = [each.snapshot_id for each in by_age[: max(0, len(by_age) - max(keep, _MIN_SNAPSHOTS))]]
        drop = [each for each in old if each not in pinned][:_EXPIRE_AT_ONCE]
        if not drop:
            return done
        try:
            table.maintenance.expire_snapshots().by_ids(drop).commit()
        except CommitFailedException:
            lost += 1
            if lost == _RACES:
                raise
        else:
            done += len(drop)


def delete_orphans(table: Table, before: float, *, in_flight: Collection[str] = ()) -> tuple[int, int]:
    """Delete unreferenced files last changed before a time (seconds since the epoch); how many, and their bytes."""
    # List the files before the references: a file that is committed in between is then among the references.
    old = [file for netloc in _folders(table) for file in _stored(table, netloc) if file.modified < before]
    if not old:
        return 0, 0
    wanted = referenced(table.refresh()) | {_key(location) for location in in_flight}
    orphans = [file for file in old if file.path not in wanted]
    deleted = size = 0
    for file in orphans:
        try:
            _file_system(table, table.location())[0].delete_file(file.path)
        except FileNotFoundError:  # another maintenance was quicker
            continue
        deleted, size = deleted + 1, size + file.size
    return deleted, size


def referenced(table: Table) -> set[str]:
    """The paths, as the file system has them, of all files that the table as it was loaded refers to."""
    metadata = table.metadata
    found = {table.metadata_location, *(entry.metadata_file for entry in metadata.metadata_log)}
    found |= {each.statistics_path for each in metadata.statistics}
    found |= {each.statistics_path for each in metadata.partition_statistics}
    manifests: dict[str, None] = {}
    for snapshot in metadata.snapshots:
        found.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path not in manifests:
                manifests[manifest.manifest_path] = None
                entries = manifest.fetch_manifest_entry(table.io)
                found |= {entry.data_file.file_path for entry in entries}
    return {_key(location) for location in (*found, *manifests)}


def _folders(table: Table) -> list[str]:
    """The directory of the table's files: nothing outside is touched, regardless of configured locations."""
    base = table.location().rstrip("/")
    return [f"{base}/data", f"{base}/metadata"]


def _stored(table: Table, location: str) -> Iterator[_Stored]:
    files, path = _file_system(table, location)
    for info in files.get_file_info(FileSelector(path, allow_not_found=True, recursive=True)):
        if info.type is FileType.File and info.base_name not in _KEPT_NAMES:
            changed = info.mtime or datetime.now(UTC)
            yield _Stored(_key(info.path), changed.timestamp(), info.size or 0)


def _file_system(table: Table, location: str) -> tuple[FileSystem, str]:
    io = table.io if isinstance(table.io, PyArrowFileIO) else PyArrowFileIO(table.io.properties)
    scheme, netloc, path = io.parse_location(location, io.properties)
    return io.fs_by_scheme(scheme, netloc), path


def _key(location: str) -> str:
    """One text for all ways to write a location: `file:///a`, `file:/a` and `/a`; `s3://b/a`, `s3a://b/a` and `b/a`."""
    parts = urlparse(location)
    if len(parts.scheme) > 1:
        return (parts.netloc + parts.path) if parts.scheme != "file" else parts.path
    return location
