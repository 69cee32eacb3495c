"""The registry of error reasons, shared by all protocols.

A `TopicsError` carries a `Reason`; protocols look up its HTTP status, gRPC status name and whether a retry can help.
The codes are the stable `error.code` strings of docs/errors.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from topics_client.units import counted


@dataclass(frozen=True, slots=True)
class ErrorSpec:
    """The form of one reason on each protocol."""

    code: str
    http_status: int
    grpc_status: str  # the name of a grpc.StatusCode
    retryable: bool = False


class Reason(Enum):
    """Every reason a request can fail for."""

    INVALID_REQUEST = ErrorSpec("invalid_request", 400, "INVALID_ARGUMENT")
    BATCH_TOO_LARGE = ErrorSpec("batch_too_large", 400, "INVALID_ARGUMENT")
    RECORD_TOO_LARGE = ErrorSpec("record_too_large", 400, "INVALID_ARGUMENT")
    UNAUTHORIZED = ErrorSpec("unauthorized", 401, "UNAUTHENTICATED")
    FORBIDDEN = ErrorSpec("forbidden", 403, "PERMISSION_DENIED")
    TOPIC_NOT_FOUND = ErrorSpec("topic_not_found", 404, "NOT_FOUND")
    ROUTER_NOT_FOUND = ErrorSpec("router_not_found", 404, "NOT_FOUND")
    PARTITION_NOT_FOUND = ErrorSpec("partition_not_found", 404, "NOT_FOUND")
    GROUP_NOT_FOUND = ErrorSpec("group_not_found", 404, "NOT_FOUND")
    NOT_FOUND = ErrorSpec("not_found", 404, "NOT_FOUND")
    METHOD_NOT_ALLOWED = ErrorSpec("method_not_allowed", 405, "UNIMPLEMENTED")
    NOT_ACCEPTABLE = ErrorSpec("not_acceptable", 406, "INVALID_ARGUMENT")
    ROUTER_CYCLE = ErrorSpec("router_cycle", 409, "FAILED_PRECONDITION")
    TOPIC_EXISTS_INCOMPATIBLE = ErrorSpec("topic_exists_incompatible", 409, "FAILED_PRECONDITION")
    TOPIC_NOT_EMPTY = ErrorSpec("topic_not_empty", 409, "FAILED_PRECONDITION")
    GROUP_NOT_EMPTY = ErrorSpec("group_not_empty", 409, "FAILED_PRECONDITION")
    NOT_A_QUEUE = ErrorSpec("not_a_queue", 409, "FAILED_PRECONDITION")
    PAYLOAD_TOO_LARGE = ErrorSpec("payload_too_large", 413, "RESOURCE_EXHAUSTED")
    UNSUPPORTED_MEDIA_TYPE = ErrorSpec("unsupported_media_type", 415, "INVALID_ARGUMENT")
    TOPIC_FULL = ErrorSpec("topic_full", 422, "FAILED_PRECONDITION")
    THROTTLED = ErrorSpec("throttled", 429, "RESOURCE_EXHAUSTED", retryable=True)
    INTERNAL = ErrorSpec("internal", 500, "INTERNAL")
    NOT_READY = ErrorSpec("not_ready", 503, "UNAVAILABLE", retryable=True)
    SHUTTING_DOWN = ErrorSpec("shutting_down", 503, "UNAVAILABLE", retryable=True)

    @property
    def code(self) -> str:
        """The stable snake_case string that clients branch on."""
        return self.value.code


class TopicsError(Exception):
    """A request was refused or failed; nothing was changed unless the message says so.

    `detail` holds JSON-ready facts (docs/contract.md, 1.5), or is absent. `retry_after_ms` is set if a retry helps.
    """

    def __init__(
        self,
        reason: Reason,
        message: str,
        detail: Mapping[str, Any] | None = None,
        *,
        retry_after_ms: int | None = None,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.detail = detail
        self.retry_after_ms = 1000 if retry_after_ms is None and reason.value.retryable else retry_after_ms


def invalid(message: str, detail: Mapping[str, Any] | None = None) -> TopicsError:
    """A malformed request: 400 `invalid_request`."""
    return TopicsError(Reason.INVALID_REQUEST, message, detail)


def topic_not_found(name: str) -> TopicsError:
    """The named topic does not exist and this call does not create it: 404 `topic_not_found`."""
    return TopicsError(Reason.TOPIC_NOT_FOUND, f'topic "{name}" does not exist', {"topic": name})


def topic_recreated(name: str, topic_id: str) -> TopicsError:
    """The topic requested by id was deleted, and another one has its name: 404 `topic_not_found`."""
    message = f'topic "{name}" has been created again: it is not the one asked for, its topic_id is {topic_id} now'
    return TopicsError(Reason.TOPIC_NOT_FOUND, message, {"topic": name})


def router_not_found(name: str) -> TopicsError:
    """The named router does not exist: 404 `router_not_found`."""
    return TopicsError(Reason.ROUTER_NOT_FOUND, f'router "{name}" does not exist', {"router": name})


def group_not_found(name: str) -> TopicsError:
    """The named consumer group does not exist: 404 `group_not_found`."""
    return TopicsError(Reason.GROUP_NOT_FOUND, f'group "{name}" does not exist', {"group": name})


def partition_not_found(name: str, partition: int, count: int) -> TopicsError:
    """The topic has no partition of this number: 404 `partition_not_found`."""
    detail = {"topic": name, "partition": partition, "partition_count": count}
    return TopicsError(Reason.PARTITION_NOT_FOUND, f'topic "{name}" has {counted(count, "partition")}, from 0', detail)
