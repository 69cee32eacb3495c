"""Status lines, and error responses with JSON bodies that the transport sends without the application."""

import json
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final

JSON: Final = b"application/json"
PHRASES: Final = {status.value: status.phrase for status in HTTPStatus}
STATUS_LINES: Final = {
    status: f"HTTP/1.1 {status} {PHRASES.get(status, '')}\r\n".encode() for status in range(100, 600)
}


def error_body(code: str, message: str, started: float) -> bytes:
    """Return `{"error":{"code","message"},"performance":{"server_total_ms"}}` as UTF-8 JSON without spaces.

    `started` is when the request began, on time.perf_counter.
    """
    performance = {"server_total_ms": round((time.perf_counter() - started) * 1e3, 3)}
    envelope = {"error": {"code": code, "message": message}, "performance": performance}
    return json.dumps(envelope, separators=(",", ":")).encode()


def internal_error(started: float) -> bytes:
    """The body of a 500, which reveals nothing of the cause."""
    return error_body("internal", "internal error", started)


async def respond(status: int, body: bytes, send: Callable[[dict[str, Any]], Any]) -> None:
    """Send a complete response with a JSON body."""
    headers = [(b"content-type", JSON), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
