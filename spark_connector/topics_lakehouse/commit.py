"""Commits that advance a table along its topic, each range at most once despite concurrent commits.

The positions of a table are one of its properties and change in the same commit as its files. An append names the
positions that it starts from; it lands only where they are still the table's, on every attempt (the fence). So a table
never holds a range twice, and never skips one.
"""

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table, Transaction
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertCurrentSchemaId,
    AssertDefaultSpecId,
    SetPropertiesUpdate,
    UpdatesAndRequirements,
)
from pyiceberg.table.update.snapshot import _MergeAppendFiles

from topics_client.installation import require_hooks
from topics_lakehouse.catalog import (
    COMMIT,
    POSITIONS,
    RANGES,
    ROWS,
    SNAPSHOT,
    CatalogDownError,
    Identifier,
    Positions,
    TableError,
    find_table,
    is_down,
    positions_text,
    reachable,
    same_positions,
    table_state,
)
from topics_lakehouse.history import check_history

_ATTEMPTS: Final = 3


class FencedError(Exception):
    """The table's positions are not those that the commit starts from: another committer was faster."""


@dataclass(frozen=True, slots=True)
class Append:
    """Files that take one table from some positions to others. May be handed to `append` again and again."""

    name: Identifier
    table_uuid: uuid.UUID
    topic: str
    topic_id: str
    base: Positions
    target: Positions
    ranges: Mapping[int, tuple[int, int]]  # first and last seq of each partition
    files: Sequence[DataFile]
    form: tuple[int, int]  # ids of the schema and of the partition spec that the files were written by
    refill: "Refill | None" = None
    commit_id: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __str__(self) -> str:
        seqs = ", ".join(
            f"seq {first} to {last}" + (f" of partition {p}" if p else "") for p, (first, last) in self.ranges.items()
        )
        return f"topic {self.topic} into table {'.'.join(self.name)}: {seqs or 'nothing'}"


@dataclass(frozen=True, slots=True)
class Refill:
    """Mark of an append that refills a rollback: it only lands on that very snapshot."""

    onto: int | None  # id of the snapshot, None for a table without any


def append(catalog: Catalog, wanted: Append) -> Table:
    """Commit, and give the table as it is then. Atomic, and without effect when it has landed before.

    Raises FencedError when another committer has moved the positions: nothing of this landed, or will. Raises
    CatalogDownError when the outcome can't be known: call again with the same `wanted`, and never delete its files.
    Raises TableError if the table, or one of the files, is missing.
    """
    failure: BaseException | None = None
    for _ in range(_ATTEMPTS):
        table = _table(catalog, wanted)
        if _landed(table, wanted):
            return table
        _fence(table, wanted)
        _check_files(table, wanted)
        try:
            return _commit(table, wanted)
        except (CommitFailedException, ValidationException) as error:  # did not land: look again why
            failure = error
        except Exception as error:
            if is_down(error):
                raise CatalogDownError(f"{wanted}: {type(error).__name__}: {error}".partition("\n")[0]) from error
            if _landed(_table(catalog, wanted), wanted):  # the failure came after the commit
                return _table(catalog, wanted)
            raise
    raise CatalogDownError(f"{wanted}: {failure}") from failure


def _table(catalog: Catalog, wanted: Append) -> Table:
    table = find_table(catalog, wanted.name)
    if table is None:
        raise TableError(f"{wanted}: someone dropped the table")
    if table.metadata.table_uuid != wanted.table_uuid:
        raise FencedError(f"{wanted}: the table is another one now")
    return table


def _landed(table: Table, wanted: Append) -> bool:
    if table.properties.get(COMMIT) == wanted.commit_id:
        return True
    summaries = (snapshot.summary for snapshot in table.metadata.snapshots)
    return any(summary is not None and summary.get(COMMIT) == wanted.commit_id for summary in summaries)


def _fence(table: Table, wanted: Append) -> None:
    """Raises FencedError unless the table is where the commit starts."""
    state = table_state(table)
    if state.topic_id != wanted.topic_id:
        raise FencedError(f"{wanted}: the table is about topic id {state.topic_id}, not {wanted.topic_id}")
    if not same_positions(state.positions, wanted.base):
        there = positions_text(state.positions)
        raise FencedError(f"{wanted}: another committer has moved the table's positions to {there}")
    if form_of(table) != wanted.form:
        raise FencedError(f"{wanted}: the table's columns or partitions were changed since the files were written")
    if wanted.refill is None:
        check_history(table)
    elif table.metadata.current_snapshot_id != wanted.refill.onto:
        raise FencedError(f"{wanted}: the table was changed since its missing records were found")


def _check_files(table: Table, wanted: Append) -> None:
    """Raises TableError if files are missing: they waited too long, or clocks disagree, and passed for orphans."""
    with reachable():
        gone = next((each.file_path for each in wanted.files if not table.io.new_input(each.file_path).exists()), None)
    if gone is not None:
        raise TableError(f"{wanted}: someone deleted {gone} before it was committed; it is written again")


def form_of(table: Table) -> tuple[int, int]:
    """Ids of the table's present schema and partition spec."""
    return table.metadata.current_schema_id, table.metadata.default_spec_id


def _commit(table: Table, wanted: Append) -> Table:
    transaction = table.transaction()
    schema_id, spec_id = wanted.form
    schema = AssertCurrentSchemaId.model_validate({"current-schema-id": schema_id})
    spec = AssertDefaultSpecId.model_validate({"default-spec-id": spec_id})
    transaction._stage((), (schema, spec))
    summary = {
        COMMIT: wanted.commit_id,
        POSITIONS: positions_text(wanted.target),
        RANGES: json.dumps({str(p): list(wanted.ranges[p]) for p in sorted(wanted.ranges)}),
    }
    with _FencedAppend(transaction, summary, wanted) as producer:
        for each in wanted.files:
            producer.append_data_file(each)
    return transaction.commit_transaction()


require_hooks(_MergeAppendFiles, "_commit", "_validate_concurrency")


class _FencedAppend(_MergeAppendFiles):
    """An append that looks at the positions again before each new attempt; pyiceberg's own would land regardless. It
    moves them in the same commit."""

    def __init__(self, transaction: Transaction, summary: dict[str, str], wanted: Append) -> None:
        super().__init__(Operation.APPEND, transaction, transaction._table.io, snapshot_properties=summary)
        self._wanted = wanted

    def _validate_concurrency(self) -> None:
        try:
            _fence(self._transaction._table, self._wanted)
        except (FencedError, TableError) as error:
            raise ValidationException(str(error)) from error

    def _commit(self) -> UpdatesAndRequirements:
        updates, requirements = super()._commit()
        properties = {
            POSITIONS: positions_text(self._wanted.target),
            COMMIT: self._wanted.commit_id,
            SNAPSHOT: str(self._snapshot_id),
            ROWS: next(_rows(each) for each in updates if isinstance(each, AddSnapshotUpdate)),
        }
        return (*updates, SetPropertiesUpdate(updates=properties)), requirements


def _rows(added: AddSnapshotUpdate) -> str:
    summary = added.snapshot.summary
    return (summary.get("total-records") if summary is not None else None) or ""
