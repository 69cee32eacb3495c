"""Tracing that is off: a server without spans."""

from topics_server.interceptors import App, Make
from topics_service.api.grpc.meter import CallObserver
from topics_service.api.observers import Observer
from topics_service.statistics import TraceStatistics


class Tracing:
    """Observes the calls of a server; here without spans."""

    observers: tuple[Observer, ...] = ()
    """Observe steps within calls."""
    grpc: CallObserver | None = None
    """Observes whole gRPC calls."""

    def __init__(self) -> None:
        self.statistics = TraceStatistics()

    def app(self, app: App) -> App:
        """Return the HTTP application, with a span around each call."""
        return app

    def kafka(self, make: Make) -> Make:
        """Return a factory of Kafka handlers, with a span around each call."""
        return make

    def stop(self) -> None:
        """Send the spans that are left, for a bounded time. Blocks."""
