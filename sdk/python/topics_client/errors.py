"""What a call to the server can fail with."""

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

from topics_client.address import Address
from topics_client.handshake import NOT_GRPC, final_failure, passing_failure
from topics_proto.v1 import errors_pb2

_DETAILS_KEY: Final = "grpc-status-details-bin"
# What gRPC says of a call that never went out. No contract: were it to say it otherwise, less would be known for sure.
_NEVER_SENT: Final = re.compile("failed to connect to all addresses|errors resolving ")
# Of an answer that is plain HTTP: no gRPC ends so. A proxy tells with 429 and 5xx that another attempt may help.
_HTTP: Final = re.compile(r"http2 header with status: 4(?!29)|Data frame with END_STREAM flag")


class TopicsError(Exception):
    """A call failed. The subclass tells what kind of thing to do about it, the attributes tell the facts.

    `reason` is the stable code of the registry (`topic_not_found`, …; docs/errors.md), or the gRPC status in lower case
    where no server of ours answered (`unavailable`, `deadline_exceeded`). `detail` holds the facts that the registry
    names, as texts. `retry_after_ms` is when to try again, None where that makes no difference.
    """

    def __init__(
        self, reason: str, message: str, detail: Mapping[str, str] | None = None, retry_after_ms: int | None = None
    ) -> None:
        super().__init__(reason, message, dict(detail or {}), retry_after_ms)
        self.reason = reason
        self.message = message
        self.detail = dict(detail or {})
        self.retry_after_ms = retry_after_ms
        self._never_sent = False  # whether it is sure that nothing of the call went out

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}"


class InvalidRequestError(TopicsError):
    """What was asked for is malformed, or too large: the same request can never succeed."""


class AuthError(TopicsError):
    """No key, an unknown one, or one without the scope or prefix that the call takes."""


class NotFoundError(TopicsError):
    """A topic, router, partition or session that is not there."""


class ConflictError(TopicsError):
    """What was asked for contradicts the state of the topic: its type, its records, its caps."""


class UnavailableError(TopicsError):
    """The server can't answer now: absent, restarting, overloaded, or past the deadline. Later it may."""


class ConnectError(TopicsError):
    """The server can't be reached as it is asked for: no TLS where TLS is wanted or the other way round, a certificate
    that is not accepted, no gRPC. Waiting does not help; the text says what does."""


_KINDS: Final[Mapping[grpc.StatusCode, type[TopicsError]]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequestError,
    grpc.StatusCode.OUT_OF_RANGE: InvalidRequestError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: InvalidRequestError,  # too large; who is throttled gets RetryInfo
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
    """Kind of each code of the registry."""
    rules = (value.GetOptions().Extensions[errors_pb2.rule] for value in errors_pb2.ErrorReason.DESCRIPTOR.values)
    return {
        rule.code: UnavailableError if rule.retryable else _KINDS.get(grpc.StatusCode[rule.grpc_status], TopicsError)
        for rule in rules
        if rule.code
    }


@cache
def code_of(reason: int) -> str:
    """The code of a reason that came as a number; `internal` for one unknown here."""
    value = errors_pb2.ErrorReason.DESCRIPTOR.values_by_number.get(reason)
    return (value and value.GetOptions().Extensions[errors_pb2.rule].code) or "internal"


def error_of(
    code: str, message: str, detail: Mapping[str, str] | None = None, retry_after_ms: int | None = None
) -> TopicsError:
    """The error that a code of the registry stands for."""
    return _registry().get(code, TopicsError)(code, message, detail, retry_after_ms)


def may_be_done(error: TopicsError) -> bool:
    """Whether nobody said that the call which failed was not carried out: it broke off on its way, or on that of its
    answer."""
    if isinstance(error, ConnectError):
        return False
    return error.reason in ("unavailable", "deadline_exceeded") and not error._never_sent


def _details(value: bytes) -> Any:
    """The details of a status; none where it is not one of ours."""
    try:
        return status_pb2.Status.FromString(value).details
    except DecodeError:
        return ()


def from_rpc(error: grpc.RpcError, server: object = "", timeout: float | None = None) -> TopicsError:
    """The failure of a call. `server`, and its deadline in seconds, are named where none answered."""
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
    text = (call and call.details()) or "the call broke off, and nothing was said of why"
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
