"""Maintenance schedule of a running pipeline: frequent enough to keep tables small, rare enough to cost little."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from pyiceberg.table import Table

from topics_lakehouse.catalog import GAPS, RECORDS, table_state
from topics_lakehouse.compact import Compaction, compact
from topics_lakehouse.config import Config
from topics_lakehouse.maintain import Maintenance, expire, maintain

_COMPACT_SECONDS = 30.0
_COMPACT_BYTES = 32 << 20
_ORPHANS_SECONDS = 3600.0
_SLACK = 10  # snapshots above those kept before some are dropped: each drop is a commit


@dataclass(slots=True)
class _Times:
    """The due times of a table, in seconds of the monotonic clock."""

    compaction: float
    orphans: float
    commits: int = 0


@dataclass(slots=True)
class MaintenanceSchedule:
    """Called behind each commit of a table (Pipeline's `after_commit`).

    It drops old snapshots when there are a few too many, makes large files of small ones every half minute unless the
    table is behind, a few seconds' worth at a time, and removes orphans every hour.
    """

    config: Config
    lag: Callable[[str], int] = lambda _: 0  # seqs that a topic's table is behind
    _tables: dict[str, _Times] = field(default_factory=dict)

    def __call__(self, table: Table, topic: str) -> None:
        now = time.monotonic()
        times = self._tables.setdefault(str(table.metadata.table_uuid), _Times(now + _COMPACT_SECONDS, now))
        keep = self.config.keep_snapshots
        if len(table.metadata.snapshots) > keep + _SLACK:
            expire(table, keep)
        if now >= times.compaction and not self.lag(topic):  # first things first
            times.compaction = now + _COMPACT_SECONDS
            self._compact(table)
        if now >= times.orphans:
            times.orphans = now + _ORPHANS_SECONDS
            grace = self.config.orphan_grace_seconds
            maintain(table, Maintenance(keep_snapshots=keep, orphan_grace_seconds=grace))

    def _compact(self, table: Table) -> None:
        role = table_state(table).role
        if role != GAPS:
            compact(
                table,
                Compaction(
                    target_bytes=self.config.target_file_bytes, ordered=role == RECORDS, max_bytes=_COMPACT_BYTES
                ),
            )
