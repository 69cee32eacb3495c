"""The commit that a snapshot holds: its own mark, or that of the nearest ancestor with one.

Properties outlive a rollback, snapshots do not. So an append marks its snapshot, and each rewrite carries the mark of
the snapshot that it starts from. The mark of the current snapshot has its positions, even after expiry.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot, ancestors_of

from topics_lakehouse.catalog import COMMIT, POSITIONS


@dataclass(frozen=True, slots=True)
class Lineage:
    """A snapshot and its ancestors, down to the nearest with a mark, or as far as they are kept. They may end at an
    expired one: PyIceberg's expiry makes first snapshots of those whose parent it drops."""

    path: tuple[Snapshot, ...]
    mark: Mapping[str, str]  # COMMIT, and POSITIONS behind that commit; empty if no mark was found


def lineage(metadata: TableMetadata, snapshot: Snapshot | None) -> Lineage:
    """The lineage of a snapshot; None is that of an empty table."""
    path: list[Snapshot] = []
    for each in ancestors_of(snapshot, metadata):
        path.append(each)
        mark = mark_of(each)
        if mark:
            return Lineage(tuple(path), mark)
    return Lineage(tuple(path), {})


def mark_of(snapshot: Snapshot) -> dict[str, str]:
    """The mark in a snapshot's summary. One that an older version wrote has no POSITIONS."""
    summary = snapshot.summary
    found = {} if summary is None else {key: summary.get(key) for key in (COMMIT, POSITIONS)}
    return {key: value for key, value in found.items() if value} if found.get(COMMIT) else {}


def carried_mark(metadata: TableMetadata, parent: int | None) -> dict[str, str]:
    """The mark for a snapshot that changes files but no positions, from that of its parent."""
    return dict(lineage(metadata, None if parent is None else metadata.snapshot_by_id(parent)).mark)
