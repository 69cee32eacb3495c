"""Handlers of topics as a whole: put, get, list, delete (docs/contract.md, 3)."""

from typing import Any, Final

from topics_gateway.body import read_object
from topics_gateway.config import read_config
from topics_gateway.json_fields import Fields
from topics_gateway.request import Request, flag
from topics_gateway.response import Response, json_response
from topics_gateway.settings import GatewaySettings
from topics_service.api.cursor import read_cursor, write_cursor
from topics_service.api.interfaces import Topics
from topics_service.engine.errors import invalid
from topics_service.engine.model import Identity, ListTopicsRequest, QueueCounters, TopicSummary

_PAGE_SIZE: Final = 100
_PAGE_SIZE_MAX: Final = 1000
_BESIDE_CONFIG: Final = frozenset({"partition_count", "placement", "zone"})


class TopicEndpoints:
    """Requests to engine structs and replies to the JSON of docs/contract.md, 3, members in its order."""

    def __init__(self, api: Topics, settings: GatewaySettings) -> None:
        self._api = api
        self._settings = settings

    async def put(self, request: Request) -> Response:
        """PUT /v0/topics/{topic}."""
        found = await read_object(request, self._settings.max_body_bytes, optional=True)
        beside = Fields(found, _BESIDE_CONFIG, _BESIDE_CONFIG)
        reply = await self._api.put_topic(
            request.name,
            read_config(found),
            principal=request.principal,
            partition_count=beside.integer("partition_count", low=1),
            placement=beside.text("placement") or "",
            zone=beside.text("zone") or "",
        )
        return json_response(
            201 if reply.created else 200,
            {
                "topic": reply.topic,
                "created": reply.created,
                "config": reply.config,
                **_identity(reply.identity),
                "performance": {"server_total_ms": request.elapsed_ms},
            },
        )

    async def get(self, request: Request) -> Response:
        """GET /v0/topics/{topic}."""
        query = request.query()
        partition = _number(query["partition"]) if "partition" in query else 0
        state = await self._api.get_topic(request.name, touch=flag(query, "touch", True), partition=partition)
        queue = {} if state.queue is None else {"queue": _counters(state.queue)}
        several = {"partition": state.partition, "partitions": state.partitions} if state.partitions else {}
        return json_response(
            200,
            {
                "topic": state.topic,
                "type": state.config.type,
                **several,
                "head_seq": state.head_seq,
                "earliest_seq": state.earliest_seq,
                "next_seq": state.next_seq,
                "count": state.count,
                "bytes": state.bytes,
                "config": state.config,
                **queue,
                "effective_priority": state.effective_priority,
                "last_write_ts": state.last_write_ts,
                "last_read_ts": state.last_read_ts,
                **_identity(state.identity),
                "performance": {"server_total_ms": request.elapsed_ms},
            },
        )

    async def list(self, request: Request) -> Response:
        """GET /v0/topics."""
        query = request.query()
        page = await self._api.list_topics(
            ListTopicsRequest(
                prefix=query.get("prefix", ""),
                after=read_cursor(query.get("cursor", "")),
                page_size=page_size(query.get("page_size", "")),
                touch=flag(query, "touch", False),
            ),
            principal=request.principal,
        )
        members: dict[str, Any] = {"topics": [_summary(line) for line in page.topics]}
        if page.next_after is not None:
            members["next_cursor"] = write_cursor(page.next_after)
        members["performance"] = {"server_total_ms": request.elapsed_ms}
        return json_response(200, members)

    async def delete(self, request: Request) -> Response:
        """DELETE /v0/topics/{topic}."""
        reply = await self._api.delete_topic(request.name, if_empty=flag(request.query(), "if_empty", False))
        return json_response(
            200,
            {
                "topic": reply.topic,
                "deleted": reply.deleted,
                "routers_removed": list(filter(request.principal.allows_name, reply.routers_removed)),
                "performance": {"server_total_ms": request.elapsed_ms},
            },
        )


def page_size(text: str) -> int:
    """A page_size parameter: clamped to 1..1000; anything but a number of at most 19 digits means 100."""
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        return _PAGE_SIZE
    return min(max(1, int(text)), _PAGE_SIZE_MAX)


def _counters(queue: QueueCounters) -> dict[str, int]:
    """The members that docs/contract.md, 10.8 names, and no others."""
    return {"ready": queue.ready, "in_flight": queue.in_flight, "dead_lettered": queue.dead_lettered}


def _summary(line: TopicSummary) -> dict[str, Any]:
    return {
        "topic": line.topic,
        "head_seq": line.head_seq,
        "earliest_seq": line.earliest_seq,
        "count": line.count,
        "bytes": line.bytes,
        "durable": line.durable,
        "effective_priority": line.effective_priority,
        **_partition_count(line.partition_count),
    }


def _identity(identity: Identity) -> dict[str, Any]:
    return {
        "topic_id": identity.topic_id,
        "slug": identity.slug,
        "rrl": identity.rrl,
        "epoch": identity.epoch,
        **_partition_count(identity.partition_count),
        **({"placement": group} if (group := identity.group) else {}),
        **({"zone": zone} if (zone := identity.zone) else {}),
    }


def _partition_count(count: int) -> dict[str, int]:
    """The member that only topics with several partitions have."""
    return {} if count == 1 else {"partition_count": count}


def _number(text: str) -> int:
    """A partition in a query. Raises `invalid_request`."""
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise invalid("partition must be an integer of at least 0")
    return int(text)
