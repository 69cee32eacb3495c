"""Calls between nodes: the owner sends its followers what is durable, and they send it how far they are.

Three calls of gRPC, on the port of gRPC and under a signature: `Follow`, a stream both ways, `Standpoint` and
`Progress`. Messages are MessagePack maps: a field that one side does not know is ignored.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, NoReturn, Protocol

import grpc
import msgspec
from msgspec import Struct

from topics_cluster.forwarded import ForwardedContext
from topics_cluster.owner_search import DISTRUSTED, NOT_OWNER, not_owner
from topics_cluster.trust import HEADER, Origin, Signer
from topics_net import background
from topics_service.api.grpc.handlers import Context, Handler
from topics_service.api.grpc.status import failure
from topics_service.engine.errors import Reason, TopicsError, invalid

log: Final = logging.getLogger("topics.cluster")

METHOD: Final = "/topics.cluster.v1.PeerService/Follow"
STANDPOINT: Final = "/topics.cluster.v1.PeerService/Standpoint"
PROGRESS: Final = "/topics.cluster.v1.PeerService/Progress"

_PULSE_SECONDS: Final = 1.0
_SILENCE_SECONDS: Final = 4.0
_MAX_FOLLOWERS: Final = 64
_OPTIONS: Final = (("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0))


class Standing(Struct, frozen=True, kw_only=True):
    """A follower: its name, the newest object that it has applied, whether it could take over at once, whether it
    reaches the object store, and the nonce of its next takeover."""

    shard: int
    node: str
    number: int
    caught_up: bool
    reaches_store: bool
    nonce: bytes


class Notice(Struct, frozen=True, kw_only=True):
    """All objects up to `number` are durable, in this epoch."""

    epoch: int
    number: int


class ShardRequest(Struct, frozen=True, kw_only=True):
    """Asks the owner of a shard."""

    shard: int = 0


class Standpoint(Struct, frozen=True, kw_only=True):
    """Number of a write behind which the owner has acknowledged nothing, in this epoch or an earlier one."""

    epoch: int
    ticket: int


class FollowerProgress(Struct, frozen=True, kw_only=True):
    """A follower, as far as its owner has heard: the newest object that it has applied."""

    node: str
    number: int
    caught_up: bool


class Progress(Struct, frozen=True, kw_only=True):
    """The newest object of a shard's log that is durable, and how far its followers are."""

    number: int
    followers: list[FollowerProgress]


_encode: Final = msgspec.msgpack.Encoder().encode
_standing: Final = msgspec.msgpack.Decoder(Standing).decode
_notice: Final = msgspec.msgpack.Decoder(Notice).decode
_request: Final = msgspec.msgpack.Decoder(ShardRequest).decode
read_standpoint: Final = msgspec.msgpack.Decoder(Standpoint).decode
"""Decode the answer of `STANDPOINT`. Raises MsgspecError."""
read_progress: Final = msgspec.msgpack.Decoder(Progress).decode
"""Decode the answer of `PROGRESS`. Raises MsgspecError."""


def ask_of(shard: int) -> bytes:
    """The request of `STANDPOINT` and `PROGRESS`."""
    return _encode(ShardRequest(shard=shard))


class Followers:
    """The followers of this node while it owns a shard. Belongs to the event loop."""

    def __init__(self) -> None:
        self.standings: dict[str, Standing] = {}
        """By name, of those that are connected."""
        self.on_change: Callable[[], None] = lambda: None
        self._notice: Notice | None = None
        self._news = asyncio.Event()

    def tell(self, notice: Notice | None) -> None:
        """Tell all followers what is durable; None: this node is not the owner, and their calls end."""
        if notice != self._notice:
            self._notice = notice
            self._news.set()
            self._news = asyncio.Event()

    async def follow(self, standing: Standing, requests: AsyncIterator[Standing]) -> AsyncIterator[Notice]:
        """Serve one follower, whose first message is `standing`: note where it stands, and yield what is durable after
        each change and once a second.

        Raises TopicsError `not_ready` if this node is not the owner, or is no longer.
        """
        if len(self.standings) >= _MAX_FOLLOWERS:
            raise TopicsError(Reason.INVALID_REQUEST, "there are too many followers")
        reader = background.start(self._read(standing, requests))
        try:
            while not reader.done():
                news, notice = self._news, self._notice
                if notice is None:
                    raise not_owner()
                yield notice
                waiting = asyncio.ensure_future(news.wait())
                try:
                    await asyncio.wait((waiting, reader), timeout=_PULSE_SECONDS, return_when="FIRST_COMPLETED")
                finally:
                    waiting.cancel()
        finally:
            reader.cancel()
            await asyncio.wait((reader,))

    async def _read(self, standing: Standing, requests: AsyncIterator[Standing]) -> None:
        name = standing.node
        latest = standing
        try:
            while True:
                self.standings[name] = latest
                self.on_change()
                async with asyncio.timeout(_SILENCE_SECONDS):
                    given = await anext(requests, None)
                if given is None or (given.node, given.shard) != (name, standing.shard):
                    return
                latest = given
        except (TimeoutError, grpc.aio.AioRpcError, msgspec.MsgspecError):
            return
        finally:
            if self.standings.get(name) is latest:
                del self.standings[name]
                self.on_change()


class OwnedShard(Protocol):
    """A shard, as its followers see it at the node that may own it."""

    followers: Followers

    async def standpoint(self) -> Standpoint:
        """The standpoint of this node as the owner. Raises TopicsError `not_ready`."""
        ...

    async def progress(self) -> Progress:
        """The progress of the followers of this node as the owner. Raises TopicsError `not_ready`."""
        ...


class PeerHandlers(grpc.GenericRpcHandler):
    """The calls of other nodes."""

    def __init__(self, find: Callable[[int], OwnedShard | None]) -> None:
        """`find` returns a shard by its number; None where there is no such."""
        self._find = find

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Handler:
        """See grpc.GenericRpcHandler."""
        if handler_call_details.method == STANDPOINT:
            return grpc.unary_unary_rpc_method_handler(self._answering(lambda shard: shard.standpoint()), None, _encode)
        if handler_call_details.method == PROGRESS:
            return grpc.unary_unary_rpc_method_handler(self._answering(lambda shard: shard.progress()), None, _encode)
        if handler_call_details.method != METHOD:
            return None
        return grpc.stream_stream_rpc_method_handler(self._follow, _standing, _encode)

    def _answering(
        self, answer: Callable[[OwnedShard], Awaitable[Struct]]
    ) -> Callable[[bytes, Any], Awaitable[Struct]]:
        async def call(request: bytes, context: Any) -> Struct:
            try:
                _check(context)
                return await answer(self._shard(_shard_of(request)))
            except TopicsError as error:
                await _abort(context, error)

        return call

    async def _follow(self, requests: AsyncIterator[Standing], context: Any) -> AsyncIterator[Notice]:
        try:
            _check(context)
            standing = await anext(requests, None)
            if standing is None:
                raise invalid("the follower does not tell where it stands")
            followers = self._shard(standing.shard).followers
            async with contextlib.aclosing(followers.follow(standing, requests)) as notices:  # type: ignore[type-var]
                async for notice in notices:
                    yield notice
        except TopicsError as error:
            await _abort(context, error)

    def _shard(self, number: int) -> OwnedShard:
        shard = self._find(number)
        if shard is None:
            raise invalid(f"there is no shard {number}")
        return shard


def _shard_of(request: bytes) -> int:
    """The shard that a request is about; a node of an earlier release sends nothing. Raises `invalid_request`."""
    try:
        return _request(request).shard if request else 0
    except msgspec.MsgspecError:
        raise invalid("the request can't be read") from None


def _check(context: Any) -> None:
    """Raise `unauthorized` unless the call was signed, which the interceptor has verified."""
    if not isinstance(context, ForwardedContext):
        raise TopicsError(Reason.UNAUTHORIZED, "the call is for nodes of the cluster")


async def _abort(context: Context, error: TopicsError) -> NoReturn:
    code, details, trailing = failure(error)
    await context.abort(code, details, (*trailing, (NOT_OWNER, b"1")))
    raise AssertionError("abort does not return")


class Peers:
    """Calls of other nodes, as a follower."""

    def __init__(
        self,
        signer: Signer,
        node: str,
        credentials: Callable[[], grpc.ChannelCredentials | None],
        on_refused: Callable[[str], None],
    ) -> None:
        """`credentials` returns those of each new channel; None is no TLS. `on_refused` gets the cause for which an
        owner does not trust this node."""
        self._signer = signer
        self._node = node
        self._credentials = credentials
        self._on_refused = on_refused

    async def follow(
        self,
        address: str,
        standing: Callable[[], Standing],
        changed: asyncio.Event,
        on_notice: Callable[[Notice], None],
    ) -> None:
        """Follow the owner at the gRPC address until the call ends, or nothing is heard for some seconds.

        `standing` is sent at the beginning, once a second, and when `changed` is set.
        """
        credentials = self._credentials()
        channel = (
            grpc.aio.insecure_channel(address, options=_OPTIONS)
            if credentials is None
            else grpc.aio.secure_channel(address, credentials, options=_OPTIONS)
        )

        async def standings() -> AsyncIterator[bytes]:
            while True:
                changed.clear()
                yield _encode(standing())
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_PULSE_SECONDS):
                        await changed.wait()

        async with channel:
            signature = self._signer.sign(Origin(self._node, ""), address, METHOD)
            method: Any = channel.stream_stream(METHOD)
            call = method(standings(), metadata=((HEADER, signature),))
            try:
                while True:
                    async with asyncio.timeout(_SILENCE_SECONDS):
                        message = await call.read()
                    if message is grpc.aio.EOF:
                        return
                    on_notice(_notice(message))
            except grpc.aio.AioRpcError as error:
                cause = dict(error.trailing_metadata() or ()).get(DISTRUSTED)
                if cause is not None:
                    self._on_refused(str(cause))
                    await asyncio.sleep(_PULSE_SECONDS)
            except (TimeoutError, msgspec.MsgspecError) as error:
                log.warning("following %s has ended: %s", address, str(error) or "nothing was heard")
            finally:
                call.cancel()


async def is_refused(address: str) -> bool:
    """Return whether host:port refuses connections, twice: the process is dead, and its machine is not."""
    for attempt in range(2):
        if attempt:
            await asyncio.sleep(0.02)
        host, _, port = address.rpartition(":")
        try:
            async with asyncio.timeout(0.5):
                _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
        except ConnectionRefusedError:
            continue
        except (OSError, TimeoutError):
            return False
        writer.close()
        return False
    return True
