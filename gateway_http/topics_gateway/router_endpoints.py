"""Handlers of routers: put, get, list, delete (docs/contract.md, 7)."""

from typing import Any, Final, get_args

from topics_gateway.body import read_object
from topics_gateway.json_fields import Fields, JsonObject
from topics_gateway.record_endpoints import read_match
from topics_gateway.request import Request
from topics_gateway.response import Response, json_response
from topics_gateway.settings import GatewaySettings
from topics_gateway.topic_endpoints import page_size
from topics_service.api.cursor import read_cursor, write_cursor
from topics_service.api.interfaces import Topics
from topics_service.engine.errors import invalid
from topics_service.engine.model import TagMatch
from topics_service.engine.router.router import (
    Guarantee,
    ListRoutersRequest,
    PutRouterRequest,
    RouterConfig,
    RouterState,
)

_KNOWN: Final = frozenset({*RouterConfig.__struct_fields__, "create_dest", "backfill"})
_NULLABLE: Final = frozenset({"filter"})
_GUARANTEES: Final[dict[str, Guarantee]] = {name: name for name in get_args(Guarantee)}


class RouterEndpoints:
    """Requests to engine structs and replies to the JSON of docs/contract.md, 7, members in its order."""

    def __init__(self, api: Topics, settings: GatewaySettings) -> None:
        self._api = api
        self._settings = settings

    async def put(self, request: Request) -> Response:
        """PUT /v0/routers/{router}."""
        put_request = read_router(request.name, await read_object(request, self._settings.max_body_bytes))
        reply = await self._api.routers.put(put_request, principal=request.principal)
        return json_response(
            201 if reply.created else 200,
            {
                "router": reply.router,
                "created": reply.created,
                **_config(reply.config),
                "performance": {"server_total_ms": request.elapsed_ms},
            },
        )

    async def get(self, request: Request) -> Response:
        """GET /v0/routers/{router}."""
        state = await self._api.routers.get(request.name, principal=request.principal)
        return json_response(
            200,
            {
                "router": state.router,
                **_config(state.config),
                "forwarded_total": state.forwarded_total,
                "lag_records": state.lag_records,
                "last_error": state.last_error,
                "performance": {"server_total_ms": request.elapsed_ms},
            },
        )

    async def list(self, request: Request) -> Response:
        """GET /v0/routers."""
        query = request.query()
        page = await self._api.routers.page(
            ListRoutersRequest(
                prefix=query.get("prefix", ""),
                source=query.get("source", ""),
                dest=query.get("dest", ""),
                after=read_cursor(query.get("cursor", "")),
                page_size=page_size(query.get("page_size", "")),
            ),
            principal=request.principal,
        )
        members: dict[str, Any] = {"routers": [_summary(state) for state in page.routers]}
        if page.next_after is not None:
            members["next_cursor"] = write_cursor(page.next_after)
        members["performance"] = {"server_total_ms": request.elapsed_ms}
        return json_response(200, members)

    async def delete(self, request: Request) -> Response:
        """DELETE /v0/routers/{router}."""
        reply = await self._api.routers.delete(request.name, principal=request.principal)
        return json_response(
            200,
            {
                "router": reply.router,
                "deleted": reply.deleted,
                "performance": {"server_total_ms": request.elapsed_ms},
            },
        )


def read_router(name: str, found: JsonObject) -> PutRouterRequest:
    """The body of a PUT. Raises `invalid_request` for a wrong type, a bad filter, or no source or dest."""
    fields = Fields(found, _KNOWN, _NULLABLE)
    source, dest = fields.text("source"), fields.text("dest")
    if source is None or dest is None:
        raise invalid("source and dest are required")
    name_of_guarantee = fields.text("guarantee")
    guarantee = _GUARANTEES.get("at_least_once" if name_of_guarantee is None else name_of_guarantee)
    if guarantee is None:
        raise invalid(f"guarantee must be one of {', '.join(_GUARANTEES)}")
    return PutRouterRequest(
        router=name,
        config=RouterConfig(
            source=source,
            dest=dest,
            preserve_node=fields.boolean("preserve_node") is not False,
            preserve_tag=fields.boolean("preserve_tag") is not False,
            filter=read_match(fields.value("filter"), "filter") if fields.has("filter") else None,
            allow_cycle=fields.boolean("allow_cycle") is True,
            guarantee=guarantee,
        ),
        create_dest=fields.boolean("create_dest") is not False,
        backfill=fields.boolean("backfill") is True,
    )


def _config(config: RouterConfig) -> dict[str, Any]:
    return {
        "source": config.source,
        "dest": config.dest,
        "preserve_node": config.preserve_node,
        "preserve_tag": config.preserve_tag,
        "filter": None if config.filter is None else _tuple(config.filter),
        "allow_cycle": config.allow_cycle,
        "guarantee": config.guarantee,
    }


def _tuple(match: TagMatch) -> tuple[str, str, str]:
    return "tag", match.op, match.value.decode() + ("*" if match.op == "Glob" else "")


def _summary(state: RouterState) -> dict[str, Any]:
    return {
        "router": state.router,
        "source": state.config.source,
        "dest": state.config.dest,
        "guarantee": state.config.guarantee,
        "forwarded_total": state.forwarded_total,
        "lag_records": state.lag_records,
    }
