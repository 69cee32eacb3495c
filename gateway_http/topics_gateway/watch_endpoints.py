"""Handlers of watch sessions: create one, follow one (docs/contract.md, 8)."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

from topics_gateway.body import read_object
from topics_gateway.json_fields import Fields, JsonObject
from topics_gateway.record_endpoints import read_match, read_nodes
from topics_gateway.render import RenderCache
from topics_gateway.request import Request, flag
from topics_gateway.response import EventStream, Response, json_response
from topics_gateway.settings import GatewaySettings
from topics_gateway.sse import require_event_stream
from topics_gateway.watch_events import EventSource, WatchEvents, read_cursor_id
from topics_service.api.interfaces import Topics
from topics_service.api.watch_journal import is_token
from topics_service.engine.errors import invalid
from topics_service.engine.watch.frames import WatchRequest, WatchTopic
from topics_service.engine.watch.scope import by_topic_partition

_WATCH: Final = frozenset(
    {
        "node", "topics", "limit", "max_batch_bytes", "heartbeat_ms", "include_meta", "include_tags", "include_data",
        "consistency", "cursor", "filter",
    }
)  # fmt: skip
_NULLABLE: Final = frozenset({"node", "cursor", "filter"})
_TOPIC: Final = frozenset({"from_seq", "tail", "partition"})
_PARTITION: Final = frozenset({"partition"})
_HEARTBEAT_MS: Final = 15_000
_MAX_PARTS: Final = 4096


class WatchEndpoints:
    """Subscriptions from JSON, and their streams as server-sent events."""

    def __init__(self, api: Topics, settings: GatewaySettings, rendered: RenderCache) -> None:
        self._api = api
        self._settings = settings
        self._events = WatchEvents(rendered)
        api.metrics.caches["events"] = self._events.cache

    async def create(self, request: Request) -> Response:
        """POST /v0/watch."""
        max_parts = max(_MAX_PARTS, 5 * self._settings.limits.max_watch_topics)
        found = await read_object(request, self._settings.max_body_bytes, max_parts=max_parts)
        fields = Fields(found, _WATCH, _NULLABLE)
        given = fields.value("cursor")
        recalled = await self._recall(request, given) if isinstance(given, str) and is_token(given) else {}
        watch_request = read_watch(
            fields, lambda text: recalled if is_token(text.decode("latin-1")) else read_cursor_id(text)
        )
        watch_request.lenient = flag(request.query(), "lenient", False)
        session = await self._api.watches.create(watch_request, principal=request.principal)
        return json_response(
            200,
            {
                "wid": session.wid,
                "stream_url": f"/v0/watch/{session.wid}",
                "session_ttl_ms": session.ttl_ms,
                "topics": session.positions,
                "performance": {"server_total_ms": request.elapsed_ms},
            },
        )

    async def open(self, request: Request) -> EventStream:
        """GET /v0/watch/{wid}, from where the session stands, or from an earlier id that the client gives."""
        require_event_stream(request)
        return EventStream(self._opened(request), encoder=_as_it_is)

    @asynccontextmanager
    async def _opened(self, request: Request) -> AsyncIterator[EventSource]:
        cursor = await self._resume_from(request)
        with await self._api.watches.open(request.name, cursor, principal=request.principal) as stream:
            # On HTTP/2 a window can end between two events, and the session must know which one was handed over.
            yield self._events.for_stream(stream, together=request.scope["http_version"] != "2")

    async def _resume_from(self, request: Request) -> dict[str, int]:
        """Read the place in Last-Event-ID, or in the query's `cursor`; an empty one if it is no id, or forgotten."""
        given = request.headers.get(b"last-event-id")
        if given is None:
            given = request.query().get("cursor", "").encode()
        text = given.decode("latin-1")
        return await self._recall(request, text) if is_token(text) else read_cursor_id(given) or {}

    async def _recall(self, request: Request, token: str) -> dict[str, int]:
        """The cursors of a token, empty if it is forgotten."""
        return await self._api.watches.recall(token, principal=request.principal) or {}


def _as_it_is(_: Any) -> Callable[[bytes], bytes]:
    return bytes


def read_watch(fields: Fields, recall: Callable[[bytes], dict[str, int] | None] = read_cursor_id) -> WatchRequest:
    """The subscription in a request; every member but `lenient`, which is a query parameter.

    `recall` returns the cursors of an id, None for anything else.
    """
    request = read_subscription(fields, read_topics(fields.value("topics")))
    if (cursor := fields.text("cursor")) is not None:
        positions = recall(cursor.encode())
        if positions is None:
            raise invalid("cursor must be the id of an event of a watch")
        request.cursor = positions
    request.heartbeat_ms = fields.amount("heartbeat_ms") if fields.has("heartbeat_ms") else _HEARTBEAT_MS
    return request


def read_subscription(fields: Fields, topics: dict[str, WatchTopic]) -> WatchRequest:
    """Read the record options of a subscription, for SSE and WebSocket alike."""
    consistency = fields.text("consistency")
    if consistency not in (None, "eventual", "strong"):
        raise invalid('consistency must be "eventual" or "strong"')
    return WatchRequest(
        topics=topics,
        nodes=read_nodes(fields.value("node")),
        filter=read_match(fields.value("filter"), "filter") if fields.has("filter") else None,
        limit=fields.amount("limit"),
        max_batch_bytes=fields.amount("max_batch_bytes") if fields.has("max_batch_bytes") else None,
        strong=consistency == "strong",
        include_tags=fields.boolean("include_tags") is True,
        include_metas=fields.boolean("include_meta") is not False,
        include_data=fields.boolean("include_data") is not False,
    )


def read_topics(value: Any) -> dict[str, WatchTopic]:
    """A map of topics, or places, to where each starts. Raises `invalid_request` if it is none, or empty."""
    if not isinstance(value, JsonObject) or not value.members:
        raise invalid("topics must be an object with at least one topic")
    return by_topic_partition(_start(name, options) for name, options in value.members)


def _start(name: str, options: Any) -> tuple[str, int, WatchTopic]:
    if not isinstance(options, JsonObject):
        raise invalid(f'the value of topic "{name}" must be an object')
    fields = Fields(options, _TOPIC, _PARTITION)
    start = WatchTopic(from_seq=fields.integer("from_seq") or 0, tail=fields.boolean("tail") is True)
    return name, fields.integer("partition") or 0, start
