"""The error envelope (docs/contract.md, 1.5)."""

from typing import Any

from topics_gateway.response import Response, encode
from topics_service.engine.errors import Reason, TopicsError


class SqlError(TopicsError):
    """The error of a statement, with the results of the statements before it."""

    def __init__(self, error: TopicsError, results: list[dict[str, Any]]) -> None:
        super().__init__(error.reason, error.message, error.detail, retry_after_ms=error.retry_after_ms)
        self.results = results


def error_response(error: TopicsError, elapsed_ms: float) -> Response:
    """`error` in the envelope, with its status and, where a retry can help, Retry-After in whole seconds."""
    envelope: dict[str, Any] = {"code": error.reason.code, "message": error.message}
    if error.detail is not None:
        envelope["detail"] = error.detail
    headers: tuple[tuple[bytes, bytes], ...] = ()
    if error.retry_after_ms is not None:
        headers = ((b"retry-after", b"%d" % max(1, -(-error.retry_after_ms // 1000))),)
    members: dict[str, Any] = {"error": envelope, "performance": {"server_total_ms": elapsed_ms}}
    if isinstance(error, SqlError):
        members = {"status": "error", "results": error.results} | members
    body = encode(members)
    return Response(error.reason.value.http_status, body, headers)


def not_found() -> TopicsError:
    """No such route."""
    return TopicsError(Reason.NOT_FOUND, "there is nothing at this path")


def method_not_allowed(method: str) -> TopicsError:
    """The route exists, but not with this method."""
    return TopicsError(Reason.METHOD_NOT_ALLOWED, f"this path does not take {method}")


def payload_too_large(limit: int) -> TopicsError:
    """The request body, as sent or inflated, is above the limit."""
    return TopicsError(Reason.PAYLOAD_TOO_LARGE, f"the request body is larger than {limit} bytes")


def unsupported_media_type(message: str) -> TopicsError:
    """Wrong or missing Content-Type, or an unknown Content-Encoding."""
    return TopicsError(Reason.UNSUPPORTED_MEDIA_TYPE, message)


def internal() -> TopicsError:
    """A bug; the client learns no more than that."""
    return TopicsError(Reason.INTERNAL, "internal error")
