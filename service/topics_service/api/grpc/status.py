"""Errors as gRPC clients see them: a `google.rpc.Status` with ErrorInfo, and RetryInfo where a retry helps."""

from typing import Any, Final, NamedTuple

import grpc
import msgspec
from google.protobuf import any_pb2, message
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

from topics_service.engine.errors import TopicsError

DOMAIN: Final = "topics"
_DETAILS_KEY: Final = "grpc-status-details-bin"
# Status travels in trailing metadata, which clients refuse beyond 8 KiB, and the message in it twice: once as
# percent-encoded text, up to three times its size, once inside the base64 details.
_MESSAGE_BYTES: Final = 1024
_METADATA_BYTES: Final = 2048


class RpcFailure(NamedTuple):
    """The arguments of `context.abort`."""

    code: grpc.StatusCode
    details: str
    trailing_metadata: tuple[tuple[str, str | bytes], ...]


def failure(error: TopicsError) -> RpcFailure:
    """Convert an error to its gRPC status.

    `ErrorInfo.reason` is the stable code in upper case (as google.rpc requires), `domain` is "topics" and `metadata`
    holds the detail: texts as they are, other values as JSON text. Long texts are cut to fit the metadata limits.
    """
    spec = error.reason.value
    code = grpc.StatusCode[spec.grpc_status]
    text = _cut(error.message, _MESSAGE_BYTES)
    info = error_details_pb2.ErrorInfo(reason=spec.code.upper(), domain=DOMAIN, metadata=detail_texts(error))
    details = [_packed(info)]
    if error.retry_after_ms is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromMilliseconds(error.retry_after_ms)
        details.append(_packed(retry))
    status = status_pb2.Status(code=code.value[0], message=text, details=details)
    return RpcFailure(code, text, ((_DETAILS_KEY, status.SerializeToString()),))


def detail_texts(error: TopicsError) -> dict[str, str]:
    """The detail as texts: others than texts as JSON, and all of it cut to a bounded size."""
    flat: dict[str, str] = {}
    left = _METADATA_BYTES
    for key, value in (error.detail or {}).items():
        flat[key] = _cut(_text(value), left)
        left -= len(flat[key].encode())
    return flat


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _cut(text: str, max_bytes: int) -> str:
    data = text.encode()
    return text if len(data) <= max_bytes else data[:max_bytes].decode(errors="ignore")


def _packed(detail: message.Message) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(detail)
    return packed
