"""One audit of a store, from its catalog to the last row."""

from collections import deque
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from topics_service.engine.snapshot import Snapshot
from topics_service.engine.verify import auxiliary, catalog, references
from topics_service.engine.verify.findings import Findings, Part, Problem
from topics_service.engine.verify.records import Records
from topics_service.engine.verify.tagindex import TagIndex
from topics_service.storage import keys
from topics_service.storage.store import Family
from topics_service.storage.verify import Damage, Source

_END: Final = (1 << 64) - 1  # no log has this id


class Totals(Struct, kw_only=True):
    """Totals of a check. `records` are the readable ones, including dead ones still on disk."""

    topics: int = 0
    partitions: int = 0
    records: int = 0
    routers: int = 0
    groups: int = 0


class Audit:
    """Memory: the catalog and the states, as a server has them, and one block; with `deep` also a number for each block
    of one log that is not indexed by tag."""

    def __init__(
        self,
        source: Source,
        report: Callable[[Problem], None],
        *,
        deep: bool = False,
    ) -> None:
        """`report` is called with each problem as it is found.

        `deep` also compares the tag index with the records, and takes apart what Kafka clients compressed.
        """
        self.totals = Totals()
        self.expected = 0
        """About how many records there are to read, after `begin`."""
        self._findings = Findings(source, report)
        self._source = source
        self._deep = deep
        self.progress: Callable[[int], None] = lambda _: None
        """Told of so many more records that were read."""
        self._parts: dict[int, Part] = {}

    def begin(self) -> None:
        """Read the catalog."""
        self._parts = catalog.parts(self._findings)
        self.totals.topics = len({part.number for part in self._parts.values()})
        self.totals.partitions = len(self._parts)
        self.expected = sum(part.s.count for part in self._parts.values() if part.s is not None)

    def run(self) -> Totals:
        """Read everything else. Blocks, for as long as the disk takes."""
        self._records()
        self._other_rows(Family.TAGS, "the tag index")
        self._other_rows(Family.DELETES, "delete bitmaps")
        self._other_rows(Family.GAPS, "gaps")
        auxiliary.check(self._findings, self._parts)
        self.totals.routers = references.check_routers(self._findings, self._parts)
        self.totals.groups = references.check_groups(self._findings, self._parts)
        return self.totals

    def _records(self) -> None:
        waiting = deque(sorted(self._parts))
        damages: list[Damage] = []
        log: _LogAudit | None = None
        strange = -1
        for found in self._source.rows(Family.BLOCKS):
            if isinstance(found, Damage):
                damages.append(found)
                if log is not None:
                    log.records.damage(found)
                log = self._go_on(log, waiting, _END if found.before is None else keys.read_u64(found.before), found)
                continue
            log_id = keys.read_u64(found[0])
            log = self._go_on(log, waiting, log_id)
            if log is not None:
                before = log.records.count
                log.records.row(*found)
                self._count(log.records.count - before)
            elif log_id not in self._parts and log_id != strange:
                strange = log_id
                self._findings.report("orphan", f"the records of log {log_id} belong to no topic")
        self._go_on(log, waiting, _END)
        for damage in damages:
            if damage not in self._findings.reported:  # of what is dead
                self._findings.unreadable(Family.BLOCKS, damage)

    def _go_on(
        self, log: "_LogAudit | None", waiting: deque[int], log_id: int, damage: Damage | None = None
    ) -> "_LogAudit | None":
        """End `log` and those that wait up to `log_id`; returns the audit of that one, if there is such a log.

        Those that are begun here may have lost rows to `damage`.
        """
        if log is not None and log.part.log_id == log_id:
            return log
        while True:
            if log is not None:
                self._end(log)
                log = None
            if not waiting or waiting[0] > log_id:
                return None
            part = self._parts[waiting.popleft()]
            if part.s is None:
                continue
            catalog.load(self._findings, part, part.s)
            log = _LogAudit(self._findings, part, part.s, deep=self._deep)
            if damage is not None:
                log.records.damage(damage)
            if part.log_id == log_id:
                return log

    def _end(self, log: "_LogAudit") -> None:
        log.records.finish()
        if self._deep:
            log.tags.finish()
        log.part.let_go()

    def _count(self, records: int) -> None:
        self.totals.records += records
        self.progress(records)

    def _other_rows(self, family: Family, what: str) -> None:
        """Rows of a family that is read log by log which are between the logs. They are found by seeking."""
        start = 0
        for log_id in [*sorted(self._parts), _END]:
            if log_id > start:
                stop = keys.u64(log_id)
                for key, _ in self._findings.rows(family, keys.u64(start), stop):
                    self._findings.report("orphan", f"{what} of log {keys.read_u64(key)} belongs to no topic")
                    break
            start = log_id + 1


class _LogAudit:
    """The audit of one log under way."""

    def __init__(self, findings: Findings, part: Part, s: Snapshot, *, deep: bool) -> None:
        self.part = part
        self.tags = TagIndex(findings, part, s, deep=deep)
        self.records = Records(findings, part, s, self.tags.look if deep else None)
