"""`connection` for asyncio: the same calls, awaited."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

import grpc
from google.protobuf.message import Message

from topics_client.address import Address
from topics_client.connection import (
    DEFAULT_RETRY,
    ONCE,
    Connection,
    closed,
    credentials_of,
    is_repeatable,
    options_of,
)
from topics_client.errors import UnavailableError
from topics_client.positions import Positions
from topics_client.retry import Patience, Retry
from topics_client.routes import Link, Route, RoutedMethod, Routes
from topics_proto.v1.admin_service_pb2_grpc import AdminServiceStub
from topics_proto.v1.group_service_pb2_grpc import GroupServiceStub
from topics_proto.v1.queue_service_pb2_grpc import QueueServiceStub
from topics_proto.v1.router_service_pb2_grpc import RouterServiceStub
from topics_proto.v1.sql_service_pb2_grpc import SqlServiceStub
from topics_proto.v1.topics_service_pb2_grpc import TopicsServiceStub
from topics_proto.v1.watch_service_pb2_grpc import WatchServiceStub

if TYPE_CHECKING:
    from topics_proto.v1.admin_service_pb2_grpc import AdminServiceAsyncStub
    from topics_proto.v1.group_service_pb2_grpc import GroupServiceAsyncStub
    from topics_proto.v1.queue_service_pb2_grpc import QueueServiceAsyncStub
    from topics_proto.v1.router_service_pb2_grpc import RouterServiceAsyncStub
    from topics_proto.v1.sql_service_pb2_grpc import SqlServiceAsyncStub
    from topics_proto.v1.topics_service_pb2_grpc import TopicsServiceAsyncStub
    from topics_proto.v1.watch_service_pb2_grpc import WatchServiceAsyncStub

_Request = TypeVar("_Request", bound=Message)
_Response = TypeVar("_Response", bound=Message)


class AsyncConnection:
    """The asyncio counterpart of Connection. Belongs to the event loop of its first call."""

    def __init__(
        self,
        address: Address,
        *,
        timeout: float = 30.0,
        retry: Retry = DEFAULT_RETRY,
        positions: Positions | None = None,
        follow_owners: bool = True,
    ) -> None:
        """See Connection."""
        self.address = address
        self.timeout = timeout
        self.retry = retry
        self._positions = positions
        self._follow_owners = follow_owners
        self._metadata = (("authorization", address.authorization),) if address.authorization else ()
        self._blocking: Connection | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self._closing: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.address)!r})"

    @cached_property
    def _routes(self) -> Routes:
        self._loop = asyncio.get_running_loop()

        def link(node: Address) -> Link:
            return _Link(node, options_of(self.address, node), self._closing)

        return Routes(self.address, link, follow_owners=self._follow_owners)

    def _route(self, request: Message) -> Route:
        return Route(self._routes, self._metadata, self._positions, request)

    @property
    def _channel(self) -> grpc.aio.Channel:
        return cast("grpc.aio.Channel", self._routes)

    @cached_property
    def topics(self) -> "TopicsServiceAsyncStub":
        """The calls of TopicsService."""
        return TopicsServiceStub(self._channel)

    @cached_property
    def queues(self) -> "QueueServiceAsyncStub":
        """The calls of QueueService."""
        return QueueServiceStub(self._channel)

    @cached_property
    def routers(self) -> "RouterServiceAsyncStub":
        """The calls of RouterService."""
        return RouterServiceStub(self._channel)

    @cached_property
    def groups(self) -> "GroupServiceAsyncStub":
        """The calls of GroupService."""
        return GroupServiceStub(self._channel)

    @cached_property
    def sql(self) -> "SqlServiceAsyncStub":
        """The calls of SqlService."""
        return SqlServiceStub(self._channel)

    @cached_property
    def watches(self) -> "WatchServiceAsyncStub":
        """The calls of WatchService."""
        return WatchServiceStub(self._channel)

    @cached_property
    def admin(self) -> "AdminServiceAsyncStub":
        """The calls of AdminService."""
        return AdminServiceStub(self._channel)

    async def unary(
        self,
        method: "grpc.aio.UnaryUnaryMultiCallable[_Request, _Response]",
        request: _Request,
        *,
        repeatable: bool | None = None,
        timeout: float | None = None,  # noqa: ASYNC109  # the call's deadline, which the server learns of
    ) -> _Response:
        """See Connection.unary."""
        patience = Patience(self.retry if is_repeatable(request, repeatable) else ONCE)
        deadline = timeout or self.timeout
        while True:
            try:
                route = self._route(request)
                try:
                    with self._errors(route, deadline):
                        call = _on(route.link, method)(request, timeout=deadline, metadata=route.metadata)
                        answer = await call
                        route.note(await call.initial_metadata(), await call.trailing_metadata())
                        return cast("_Response", answer)
                finally:
                    route.end()
            except UnavailableError as error:
                if patience.moves(error):
                    continue
                pause = patience.pause(error)
                if pause is None:
                    raise
            await asyncio.sleep(pause)

    async def waited(self, patience: Patience, error: UnavailableError, ended: asyncio.Event) -> bool:
        """See Connection.waited."""
        if patience.moves(error):
            return not ended.is_set()
        pause = patience.pause(error)
        if pause is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), pause)
        return pause is not None

    @asynccontextmanager
    async def stream(
        self,
        method: "grpc.aio.UnaryStreamMultiCallable[_Request, _Response]",
        request: _Request,
        *,
        silence: float | None = None,
        started: Callable[[Callable[[], object]], None] | None = None,
    ) -> AsyncIterator[AsyncIterator[_Response]]:
        """See Connection.stream."""
        route = self._route(request)
        try:
            with self._errors(route):
                call = _on(route.link, method)(request, metadata=route.metadata)
            if started:
                started(call.cancel)
        except BaseException:
            route.end()
            raise

        async def answers() -> AsyncIterator[_Response]:
            is_first = True
            while True:
                try:
                    with self._errors(route):
                        async with asyncio.timeout(silence):
                            answer = await call.read()
                        if answer is grpc.aio.EOF:
                            route.note(await call.initial_metadata(), await call.trailing_metadata())
                except TimeoutError:
                    raise UnavailableError("unavailable", f"no answer for {silence:g} s") from None
                if answer is grpc.aio.EOF:
                    return
                route.came(await call.initial_metadata() if is_first else None)
                is_first = False
                yield cast("_Response", answer)

        try:
            yield answers()
        finally:
            call.cancel()
            route.end()

    @contextmanager
    def _errors(self, route: Route, timeout: float | None = None) -> Iterator[None]:
        if self._loop is not asyncio.get_running_loop():
            raise RuntimeError("a client belongs to the event loop of its first call: make one in each loop")
        try:
            yield
        except grpc.RpcError as error:
            if isinstance(error, grpc.aio.AioRpcError):
                route.note(error.initial_metadata(), error.trailing_metadata(), error.code())
            raise route.failure(error, timeout) from None
        except (grpc.aio.UsageError, ValueError) as error:
            if self._closed:  # the error that gRPC raises for a closed channel
                raise closed(self.address) from error
            raise
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise closed(self.address) from error  # the call was cancelled, not the waiting task

    def blocking(self) -> Connection:
        """Return a blocking connection to the same server; it is closed along with this one."""
        if self._blocking is None:
            self._blocking = Connection(
                self.address,
                timeout=self.timeout,
                retry=self.retry,
                positions=self._positions,
                follow_owners=self._follow_owners,
            )
        return self._blocking

    async def close(self) -> None:
        """Close the connection and cancel every call on it."""
        self._closed = True
        if "_routes" in self.__dict__:
            self._routes.close()
            await asyncio.gather(*self._closing)
        if self._blocking is not None:
            self._blocking.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()


class _Link(Link):
    """A link of the running event loop."""

    def __init__(self, address: Address, options: Sequence[tuple[str, int]], closing: set[asyncio.Task[None]]) -> None:
        """`closing` takes the task that closes it."""
        super().__init__(address, _channel(address, options))
        self._closing = closing

    def is_ready(self) -> bool:
        return self.channel.get_state(try_to_connect=True) is grpc.ChannelConnectivity.READY

    def _close(self) -> None:
        task = asyncio.ensure_future(self.channel.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


def _on(link: Link, method: Any) -> Any:
    return link.bind(cast("RoutedMethod", method))


def _channel(address: Address, options: Sequence[tuple[str, int]]) -> grpc.aio.Channel:
    credentials = credentials_of(address)
    if credentials is None:
        return grpc.aio.insecure_channel(address.target, options=list(options))
    return grpc.aio.secure_channel(address.target, credentials, options=list(options))
