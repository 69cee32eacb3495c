"""The context of the current request: its id for log lines, and its origin for the audit log.

Protocols `begin` a request before they handle it; log lines of its task, and of tasks started from it, then belong to
it. `topics_server.logs` adds the id to the line.
"""

import itertools
import re
import secrets
from collections.abc import Iterable
from contextvars import ContextVar
from typing import Any, Final
from urllib.parse import unquote

from topics_service.api.access.auth import Principal

HEADER: Final = "x-request-id"
HEADER_BYTES: Final = HEADER.encode()
POSITION: Final = "x-topics-position"
"""The header, or metadata, of a position in the log of a cluster's shard."""
OWNER: Final = "x-topics-owner"
"""The metadata that names the node to send calls to, as host:port of its gRPC port: initial metadata for all calls,
trailing metadata for those on the same topic, partition and group."""

# Allowed in a log line without escaping: no spaces, quotes or control characters, and a limited length.
_WELL_FORMED: Final = re.compile(rb"[A-Za-z0-9._~:@/+=-]{1,128}")
_PROCESS: Final = secrets.token_hex(4)
_numbers: Final = itertools.count(1)


class RequestContext:
    """One request over `protocol` (http, grpc or kafka); `principal` is the caller once that is known.

    An id that the client did not give is generated when first needed, since most requests are never logged.
    """

    __slots__ = ("_is_placed", "_source", "_text", "given", "owner", "principal", "protocol")

    def __init__(self, protocol: str, source: Any, given: str | None = None) -> None:
        """`source` is the host and port of the client, None if unknown, or the context of a gRPC call.

        One with a `request_id` brings the id that the request has at the node that forwarded it.
        """
        self.protocol = protocol
        self.given = given
        """The id that the client sent; None without a well-formed one."""
        self.principal: Principal | None = None
        self.owner = ""
        """The address of the one other node that answered all of the request; empty if there is none."""
        self._is_placed = False
        self._source = source
        self._text = given

    @property
    def text(self) -> str:
        """The id: at most 128 characters, of letters, digits and `._~:@/+=-`."""
        if self._text is None:
            self._text = getattr(self._source, "request_id", "") or f"{_PROCESS}-{next(_numbers):x}"
        return self._text

    def answered_at(self, address: str) -> None:
        """Note that a shard of the node at this address answered, or, if it is empty, one of this node.

        A request that several nodes answered in part has no owner: it takes calls between nodes wherever it is sent.
        """
        if not self._is_placed:
            self.owner, self._is_placed = address, True
        elif self.owner != address:
            self.owner = ""

    @property
    def peer(self) -> str:
        """The address of the client, `host:port`."""
        if not self._source:
            return "?"
        if self.protocol == "grpc":  # `ipv4:host:port` or `ipv6:%5Bhost%5D:port`
            peer: str = self._source.peer()
            return unquote(peer.partition(":")[2]) or peer
        host, port = self._source
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class KafkaRequest(RequestContext):
    """A Kafka request, which brings no id: its connection and the correlation id, as its client logs them."""

    __slots__ = ("_correlation",)

    def __init__(self, peer: str, correlation: int, principal: Principal | None = None) -> None:
        super().__init__("kafka", peer)
        self.principal = principal
        self._correlation = correlation

    @property
    def text(self) -> str:
        """See RequestContext."""
        return f"{self._source}/{self._correlation}"

    @property
    def peer(self) -> str:
        """See RequestContext."""
        return str(self._source)


current_request: Final[ContextVar[RequestContext | None]] = ContextVar("current_request", default=None)


def note_answer(address: str) -> None:
    """Note for the current request that a shard answered, see `RequestContext.answered_at`."""
    request = current_request.get()
    if request is not None:
        request.answered_at(address)


def begin(header: bytes | str | None, source: Any = None, protocol: str = "http") -> RequestContext:
    """Begin a request in this task; `header` is the value of the header or metadata X-Request-Id.

    One that is not 1 to 128 characters of letters, digits and `._~:@/+=-` counts as not sent. See
    RequestContext for `source` and `protocol`.
    """
    given = None
    if header is not None:
        text = header if isinstance(header, bytes) else header.encode()
        if _WELL_FORMED.fullmatch(text) is not None:
            given = text.decode()
    request = RequestContext(protocol, source, given)
    current_request.set(request)
    return request


def begin_call(metadata: Iterable[tuple[str, str | bytes]], context: object = None) -> RequestContext:
    """Begin a gRPC call with this metadata and context."""
    for key, value in metadata:
        if key == HEADER:
            return begin(value, context, "grpc")
    return begin(None, context, "grpc")
