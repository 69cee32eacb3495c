"""The check that a table still holds the rows up to its positions.

A rollback takes snapshots back and leaves the properties, so positions alone would silently skip the rows of the
snapshots. A table restored as a whole from older metadata is consistent in itself: its positions are compared with
those committed to its consumer group.
"""

import json
import uuid
from collections.abc import Mapping
from typing import Final

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot, ancestors_of

from topics_lakehouse.catalog import (
    COMMIT,
    POSITIONS,
    RANGES,
    ROWS,
    SNAPSHOT,
    Positions,
    TableError,
    parse_positions,
    positions_text,
    reachable,
    same_positions,
    table_state,
)
from topics_lakehouse.lineage import lineage
from topics_lakehouse.rewrite import live_files

Witness = Mapping[uuid.UUID, Positions]
"""Positions that tables were at before, by table."""

_NONE: Final[Witness] = {}


class RolledBackError(TableError):
    """The table lacks rows below its positions, or below those of its group."""

    def __init__(self, table: Table, positions: Positions) -> None:
        super().__init__(
            f"table {'.'.join(table.name())}: it was rolled back below its positions {positions_text(positions)}: "
            "roll it forward again, or read the missing records again with `topics lakehouse run --refill`"
        )


def check_history(table: Table, witness: Witness = _NONE) -> None:
    """Raises RolledBackError if the table lacks rows below its positions, or is behind the positions of the witness.
    Raises CatalogDownError, and TableError for positions that were changed.
    """
    state = table_state(table)
    expected = witness.get(table.metadata.table_uuid, {})
    if any(state.positions.get(partition, 0) < seq for partition, seq in expected.items()):
        raise RolledBackError(table, {**state.positions, **expected})
    if not _holds(table, state.positions):
        raise RolledBackError(table, state.positions)


def _holds(table: Table, positions: Positions) -> bool:
    metadata, current = table.metadata, table.current_snapshot()
    commit = table.properties.get(COMMIT, "")
    line = lineage(metadata, current)
    if not commit:  # none yet, or the positions were set by hand
        expected = line.mark.get(POSITIONS)
        return expected is None or same_positions(parse_positions(expected), positions)
    if line.mark:
        return line.mark[COMMIT] == commit
    return current is not None and _traces(table, current, positions)


def _traces(table: Table, current: Snapshot, positions: Positions) -> bool:
    """Return whether a snapshot descends from the last commit whose marks have expired: files of that
    commit are passed on to descendants alone. Others may have rewritten them all: then the rows are as many."""
    wanted = table.properties.get(SNAPSHOT)
    with reachable():
        if wanted is None:  # an older version's commit
            tops: dict[int, int] = {}
            for file in live_files(table, current):
                if file.partition is not None and file.last is not None:
                    tops[file.partition] = max(file.last, tops.get(file.partition, 0))
            return tops == {partition: seq for partition, seq in positions.items() if seq}
        manifests = current.manifests(table.io)
        if any(str(each.added_snapshot_id) == wanted for each in manifests):
            return True
        entries = (entry for each in manifests for entry in each.fetch_manifest_entry(table.io))
        if any(str(entry.snapshot_id) == wanted for entry in entries):
            return True
    return current.summary is not None and current.summary.get("total-records") == table.properties.get(ROWS, "")


def reached(table: Table) -> Positions:
    """The positions that the table's current snapshot is known to hold; a partition of which nothing is known is not
    there."""
    current = table.current_snapshot()
    expected = lineage(table.metadata, current).mark.get(POSITIONS)
    if expected is not None:
        return parse_positions(expected)
    found: dict[int, int] = {}  # marks of an older version tell their own ranges only
    for each in ancestors_of(current, table.metadata):
        ranges = each.summary.get(RANGES) if each.summary is not None else None
        for partition, (_, last) in json.loads(ranges or "{}").items():
            found[int(partition)] = max(last, found.get(int(partition), 0))
    return found
