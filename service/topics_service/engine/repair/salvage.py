"""One repair of a store, from its catalog to the last row."""

from collections.abc import Callable

from msgspec import Struct

from topics_service.engine.lives import Ceiling
from topics_service.engine.placement import SINGLE, Place
from topics_service.engine.repair import auxiliary, catalog, references, tables
from topics_service.engine.repair.actions import Action, Rows, Sink, Uncertain
from topics_service.engine.repair.catalog import Ledger
from topics_service.engine.repair.records import LogSalvage
from topics_service.engine.verify.walk import walk
from topics_service.storage import keys
from topics_service.storage.store import Family
from topics_service.storage.verify import Source


class Saved(Struct, kw_only=True):
    """Totals after the repair."""

    topics: int = 0
    partitions: int = 0
    records: int = 0


class Salvage:
    """Reads a damaged store to its end and writes a sound one. Memory: the catalog, states, deletes and gaps of all
    logs, as a server has them, and the blocks of 16 Ki records; of tables their definitions, and 1 Mi hashes.

    Every row that can be read and agrees with the others is taken over as it is. Seqs of records that can't be read
    become gaps, and no seq is handed out again. The tag index, the indexes of tables and the expiries of idempotency
    keys are rebuilt.
    """

    def __init__(
        self,
        source: Source,
        sink: Sink,
        report: Callable[[Action], None],
        *,
        end: Uncertain | None = None,
        bring_back: bool = False,
        place: Place = SINGLE,
    ) -> None:
        """`report` is called with each change. `bring_back` keeps records that may have been deleted; `place` is the
        shard of the store, if it is one of several."""
        self._place = place
        self._rows = Rows(source, sink, report)
        self._end = end or Uncertain()
        self._bring_back = bring_back

    def run(self) -> Saved:
        """Do it. Blocks, for as long as the disk takes."""
        rows = self._rows
        ledger = catalog.topics(rows, self._place)
        lost = catalog.gaps_and_deletes(rows, ledger, bring_back=self._bring_back)
        known = auxiliary.highest_seqs(rows, ledger) if ledger.derived or self._end.jump else {}
        for log_id, ceiling in ledger.ceilings.items():
            raised = Ceiling(ceiling.seq + self._end.jump, ceiling.life)
            rows.put(Family.CEILINGS, keys.u64(log_id), raised.encode())
            if log_id in ledger.derived:
                known[log_id] = max(known.get(log_id, 0), ceiling.seq)
        self._records(ledger, lost, known)
        auxiliary.save(rows, ledger, self._end.revived)
        references.save_routers(rows, ledger)
        references.save_groups(rows, ledger, self._end.revived)
        tables.save(rows, ledger)
        catalog.facts(rows, ledger, end_lost=bool(self._end.jump))
        return Saved(
            topics=sum(not row.is_part for row in ledger.topics.values()),
            partitions=len(ledger.parts),
            records=sum(part.s.count for part in ledger.parts.values() if part.s is not None),
        )

    def _records(self, ledger: Ledger, lost: dict[int, list[tuple[int, int]]], known: dict[int, int]) -> None:
        def begin(log_id: int) -> LogSalvage:
            return LogSalvage(
                self._rows, ledger.parts[log_id], lost.get(log_id, []),
                derived=log_id in ledger.derived, known_head=known.get(log_id, 0), end=self._end,
            )  # fmt: skip

        def strange(log_id: int) -> None:
            ledger.see(log_id)
            self._rows.report("lost", f"the records of log {log_id}, whose topic is gone, stay in the quarantine")

        walk(self._rows.source, ledger.parts, begin, strange)
