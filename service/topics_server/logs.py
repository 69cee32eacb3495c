"""The server's log on stderr: one line for each message, as text or as JSON, with the request it belongs to."""

import json
import logging
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from topics_service.api.request_context import current_request

FORMATS: Final = ("text", "json")
_TEXT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def configure(level: str, style: str) -> None:
    """Log all loggers to stderr from `level` on; an unknown level is `info`. `style` is one of FORMATS."""
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(within_request)
    handler.setFormatter(JsonFormatter() if style == "json" else TextFormatter(_TEXT))
    known = logging.getLevelNamesMapping()
    logging.basicConfig(level=level.upper() if level.upper() in known else "INFO", handlers=[handler])


trace_ids: list[Callable[[], str]] = []
"""Functions that return the id of the trace being recorded, or "": none without tracing."""


def within_request(record: logging.LogRecord) -> bool:
    """Note on a record which request and trace it belongs to, in `request` and `trace`, unless it says so itself."""
    if not hasattr(record, "request"):
        request = current_request.get()
        record.request = "" if request is None else request.text
    record.trace = trace_ids[0]() if trace_ids else ""
    return True


class TextFormatter(logging.Formatter):
    """`TIME LEVEL LOGGER: MESSAGE`, and ` request=ID trace=ID` where there are such. A traceback follows below."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # logging's name
        """The line without the traceback."""
        line = super().formatMessage(record)
        for name in ("request", "trace"):
            if value := getattr(record, name, ""):
                line += f" {name}={value}"
        return line


class JsonFormatter(logging.Formatter):
    """One object on one line: `ts` (seconds since the epoch), `level`, `logger`, `message`, and where there are such
    `request`, `trace` and `exception` (the traceback as one text)."""

    def format(self, record: logging.LogRecord) -> str:
        """See logging.Formatter."""
        members: dict[str, Any] = {
            "ts": round(record.created, 3),
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name in ("request", "trace"):
            if value := getattr(record, name, ""):
                members[name] = value
        if record.exc_info:
            members["exception"] = self.formatException(record.exc_info)
        return json.dumps(members, ensure_ascii=False)
