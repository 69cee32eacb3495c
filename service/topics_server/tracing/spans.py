"""Spans: their start, their parents, and their export."""

import logging
import os
import threading
import time
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import Final

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter, SpanExportResult
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from topics_service import __version__
from topics_service.api.observers import End, Observation
from topics_service.engine.errors import TopicsError
from topics_service.statistics import TraceStatistics

log = logging.getLogger("topics.tracing")

Attributes = Mapping[str, str | int | bool]

_FLUSH_SECONDS: Final = 3.0
_NAME_CHARS: Final = 256
_PUT: Final = "topics.topic.put"
# The specification of the topic registry has names for puts within these requests of Kafka.
_PUTS: Final = {
    "rafka.gateway.kafka.create-topics": "rafka.gateway.topic.create.via-wire",
    "rafka.gateway.kafka.metadata": "rafka.gateway.topic.create.from-metadata",
}
# Steps that are recorded outside of a recorded call too.
_ROOTS: Final = frozenset({"topics.router.forward", "topics.checkpoint.create", "topics.recovery"})
_STEPS: Final = _ROOTS | {_PUT, "rafka.broker.topic.delete", "topics.store.write", "topics.commit.wait"}
# Their messages about an absent collector; `_Counting` logs it once.
_NOISY: Final = ("opentelemetry.exporter", "opentelemetry.sdk._shared_internal")


class CallSpan:
    """The span of a call that is recorded. While it is `open`, spans inside become its `children`."""

    __slots__ = ("children", "name", "open", "span", "trace_id")

    def __init__(self, span: Span, name: str, *, children: bool) -> None:
        self.span = span
        self.name = name
        self.children = children
        self.open = True
        self.trace_id = trace.format_trace_id(span.get_span_context().trace_id)

    def fail(self, code: str, *, ours: bool) -> None:
        """It ended with the error of that stable code; `ours` if that is the server's fault."""
        self.span.set_attribute("error.type", code)
        if ours:
            self.span.set_status(Status(StatusCode.ERROR))

    def end(self) -> None:
        """The call is over."""
        self.open = False
        self.span.end()


current_call: Final[ContextVar[CallSpan | None]] = ContextVar("traced_call", default=None)
"""The call that is handled."""


def parent() -> CallSpan | None:
    """The call that a step now belongs to; None if that is not recorded, over, or a stream, which has no children."""
    call = current_call.get()
    return call if call is not None and call.open and call.children else None


def current_trace_id() -> str:
    """The id of the trace of the call that is handled, or ""."""
    call = current_call.get()
    return "" if call is None else call.trace_id


class Spans:
    """Creates spans and exports them in batches, from a background thread and a bounded queue (OTEL_BSP_*)."""

    def __init__(self, exporter: str, statistics: TraceStatistics) -> None:
        """`exporter` is otlp or console. Raises ValueError for variables that can't be used."""
        for name in _NOISY:
            logging.getLogger(name).setLevel(logging.CRITICAL)
        given = os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
        known = {"service.version": __version__}
        if not os.environ.get("OTEL_SERVICE_NAME") and "service.name=" not in given:
            known["service.name"] = "topics"
        self._provider = TracerProvider(resource=Resource.create(known), shutdown_on_exit=False)
        out: SpanExporter = ConsoleSpanExporter() if exporter == "console" else OTLPSpanExporter()
        self._provider.add_span_processor(_Ended(statistics))
        self._provider.add_span_processor(BatchSpanProcessor(_Counting(out, statistics)))
        self._tracer = self._provider.get_tracer("topics", __version__)
        self._propagator = TraceContextTextMapPropagator()

    def begin(
        self,
        name: str,
        attributes: Attributes,
        *,
        headers: Mapping[str, str] = {},
        started: int | None = None,
        children: bool = True,
    ) -> CallSpan | None:
        """The span of a call in this task, which continues the trace of the W3C `headers`; None if not sampled.

        Its children and lines of the log get to know of it until `end`, in this task and those that it starts.
        """
        context = self._propagator.extract(headers) if "traceparent" in headers else trace.set_span_in_context(_NONE)
        span = self._tracer.start_span(name, context, SpanKind.SERVER, attributes, start_time=started)
        call = CallSpan(span, name, children=children) if span.is_recording() else None
        current_call.set(call)
        return call

    def observe(self, observation: Observation) -> End | None:
        """Record a step of the current call as a span below that of the call. An exception goes into it."""
        call, name = parent(), observation.name
        if name not in _STEPS or (call is None and name not in _ROOTS):
            return None
        if name == _PUT and call is not None:
            name = _PUTS.get(call.name, name)
        context = trace.set_span_in_context(_NONE if call is None else call.span)
        span = self._tracer.start_span(name, context, SpanKind.INTERNAL)

        def end(error: BaseException | None) -> None:
            span.set_attributes(observation.facts)
            if isinstance(error, Exception):
                _fail(span, error)
            span.end()

        return end

    def stop(self) -> None:
        """Export the rest, for at most 3 s. Blocks."""
        # The SDK's own limit does not hold for an export under way.
        thread = threading.Thread(target=self._provider.shutdown, name="trace-flush", daemon=True)
        thread.start()
        thread.join(_FLUSH_SECONDS)
        if thread.is_alive():
            log.warning("the collector did not take the last spans within %g s: they are lost", _FLUSH_SECONDS)


_NONE: Final = trace.INVALID_SPAN


def _fail(span: Span, error: Exception) -> None:
    """Mark a span with an exception: its stable code where it has one, and never its text, which may contain data."""
    span.set_attribute("error.type", error.reason.code if isinstance(error, TopicsError) else type(error).__name__)
    span.set_status(Status(StatusCode.ERROR))


def named(name: str) -> str:
    """A name that a client gave, no longer than an attribute should be."""
    return name[:_NAME_CHARS]


def now() -> int:
    """The time of spans: ns since the epoch."""
    return time.time_ns()


class _Ended(SpanProcessor):
    """Counts the spans that are to be exported."""

    def __init__(self, statistics: TraceStatistics) -> None:
        self._statistics = statistics

    def on_end(self, span: ReadableSpan) -> None:
        if span.context is not None and span.context.trace_flags.sampled:
            self._statistics.ended += 1


class _Counting(SpanExporter):
    """Exports as `out` does, counts, and logs once when that fails and once when it recovers."""

    def __init__(self, out: SpanExporter, statistics: TraceStatistics) -> None:
        self._out = out
        self._statistics = statistics
        self._fails = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        try:
            result = self._out.export(spans)
        except Exception as error:  # the SDK would log each with its traceback
            log.debug("spans can't be exported: %s", error)
            result = SpanExportResult.FAILURE
        fails = result is not SpanExportResult.SUCCESS
        if fails:
            self._statistics.failed += len(spans)
        else:
            self._statistics.exported += len(spans)
        if fails != self._fails:
            self._fails = fails
            if fails:
                log.warning(
                    "the collector takes no spans: they are dropped until it does (OTEL_EXPORTER_OTLP_ENDPOINT)"
                )
            else:
                log.info("the collector takes spans again")
        return result

    def shutdown(self) -> None:
        self._out.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._out.force_flush(timeout_millis)
