"""Errors of calls to the server."""

import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

from topics_client.address import Address
from topics_client.handshake import NOT_GRPC, final_failure, passing_failure
from topics_proto.v1 import errors_pb2

_DETAILS_KEY: Final = "grpc-status-details-bin"
# gRPC's messages for a call that was never sent. Not guaranteed: if they change, such calls count as possibly executed.
_NEVER_SENT: Final = re.compile("failed to connect to all addresses|errors resolving ")
# gRPC's messages for a plain HTTP response. Excludes 429 and 5xx, with which a proxy asks for a retry.
_HTTP: Final = re.compile(r"http2 header with status: 4(?!29)|Data frame with END_STREAM flag")


class TopicsError(Exception):
    """A call failed. The subclass indicates how to handle it, the attributes hold the facts.

    `reason` is the stable error code (`topic_not_found`, …; docs/errors.md), or the gRPC status in lower case if no
    topics server responded (`unavailable`, `deadline_exceeded`). `detail` holds the facts documented for the code, as
    strings. `retry_after_ms` is the delay before a retry; None if a retry does not help.
    """

    def __init__(
        self, reason: str, message: str, detail: Mapping[str, str] | None = None, retry_after_ms: int | None = None
    ) -> None:
        super().__init__(reason, message, dict(detail or {}), retry_after_ms)
        self.reason = reason
        self.message = message
        self.detail = dict(detail or {})
        self.retry_after_ms = retry_after_ms
        self._never_sent = False  # True if certainly nothing was sent
        self._others = 0  # nodes that the call could be sent to instead

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}"

    @property
    def sqlstate(self) -> str | None:
        """The SQLSTATE of the error of a statement."""
        return self.detail.get("sqlstate")

    @property
    def line(self) -> int | None:
        """The line of the text that the error is at, from 1."""
        return _number(self.detail.get("line"))

    @property
    def column(self) -> int | None:
        """The column in the line, from 1."""
        return _number(self.detail.get("column"))

    @property
    def statement(self) -> int | None:
        """The place of the statement among those of its request, from 0: those before it are done."""
        return _number(self.detail.get("statement"))


class InvalidRequestError(TopicsError):
    """The request is malformed or too large: it can never succeed unchanged."""


class AuthError(TopicsError):
    """The API key is missing, unknown, or lacks the scope or prefix that the call requires."""


class NotFoundError(TopicsError):
    """The topic, router, partition or session does not exist."""


class ConflictError(TopicsError):
    """The request conflicts with the state of the topic: its type, its records or its caps."""


class UnavailableError(TopicsError):
    """The server is unavailable: unreachable, restarting, overloaded, or past the deadline. A retry may succeed."""


class ConnectError(TopicsError):
    """The connection can't be established as configured: TLS on one side only, a rejected certificate, or a port
    without gRPC. A retry does not help; the message states the remedy."""


_KINDS: Final[Mapping[grpc.StatusCode, type[TopicsError]]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequestError,
    grpc.StatusCode.OUT_OF_RANGE: InvalidRequestError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: InvalidRequestError,  # too large; throttled calls carry RetryInfo
    grpc.StatusCode.UNIMPLEMENTED: InvalidRequestError,
    grpc.StatusCode.UNAUTHENTICATED: AuthError,
    grpc.StatusCode.PERMISSION_DENIED: AuthError,
    grpc.StatusCode.NOT_FOUND: NotFoundError,
    grpc.StatusCode.FAILED_PRECONDITION: ConflictError,
    grpc.StatusCode.ALREADY_EXISTS: ConflictError,
    grpc.StatusCode.ABORTED: ConflictError,
    grpc.StatusCode.UNAVAILABLE: UnavailableError,
    grpc.StatusCode.DEADLINE_EXCEEDED: UnavailableError,
}


@cache
def _registry() -> Mapping[str, type[TopicsError]]:
    """Map each error code to its class."""
    rules = (value.GetOptions().Extensions[errors_pb2.rule] for value in errors_pb2.ErrorReason.DESCRIPTOR.values)
    return {
        rule.code: UnavailableError if rule.retryable else _KINDS.get(grpc.StatusCode[rule.grpc_status], TopicsError)
        for rule in rules
        if rule.code
    }


@cache
def code_of(reason: int) -> str:
    """The error code of a reason's number; `internal` if it is unknown."""
    value = errors_pb2.ErrorReason.DESCRIPTOR.values_by_number.get(reason)
    return (value and value.GetOptions().Extensions[errors_pb2.rule].code) or "internal"


def error_of(
    code: str, message: str, detail: Mapping[str, str] | None = None, retry_after_ms: int | None = None
) -> TopicsError:
    """The error for an error code."""
    return _registry().get(code, TopicsError)(code, message, detail, retry_after_ms)


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None


def may_be_done(error: TopicsError) -> bool:
    """Return True if the failed call may have been executed: the request or its response was lost."""
    if isinstance(error, ConnectError):
        return False
    return error.reason in ("unavailable", "deadline_exceeded") and not error._never_sent


def _details(value: bytes) -> Any:
    """The details of a status; empty if it is not one of the server's."""
    try:
        return status_pb2.Status.FromString(value).details
    except DecodeError:
        return ()


def reason_in(metadata: Iterable[tuple[str, str | bytes]] | None) -> str:
    """The error code in the trailing metadata of a call; empty if no topics server answered it."""
    info = error_details_pb2.ErrorInfo()
    for key, value in metadata or ():
        if key == _DETAILS_KEY and isinstance(value, bytes) and any(packed.Unpack(info) for packed in _details(value)):
            return str(info.reason).lower()
    return ""


def from_rpc(error: grpc.RpcError, server: object = "", timeout: float | None = None) -> TopicsError:
    """Translate a gRPC error. The message names `server` and the deadline in seconds if no server responded."""
    call = error if isinstance(error, grpc.Call | grpc.aio.AioRpcError) else None  # asyncio's errors are no Call
    code = call.code() if call else grpc.StatusCode.UNKNOWN
    reason, detail, retry = "", dict[str, str](), None
    metadata: Any = call.trailing_metadata() if call else None
    for key, value in metadata or ():
        if key == _DETAILS_KEY:
            for packed in _details(value):
                info, again = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
                if packed.Unpack(info):
                    reason, detail = info.reason.lower(), dict(info.metadata)
                elif packed.Unpack(again):
                    retry = again.retry_delay.ToMilliseconds()
    text = (call and call.details()) or "the call was aborted without a reason"
    kind = _KINDS.get(code, TopicsError) if retry is None else UnavailableError
    if not reason:
        if _HTTP.search(text):
            return ConnectError("unavailable", f"{server}: {NOT_GRPC}")
        if code is grpc.StatusCode.UNAVAILABLE and _NEVER_SENT.search(text):
            why = final_failure(text, server) if isinstance(server, Address) else None
            if why is not None:
                return ConnectError("unavailable", f"{server}: {why}")
            absent = UnavailableError("unavailable", f"{server}: {passing_failure(text)}", retry_after_ms=retry)
            absent._never_sent = True
            return absent
        reason = code.name.lower()
        if timeout and code is grpc.StatusCode.DEADLINE_EXCEEDED:
            text = f"no answer within {timeout:g} s; the client's `timeout` allows more"
        elif code is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in text:
            text += "; append less at once"
        text = f"{server}: {text}" if server else text
    return kind(reason, text, detail, retry)
