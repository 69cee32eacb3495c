"""A connection to one server: channel, API key, deadlines, retries and error mapping."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from types import TracebackType
from typing import Any, Final, Self, TypeVar, cast

import grpc
from google.protobuf.message import Message

from topics_client.address import Address
from topics_client.errors import TopicsError, UnavailableError, from_rpc
from topics_client.idempotency import is_repeatable as is_declared_repeatable
from topics_client.positions import Positions
from topics_client.retry import Patience, Retry
from topics_client.routes import CONNECT_SECONDS, Link, Route, RoutedMethod, Routes
from topics_proto.v1.admin_service_pb2_grpc import AdminServiceStub
from topics_proto.v1.group_service_pb2_grpc import GroupServiceStub
from topics_proto.v1.queue_service_pb2_grpc import QueueServiceStub
from topics_proto.v1.router_service_pb2_grpc import RouterServiceStub
from topics_proto.v1.sql_service_pb2_grpc import SqlServiceStub
from topics_proto.v1.topics_service_pb2_grpc import TopicsServiceStub
from topics_proto.v1.watch_service_pb2_grpc import WatchServiceStub

_MESSAGE_BYTES: Final = 80 << 20  # an append may carry 64 MiB
CHANNEL_OPTIONS: Final = (
    ("grpc.max_receive_message_length", _MESSAGE_BYTES),
    ("grpc.max_send_message_length", _MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),  # the reader of a stream sends no data
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.use_local_subchannel_pool", 1),  # a dedicated connection, not one shared within the process
)

SEVERAL_OPTIONS: Final = (*CHANNEL_OPTIONS, ("grpc.min_reconnect_backoff_ms", 2_000))
"""Those of a channel to one node of several: the time to connect, 20 s by default, is the time until the next is tried.
"""

OWNER_OPTIONS: Final = (
    *((name, value) for name, value in SEVERAL_OPTIONS if not name.startswith("grpc.keepalive_")),
    ("grpc.keepalive_time_ms", 11_000),
    ("grpc.keepalive_timeout_ms", 5_000),
)
"""Those of a channel to an owner: a machine that is gone is noticed sooner, as another node would forward the call."""

_NO_ANSWER: Final = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
)

DEFAULT_RETRY: Final = Retry()
ONCE: Final = Retry(seconds=0)

_Request = TypeVar("_Request", bound=Message)
_Response = TypeVar("_Response", bound=Message)


class Connection:
    """A connection to one server. Calls go through `unary` and `stream`, which take a method of one of the stubs.

    In a cluster, calls go straight to the owner once an answer has named it (`routes`). Thread-safe. It connects with
    the first call and reconnects automatically when the server comes back.
    """

    def __init__(
        self,
        address: Address,
        *,
        timeout: float = 30.0,
        retry: Retry = DEFAULT_RETRY,
        positions: Positions | None = None,
        follow_owners: bool = True,
    ) -> None:
        """`timeout` is the deadline of each attempt of a unary call, in seconds. With `positions`, reads are answered
        by the configured node of a cluster. Without `follow_owners` all calls go to configured nodes."""
        self.address = address
        self.timeout = timeout
        self.retry = retry
        self._positions = positions
        self._metadata = (("authorization", address.authorization),) if address.authorization else ()
        self._closed = False
        self._routes = Routes(address, lambda node: _Link(node, options_of(address, node)), follow_owners=follow_owners)
        channel = cast("grpc.Channel", self._routes)
        self.topics = TopicsServiceStub(channel)
        self.queues = QueueServiceStub(channel)
        self.routers = RouterServiceStub(channel)
        self.groups = GroupServiceStub(channel)
        self.sql = SqlServiceStub(channel)
        self.watches = WatchServiceStub(channel)
        self.admin = AdminServiceStub(channel)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.address)!r})"

    def unary(
        self,
        method: "grpc.UnaryUnaryMultiCallable[_Request, _Response]",
        request: _Request,
        *,
        repeatable: bool | None = None,
        timeout: float | None = None,
    ) -> _Response:
        """Make a unary call. A `repeatable` (idempotent) call is retried while the server is unavailable, any other
        never, but for attempts that reached no node. If `repeatable` is None, the protos' declaration applies. Raises
        TopicsError."""
        patience = Patience(self.retry if is_repeatable(request, repeatable) else ONCE)
        deadline = timeout or self.timeout
        while True:
            try:
                route = self._route(request)
                try:
                    with self._errors(route, deadline):
                        made = _on(route.link, method)
                        answer, call = made.with_call(request, timeout=deadline, metadata=route.metadata)
                        route.note(call.initial_metadata(), call.trailing_metadata())
                        return cast("_Response", answer)
                finally:
                    route.end()
            except UnavailableError as error:
                if not patience.moves(error) and not patience.waited(error):
                    raise

    def waited(self, patience: Patience, error: UnavailableError, ended: Event) -> bool:
        """Sleep before another attempt, or until `ended`. Returns False at once if the retry time would be over by
        then."""
        if patience.moves(error):
            return not ended.is_set()
        pause = patience.pause(error)
        if pause is not None:
            ended.wait(pause)
        return pause is not None

    def blocking(self) -> "Connection":
        """Return the connection itself: see AsyncConnection."""
        return self

    def start(
        self,
        method: "grpc.UnaryUnaryMultiCallable[_Request, _Response]",
        request: _Request,
        *,
        timeout: float | None = None,
    ) -> "grpc.Future[_Response]":
        """Start one attempt without blocking and return gRPC's future. `failure` translates its RpcError."""
        route = self._route(request)
        try:
            made = _on(route.link, method)
            future: Any = made.future(request, timeout=timeout or self.timeout, metadata=route.metadata)
        except BaseException:
            route.end()
            raise
        future.add_done_callback(lambda done: _ended(route, done))
        return cast("grpc.Future[_Response]", future)

    def _route(self, request: Message | None = None) -> Route:
        return Route(self._routes, self._metadata, self._positions, request)

    def failure(self, error: grpc.RpcError) -> TopicsError:
        """Translate a gRPC error to a TopicsError."""
        return from_rpc(error, self.address)

    @contextmanager
    def stream(
        self,
        method: "grpc.UnaryStreamMultiCallable[_Request, _Response]",
        request: _Request,
        *,
        silence: float | None = None,
        started: Callable[[Callable[[], object]], None] | None = None,
    ) -> Iterator[Iterator[_Response]]:
        """Iterate over the responses of a streaming call, which ends with the context. A broken stream raises
        TopicsError: resuming is up to the caller. If given, `silence` is the number of seconds to wait for a response
        before the stream counts as broken. `started` receives a function that cancels the call from any thread."""
        route = self._route(request)
        try:
            with self._errors(route):
                call = _on(route.link, method)(request, metadata=route.metadata)
            if started:
                started(call.cancel)
            with self._answers(route, call) as answers:
                if silence is None:
                    yield answers
                else:
                    with _Watch(call, silence) as watch:
                        yield watch.over(answers)
        finally:
            route.end()

    @contextmanager
    def exchange(
        self, method: "grpc.StreamStreamMultiCallable[_Request, _Response]", requests: Iterator[_Request]
    ) -> Iterator[Iterator[_Response]]:
        """Make a bidirectional streaming call, otherwise as `stream`. A gRPC thread reads `requests` and blocks in it;
        end it when the context ends."""
        route = self._route()
        try:
            with self._errors(route):
                call = _on(route.link, method)(requests, metadata=route.metadata)
            with self._answers(route, call) as answers:
                yield answers
        finally:
            route.end()

    @contextmanager
    def _answers(self, route: Route, call: Any) -> Iterator[Iterator[Any]]:
        def answers() -> Iterator[Any]:
            is_first = True
            with self._errors(route):
                for answer in call:
                    route.came(call.initial_metadata() if is_first else None)
                    is_first = False
                    yield answer
                route.note(call.initial_metadata(), call.trailing_metadata())

        try:
            yield answers()
        finally:
            call.cancel()

    @contextmanager
    def _errors(self, route: Route, timeout: float | None = None) -> Iterator[None]:
        try:
            yield
        except grpc.RpcError as error:
            if isinstance(error, grpc.Call):
                route.note(error.initial_metadata(), error.trailing_metadata(), error.code())
            raise route.failure(error, timeout) from None  # gRPC's own message says the same, less clearly
        except ValueError as error:
            if self._closed:  # the error that gRPC raises for a closed channel
                raise closed(self.address) from error
            raise

    def close(self) -> None:
        """Close the connection and cancel every call on it."""
        self._closed = True
        self._routes.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class _Watch:
    """Cancels a call that receives nothing for too long, such as from a peer that hangs."""

    def __init__(self, call: Any, silence: float) -> None:
        self._call = call
        self._silence = silence
        self._since: float | None = None  # when the wait for the next answer began
        self._cut = False
        self._done = Event()
        self._thread = Thread(target=self._look, daemon=True)

    def over(self, answers: Iterator[_Response]) -> Iterator[_Response]:
        """Iterate over the responses. Raises UnavailableError after too long a silence."""
        while True:
            self._since = time.monotonic()
            try:
                answer = next(answers, None)
            except TopicsError:
                if self._cut:
                    raise UnavailableError("unavailable", f"no answer for {self._silence:g} s") from None
                raise
            self._since = None
            if answer is None:
                return
            yield answer

    def _look(self) -> None:
        while not self._done.wait(self._silence / 4):
            since = self._since
            if since is not None and time.monotonic() - since > self._silence:
                self._cut = True
                self._call.cancel()
                return

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._done.set()
        self._thread.join()


def is_repeatable(request: Message, said: bool | None) -> bool:
    """Return whether a call is idempotent: as the caller says, otherwise as the protos declare."""
    return is_declared_repeatable(request) if said is None else said


def options_of(address: Address, node: Address) -> Sequence[tuple[str, int]]:
    """The options of a channel to a node of an address, or to an owner."""
    if node not in address.nodes:
        return OWNER_OPTIONS
    return SEVERAL_OPTIONS if address.others else CHANNEL_OPTIONS


def closed(address: Address) -> TopicsError:
    """The error of a call on a closed connection."""
    return TopicsError("cancelled", f"{address}: the client is closed")


def credentials_of(address: Address) -> grpc.ChannelCredentials | None:
    """The channel credentials for a TLS server; None for plain TCP. Raises OSError for an unreadable file."""
    if not address.tls:
        return None
    roots = Path(address.ca_file).read_bytes() if address.ca_file else None
    own = Path(address.cert_file).read_bytes() if address.cert_file else None  # the chain, and its key
    return grpc.ssl_channel_credentials(roots, private_key=own, certificate_chain=own)


class _Link(Link):
    """A link that is connected once its server answers whether it serves, in whatever way."""

    def __init__(self, address: Address, options: Sequence[tuple[str, int]]) -> None:
        super().__init__(address, _channel(address, options))
        self._is_connected = False
        self._probe: Any = None

    def is_ready(self) -> bool:
        if not self._is_connected and self._probe is None:
            check = self.channel.unary_unary("/grpc.health.v1.Health/Check")
            self._probe = check.future(b"", timeout=CONNECT_SECONDS, wait_for_ready=True)
            self._probe.add_done_callback(self._probed)
        return self._is_connected

    def _probed(self, done: Any) -> None:
        self._is_connected = done.code() not in _NO_ANSWER
        self._probe = None

    def _close(self) -> None:
        self.channel.close()


def _ended(route: Route, done: Any) -> None:
    """Take note of a call that was started."""
    route.note(done.initial_metadata(), done.trailing_metadata(), done.code())
    route.end()


def _on(link: Link, method: Any) -> Any:
    return link.bind(cast("RoutedMethod", method))


def _channel(address: Address, options: Sequence[tuple[str, int]]) -> grpc.Channel:
    credentials = credentials_of(address)
    if credentials is None:
        return grpc.insecure_channel(address.target, options=options)
    return grpc.secure_channel(address.target, credentials, options=options)
