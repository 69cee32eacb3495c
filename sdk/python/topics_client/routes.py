"""Routes of calls to a cluster: to a configured node, or straight to the node that its answers name as the owner.

A node that does not own the shard forwards a call and names the owner in the initial metadata of the answer. A single
server names none, so there is one route.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import replace
from threading import Lock
from typing import Any, Final

import grpc
from google.protobuf.message import Message

from topics_client.address import Address
from topics_client.errors import TopicsError, from_rpc
from topics_client.positions import POSITION, Positions, is_read_to_end

OWNER: Final = "x-topics-owner"
"""The initial metadata that names the owner, as host:port."""

Metadata = tuple[tuple[str, str], ...]

_CONNECT_SECONDS: Final = 5.0
_AVOID_SECONDS: Final = 30.0
_MAX_LEFT: Final = 2
_FAILED: Final = frozenset((grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED))


class Link(ABC):
    """A channel to one address, of threads or of asyncio."""

    def __init__(self, address: Address, channel: Any) -> None:
        self.address = address
        self.channel = channel
        self.since = time.monotonic()
        self._methods: dict[RoutedMethod, Any] = {}
        self._is_closed = False
        self._lock = Lock()

    @abstractmethod
    def is_ready(self) -> bool:
        """Return whether it is connected; it connects if it is not."""

    def close(self) -> None:
        """Close it; calls on it end."""
        with self._lock:
            self._is_closed = True
            self._close()

    @abstractmethod
    def _close(self) -> None: ...

    def bind(self, method: "RoutedMethod") -> Any:
        """The method on this channel. Raises ValueError if it is closed and the method is a new one."""
        bound = self._methods.get(method)
        if bound is None:
            with self._lock:
                if self._is_closed:  # gRPC would crash
                    raise ValueError("the channel is closed")
                make = getattr(self.channel, method.kind)
                bound = self._methods[method] = make(*method.arguments, **method.options)
        return bound


class RoutedMethod:
    """A method of a stub, whose channel is chosen with each call."""

    def __init__(self, routes: "Routes", kind: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        self.kind = kind
        self.arguments = arguments
        self.options = options
        self._routes = routes

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Call it on the present route."""
        return self._routes.current().bind(self)(*arguments, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._routes.current().bind(self), name)


class Routes:
    """The links of one connection: one to each configured node that was needed, and at most four others. Thread-safe.

    The owner's link is used once it is connected, so an address that can't be reached from here costs no call. When a
    call on it fails because the node is unavailable, the next calls go to the configured node, and that owner is not
    tried for half a minute. When one fails that way at a configured node, the next of them takes its place.
    """

    def __init__(self, address: Address, connect: Callable[[Address], Link]) -> None:
        self._connect = connect
        self._nodes = address.nodes
        self._links: dict[Address, Link] = {}
        self._configured = self._links[self._nodes[0]] = connect(self._nodes[0])
        self._owner: Link | None = None
        self._coming: Link | None = None  # not connected yet
        self._left: list[Link] = []  # calls may still run on them
        self._avoided = ("", 0.0)
        self._away_until = 0.0  # the only configured node
        self._lock = Lock()
        self._closed = False

    def unary_unary(self, *arguments: Any, **options: Any) -> RoutedMethod:
        """A method, for a stub that takes this object for a channel; so are the three others."""
        return RoutedMethod(self, "unary_unary", arguments, options)

    def unary_stream(self, *arguments: Any, **options: Any) -> RoutedMethod:
        """See `unary_unary`."""
        return RoutedMethod(self, "unary_stream", arguments, options)

    def stream_unary(self, *arguments: Any, **options: Any) -> RoutedMethod:
        """See `unary_unary`."""
        return RoutedMethod(self, "stream_unary", arguments, options)

    def stream_stream(self, *arguments: Any, **options: Any) -> RoutedMethod:
        """See `unary_unary`."""
        return RoutedMethod(self, "stream_stream", arguments, options)

    def current(self) -> Link:
        """The link for the next call."""
        if self._coming is not None:
            self._look()
        return self._owner or self._configured

    def nearest(self) -> Link:
        """The link for a read that any node may answer: to the configured node, unless that has failed."""
        return self.current() if time.monotonic() < self._away_until else self._configured

    @property
    def others(self) -> int:
        """The number of nodes that a call which reached none can be sent to next."""
        return len(self._nodes) - 1 + (self._owner is not None)

    def answered(self, link: Link, metadata: Iterable[tuple[str, str | bytes]] | None) -> None:
        """Take note of the initial metadata of an answer that came over `link`."""
        for name, value in metadata or ():
            if name == OWNER:
                self._named(str(value))

    def failed(self, link: Link, code: grpc.StatusCode) -> None:
        """Take note of the status of a call over `link`."""
        if code not in _FAILED:
            return
        with self._lock:
            if link is self._owner:
                self._avoided = (link.address.target, time.monotonic() + _AVOID_SECONDS)
                self._owner = None
                self._leave(link)
            elif link is self._configured and len(self._nodes) == 1:
                self._away_until = time.monotonic() + _AVOID_SECONDS
            elif link is self._configured and not self._closed:
                node = self._nodes[(self._nodes.index(link.address) + 1) % len(self._nodes)]
                if node not in self._links:
                    self._links[node] = self._connect(node)
                self._configured = self._links[node]

    def close(self) -> None:
        """Close all links."""
        with self._lock:
            self._closed = True
            links = [*self._links.values(), self._owner, self._coming, *self._left]
            self._owner, self._coming, self._left = None, None, []
        for link in links:
            if link is not None:
                link.close()

    def _named(self, target: str) -> None:
        """Connect to the owner in the background, unless that is done, or it has failed a short time ago."""
        avoided, until = self._avoided
        if target == avoided and time.monotonic() < until:
            return
        with self._lock:
            known = [link for link in (self._owner or self._configured, self._coming) if link is not None]
            if self._closed or any(link.address.target == target for link in known):
                return
            if self._coming is not None:
                self._coming.close()
                self._coming = None
            if target == self._configured.address.target:
                if self._owner is not None:
                    self._leave(self._owner)
                    self._owner = None
                return
            host, _, port = target.rpartition(":")
            if host and port.isdecimal():
                own = self._configured.address
                self._coming = self._connect(replace(own, host=host.strip("[]"), port=int(port)))

    def _look(self) -> None:
        """Change to the owner if it is connected; give up if it takes too long."""
        with self._lock:
            coming = self._coming
            if coming is None:
                return
            if coming.is_ready():
                if self._owner is not None:
                    self._leave(self._owner)
                self._owner, self._coming = coming, None
            elif time.monotonic() - coming.since > _CONNECT_SECONDS:
                self._avoided = (coming.address.target, time.monotonic() + _AVOID_SECONDS)
                self._coming = None
                coming.close()

    def _leave(self, link: Link) -> None:
        self._left.append(link)
        if len(self._left) > _MAX_LEFT:
            self._left.pop(0).close()


class Route:
    """The way of one call: its link, its metadata, and what it says of the client's position."""

    def __init__(
        self,
        link: Link,
        others: int,
        metadata: Metadata,
        positions: Positions | None = None,
        *,
        is_read_to_end: bool = False,
    ) -> None:
        self.link = link
        self.metadata = metadata
        self._others = others
        self._positions = positions
        self._began = 0 if positions is None else positions.begin()
        self._is_read_to_end = is_read_to_end
        self._has_come = False

    def failure(self, error: grpc.RpcError, timeout: float | None = None) -> TopicsError:
        """Translate gRPC's error of the call, see `from_rpc`."""
        found = from_rpc(error, self.link.address, timeout)
        found._others = self._others
        return found

    def came(self) -> None:
        """Take note of an answer of a stream, whose position comes with the end, or not at all."""
        if self._positions is not None and not (self._has_come and self._is_read_to_end):
            self._began = self._positions.forget()
            self._has_come = True

    def note(self, trailing: Iterable[tuple[str, str | bytes]] | None) -> None:
        """Take note of the trailing metadata."""
        if self._positions is not None:
            self._positions.note(self._began, trailing)


def route_of(routes: Routes, positions: Positions | None, metadata: Metadata, request: Message | None = None) -> Route:
    """The route of a call; without a `request`, which is for a stream of them."""
    if positions is None or request is None:
        return Route(routes.current(), routes.others, metadata, positions)
    wanted, is_whole = positions.wanted(request), is_read_to_end(request)
    if wanted is None:
        return Route(routes.current(), routes.others, metadata, positions, is_read_to_end=is_whole)
    marked = (*metadata, (POSITION, wanted))
    return Route(routes.nearest(), routes.others, marked, positions, is_read_to_end=is_whole)
