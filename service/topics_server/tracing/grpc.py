"""gRPC calls as spans, by OpenTelemetry's conventions for RPC servers."""

from functools import partial
from typing import Any, Final

import grpc
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

from topics_server.tracing.http import NAMES, PACKAGE, UNTRACED
from topics_server.tracing.spans import CallSpan, Spans, named
from topics_service.api.access.authorizer import rule_of
from topics_service.api.grpc.meter import CallEnd

# The conventions' list of server errors.
_OURS: Final = frozenset({"UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"})


class CallSpans:
    """Makes a span of every call of topics.v1, of a stream as a whole."""

    def __init__(self, spans: Spans) -> None:
        self._spans = spans

    def __call__(self, rpc: str, request: Any, context: Any, streams: bool) -> CallEnd | None:
        if rpc in UNTRACED:
            return None
        service, _, method = rpc.partition(".")
        attributes: dict[str, str | int | bool] = {
            "rpc.system": "grpc",
            "rpc.service": PACKAGE + service,
            "rpc.method": method,
        }
        field = rule_of(PACKAGE + rpc).field
        if field in NAMES and (name := getattr(request, field, "")):
            attributes[NAMES[field]] = named(name)
        headers = {
            key: value
            for key, value in context.invocation_metadata() or ()
            if key in ("traceparent", "tracestate") and isinstance(value, str)
        }
        span = self._spans.begin(f"{PACKAGE}{service}/{method}", attributes, headers=headers, children=not streams)
        return None if span is None else partial(_end, span)


def _end(span: CallSpan, context: Any, code: grpc.StatusCode, *, received: int = 0, sent: int = 0) -> None:
    if received or sent:
        span.span.set_attributes({"topics.stream.received": received, "topics.stream.sent": sent})
    span.span.set_attribute("rpc.grpc.status_code", code.value[0])
    if code is grpc.StatusCode.CANCELLED:
        span.span.set_attribute("topics.gone", True)
    elif code is not grpc.StatusCode.OK:
        span.fail(_reason(context) or code.name, ours=code.name in _OURS)
    span.end()


def _reason(context: Any) -> str:
    """The stable code in the details of the status; "" without."""
    for key, value in context.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            for detail in status_pb2.Status.FromString(value).details:
                info = error_details_pb2.ErrorInfo()
                if detail.Unpack(info):
                    return str(info.reason).lower()
    return ""
