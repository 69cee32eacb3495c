"""Request ids for log lines, chosen by the client or generated when first needed.

Protocols `begin` a request before they handle it; log lines of its task, and of tasks started from it, then belong to
it. `topics_server.logs` adds the id to the line.
"""

import itertools
import re
import secrets
from collections.abc import Iterable
from contextvars import ContextVar
from typing import Final

HEADER: Final = "x-request-id"
HEADER_BYTES: Final = HEADER.encode()

# Allowed in a log line without escaping: no spaces, quotes or control characters, and a limited length.
_WELL_FORMED: Final = re.compile(rb"[A-Za-z0-9._~:@/+=-]{1,128}")
_PROCESS: Final = secrets.token_hex(4)
_numbers: Final = itertools.count(1)


class RequestId:
    """The id of one request. One that no client gave is made up with the first look: most requests are never logged."""

    __slots__ = ("_text", "given")

    def __init__(self, given: str | None = None) -> None:
        self.given = given
        """The client's id; None without a well-formed one."""
        self._text = given

    @property
    def text(self) -> str:
        """The id: at most 128 characters, of letters, digits and `._~:@/+=-`."""
        if self._text is None:
            self._text = f"{_PROCESS}-{next(_numbers):x}"
        return self._text


class KafkaRequestId(RequestId):
    """That of a Kafka request, which brings no id: its connection and the correlation id, as its client logs them."""

    __slots__ = ("_correlation", "_peer")

    def __init__(self, peer: str, correlation: int) -> None:
        super().__init__()
        self._peer = peer
        self._correlation = correlation

    @property
    def text(self) -> str:
        """See RequestId."""
        return f"{self._peer}/{self._correlation}"


current_request: Final[ContextVar[RequestId | None]] = ContextVar("current_request", default=None)


def begin(header: bytes | str | None) -> RequestId:
    """A request begins in this task; `header` is the value of the header or metadata X-Request-Id.

    One that is not 1 to 128 characters of letters, digits and `._~:@/+=-` counts as not sent.
    """
    request = RequestId()
    if header is not None:
        text = header if isinstance(header, bytes) else header.encode()
        if _WELL_FORMED.fullmatch(text) is not None:
            request = RequestId(text.decode())
    current_request.set(request)
    return request


def begin_call(metadata: Iterable[tuple[str, str | bytes]]) -> RequestId:
    """`begin`, with the metadata of a gRPC call."""
    for key, value in metadata:
        if key == HEADER:
            return begin(value)
    return begin(None)
