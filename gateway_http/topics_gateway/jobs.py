"""Jobs as JSON, spliced from the bytes that their records are stored as (docs/contract.md, 10.1)."""

from base64 import b64encode

from topics_gateway.response import encode
from topics_service.engine.model import BINARY_KIND
from topics_service.engine.queue.attempts import members
from topics_service.engine.queue.jobs import Job, JobView
from topics_service.storage.block import Block


def job_text(job: Job, head: bytes = b"{") -> bytes:
    """One leased job; `head` opens the object and may hold members in front."""
    block, i = job.block, job.position
    tags = block.tags
    return b'%b"$seq":%d,"lease_id":"%b","deadline":%d,"$ts":%d%b%b,"deliveries":%d%b}' % (
        head,
        block.base_seq + i,
        job.lease_id.encode(),
        job.deadline,
        block.ts_at(i),
        b"" if block.kinds is None else _encoding(block, i),
        b"" if tags is None else _text(b',"$tag":', tags, i),
        job.deliveries,
        _payload(block, i),
    )


def view_text(view: JobView) -> bytes:
    """One job of a listing."""
    block, i = view.block, view.position
    return b'{"$seq":%d,"$ts":%d%b%b%b,"state":"%b","deliveries":%d%b%b%b%b%b%b}' % (
        block.base_seq + i,
        block.ts_at(i),
        _encoding(block, i),
        _text(b',"$tag":', block.tags, i),
        _text(b',"$node":', block.nodes, i),
        view.state.encode(),
        view.deliveries,
        b',"priority":%d' % view.priority if view.priority else b"",
        b"" if view.node is None else b',"node":%b' % encode(view.node),
        b"" if view.deadline is None else b',"deadline":%d' % view.deadline,
        b"" if view.ready_at is None else b',"ready_at":%d' % view.ready_at,
        b',"attempts":%b' % encode([members(attempt) for attempt in view.attempts]) if view.attempts else b"",
        _payload(block, i),
    )


def _encoding(block: Block, i: int) -> bytes:
    return b',"$encoding":"base64"' if block.kinds is not None and block.kinds[i] == BINARY_KIND else b""


def _text(frame: bytes, column: list[bytes | None] | None, i: int) -> bytes:
    value = None if column is None else column[i]
    return b"" if value is None else frame + encode(value.decode())


def _payload(block: Block, i: int) -> bytes:
    data = block.record_data(i)
    if block.kinds is not None and block.kinds[i] == BINARY_KIND:
        data = b'"%b"' % b64encode(data)
    metas = block.metas
    meta = None if metas is None else metas[i]
    return b',"data":%b' % data if meta is None else b',"data":%b,"meta":%b' % (data, meta)
