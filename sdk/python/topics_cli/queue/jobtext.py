"""Jobs as lines of JSON in the form of `/v0`, and back: `ack` reads the output of `topics queue claim`."""

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from topics_cli.recordtext import base64, text

if TYPE_CHECKING:
    from topics_client.models import Attempt, Job, JobView

_LINE_ENDS = bytes.maketrans(b"\r\n", b"  ")  # in JSON they stand between values only


class Handle(NamedTuple):
    """The identity of a leased job, sufficient to settle it. Without a lease, node and seq identify it."""

    seq: int
    lease_id: str
    node: str


def claimed_line(job: "Job", node: str) -> bytes:
    """A claimed job, with its queue and the node that holds it, without the end of the line."""
    pieces = [
        b'{"topic":%b,"node":%b,"$seq":%d' % (text(job.queue), text(node), job.seq),
        b',"lease_id":%b,"deadline":%d,"$ts":%d' % (text(job.lease_id), job.deadline_ts_ms, job.ts_ms),
        b',"$encoding":"base64"' if job.binary else b"",
        b"" if job.tag is None else b',"$tag":' + text(job.tag),
        b',"deliveries":%d' % job.deliveries,
        _payload(job.data, job.binary, job.meta_data),
    ]
    return b"".join(pieces) + b"}"


def view_line(view: "JobView") -> bytes:
    """A job of a listing, without the end of the line."""
    record = view.record
    pieces = [
        b'{"$seq":%d,"$ts":%d' % (record.seq, record.ts_ms),
        b',"$encoding":"base64"' if record.binary else b"",
        b"" if record.tag is None else b',"$tag":' + text(record.tag),
        b"" if record.node is None else b',"$node":' + text(record.node),
        b',"state":%b,"deliveries":%d' % (text(view.state), view.deliveries),
        b',"priority":%d' % view.priority if view.priority else b"",
        b"" if view.node is None else b',"node":' + text(view.node),
        b"" if view.deadline_ts_ms is None else b',"deadline":%d' % view.deadline_ts_ms,
        b"" if view.ready_at_ts_ms is None else b',"ready_at":%d' % view.ready_at_ts_ms,
        b',"attempts":[%b]' % b",".join(map(_attempt, view.attempts)) if view.attempts else b"",
        _payload(record.data, record.binary, record.meta_data),
    ]
    return b"".join(pieces) + b"}"


def _attempt(attempt: "Attempt") -> bytes:
    return b'{"delivery":%d,"ended_at":%d,"node":%b,"reason":%b}' % (
        attempt.delivery, attempt.ended_at_ts_ms, text(attempt.node), text(attempt.reason)
    )  # fmt: skip


def handle_of_line(line: bytes, queue: str, node: str) -> Handle:
    """The job that a line of `claimed_line` is about, also one from which other members were taken. `node` is for
    lines that name none. Raises ValueError for another kind of line, and for a job of another queue."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError("it is not JSON") from None
    seq = found.get("$seq") if isinstance(found, dict) else None
    if type(seq) is not int or not 0 <= seq < 1 << 64:
        raise ValueError('it has no "$seq": lines of topics queue claim are wanted')
    if found.get("topic", queue) != queue:
        raise ValueError(f"its job is one of {_short(found['topic'])}, not of {queue}")
    lease, holder = found.get("lease_id", ""), found.get("node", node)
    if not (isinstance(lease, str) and isinstance(holder, str)):
        raise ValueError('"lease_id" and "node" are texts')
    return Handle(seq, lease, holder)


def handle_of_argument(argument: str, node: str) -> Handle:
    """The job of SEQ or SEQ:LEASE. Raises ValueError."""
    seq, _, lease = argument.partition(":")
    if not (seq.isascii() and seq.isdigit() and len(seq) <= 20 and int(seq) < 1 << 64):
        raise ValueError(f"{argument!r} is not SEQ or SEQ:LEASE")
    return Handle(int(seq), lease, node)


def _payload(data: bytes, binary: bool, meta: bytes) -> bytes:
    shown = b'"%b"' % base64(data) if binary else data.translate(_LINE_ENDS)
    return b',"data":' + shown + (b',"meta":' + meta.translate(_LINE_ENDS) if meta else b"")


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 80 else f"{shown[:77]}..."
