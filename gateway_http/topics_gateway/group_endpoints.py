"""Handlers of consumer groups: list, get, delete, consume, commit, positions, reset."""

from typing import Any, Final, Literal

from topics_gateway.body import OBJECT_BYTES, read_object
from topics_gateway.json_fields import FEW_PARTS, Fields, JsonObject
from topics_gateway.record_endpoints import page_response, read_match, read_nodes
from topics_gateway.render import Parts, RenderCache
from topics_gateway.request import Request
from topics_gateway.response import Response, json_response
from topics_gateway.settings import GatewaySettings
from topics_gateway.topic_endpoints import page_size
from topics_service.api.cursor import read_cursor, write_cursor
from topics_service.api.groups import ConsumeRequest
from topics_service.api.interfaces import Topics
from topics_service.engine.errors import invalid
from topics_service.engine.model import DiffRequest
from topics_service.engine.offsets.positions import (
    CommitItem,
    GroupSummary,
    ListGroupsRequest,
    Member,
    PositionState,
    ResetRequest,
    Target,
)

_U32_MAX: Final = (1 << 32) - 1
_CONSUME: Final = frozenset(
    {
        "topic", "partition", "start", "limit", "node", "include_tags", "include_meta", "wait_ms", "max_batch_bytes",
        "filter",
    }
)  # fmt: skip
_POSITION: Final = frozenset({"topic", "partition", "from_seq", "metadata"})
_COMMIT: Final = _POSITION | {"positions"}
_TARGETS: Final = frozenset({"topic", "partition", "topics"})
_RESET: Final = _TARGETS | {"to", "to_ts"}
_TARGET: Final = frozenset({"topic", "partitions"})


class GroupEndpoints:
    """Requests to engine structs and replies to JSON; see `GroupService` for what the calls do."""

    def __init__(self, api: Topics, settings: GatewaySettings, rendered: RenderCache) -> None:
        self._api = api
        self._settings = settings
        self._rendered = rendered

    async def list(self, request: Request) -> Response:
        """GET /v0/groups."""
        query = request.query()
        page = await self._api.groups.page(
            ListGroupsRequest(
                prefix=query.get("prefix", ""),
                after=read_cursor(query.get("cursor", "")),
                page_size=page_size(query.get("page_size", "")),
            ),
            principal=request.principal,
        )
        members: dict[str, Any] = {"groups": [_summary(line) for line in page.groups]}
        if page.next_after is not None:
            members["next_cursor"] = write_cursor(page.next_after)
        return json_response(200, members | _performance(request))

    async def get(self, request: Request) -> Response:
        """GET /v0/groups/{group}."""
        state = await self._api.groups.get(request.name, principal=request.principal)
        return json_response(
            200,
            {
                "group": state.group,
                "state": state.membership.state,
                "protocol_type": state.membership.protocol_type,
                "created_ts": state.created_ts,
                "last_commit_ts": state.last_commit_ts,
                "members": [_member(member) for member in state.membership.members],
                "positions": [_position(position) for position in state.positions],
            }
            | _performance(request),
        )

    async def delete(self, request: Request) -> Response:
        """DELETE /v0/groups/{group}."""
        reply = await self._api.groups.delete(request.name, principal=request.principal)
        return json_response(200, {"group": reply.group, "deleted": reply.deleted} | _performance(request))

    async def consume(self, request: Request) -> Response:
        """POST /v0/groups/{group}/consume. A client that leaves ends its wait."""
        fields = await self._fields(request, _CONSUME, frozenset({"node", "filter"}))
        start = _end_or_seq(fields, "start")
        consume_request = ConsumeRequest(
            group=request.name,
            start="earliest" if start is None else start,
            page=DiffRequest(
                topic=_topic(fields),
                partition=fields.integer("partition", high=_U32_MAX) or 0,
                limit=fields.amount("limit"),
                nodes=read_nodes(fields.value("node")),
                wait_ms=fields.amount("wait_ms"),
                max_batch_bytes=fields.amount("max_batch_bytes"),
                filter=read_match(fields.value("filter"), "filter") if fields.has("filter") else None,
            ),
        )
        parts = Parts(tags=fields.boolean("include_tags") is True, metas=fields.boolean("include_meta") is not False)
        reading = self._api.groups.consume(consume_request, principal=request.principal)
        reply = await (request.unless_gone(reading) if consume_request.page.wait_ms else reading)
        page = reply.page
        members = {
            "group": request.name,
            "topic": page.topic,
            "partition": consume_request.page.partition,
            "committed_from_seq": reply.committed,
        }
        return page_response(members, page, self._rendered.records(page.slices, parts), request.elapsed_ms)

    async def commit(self, request: Request) -> Response:
        """POST /v0/groups/{group}/commit."""
        fields = await self._fields(request, _COMMIT)
        items = []
        if fields.has("positions"):
            if any(fields.has(name) for name in _POSITION):
                raise invalid("positions and a single position are mutually exclusive")
            items = [_commit(Fields(each, _POSITION)) for each in _objects(fields, "positions")]
        else:
            items = [_commit(fields)]
        reply = await self._api.groups.commit(request.name, items, principal=request.principal)
        members = {"group": reply.group, "created": reply.created}
        return json_response(200, members | _positions(reply.positions) | _performance(request))

    async def positions(self, request: Request) -> Response:
        """GET /v0/groups/{group}/positions."""
        topic = request.query().get("topic") or None
        found = await self._api.groups.positions(request.name, topic, principal=request.principal)
        return json_response(200, {"group": request.name} | _positions(found) | _performance(request))

    async def reset(self, request: Request) -> Response:
        """POST /v0/groups/{group}/reset."""
        fields = await self._fields(request, _RESET)
        to, ts = _end_or_seq(fields, "to"), fields.integer("to_ts", high=(1 << 63) - 1)
        if (to is None) == (ts is None):
            raise invalid("exactly one of to and to_ts must be given")
        moved = await self._api.groups.reset(
            ResetRequest(group=request.name, to=to, ts=ts, targets=_targets(fields)), principal=request.principal
        )
        return json_response(200, {"group": request.name} | _positions(moved) | _performance(request))

    async def delete_positions(self, request: Request) -> Response:
        """POST /v0/groups/{group}/positions/delete."""
        fields = await self._fields(request, _TARGETS)
        deleted = await self._api.groups.delete_positions(request.name, _targets(fields), principal=request.principal)
        return json_response(200, {"group": request.name, "deleted": deleted} | _performance(request))

    async def _fields(self, request: Request, known: frozenset[str], nullable: frozenset[str] = frozenset()) -> Fields:
        max_parts = 6 * self._settings.limits.max_batch_records  # positions of one call
        found = await read_object(
            request, self._settings.max_body_bytes, max_parts=max(FEW_PARTS, max_parts), max_bytes=4 * OBJECT_BYTES
        )
        return Fields(found, known, nullable)


def _topic(fields: Fields) -> str:
    topic = fields.text("topic")
    if topic is None:
        raise invalid("topic is missing")
    return topic


def _end_or_seq(fields: Fields, name: str) -> Literal["earliest", "latest"] | int | None:
    """The end of a log, or a cursor; None if it is not said."""
    match fields.value(name):
        case "earliest":
            return "earliest"
        case "latest":
            return "latest"
        case str():
            raise invalid(f'{name} must be "earliest", "latest" or a whole number')
    return fields.integer(name)


def _commit(fields: Fields) -> CommitItem:
    from_seq = fields.integer("from_seq")
    topic = _topic(fields)
    if from_seq is None:
        raise invalid("from_seq is missing")
    partition = fields.integer("partition", high=_U32_MAX) or 0
    return CommitItem(topic, partition, from_seq, metadata=fields.text("metadata") or "")


def _targets(fields: Fields) -> list[Target]:
    """The partitions that a call is about: a list of topics, or one topic beside the other members."""
    partition = fields.integer("partition", high=_U32_MAX)
    if not fields.has("topics"):
        if not fields.has("topic"):
            if partition is not None:
                raise invalid("a partition needs a topic")
            return []
        return [Target(_topic(fields), () if partition is None else (partition,))]
    if fields.has("topic") or partition is not None:
        raise invalid("topics and a single topic are mutually exclusive")
    targets = []
    for each in _objects(fields, "topics"):
        target = Fields(each, _TARGET)
        partitions = target.value("partitions") if target.has("partitions") else []
        if not isinstance(partitions, list) or not all(type(p) is int and 0 <= p <= _U32_MAX for p in partitions):
            raise invalid("partitions must be an array of whole numbers")
        targets.append(Target(_topic(target), tuple(partitions)))
    return targets


def _objects(fields: Fields, name: str) -> list[JsonObject]:
    found = fields.value(name)
    if not isinstance(found, list) or not all(isinstance(each, JsonObject) for each in found):
        raise invalid(f"{name} must be an array of objects")
    return found


def _summary(line: GroupSummary) -> dict[str, Any]:
    return {
        "group": line.group,
        "state": line.state,
        "protocol_type": line.protocol_type,
        "members": line.members,
        "positions": line.positions,
        "last_commit_ts": line.last_commit_ts,
    }


def _member(member: Member) -> dict[str, Any]:
    assigned: dict[str, list[int]] = {}
    for topic, partition in member.partitions:
        assigned.setdefault(topic, []).append(partition)
    return {
        "member_id": member.member_id,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "assignment": [{"topic": topic, "partitions": partitions} for topic, partitions in assigned.items()],
    }


def _position(state: PositionState) -> dict[str, Any]:
    members: dict[str, Any] = {
        "topic": state.topic,
        "partition": state.partition,
        "from_seq": state.from_seq,
        "metadata": state.metadata,
        "commit_ts": state.commit_ts,
        "head_seq": state.head_seq,
        "earliest_seq": state.earliest_seq,
        "lag": state.lag,
    }
    if state.leader_epoch >= 0:
        members["leader_epoch"] = state.leader_epoch
    return members


def _positions(states: list[PositionState]) -> dict[str, Any]:
    return {"positions": [_position(state) for state in states]}


def _performance(request: Request) -> dict[str, Any]:
    return {"performance": {"server_total_ms": request.elapsed_ms}}
