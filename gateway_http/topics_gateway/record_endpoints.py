"""Handlers of a topic's records: append, diff, delete (docs/contract.md, 4 to 6)."""

from collections.abc import Iterable
from typing import Any, Final

from topics_gateway.append_decoder import read_append
from topics_gateway.body import read_json, read_object
from topics_gateway.json_fields import Fields
from topics_gateway.record_limit import refuse_too_many
from topics_gateway.render import Parts, RenderCache
from topics_gateway.request import Request, flag
from topics_gateway.response import Response, encode, json_response
from topics_gateway.settings import GatewaySettings
from topics_service.api.interfaces import Topics
from topics_service.engine.errors import invalid
from topics_service.engine.model import AppendReply, DeleteReply, DeleteRequest, DiffReply, DiffRequest, TagMatch

_DIFF: Final = frozenset(
    {
        "from_seq", "limit", "node", "include_tags", "include_meta", "wait_ms", "max_batch_bytes", "from_ts", "last",
        "filter", "partition",
    }
)  # fmt: skip
_DELETE: Final = frozenset({"before_seq", "match", "partition"})


class RecordEndpoints:
    """Requests to engine structs and replies to the JSON of docs/contract.md, 4 to 6, members in its order."""

    def __init__(self, api: Topics, settings: GatewaySettings, rendered: RenderCache) -> None:
        self._api = api
        self._settings = settings
        self._rendered = rendered

    async def append(self, request: Request) -> Response:
        """POST /v0/topics/{topic}."""
        text = await read_json(request, self._settings.max_body_bytes)
        await refuse_too_many(text, self._settings.limits)
        append_request = read_append(request.name, text, self._settings.limits)
        if append_request.idempotency_key is None:
            append_request.idempotency_key = _header_key(request)
        reply = await self._api.append(append_request, principal=request.principal)
        members = append_members(reply, seqs=flag(request.query(), "return_seqs", True), total_ms=request.elapsed_ms)
        return json_response(201 if reply.created else 200, members)

    async def diff(self, request: Request) -> Response:
        """POST /v0/topics/{topic}/diff. A client that leaves ends its wait."""
        found = await read_object(request, self._settings.max_body_bytes, optional=True)
        fields = Fields(found, _DIFF, frozenset({"node", "filter", "partition"}))
        diff_request = DiffRequest(
            topic=request.name,
            partition=fields.integer("partition") or 0,
            from_seq=fields.integer("from_seq") or 0,
            limit=fields.amount("limit"),
            nodes=read_nodes(fields.value("node")),
            wait_ms=fields.amount("wait_ms"),
            max_batch_bytes=fields.amount("max_batch_bytes"),
            from_ts=fields.integer("from_ts"),
            last=fields.amount("last") if fields.has("last") else None,
            filter=read_match(fields.value("filter"), "filter") if fields.has("filter") else None,
        )
        parts = Parts(tags=fields.boolean("include_tags") is True, metas=fields.boolean("include_meta") is not False)
        reading = self._api.diff(diff_request)
        reply = await (request.unless_gone(reading) if diff_request.wait_ms else reading)
        members = {"topic": reply.topic, **partition_member(reply)}
        return page_response(members, reply, self._rendered.records(reply.slices, parts), request.elapsed_ms)

    async def delete(self, request: Request) -> Response:
        """POST /v0/topics/{topic}/delete."""
        fields = Fields(await read_object(request, self._settings.max_body_bytes), _DELETE, _DELETE)
        match = read_match(fields.value("match")) if fields.has("match") else None
        delete_request = DeleteRequest(
            topic=request.name,
            partition=fields.integer("partition") or 0,
            before_seq=fields.integer("before_seq"),
            match=match,
        )
        reply = await self._api.delete_records(delete_request)
        return json_response(
            200,
            {
                "topic": reply.topic,
                **partition_member(reply),
                "deleted": reply.deleted,
                "earliest_seq": reply.earliest_seq,
                "head_seq": reply.head_seq,
                "count": reply.count,
                "bytes": reply.bytes,
                "performance": {"server_total_ms": request.elapsed_ms},
            },
        )


def page_response(
    members: dict[str, Any], page: DiffReply, runs: Iterable[bytes | memoryview], total_ms: float
) -> Response:
    """`members`, then those of a page of records, whose texts are `runs`."""
    pieces: list[bytes | memoryview] = [encode(members)[:-1], b',"records":[']
    for i, run in enumerate(runs):
        pieces += (b",", run) if i else (run,)
    rest = encode(
        {
            "next_from_seq": page.next_from_seq,
            "head_seq": page.head_seq,
            "earliest_seq": page.earliest_seq,
            "caught_up": page.caught_up,
            "tombstone": page.tombstone,
            "lag": page.lag,
            "performance": {"server_total_ms": total_ms, "records_scanned": page.records_scanned},
        }
    )
    pieces += (b"],", memoryview(rest)[1:])
    return Response(200, b"".join(pieces))


def append_members(reply: AppendReply, *, seqs: bool, total_ms: float) -> dict[str, Any]:
    """The members of the answer to a write."""
    members: dict[str, Any] = {
        "topic": reply.topic,
        **partition_member(reply),
        "first_seq": reply.first_seq,
        "last_seq": reply.last_seq,
    }
    if seqs:
        members["seqs"] = list(range(reply.first_seq, reply.last_seq + 1))
    members |= {
        "head_seq": reply.head_seq,
        "count": reply.count,
        "created": reply.created,
        "deduped": reply.deduped,
    }
    performance = {"server_total_ms": total_ms}
    if not reply.deduped:
        performance |= {"wal_append_ms": round(reply.wal_append_ms, 3), "fsync_ms": round(reply.fsync_ms, 3)}
    if reply.throttle_wait_ms:
        performance["throttle_wait_ms"] = round(reply.throttle_wait_ms, 3)
    members["performance"] = performance
    return members


def partition_member(reply: AppendReply | DiffReply | DeleteReply) -> dict[str, int]:
    """The member that answers have only where the topic has several partitions."""
    return {} if reply.partition_count == 1 else {"partition": reply.partition}


def read_match(value: object, field: str = "match") -> TagMatch:
    """A tag rule: `["tag","Eq",X]`, `["tag","Glob","X*"]`, or the bare string X for Eq (also when it ends in `*`)."""
    match value:
        case str():
            return TagMatch("Eq", value.encode())
        case ["tag", "Eq", str(tag)]:
            return TagMatch("Eq", tag.encode())
        case ["tag", "Glob", str(tag)] if tag.endswith("*"):
            return TagMatch("Glob", tag[:-1].encode())
        case _:
            raise invalid(f'{field} must be ["tag","Eq",X], ["tag","Glob","X*"] or a string')


def read_nodes(value: object) -> tuple[bytes, ...]:
    """A node filter: None for none, one name, or an array of names."""
    if value is None:
        return ()
    nodes = [value] if isinstance(value, str) else value
    if not isinstance(nodes, list) or not all(isinstance(node, str) for node in nodes):
        raise invalid("node must be a string or an array of strings")
    return tuple(node.encode() for node in nodes)


def _header_key(request: Request) -> str | None:
    raw = request.headers.get(b"idempotency-key")
    try:
        return None if raw is None else raw.decode()
    except UnicodeDecodeError:
        raise invalid("the Idempotency-Key is not valid UTF-8") from None
