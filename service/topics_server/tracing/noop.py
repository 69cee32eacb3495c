"""Tracing that is off: the parts of a server as they are without spans."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import grpc

from topics_server.interceptors import App, Make
from topics_service.api.scheduling.commit import GroupCommit
from topics_service.engine.engine import Engine
from topics_service.statistics import TraceStatistics
from topics_service.storage.rocks import RocksStore


class Tracing:
    """Builds the parts of a server and wraps its calls; here without spans."""

    store: type[RocksStore] = RocksStore
    commit: type[GroupCommit] = GroupCommit
    engine: type[Engine] = Engine
    interceptors: Sequence[grpc.aio.ServerInterceptor] = ()

    def __init__(self) -> None:
        self.statistics = TraceStatistics()

    def app(self, app: App) -> App:
        """Return the HTTP application, with a span around each call."""
        return app

    def kafka(self, make: Make) -> Make:
        """Return a factory of Kafka handlers, with a span around each call."""
        return make

    def forwarding(self, engine: Engine) -> None:
        """Put a span around each slice of forwarding."""

    def checkpoint(self, make: Callable[[Path], None]) -> Callable[[Path], None]:
        """Return a function that makes a checkpoint, with a span around it."""
        return make

    def recovery(self) -> AbstractContextManager[object]:
        """Return the span of recovery, as a context manager."""
        return nullcontext()

    def stop(self) -> None:
        """Send the spans that are left, for a bounded time. Blocks."""
