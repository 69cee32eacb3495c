"""Handlers of a queue's jobs: claim, ack, nack, extend, redrive, jobs (docs/contract.md, 10)."""

from typing import Any, Final, Literal, cast

from topics_gateway.body import read_object
from topics_gateway.jobs import job_text, view_text
from topics_gateway.json_fields import FEW_PARTS, Fields, JsonObject
from topics_gateway.record_endpoints import read_match
from topics_gateway.request import Request
from topics_gateway.response import Response, encode, json_response
from topics_gateway.settings import GatewaySettings
from topics_service.api.interfaces import Topics
from topics_service.engine.errors import invalid
from topics_service.engine.queue.jobs import (
    ClaimRequest,
    JobState,
    ListJobsRequest,
    RedriveRequest,
    SettleReply,
    SettleRequest,
)

_CLAIM: Final = frozenset({"node", "max", "lease_ms", "ack"})
_FINISHED: Final = frozenset({"seqs", "lease_ids"})
_SETTLE: Final = frozenset({"node", "seqs", "lease_ids"})
_NACK: Final = _SETTLE | {"delay_ms", "mode", "reason"}
_EXTEND: Final = _SETTLE | {"lease_ms"}
_REDRIVE: Final = frozenset({"match", "max"})
_STATES: Final = ("ready", "in_flight", "delayed", "exhausted")
_MODES: Final = ("retry", "release")


class QueueEndpoints:
    """Requests to engine structs and replies to the JSON of docs/contract.md, 10, members in its order."""

    def __init__(self, api: Topics, settings: GatewaySettings) -> None:
        self._api = api
        self._settings = settings

    async def claim(self, request: Request) -> Response:
        """POST /v0/topics/{topic}/claim. A client that leaves while it waits holds nothing."""
        found = await self._object(request, optional=True)  # then node is missing: 400
        fields = Fields(found, _CLAIM, frozenset({"lease_ms", "ack"}))
        node = _node(fields)
        claim_request = ClaimRequest(
            topic=request.name,
            node=node,
            max=fields.amount("max") if fields.has("max") else 1,
            lease_ms=fields.amount("lease_ms") if fields.has("lease_ms") else None,
            ack=_finished(request.name, node, fields) if fields.has("ack") else None,
        )
        reply = await request.unless_gone(self._api.queues.claim(claim_request))
        members: dict[str, Any] = {"count": len(reply.jobs), "ready": reply.ready}
        performance = {"server_total_ms": request.elapsed_ms, "throttle_wait_ms": 0.0}
        if reply.settled is not None:
            members |= {"acked": reply.settled.done, "skipped": reply.settled.skipped}
            if reply.settled.fsync_ms:
                performance["fsync_ms"] = round(reply.settled.fsync_ms, 3)
        rest = encode(members | {"performance": performance})
        jobs = b",".join(map(job_text, reply.jobs))
        return Response(200, b'{"topic":%b,"claimed":[%b],%b' % (encode(reply.topic), jobs, rest[1:]))

    async def ack(self, request: Request) -> Response:
        """POST /v0/topics/{topic}/ack."""
        fields = await self._fields(request, _SETTLE)
        reply = await self._api.queues.ack(
            SettleRequest(topic=request.name, node=_node(fields), seqs=_seqs(fields), lease_ids=_lease_ids(fields))
        )
        performance = {"server_total_ms": request.elapsed_ms}
        if reply.fsync_ms:
            performance["fsync_ms"] = round(reply.fsync_ms, 3)
        return json_response(200, _settled("acked", reply) | {"performance": performance})

    async def nack(self, request: Request) -> Response:
        """POST /v0/topics/{topic}/nack."""
        fields = await self._fields(request, _NACK)
        mode = fields.text("mode") or "retry"
        if mode not in _MODES:
            raise invalid(f"mode must be one of {', '.join(_MODES)}")
        seqs, reason = _seqs(fields), fields.text("reason") or ""
        reply = await self._api.queues.nack(
            SettleRequest(
                topic=request.name,
                node=_node(fields),
                seqs=seqs,
                lease_ids=_lease_ids(fields),
                delay_ms=fields.amount("delay_ms"),
                mode=cast("Literal['retry', 'release']", mode),
                reasons=[reason] * len(seqs) if reason else [],
            )
        )
        return json_response(200, _settled("nacked", reply) | _performance(request))

    async def extend(self, request: Request) -> Response:
        """POST /v0/topics/{topic}/extend."""
        fields = await self._fields(request, _EXTEND)
        if not fields.has("lease_ms"):
            raise invalid("lease_ms is missing")
        reply = await self._api.queues.extend(
            SettleRequest(
                topic=request.name,
                node=_node(fields),
                seqs=_seqs(fields),
                lease_ids=_lease_ids(fields),
                lease_ms=fields.amount("lease_ms"),
            )
        )
        members: dict[str, Any] = {"topic": reply.topic, "extended": reply.done, "skipped": reply.skipped}
        members["deadlines"] = {str(seq): deadline for seq, deadline in reply.deadlines.items()}
        return json_response(200, members | _performance(request))

    async def redrive(self, request: Request) -> Response:
        """POST /v0/topics/{topic}/redrive."""
        fields = Fields(await self._object(request, optional=True), _REDRIVE, frozenset({"match"}))
        match = read_match(fields.value("match")) if fields.has("match") else None
        redrive_request = RedriveRequest(topic=request.name, match=match, max=fields.amount("max"))
        reply = await self._api.queues.redrive(redrive_request, principal=request.principal)
        return json_response(
            200,
            {"topic": reply.topic, "dead_letter": reply.dead_letter, "redriven": reply.redriven}
            | _performance(request),
        )

    async def jobs(self, request: Request) -> Response:
        """GET /v0/topics/{topic}/jobs."""
        query = request.query()
        state = query.get("state", "ready")
        if state not in _STATES:
            raise invalid(f"state must be one of {', '.join(_STATES)}")
        list_request = ListJobsRequest(
            topic=request.name,
            state=cast("JobState", state),
            after=whole(query, "after", 0),
            limit=whole(query, "limit", 100),
        )
        reply = await self._api.queues.jobs(list_request)
        members: dict[str, Any] = {} if reply.next_after is None else {"next_after": reply.next_after}
        rest = encode(members | _performance(request))
        jobs = b",".join(map(view_text, reply.jobs))
        head = encode({"topic": reply.topic, "state": state})
        return Response(200, b'%b,"jobs":[%b],%b' % (head[:-1], jobs, rest[1:]))

    async def _fields(self, request: Request, known: frozenset[str]) -> Fields:
        return Fields(await self._object(request), known)

    async def _object(self, request: Request, *, optional: bool = False) -> JsonObject:
        max_parts = max(FEW_PARTS, 4 * self._settings.limits.max_claim)
        return await read_object(request, self._settings.max_body_bytes, optional=optional, max_parts=max_parts)


def whole(query: dict[str, str], name: str, default: int) -> int:
    """A whole number in a query. Raises `invalid_request` for anything else, an empty value too."""
    text = query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 20):
        raise invalid(f"{name} must be a whole number of at most 20 digits")
    return int(text)


def _node(fields: Fields) -> str:
    node = fields.text("node")
    if node is None:
        raise invalid("node is missing")
    return node


def _finished(topic: str, node: str, fields: Fields) -> SettleRequest:
    given = fields.value("ack")
    if not isinstance(given, JsonObject):
        raise invalid("ack must be an object")
    ack = Fields(given, _FINISHED)
    return SettleRequest(topic=topic, node=node, seqs=_seqs(ack), lease_ids=_lease_ids(ack))


def _seqs(fields: Fields) -> list[int]:
    seqs = fields.value("seqs")
    if not isinstance(seqs, list) or not all(type(seq) is int and 0 <= seq < 1 << 64 for seq in seqs):
        raise invalid("seqs must be an array of whole numbers")
    return seqs


def _lease_ids(fields: Fields) -> list[str]:
    if not fields.has("lease_ids"):
        return []
    lease_ids = fields.value("lease_ids")
    if not isinstance(lease_ids, list) or not all(isinstance(lease_id, str) for lease_id in lease_ids):
        raise invalid("lease_ids must be an array of strings")
    return lease_ids


def _settled(done: str, reply: SettleReply) -> dict[str, Any]:
    return {
        "topic": reply.topic,
        done: reply.done,
        "skipped": reply.skipped,
        "ready": reply.ready,
        "in_flight": reply.in_flight,
    }


def _performance(request: Request) -> dict[str, Any]:
    return {"performance": {"server_total_ms": request.elapsed_ms}}
