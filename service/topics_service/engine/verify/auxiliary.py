"""Auxiliary rows of a log: idempotency keys, producers, leases, delays, the dedup map of copies."""

import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from pyroaring import BitMap64

from topics_service.engine import idempotency
from topics_service.engine.producers import _decode as decode_producer
from topics_service.engine.queue import leases
from topics_service.engine.router.provenance import _decode as decode_copies
from topics_service.engine.verify.findings import Findings, Part
from topics_service.storage import keys
from topics_service.storage.store import Family, StoreError

_OUTCOME: Final = struct.Struct(">QQQqQ")
_LEVELS: Final = 10  # of priority; one more for waiting jobs

Check = Callable[[Findings, Part, bytes, bytes], int | None]


def check(findings: Findings, parts: Mapping[int, Part]) -> None:
    """Check every row once. Report rows that belong to no topic, once for each log."""
    for family, what, look in CHECKS:
        strange = 0
        for key, value in findings.rows(family):
            log_id = keys.read_u64(key) if len(key) >= 8 else 0
            part = parts.get(log_id)
            if part is None:
                if log_id != strange:
                    strange = log_id
                    findings.report("orphan", f"{what} of log {log_id} belongs to no topic")
                continue
            with findings.decoding(f"{what} {key[8:].hex()}", part):
                last = look(findings, part, key, value)
                if last is not None and part.settled is not None and last > part.head:
                    text = f"{what} speaks of seq {last}, the head is {part.head}"
                    findings.report("mismatch", text, part, last, last)
    for key, value in findings.rows(Family.IDEMPOTENCY_EXPIRY):
        if len(key) < 16 or value:
            findings.report("damaged", f"the expiry {key.hex()} of an idempotency key is none")


def _outcome(findings: Findings, part: Part, key: bytes, value: bytes) -> int:
    outcome = idempotency.Outcome(*_OUTCOME.unpack(value))
    with suppress(StoreError):  # reported when all expiries are read
        if findings.source.get(Family.IDEMPOTENCY_EXPIRY, idempotency.expiry_key(key, value)) is None:
            text = f"the idempotency key {key[8:].decode(errors='replace')!r} has no expiry"
            findings.report("missing", text, part, outcome.first_seq, outcome.first_seq + outcome.count - 1)
    return max(outcome.first_seq + outcome.count - 1, outcome.head_seq)


def _producer(findings: Findings, part: Part, key: bytes, value: bytes) -> int | None:
    producer = decode_producer(keys.read_u64(key, 8), value)
    return max((known.seq for known in producer.batches), default=None)


def _lease(findings: Findings, part: Part, key: bytes, value: bytes) -> int:
    seq = keys.read_u64(key, 8)
    if part.row.config.type != "queue":
        findings.report("orphan", "a topic that is no queue has leases", part)
    if not seq:
        return leases.decode_queue(value)[1] - 1
    leases.parse(value)
    return seq


def _job(findings: Findings, part: Part, key: bytes, value: bytes) -> int | None:
    kind, number = key[8], keys.read_u64(key, 9) if len(key) > 9 else 0
    if kind == 1:
        _, count, priority = struct.unpack("<QIB", value)
        if not count or priority >= _LEVELS:
            raise ValueError(f"{count} jobs of priority {priority}")
        return int(number + count - 1)
    if kind == 2:
        count, _ = struct.unpack("<IB", value)
        base = keys.read_u64(key, 17)
        row = findings.source.get(Family.JOBS, key[:8] + b"\x01" + keys.u64(base))
        if row is None or struct.unpack("<QIB", row)[:2] != (number, count):
            findings.report("mismatch", "the delay of jobs has no row of their write", part, base, base + count - 1)
        return int(base + count - 1)
    if kind == 3:
        found = BitMap64.deserialize(value)
        if key[17] > _LEVELS or (found and (found.min() >> 16 != number or found.max() >> 16 != number)):
            raise ValueError(f"a set of level {key[17]} that holds seqs of another place")
        return int(found.max()) if found else None
    if kind == 4:
        return keys.read_u64(value)
    raise ValueError(f"a row of kind {kind}")


def _copies(findings: Findings, part: Part, key: bytes, value: bytes) -> int:
    return max(dest + count - 1 for _, dest, count in decode_copies(value))


CHECKS: Final[tuple[tuple[Family, str, Check], ...]] = (
    (Family.IDEMPOTENCY, "the idempotency key", _outcome),
    (Family.PRODUCERS, "the producer", _producer),
    (Family.LEASES, "the lease", _lease),
    (Family.JOBS, "the row of jobs", _job),
    (Family.ROUTER_COPIES, "the evidence of copies", _copies),
)
