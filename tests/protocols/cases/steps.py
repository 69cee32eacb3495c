"""The words that cases are written in: steps, each one request in protocol-neutral form and what must come back.

Requests name their fields as the JSON of /v0 does. `data` and `meta` are JSON *texts*, so that bytes can be compared.
`{t}`, `{u}`, `{v}` and `{w}` stand for names that are new in each run. `want` is a part of the answer; the rest only
has to be equal on both protocols. With `until`, the step is repeated until its answer holds these fields.
"""

from dataclasses import dataclass, field
from typing import Any

U64 = (1 << 64) - 1


@dataclass(frozen=True)
class Step:
    """One request."""

    op: str
    topic: str
    request: dict[str, Any]
    want: dict[str, Any] = field(default_factory=dict)
    until: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """Steps on fresh topics; `small` runs on the server with every limit turned down."""

    name: str
    steps: tuple[Step, ...]
    small: bool = False


def _step(op: str):  # a factory of factories
    def make(topic: str = "{t}", /, *, want: Any = None, until: Any = None, **request: Any) -> Step:
        return Step(op, topic, request, want or {}, until or {})

    return make


put, get, drop = _step("put"), _step("get"), _step("drop")
write, diff, delete = _step("append"), _step("diff"), _step("delete")


def listing(*, want: Any = None, **request: Any) -> Step:
    """A step that lists topics."""
    return Step("list", "", request, want or {})


def rec(data: str, **rest: Any) -> dict[str, Any]:
    """One record to write."""
    return {"data": data, **rest}


def recs(*datas: str) -> list[dict[str, Any]]:
    """Plain records to write."""
    return [rec(data) for data in datas]


def fails(code: str, **detail: Any) -> dict[str, Any]:
    """A refusal with exactly this detail."""
    return {"error": code, "detail": detail}


def seqs(*numbers: int) -> dict[str, Any]:
    """A page with exactly these records."""
    return {"$seqs": list(numbers)}


def gap(first: int, last: int, reason: str, **rest: Any) -> dict[str, Any]:
    """A page with this tombstone."""
    rest |= {"gap_from": first, "gap_to": last, "reason": reason}
    return {"tombstone": {"missed_estimate": max(0, last - first + 1)} | rest}


DEFAULTS = {
    "type": "log", "ttl_ms": 0, "cap_records": 0, "cap_bytes": 0, "discard": "old", "durable": False,
    "durability": "disk", "priority": None, "auto_priority": True, "auto_create": True,
    "idempotency_window_ms": 120000, "dedupe_node": True, "lease_ms": 30000, "claim_jitter_ms": 0,
    "max_deliveries": 0, "dead_letter": None, "leases_durable": False,
}  # fmt: skip


def config(**changed: Any) -> dict[str, Any]:
    """An echo of the whole config."""
    return {"config": {**DEFAULTS, **changed}}
