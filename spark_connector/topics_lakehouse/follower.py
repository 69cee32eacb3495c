"""One topic on its way into its tables: its waits, and the commits of a round.

The commits of a round, in this order, each atomic:

1. `_errors`, where records did not fit, 2. `_gaps`, where seqs were lost, 3. the table itself.

Each moves the positions of its table. A crash in front of 3 means that the range is read again; rows already in 1 and 2
are not written again, because their positions are ahead.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from pyspark_topics.fetch import Gap
from pyspark_topics.inventory import TopicInfo
from topics_lakehouse.catalog import ERRORS, GAPS, RECORDS, CatalogDownError, Positions
from topics_lakehouse.commit import Append, Refill, append, form_of
from topics_lakehouse.config import MIN_GRACE, Config, TopicRule
from topics_lakehouse.files import TaskResult
from topics_lakehouse.gaps import gap_rows, new_gaps
from topics_lakehouse.history import Witness
from topics_lakehouse.parquet import ParquetFiles, layout
from topics_lakehouse.refill import Missing
from topics_lakehouse.schema import GAPS as GAPS_SCHEMA
from topics_lakehouse.tables import RecreatedError, TopicTables, archive_tables, open_tables

_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 30.0

LIVE: Final = "live"  # follows the topic
WAITING: Final = "waiting"  # for a server or a catalog that does not answer
FAILED: Final = "failed"  # needs someone; tried again now and then
ABSENT: Final = "absent"  # the topic does not exist

Reporter = Callable[[str, "Status"], None]


@dataclass(slots=True)
class Status:
    """The status of one topic."""

    topic: str
    table: str
    state: str = LIVE
    reason: str = ""  # why it is not live
    conflicts: list[str] = field(default_factory=list)  # declared columns that the table can't have
    positions: Positions = field(default_factory=dict)
    heads: Positions = field(default_factory=dict)
    records: int = 0  # written by this process
    errors: int = 0  # of them did not fit
    gaps: int = 0  # reported by this process
    bytes: int = 0
    files: int = 0

    @property
    def lag(self) -> int:
        """Seqs that the table is behind."""
        return sum(max(0, head - self.positions.get(partition, 0)) for partition, head in self.heads.items())


class Follower:
    """Keeps the tables of one topic."""

    def __init__(
        self,
        catalog: Callable[[], Catalog],
        config: Config,
        rule: TopicRule,
        topic: str,
        report: Reporter,
        *,
        witness: Callable[[str], Witness],
        refill: bool = False,
    ) -> None:
        """`witness` returns the positions that tables of a topic committed to their group. With `refill` tables that
        were rolled back are to be filled when they are first opened, not refused."""
        self._witness = witness
        self.refilling = refill
        self._catalog = catalog
        self._config = config
        self.rule = rule
        self._report = report
        self._pending: list[tuple[str, Append]] = []
        self._pending_since = 0.0
        self._written: Sequence[TaskResult] = ()
        self._pause = _FIRST_PAUSE
        self._not_before = 0.0
        self.tables: TopicTables | None = None
        self.status = Status(topic, ".".join((config.namespace, config.table(topic))))

    def hurry(self) -> None:
        """Try at once, without the rest of a pause."""
        self._not_before = 0.0

    def due(self) -> bool:
        """True if it is time for another attempt."""
        return time.monotonic() >= self._not_before

    def open(self, info: TopicInfo) -> TopicTables:
        """The tables for this topic id, after pending commits are done."""
        self.status.heads = {each.partition: each.head_seq for each in info.partitions}
        if self.tables is not None and (self.tables.topic_id != info.topic_id or self._overdue()):
            self.forget()
        if self.tables is None:
            self.tables = self._open(info)
        self.status.conflicts = [str(each) for each in self.tables.conflicts]
        self._finish()
        self.status.positions = self.tables.positions[RECORDS]
        return self.tables

    def _overdue(self) -> bool:
        """True if a commit has waited so long that its files may soon count as orphans and should be rewritten."""
        return bool(self._pending) and time.monotonic() - self._pending_since > MIN_GRACE / 2

    def _open(self, info: TopicInfo) -> TopicTables:
        def opened() -> TopicTables:
            witness = self._witness(info.topic)
            return open_tables(
                self._catalog(),
                self._config,
                self.rule,
                info.topic,
                info.topic_id,
                witness=witness,
                refill=self.refilling,
            )

        try:
            return opened()
        except RecreatedError:
            if self.rule.on_recreate != "archive":
                raise
        for name in archive_tables(self._catalog(), self._config, info.topic, info.topic_id):
            self.status.reason = f"put aside as {name}"
            self._report("archived", self.status)
        self.status.reason = ""
        return opened()

    def discard(self, results: Sequence[TaskResult]) -> None:
        """Remove files that belong to no commit, as far as possible."""
        if self.tables is None:
            return
        io = self.tables.tables[RECORDS].io
        for each in results:
            for file in (*each.files, *each.error_files):
                with suppress(Exception):  # an orphan more for the maintenance
                    io.delete(file.file_path)

    def commit(self, results: Sequence[TaskResult], began: float) -> list[Table]:
        """Commit the files of one successful round; the tables that this changed. `began` is
        when the first file may have been written, by the monotonic clock."""
        assert self.tables is not None
        return self._commit(self._steps(self.tables, results), results, began)

    def refill(self, found: Missing, results: Sequence[TaskResult], began: float) -> list[Table]:
        """Commit the missing rows; as `commit`."""
        return self._commit(self._refills(found, results), results, began)

    def _commit(self, steps: list[tuple[str, Append]], results: Sequence[TaskResult], began: float) -> list[Table]:
        assert self.tables is not None
        self._pending, self._pending_since = steps, began
        self._written = results
        roles = [role for role, _ in self._pending]
        self._report("written", self.status)
        self._finish()
        self.status.positions = self.tables.positions[RECORDS]
        return [self.tables.tables[role] for role in roles]

    def _steps(self, tables: TopicTables, results: Sequence[TaskResult]) -> list[tuple[str, Append]]:
        base = tables.positions[RECORDS]
        ranges: dict[int, tuple[int, int]] = {}
        ordered = sorted(results, key=lambda each: (each.wanted.partition, each.wanted.first))
        for each in ordered:
            first, _ = ranges.get(each.wanted.partition, (each.wanted.first, 0))
            ranges[each.wanted.partition] = (first, each.wanted.last)
        steps = []
        error_files = [file for each in ordered for file in each.error_files]
        if error_files:
            steps.append((ERRORS, self._append(tables, ERRORS, ranges, error_files)))
        found = [gap for each in ordered for gap in each.gaps]
        if found:
            gaps = new_gaps(tables.tables[GAPS], tables.positions[GAPS], base, found)
            if gaps:
                steps.append((GAPS, self._append(tables, GAPS, ranges, self._gap_files(tables, gaps))))
        files = [file for each in ordered for file in each.files]
        steps.append((RECORDS, self._append(tables, RECORDS, ranges, files)))
        return steps

    def _refills(self, found: Missing, results: Sequence[TaskResult]) -> list[tuple[str, Append]]:
        tables = found.tables
        ranges = {p: (1, last) for p, last in tables.positions[RECORDS].items() if last}
        files = {
            ERRORS: [file for each in results for file in each.error_files],
            GAPS: [],
            RECORDS: [file for each in results for file in each.files],
        }
        gaps = new_gaps(tables.tables[GAPS], tables.positions[GAPS], {}, found.gaps(results))
        if gaps:
            files[GAPS] = self._gap_files(tables, gaps)
        return [
            (role, self._append(tables, role, ranges, files[role], refill=role in tables.lacking))
            for role in (ERRORS, GAPS, RECORDS)
            if files[role] or role in tables.lacking
        ]

    def _append(
        self,
        tables: TopicTables,
        role: str,
        ranges: Mapping[int, tuple[int, int]],
        files: Sequence[DataFile],
        *,
        refill: bool = False,
    ) -> Append:
        table, base = tables.tables[role], tables.positions[role]
        ahead = {partition: max(last, base.get(partition, 0)) for partition, (_, last) in ranges.items()}
        return Append(
            name=table.name(),
            table_uuid=table.metadata.table_uuid,
            topic=tables.topic,
            topic_id=tables.topic_id,
            base=base,
            target={**base, **ahead},
            ranges=ranges,
            files=files,
            form=form_of(table),
            refill=Refill(table.metadata.current_snapshot_id) if refill else None,
        )

    def _gap_files(self, tables: TopicTables, gaps: Sequence[Gap]) -> list[DataFile]:
        table, config = tables.tables[GAPS], self._config
        where = layout(
            table, GAPS_SCHEMA.names, row_group_rows=config.row_group_rows, target_bytes=config.target_file_bytes
        )
        with ParquetFiles(table.io, where) as files:
            files.write(gap_rows(gaps, where.schema))
            return files.close()

    def _finish(self) -> None:
        """Do the commits that are still to be done; a failed step stays pending, unless it can never succeed."""
        assert self.tables is not None
        while self._pending:
            role, wanted = self._pending[0]
            try:
                table = append(self._catalog(), wanted)
            except CatalogDownError:
                raise
            except BaseException:
                self._pending = []
                raise
            self.tables.filled(role, table)
            del self._pending[0]
            self._count(role, wanted)
            self._report("committed" if role == RECORDS else role, self.status)

    def _count(self, role: str, landed: Append) -> None:
        status = self.status
        if role == GAPS:
            status.gaps += sum(int(each.record_count) for each in landed.files)
        if role == RECORDS:
            status.records += sum(each.rows for each in self._written)
            status.errors += sum(each.error_rows for each in self._written)
            status.bytes += sum(each.bytes for each in self._written)
            status.files += sum(len(each.files) for each in self._written)

    def forget(self) -> None:
        """Look at the tables afresh next time, and plan from there."""
        self.tables = None
        self._pending = []

    def settle(self, state: str, reason: str = "") -> None:
        """Take a state; one that is not live is tried again after a pause that grows."""
        status = self.status
        changed = (status.state, status.reason) != (state, reason)
        status.state, status.reason = state, reason
        if state in (LIVE, ABSENT):  # every look reports an absent topic anyway
            self._pause, self._not_before = _FIRST_PAUSE, 0.0
        else:
            self._not_before = time.monotonic() + self._pause
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        if changed:
            self._report(state, status)


@contextmanager
def timed(add: Callable[[float], None]) -> Iterator[None]:
    """Tell how many seconds the body took."""
    began = time.monotonic()
    try:
        yield
    finally:
        add(time.monotonic() - began)
