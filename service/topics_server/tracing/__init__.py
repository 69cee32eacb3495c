"""Tracing: the parts of a server that know of spans.

`start` gives those of `noop`, or with TOPICS_TRACING those of `otel`. A server that does not trace imports nothing of
OpenTelemetry.
"""

import os
from collections.abc import Mapping
from typing import Final

from topics_client.installation import needs
from topics_server.tracing.noop import Tracing

_PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_PROTOCOL: Final = "http/protobuf"
_EXPORTERS: Final = ("otlp", "console", "none")


class TracingError(Exception):
    """Tracing is on and can't start. The message is for the operator."""


def start(environ: Mapping[str, str] = os.environ, *, asked: bool) -> Tracing:
    """Return the tracing that the process is configured for: off, or by its variables OTEL_* if `asked`.

    Raises TracingError for a variable that is not usable, MissingError if the extra is not installed.
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
        from topics_server.tracing.otel import TracingOn
    try:
        return TracingOn(exporter)
    except ValueError as error:
        raise TracingError(f"one of the variables OTEL_* can't be used: {error}") from None
