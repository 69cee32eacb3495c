"""Auxiliary rows of logs: valid ones are saved, the others left out."""

from collections.abc import Iterator

from topics_service.engine import idempotency
from topics_service.engine.repair.actions import Rows, log_of
from topics_service.engine.repair.catalog import Ledger
from topics_service.engine.verify.auxiliary import CHECKS, Check
from topics_service.engine.verify.findings import DECODING, Findings, Part, Problem
from topics_service.storage import keys
from topics_service.storage.store import Family

_JOB_TIME = 2  # the kind of a row of a delay, which hangs on the row of a write


def highest_seqs(rows: Rows, ledger: Ledger) -> dict[int, int]:
    """Return the highest seq of each log that an auxiliary row refers to."""
    found: dict[int, int] = {}
    for family, _, look in CHECKS:
        for key, _, part, last in _looked(rows, ledger, family, look):
            ledger.see(log_of(key))
            if part is not None and last is not None:
                found[part.log_id] = max(found.get(part.log_id, 0), last)
    return found


def save(rows: Rows, ledger: Ledger, revived: frozenset[Family]) -> None:
    """Save the rows that refer to existing records. The states are final by now.

    Rows of `revived` families can be back that were removed by their range. Those of removed logs are left out in any
    case; beside that, leases are removed so.
    """
    for family, what, look in CHECKS:
        left_out: dict[int, int] = {}
        strange: set[int] = set()
        for key, value, part, last in _looked(rows, ledger, family, look):
            ledger.see(log_of(key))
            if part is None:
                strange.add(log_of(key))
                continue
            s = part.s
            if (
                last is None
                or (s is not None and part.settled is not None and last > part.head)
                or _is_gone(part, family, last)
                or (family is Family.LEASES and family in revived and keys.read_u64(key, 8))
            ):
                left_out[part.log_id] = left_out.get(part.log_id, 0) + 1
                continue
            rows.put(family, key, value)
            if family is Family.IDEMPOTENCY:
                rows.put(Family.IDEMPOTENCY_EXPIRY, idempotency.expiry_key(key, value), b"")
            if family is Family.PRODUCERS:
                ledger.last_producer = max(ledger.last_producer, keys.read_u64(key, 8))
        for log_id, count in left_out.items():
            rows.report(
                "dropped", f"{what}: {count} rows that are damaged or speak of what is lost", ledger.parts[log_id]
            )
        for log_id in sorted(strange):
            rows.report("dropped", f"{what} of log {log_id}, which belongs to no topic")
        for hole in rows.holes[family]:
            rows.report("dropped", f"{what}: rows that can't be read: {hole.why}")


def _is_gone(part: Part, family: Family, seq: int) -> bool:
    """Return whether the row refers to seqs that never existed, or to a job whose record is lost."""
    s = part.settled
    return s is not None and (seq > part.head or (family is Family.LEASES and s.gap_at(seq) is not None))


def _looked(
    rows: Rows, ledger: Ledger, family: Family, look: Check
) -> Iterator[tuple[bytes, bytes, Part | None, int | None]]:
    """Yield each row with its log and the highest seq that it refers to: 0 if none, None if it is damaged."""
    reported: list[Problem] = []
    findings = Findings(rows.source, reported.append)
    for key, value in rows.family(family):
        part = ledger.parts.get(log_of(key))
        if part is None:
            yield key, value, None, None
            continue
        reported.clear()
        try:
            last = look(findings, part, key, value) or 0
        except DECODING:
            yield key, value, part, None
            continue
        # A missing expiry is rebuilt.
        yield key, value, part, None if any(problem.kind != "missing" for problem in reported) else max(0, last)
