"""The few answers that the transport gives without asking the application, with their JSON error bodies."""

import json
from collections.abc import Callable
from typing import Any, Final

JSON: Final = b"application/json"


def error_body(code: str, message: str) -> bytes:
    """Return `{"error":{"code":...,"message":...}}` as UTF-8 JSON without spaces."""
    return json.dumps({"error": {"code": code, "message": message}}, separators=(",", ":")).encode()


INTERNAL: Final = error_body("internal", "internal error")


async def respond(status: int, body: bytes, send: Callable[[dict[str, Any]], Any]) -> None:
    """Send a complete response with a JSON body."""
    headers = [(b"content-type", JSON), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def bad_target(scope: Any, receive: Any, send: Any) -> None:
    """Stands in for the application when the target of a request is none."""
    await respond(400, error_body("invalid_request", "malformed HTTP request: invalid request target"), send)
