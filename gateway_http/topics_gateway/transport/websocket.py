"""uvicorn's WebSocket protocol, with our logger and a quiet end at shutdown."""

import asyncio
import logging
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState

from topics_gateway.transport.registry import Registry

# uvicorn logs every accepted WebSocket at INFO; that is an access log, and this server has none.
logger = logging.getLogger("topics.http.websocket")
logger.setLevel(logging.WARNING)


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """Serves one upgraded connection."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        assert isinstance(server_state, Registry)
        self._registry = server_state
        self.logger = logger
        app = self.app

        async def until_cancelled(scope: Any, receive: Any, send: Any) -> None:
            try:
                await app(scope, receive, send)
            except asyncio.CancelledError:
                # uvicorn would log the cancellation at shutdown as an error of the application.
                raise ClientDisconnected from None

        self.app = until_cancelled

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._registry.forget(self)
