"""A collector of traces over OTLP/HTTP, in the process of the test."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanMessage

from support.waiting import poll


class Span:
    """A span as received."""

    def __init__(self, message: SpanMessage, resource: dict[str, Any]) -> None:
        self.name = message.name
        self.kind = SpanMessage.SpanKind.Name(message.kind).removeprefix("SPAN_KIND_")
        self.trace_id = message.trace_id.hex()
        self.span_id = message.span_id.hex()
        self.parent_id = message.parent_span_id.hex()
        self.failed = message.status.code == 2
        self.ns = (message.start_time_unix_nano, message.end_time_unix_nano)
        self.attributes = {each.key: _value(each.value) for each in message.attributes}
        self.events = len(message.events)
        self.resource = resource

    def __repr__(self) -> str:
        return f"{self.name} {self.attributes}"


class Collector:
    """Takes spans over OTLP/HTTP on a port of its own; answers with `status`, and only while `answers` is set."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.status = 200
        self.answers = threading.Event()
        self.answers.set()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.path == "/v1/traces" and collector.status == 200:
                    collector.bodies.append(body)
                collector.answers.wait(60)
                self.send_response(collector.status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def endpoint(self) -> str:
        """The value for OTEL_EXPORTER_OTLP_ENDPOINT."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def spans(self) -> list[Span]:
        """All that came so far."""
        return [
            Span(span, {each.key: _value(each.value) for each in of_process.resource.attributes})
            for body in list(self.bodies)
            for of_process in ExportTraceServiceRequest.FromString(body).resource_spans
            for scope in of_process.scope_spans
            for span in scope.spans
        ]

    def find(self, name: str, **attributes: Any) -> Span:
        """The newest span of that name with those attributes (`_` for `.`), once it is there."""

        def found() -> Span | None:
            for span in reversed(self.spans):
                flat = {key.replace(".", "_"): value for key, value in span.attributes.items()}
                if span.name == name and attributes.items() <= flat.items():
                    return span
            return None

        span: Span | None = poll(found, 20, f"a span {name} {attributes}")
        assert span is not None
        return span

    def children(self, parent: Span) -> list[str]:
        """The names of the spans below one that came, which come before it."""
        return sorted(span.name for span in self.spans if span.parent_id == parent.span_id)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.answers.set()
        self._server.shutdown()
        self._server.server_close()


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    return None if kind is None else getattr(value, kind)


def tracing(endpoint: str, **more: object) -> dict[str, object]:
    """The environment of a server that sends its spans there, soon."""
    return {
        "TOPICS_TRACING": "1",
        "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
        "OTEL_BSP_SCHEDULE_DELAY": "50",
        **more,
    }
