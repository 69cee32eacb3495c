"""One request and its response, of either version of HTTP."""

import asyncio
import time
from typing import Any

from starlette.types import ASGIApp, Message

from topics_gateway.transport.error_responses import internal_error, respond
from topics_gateway.transport.registry import logger


class BrokenOffError(Exception):
    """Raised by an application that can't answer, or not to the end: the client sees its connection close.

    Nothing is logged. On HTTP/2 it is the stream that ends; a WebSocket ends without a close frame.
    """


class Exchange:
    """Runs the application for one request. Subclasses implement its `receive` and `send`."""

    def __init__(self, scope: dict[str, Any], began: float | None = None) -> None:
        """`began` is when the request began, on time.perf_counter; now by default."""
        self.scope = scope
        self.began = time.perf_counter() if began is None else began
        self.keep_alive = True  # HTTP/1.1: further requests may follow
        self.disconnected = False
        self.response_started = False
        self.response_complete = False

    async def receive(self) -> Message:
        """The next part of the body; then, once the client has disconnected or has its response, `http.disconnect`."""
        raise NotImplementedError

    async def send(self, message: Message) -> None:
        """Write a part of the response; waits while there is no room for it, before and after it.

        Once the client has disconnected the message is dropped. A message out of order, a header that is none and a
        body that contradicts `content-length` raise RuntimeError.
        """
        raise NotImplementedError

    def break_off(self, *, cancelled: bool) -> None:
        """Show the client that this response will not be complete."""
        raise NotImplementedError

    def is_start(self, message: Message) -> bool:
        """Return whether the response begins with `message`. Raises RuntimeError for one out of order."""
        kind = message["type"]
        if self.response_complete:
            raise RuntimeError(f"ASGI message {kind!r} after the response was complete")
        due = "http.response.body" if self.response_started else "http.response.start"
        if kind != due:
            raise RuntimeError(f"ASGI message {kind!r} where {due!r} was due")
        return not self.response_started

    async def run(self, app: ASGIApp) -> None:
        """Run the application once; its errors are logged here and nowhere else."""
        scope = self.scope
        try:
            await app(scope, self.receive, self.send)
        except asyncio.CancelledError:
            self.break_off(cancelled=True)
            raise
        except BrokenOffError:
            if not (self.response_complete or self.disconnected):
                self.break_off(cancelled=False)
            return
        except Exception:
            logger.exception("exception in the application: %s %s", scope["method"], scope["path"])
        else:
            if self.response_complete or self.disconnected:
                return
            logger.error("incomplete response by the application: %s %s", scope["method"], scope["path"])
        if self.response_complete or self.disconnected:
            return
        if self.response_started:
            self.break_off(cancelled=False)
        else:
            self.keep_alive = False
            await respond(500, internal_error(self.began), self.send)
