"""Routes of calls to a cluster: to a configured node, or straight to the node that answers named as the owner.

A node forwards a call that another one owns, and names that one in the metadata of the answer: see `owners`. A single
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
from topics_client.errors import TopicsError, from_rpc, reason_in
from topics_client.owners import AVOID_SECONDS, EVERYTHING, Hints, Key, key_of, owner_in
from topics_client.positions import POSITION, Positions, is_read_to_end

Metadata = tuple[tuple[str, str], ...]

CONNECT_SECONDS: Final = 5.0
"""Time for a connection to an owner."""
_IDLE_SECONDS: Final = 300.0
_SWEEP_SECONDS: Final = 30.0
_MAX_OWNERS: Final = 32
_MAX_LEFT: Final = 32
_FAILED: Final = frozenset((grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED))
_OF_NODE: Final = frozenset(("", "shutting_down"))  # other reasons are of what the call asks for


class Link(ABC):
    """A channel to one address, of threads or of asyncio."""

    def __init__(self, address: Address, channel: Any) -> None:
        self.address = address
        self.channel = channel
        self.since: float | None = None
        """The time since which it has been found not to be connected."""
        self.used = time.monotonic()
        self.calls = 0
        """Calls under way to it as an owner, and `used` the time of the last of them."""
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
        """Call it on the configured node, or on the owner of everything."""
        return self._routes.current().bind(self)(*arguments, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._routes.current().bind(self), name)


class Routes:
    """The links of one connection: one to each configured node that was needed, and a bounded number to owners.
    Thread-safe.

    An owner's link is used once it is connected, so an address that can't be reached from here costs no call. When a
    call on it fails because the node is unavailable, the next calls go to the configured node, and that owner is not
    tried for half a minute. When one fails that way at a configured node, the next of them takes its place; if there is
    none, any owner that is connected, since every node answers every call.
    """

    def __init__(self, address: Address, connect: Callable[[Address], Link], *, follow_owners: bool = True) -> None:
        """Without `follow_owners` all calls go to configured nodes."""
        self._connect = connect
        self._nodes = address.nodes
        self._links: dict[Address, Link] = {}  # to configured nodes
        self._configured = self._links[self._nodes[0]] = connect(self._nodes[0])
        self._follows = follow_owners
        self._hints = Hints()
        self._owners: dict[str, Link] = {}
        self._left: list[Link] = []  # calls still run on them
        self._closing: list[Link] = []
        self._sweep_at = time.monotonic() + _SWEEP_SECONDS
        self._away_until = 0.0  # the only configured node
        self._dead_until = 0.0  # the same, for calls of every kind
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
        """The link for a call that nothing is known of."""
        with self._lock:
            now = time.monotonic()
            return self._owner_of(EVERYTHING, now) or self._instead(now) or self._configured

    def begin(self, key: Key, *, is_anywhere: bool = False) -> tuple[Link, bool]:
        """The link for the next call, and whether it is one to an owner, for which `end` is due.

        A read that any node may answer goes to the configured node, unless that has failed.
        """
        if self._closing:
            self._close_left()
        if not len(self._hints) and not self._dead_until:
            return self._configured, False
        now = time.monotonic()
        if is_anywhere and now >= self._away_until:
            return self._configured, False
        with self._lock:
            if now > self._sweep_at:
                self._sweep(now)
            link = self._owner_of(key, now) or self._instead(now)
            if link is None:
                return self._configured, False
            link.calls += 1
            link.used = now
            return link, True

    def end(self, link: Link) -> None:
        """Take note of a call to an owner that has ended."""
        with self._lock:
            link.calls -= 1
            if not link.calls and link in self._left:
                self._left.remove(link)
                self._closing.append(link)

    @property
    def nodes(self) -> int:
        """The number of configured nodes."""
        return len(self._nodes)

    def answered(
        self,
        key: Key,
        initial: Iterable[tuple[str, str | bytes]] | None,
        trailing: Iterable[tuple[str, str | bytes]] | None = (),
    ) -> None:
        """Take note of the metadata of an answer."""
        if not self._follows:
            return
        of_all, of_key = owner_in(initial), owner_in(trailing)
        if not of_all and (not of_key or key == EVERYTHING):
            return
        with self._lock:
            if of_all:
                self._learn(EVERYTHING, of_all)
            else:
                self._learn(key, of_key)

    def failed(self, link: Link, key: Key, code: grpc.StatusCode, reason: str = "") -> None:
        """Take note of the status of a call over `link`, with the reason that its server gave, if that answered."""
        if code not in _FAILED:
            return
        with self._lock:
            is_known = link is not self._configured or self._owners.get(link.address.target) is link
            if is_known and reason in _OF_NODE:
                self._avoid(link)
            if link is not self._configured:
                self._hints.forget(key, link.address.target)
            elif len(self._nodes) == 1:
                self._away_until = time.monotonic() + AVOID_SECONDS
                if reason in _OF_NODE:
                    self._dead_until = self._away_until
            elif not self._closed:
                at = self._nodes.index(link.address) + 1
                self._configured = self._link_of(self._nodes[at % len(self._nodes)])

    def close(self) -> None:
        """Close all links."""
        with self._lock:
            self._closed = True
            links = [*self._links.values(), *self._owners.values(), *self._left, *self._closing]
            self._owners, self._left, self._closing = {}, [], []
        for link in links:
            link.close()

    def _close_left(self) -> None:
        with self._lock:
            links, self._closing = self._closing, []
        for link in links:
            link.close()

    # ------------------------------------------------------------------ owners, with the lock held

    def _owner_of(self, key: Key, now: float) -> Link | None:
        """The link to the owner of a key, once it is connected; the owner is avoided if that takes too long."""
        target = self._hints.find(key)
        link = self._owners.get(target) if target else None
        if link is None or link is self._configured:
            return None
        if link.is_ready():
            link.since = None
            return link
        if link.since is None:
            link.since = now
        elif now - link.since > CONNECT_SECONDS:
            self._avoid(link)
        return None

    def _instead(self, now: float) -> Link | None:
        """An owner that is connected, in place of the only configured node while that is away."""
        if not self._dead_until:
            return None
        if now >= self._dead_until:
            self._dead_until = 0.0
            return None
        others = (link for target, link in self._owners.items() if not self._hints.is_avoided(target))
        return next((link for link in others if link is not self._configured and link.is_ready()), None)

    def _learn(self, key: Key, target: str) -> None:
        """Remember an owner, and connect to it in the background unless it has failed a short time ago."""
        if self._closed or self._hints.is_avoided(target):
            return
        if target not in self._owners:
            link = self._connected(target)
            if link is None:
                return
            self._owners[target] = link
            if link is not self._configured and not link.is_ready():
                link.since = time.monotonic()
        self._hints.learn(key, target)

    def _connected(self, target: str) -> Link | None:
        """A link to a node that was named; None if there can't be one."""
        for node in self._nodes:
            if node.target == target:
                return self._link_of(node)
        host, _, port = target.rpartition(":")
        if not host or not port.isdecimal():
            return None
        if len(self._owners) >= _MAX_OWNERS:
            self._sweep(time.monotonic(), idle_seconds=0)
            if len(self._owners) >= _MAX_OWNERS:
                return None
        return self._connect(replace(self._nodes[0], host=host.strip("[]"), port=int(port)))

    def _link_of(self, node: Address) -> Link:
        """The link to a configured node."""
        if node not in self._links:
            self._links[node] = self._connect(node)
        return self._links[node]

    def _avoid(self, link: Link) -> None:
        """Leave a node that can't be reached alone for a while."""
        target = link.address.target
        self._hints.avoid(target)
        if self._owners.get(target) is link:
            del self._owners[target]
            self._leave(link)

    def _leave(self, link: Link) -> None:
        """Close a link of an owner when its calls have ended.

        The next call does it: to close a channel waits for what runs on it, and this may be a callback of gRPC.
        """
        if link in self._links.values():
            return
        (self._left if link.calls else self._closing).append(link)
        if len(self._left) > _MAX_LEFT:
            self._closing.append(self._left.pop(0))

    def _sweep(self, now: float, idle_seconds: float = _IDLE_SECONDS) -> None:
        """Close links to owners that are not used."""
        self._sweep_at = now + _SWEEP_SECONDS
        for target, link in [*self._owners.items()]:
            if not link.calls and now - link.used >= idle_seconds:
                del self._owners[target]
                self._leave(link)


class Route:
    """The way of one call: its link, its metadata, and what its answer says of owners and of the client's position.
    `end` is due when the call is over."""

    def __init__(
        self, routes: Routes, metadata: Metadata, positions: Positions | None = None, request: Message | None = None
    ) -> None:
        """Without a `request` it is for a stream of them."""
        self._routes = routes
        self._positions = positions
        self._began = 0 if positions is None else positions.begin()
        self._is_read_to_end = positions is not None and request is not None and is_read_to_end(request)
        self._has_come = False
        wanted = None if positions is None or request is None else positions.wanted(request)
        self.metadata = metadata if wanted is None else (*metadata, (POSITION, wanted))
        self._key = key_of(request)
        self.link, self._is_owner = routes.begin(self._key, is_anywhere=wanted is not None)
        self._others = routes.nodes - (not self._is_owner)

    def failure(self, error: grpc.RpcError, timeout: float | None = None) -> TopicsError:
        """Translate gRPC's error of the call, see `from_rpc`."""
        found = from_rpc(error, self.link.address, timeout)
        found._others = self._others
        return found

    def came(self, initial: Iterable[tuple[str, str | bytes]] | None = ()) -> None:
        """Take note of an answer of a stream, whose position comes with the end, or not at all, and of the initial
        metadata with the first."""
        if self._positions is not None and not (self._has_come and self._is_read_to_end):
            self._began = self._positions.forget()
            self._has_come = True
        if initial:
            self._routes.answered(self._key, initial)

    def note(
        self,
        initial: Iterable[tuple[str, str | bytes]] | None,
        trailing: Iterable[tuple[str, str | bytes]] | None,
        code: grpc.StatusCode = grpc.StatusCode.OK,
    ) -> None:
        """Take note of the end of the call."""
        if code is not grpc.StatusCode.OK:
            self._routes.failed(self.link, self._key, code, reason_in(trailing))
        self._routes.answered(self._key, initial, trailing)
        if self._positions is not None:
            self._positions.note(self._began, trailing)

    def end(self) -> None:
        """Let go of the link. Idempotent."""
        if self._is_owner:
            self._is_owner = False
            self._routes.end(self.link)
