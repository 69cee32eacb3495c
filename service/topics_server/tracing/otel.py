"""Tracing that is on: calls and their steps as spans."""

from starlette.types import ASGIApp

from topics_server import logs
from topics_server.tracing.grpc import CallSpans
from topics_server.tracing.http import traced_app
from topics_server.tracing.kafka import KafkaSpans
from topics_server.tracing.noop import Tracing
from topics_server.tracing.spans import Spans, current_trace_id


class TracingOn(Tracing):
    """Spans, exported by `exporter`. One per process."""

    def __init__(self, exporter: str) -> None:
        """Raises ValueError for variables OTEL_* that can't be used."""
        super().__init__()
        self._spans = Spans(exporter, self.statistics)
        self.observers = (self._spans.observe,)
        self.grpc = CallSpans(self._spans)
        self.kafka = KafkaSpans(self._spans)
        logs.trace_ids[:] = [current_trace_id]

    def app(self, app: ASGIApp) -> ASGIApp:
        return traced_app(app, self._spans)

    def stop(self) -> None:
        self._spans.stop()
