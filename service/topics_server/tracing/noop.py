"""Tracing that is off: a server without spans."""

from starlette.types import ASGIApp

from topics_server.interceptors import KafkaObserver
from topics_service.api.grpc.meter import CallObserver
from topics_service.api.observers import Observer
from topics_service.statistics import TraceStatistics


class Tracing:
    """Observes the calls of a server; here without spans."""

    observers: tuple[Observer, ...] = ()
    """Observe steps within calls."""
    grpc: CallObserver | None = None
    """Observes whole gRPC calls."""
    kafka: KafkaObserver | None = None
    """Observes whole Kafka requests."""

    def __init__(self) -> None:
        self.statistics = TraceStatistics()

    def app(self, app: ASGIApp) -> ASGIApp:
        """Return the HTTP application, with a span around each call."""
        return app

    def stop(self) -> None:
        """Send the spans that are left, for a bounded time. Blocks."""
