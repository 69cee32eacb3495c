"""One audit of a store, from its catalog to the last row."""

from collections.abc import Callable

from msgspec import Struct

from topics_service.engine.parts import PENDING
from topics_service.engine.snapshot import Snapshot
from topics_service.engine.verify import auxiliary, catalog, definitions, references, tables
from topics_service.engine.verify.findings import Findings, Part, Problem
from topics_service.engine.verify.records import Records
from topics_service.engine.verify.shards import Catalog
from topics_service.engine.verify.tagindex import TagIndex
from topics_service.engine.verify.walk import END, walk
from topics_service.storage import keys
from topics_service.storage.store import Family
from topics_service.storage.verify import Source


class Totals(Struct, kw_only=True):
    """Totals of a check. `records` and `rows` are the readable ones, of records including dead ones still on disk."""

    topics: int = 0
    partitions: int = 0
    records: int = 0
    routers: int = 0
    groups: int = 0
    tables: int = 0
    rows: int = 0


class Audit:
    """Memory: the catalog and the states, as a server has them, and one block; with `deep` also a number for each block
    of one log that is not indexed by tag. Of tables: their definitions."""

    def __init__(
        self,
        source: Source,
        report: Callable[[Problem], None],
        *,
        deep: bool = False,
    ) -> None:
        """`report` is called with each problem as it is found.

        `deep` also compares the tag index with the records, and decompresses batches of Kafka clients.
        """
        self.totals = Totals()
        self.expected = 0
        """About how many records there are to read, after `begin`."""
        self._findings = Findings(source, report)
        self._source = source
        self._deep = deep
        self.progress: Callable[[int], None] = lambda _: None
        """Called with the number of further records read."""
        self._parts: dict[int, Part] = {}

    def begin(self) -> None:
        """Read the catalog."""
        self._parts = catalog.parts(self._findings)
        self.totals.topics = sum(not row.is_part for row in self._findings.topics.values())
        self.totals.partitions = len(self._parts)
        self.expected = sum(part.s.count for part in self._parts.values() if part.s is not None)

    def catalog(self) -> Catalog:
        """The facts that have to agree with other shards, known after `run`."""
        pending = {key.removeprefix(PENDING) for key, _ in self._findings.rows(Family.META) if key.startswith(PENDING)}
        return Catalog(self._findings.topics, frozenset(name.decode(errors="replace") for name in pending))

    def run(self) -> Totals:
        """Read everything else. Blocks, for as long as the disk takes."""
        self._records()
        self._other_rows(Family.TAGS, "the tag index")
        self._other_rows(Family.DELETES, "delete bitmaps")
        self._other_rows(Family.GAPS, "gaps")
        auxiliary.check(self._findings, self._parts)
        self.totals.routers = references.check_routers(self._findings, self._parts)
        self.totals.groups = references.check_groups(self._findings)
        self._tables()
        return self.totals

    def _tables(self) -> None:
        found = definitions.check(self._findings, set(self._findings.topics))
        rows = tables.TablesAudit(self._findings, found)
        rows.run(lambda count: self.progress(count))
        self.totals.tables, self.totals.rows = len(found.tables), rows.rows

    def _records(self) -> None:
        def begin(log_id: int) -> _LogAudit | None:
            part = self._parts[log_id]
            if part.s is None:
                return None
            catalog.load(self._findings, part, part.s)
            return _LogAudit(self._findings, part, part.s, self._count, deep=self._deep)

        def strange(log_id: int) -> None:
            self._findings.report("orphan", f"the records of log {log_id} belong to no topic")

        for damage in walk(self._source, self._parts, begin, strange):
            if damage not in self._findings.reported:  # of what is dead
                self._findings.unreadable(Family.BLOCKS, damage)

    def _count(self, records: int) -> None:
        self.totals.records += records
        self.progress(records)

    def _other_rows(self, family: Family, what: str) -> None:
        """Rows of a family that is read log by log which are between the logs. They are found by seeking."""
        start = 0
        for log_id in [*sorted(self._parts), END]:
            if log_id > start:
                stop = keys.u64(log_id)
                for key, _ in self._findings.rows(family, keys.u64(start), stop):
                    self._findings.report("orphan", f"{what} of log {keys.read_u64(key)} belongs to no topic")
                    break
            start = log_id + 1


class _LogAudit:
    """The audit of one log under way."""

    def __init__(
        self, findings: Findings, part: Part, s: Snapshot, count: Callable[[int], None], *, deep: bool
    ) -> None:
        """`count` is called with the number of further records read."""
        self._part = part
        self._count = count
        self._tags = TagIndex(findings, part, s, deep=deep)
        self._records = Records(findings, part, s, self._tags.look if deep else None)
        self._deep = deep
        self.damage = self._records.damage

    def row(self, key: bytes, value: bytes) -> None:
        """See LogVisitor."""
        self._count(self._records.row(key, value))

    def finish(self) -> None:
        """See LogVisitor."""
        self._records.finish()
        if self._deep:
            self._tags.finish()
        self._part.let_go()
