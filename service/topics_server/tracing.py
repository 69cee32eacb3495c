"""Whether calls are traced: the parts of a server that know of it, as they are while it is off.

`start` gives those, or with TOPICS_TRACING those of `tracing_on`. A server that does not trace runs the same code as
before there were traces, and imports none of OpenTelemetry.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Final

import grpc

from topics_client.installation import needs
from topics_server.door_calls import App, Make
from topics_service.api.commit import GroupCommit
from topics_service.engine.engine import Engine
from topics_service.statistics import TraceStatistics
from topics_service.storage.rocks import RocksStore

_PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_PROTOCOL: Final = "http/protobuf"
_EXPORTERS: Final = ("otlp", "console", "none")


class TracingError(Exception):
    """Traces were asked for and can't be had; the message is for the operator."""


class Tracing:
    """No traces. Types to make the server's parts of, and what is put around its calls."""

    store: type[RocksStore] = RocksStore
    commit: type[GroupCommit] = GroupCommit
    engine: type[Engine] = Engine
    interceptors: Sequence[grpc.aio.ServerInterceptor] = ()

    def __init__(self) -> None:
        self.statistics = TraceStatistics()

    def app(self, app: App) -> App:
        """The HTTP application."""
        return app

    def kafka(self, make: Make) -> Make:
        """What makes the handlers of Kafka's APIs."""
        return make

    def forwarding(self, engine: Engine) -> None:
        """Let the routers' slices be known."""

    def checkpoint(self, make: Callable[[Path], None]) -> Callable[[Path], None]:
        """What makes a checkpoint."""
        return make

    def recovery(self) -> AbstractContextManager[object]:
        """Around the recovery at the start."""
        return nullcontext()

    def stop(self) -> None:
        """Send what is left, for a bounded time. Blocks."""


def start(environ: Mapping[str, str] = os.environ, *, asked: bool) -> Tracing:
    """What the server is to be made of; by the variables OTEL_* of the process where traces are `asked` for.

    Raises TracingError when a variable asks for what there is not, MissingError when the extra is not installed.
    """
    if not asked or environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return Tracing()
    exporter = environ.get("OTEL_TRACES_EXPORTER", "").strip() or "otlp"
    if exporter not in _EXPORTERS:
        raise TracingError(f"OTEL_TRACES_EXPORTER must be one of {', '.join(_EXPORTERS)}, not {exporter!r}")
    if exporter == "none":
        return Tracing()
    for name in _PROTOCOLS:
        if (protocol := environ.get(name, "").strip() or _PROTOCOL) != _PROTOCOL:
            raise TracingError(f"{name} must be {_PROTOCOL}, which is all that the server speaks, not {protocol!r}")
    with needs("tracing", "TOPICS_TRACING is set, but {name} is missing: {install}"):
        from topics_server.tracing_on import TracingOn
    try:
        return TracingOn(exporter)
    except ValueError as error:
        raise TracingError(f"one of the variables OTEL_* can't be used: {error}") from None
