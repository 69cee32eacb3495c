"""Handlers of the probes and metrics (docs/contract.md, 11)."""

import time
from typing import Any

from topics_gateway.request import Request
from topics_gateway.response import Response, json_response
from topics_gateway.settings import GatewaySettings
from topics_service.api.grpc.admin_servicer import Probed
from topics_service.api.metrics.collector import TEXT_TYPE
from topics_service.engine.errors import Reason, TopicsError


class ProbeEndpoints:
    """Small replies without timings."""

    def __init__(self, api: Probed, settings: GatewaySettings) -> None:
        self._api = api
        self._version = settings.version
        self._started = time.monotonic()

    async def health(self, request: Request) -> Response:
        """GET /v0/health: the process is alive."""
        uptime_ms = int((time.monotonic() - self._started) * 1e3)
        return json_response(200, {"status": "ok", "version": self._version, "uptime_ms": uptime_ms})

    async def ready(self, request: Request) -> Response:
        """GET /v0/ready: the server takes work; `writes_refused` tells of a disk that has no room for writes.

        Raises `not_ready` or `shutting_down`.
        """
        state = self._api.ready()
        if state.ready:
            body: dict[str, Any] = {"status": "ready", "wal_replay_complete": True, "topics": state.topics}
            if (shortage := self._api.shortage()) is not None:
                body["writes_refused"] = shortage._asdict()
            return json_response(200, body)
        if state.reason == "shutting_down":
            raise TopicsError(Reason.SHUTTING_DOWN, "the server is shutting down")
        message = f"the server does not take work: {state.reason}"
        raise TopicsError(Reason.NOT_READY, message, {"replay_progress": state.replay_progress})

    async def metrics(self, request: Request) -> Response:
        """GET /v0/metrics: JSON if the Accept header names it, else Prometheus text; in every state of the server."""
        if b"application/json" in request.headers.get(b"accept", b"").lower():
            return Response(200, await self._api.metrics.json())
        text = await self._api.metrics.text(request.principal.prefixes)
        return Response(200, text, content_type=TEXT_TYPE.encode())
