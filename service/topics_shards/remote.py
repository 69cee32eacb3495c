"""All shards of a server, some of them in other processes."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Coroutine, Iterable, Mapping
from contextlib import aclosing, suppress
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from topics_service.api.request_context import note_answer
from topics_service.engine.errors import Reason, TopicsError
from topics_shards.calls import CALLS, READS
from topics_shards.shards import LostCallError, Method, NotHereError, P, R, Shard, Shards, StreamMethod
from topics_shards.wire.client import END_OF_STREAM, Channel, ClientConnection, GoneError, Outgoing
from topics_shards.wire.framing import MAX_FRAME
from topics_shards.wire.methods import RemoteMethod
from topics_shards.wire.origin import current_origin

T = TypeVar("T")

PATIENCE_SECONDS: Final = 5.0
"""Time for a call to reach its shard."""
_ASK_AGAIN_SECONDS: Final = 0.05  # a peer that does not serve a shard any more, or not yet


def remote_methods() -> list[RemoteMethod]:
    """The methods of `CALLS`. Raises UncarriableError for one that can't be called from another process."""
    return [RemoteMethod(method, is_read=method in READS) for method in CALLS]


class _Stream(NamedTuple):
    """A stream that is open."""

    shard: int
    channel: Channel | None
    connection: ClientConnection
    outgoing: Outgoing


class RemoteShards(Shards):
    """Shards of this process, called directly, and others, called over channels.

    `local` may change at any time, and so may `owners`, the channel to each other shard, with a call of `moved` after
    it: a call goes where its shard is when it is sent, and again to where it is then if that process does not serve it.
    The current request learns which node answered.
    """

    def __init__(
        self,
        count: int,
        local: Mapping[int, Shard],
        owners: Mapping[int, Channel],
        methods: Iterable[RemoteMethod],
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        """A call that does not reach its shard within `patience` seconds is `not_ready`."""
        self.count = count
        self.local = local
        self.owners = owners
        self._methods = {method.method: method for method in methods}
        self._patience = patience
        self._moved = asyncio.Event()
        self._awaited: Counter[Channel] = Counter()  # the calls that wait for a connection
        self._streams: set[_Stream] = set()
        self._processes: dict[Channel, int] = {}  # the numbers of processes, by their channels

    def moved(self) -> None:
        """Note that shards are elsewhere now: calls that wait for theirs look again, and streams from where a shard is
        not any more are lost, also if its former owner does not know of that yet."""
        self._moved.set()
        self._moved = asyncio.Event()
        self._processes = {}
        for channel in self._awaited:
            channel.wake()
        for stream in list(self._streams):
            owner = self.owners.get(stream.shard)
            if stream.shard in self.local or (owner is not None and owner is not stream.channel):
                stream.connection.lose(stream.outgoing)

    async def call(self, shard: int, method: Method[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """See Shards."""
        deadline = 0.0
        body: bytes | None = None
        while True:
            local = self.local.get(shard)
            try:
                if local is not None:
                    note_answer("")
                    return await local.run(method, *args, **kwargs)
                remote = self._methods[method]
                if body is None:
                    body = _checked(remote, remote.encode_call(current_origin(), args, kwargs))
                connection = self._connection(shard)
                if connection is None:
                    deadline = deadline or self._deadline()
                    connection = await self._reached(shard, deadline)
                    if connection is None:
                        continue  # it has come here
                outgoing = connection.run(shard, remote, body)
                try:
                    result: R = await outgoing.done
                except asyncio.CancelledError:
                    connection.cancel(outgoing)
                    raise
                except TopicsError:
                    note_answer(connection.address)
                    raise
                note_answer(connection.address)
                return result
            except GoneError:
                if not self._is_read(method):
                    raise _lost(shard) from None
            except LostCallError:
                deadline = deadline or self._deadline()
                if not self._is_read(method) or self._is_over(deadline):
                    raise
                await asyncio.sleep(_ASK_AGAIN_SECONDS)
            except NotHereError:
                deadline = deadline or self._deadline()
                await self._asked_again(shard, deadline)

    async def begin(
        self, shard: int, method: Method[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> "asyncio.Future[R]":
        """See Shards."""
        remote = self._methods[method]
        body: bytes | None = None
        deadline = self._deadline()
        while shard not in self.local:
            if body is None:
                body = _checked(remote, remote.encode_call(current_origin(), args, kwargs))
            connection = self._connection(shard) or await self._reached(shard, deadline)
            if connection is not None:
                return self._sent(connection, shard, remote, body)
        return asyncio.ensure_future(_run_once(shard, self.local[shard].run(method, *args, **kwargs)))

    def _sent(
        self, connection: ClientConnection, shard: int, method: RemoteMethod, body: bytes
    ) -> "asyncio.Future[Any]":
        """Send a call; the future has its outcome."""
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        try:
            outgoing = connection.run(shard, method, body)
        except NotHereError:
            raise _not_ready(shard) from None
        note_answer(connection.address)
        outgoing.done.add_done_callback(partial(_begun, done, shard))
        return done

    async def stream(
        self, shard: int, method: StreamMethod[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> AsyncGenerator[R, None]:
        """See Shards."""
        deadline = self._deadline()
        while True:
            local = self.local.get(shard)
            try:
                if local is not None:
                    note_answer("")
                    async with aclosing(local.stream(method, *args, **kwargs)) as items:
                        async for item in items:
                            yield item
                    return
                async with aclosing(self._streamed(shard, deadline, method, args, kwargs)) as items:
                    async for item in items:
                        yield item
                return
            except NotHereError:
                await self._asked_again(shard, deadline)

    async def _streamed(
        self, shard: int, deadline: float, method: StreamMethod[P, R], args: Any, kwargs: Any
    ) -> AsyncGenerator[R, None]:
        """The items of a generator at another process. Raises NotHereError if nothing has happened."""
        remote = self._methods[method]
        body = _checked(remote, remote.encode_call(current_origin(), args, kwargs))
        connection = self._connection(shard) or await self._reached(shard, deadline)
        if connection is None:
            raise NotHereError
        outgoing = connection.open(shard, remote, body)
        stream = _Stream(shard, self.owners.get(shard), connection, outgoing)
        self._streams.add(stream)
        is_noted = False
        try:
            while True:
                connection.more(outgoing)
                item = await outgoing.done
                if not is_noted:
                    note_answer(connection.address)
                    is_noted = True
                if item is END_OF_STREAM:
                    return
                yield item
        except TopicsError:
            note_answer(connection.address)
            raise
        except GoneError:
            raise _lost(shard) from None
        finally:
            self._streams.discard(stream)
            connection.cancel(outgoing)

    def can_send(self, shard: int) -> bool:
        """See Shards."""
        local = self.local.get(shard)
        return self._connection(shard) is not None if local is None else local.is_open

    def _process_of(self, shard: int) -> int:
        """See Shards."""
        channel = self.owners.get(shard)
        if channel is None or self._connection(shard) is None:
            return shard
        if channel not in self._processes:
            self._processes = {found: number for number, found in self.owners.items() if number >= self.count}
        return self._processes.get(channel, shard)

    # ------------------------------------------------------------------ the way

    def _connection(self, shard: int) -> ClientConnection | None:
        """The connection to a shard, if a call can be sent at once."""
        channel = self.owners.get(shard)
        connection = None if channel is None else channel.connection
        return connection if connection is not None and connection.has_room else None

    def _is_read(self, method: Method[P, R]) -> bool:
        remote = self._methods.get(method)
        return remote is not None and remote.is_read

    def _deadline(self) -> float:
        return asyncio.get_running_loop().time() + self._patience

    def _is_over(self, deadline: float) -> bool:
        """Return whether there is no time to ask again."""
        return asyncio.get_running_loop().time() + _ASK_AGAIN_SECONDS > deadline

    async def _reached(self, shard: int, deadline: float) -> ClientConnection | None:
        """The connection to a shard, once there is one with room; None if it is here. Raises `not_ready`."""
        try:
            async with asyncio.timeout_at(deadline):
                while True:
                    if shard in self.local:
                        return None
                    connection = self._connection(shard)
                    if connection is not None:
                        return connection
                    await self._changed(self.owners.get(shard))
        except TimeoutError:
            channel = self.owners.get(shard)
            if channel is not None:
                note_answer(channel.address)  # its client may reach it
            raise _not_ready(shard) from None

    async def _asked_again(self, shard: int, deadline: float) -> None:
        """Return when a shard may be where the map says, which it was not. Raises `not_ready`."""
        if self._is_over(deadline):
            raise _not_ready(shard)
        await self._changed(None)

    async def _changed(self, channel: Channel | None) -> None:
        """Return when there may be a connection on a channel, or another way than that."""
        if channel is None:
            with suppress(TimeoutError):
                async with asyncio.timeout(_ASK_AGAIN_SECONDS):
                    await self._moved.wait()
            return
        self._awaited[channel] += 1
        try:
            await channel.changed()
        finally:
            self._awaited[channel] -= 1
            if not self._awaited[channel]:
                del self._awaited[channel]


def _begun(done: "asyncio.Future[Any]", shard: int, outcome: "asyncio.Future[Any]") -> None:
    """Pass on the outcome of a call that was begun."""
    if done.done():
        outcome.exception()
        return
    error = outcome.exception()
    if error is None:
        done.set_result(outcome.result())
    elif isinstance(error, GoneError):
        done.set_exception(_lost(shard))
    else:
        done.set_exception(_not_ready(shard) if isinstance(error, NotHereError) else error)


async def _run_once(shard: int, call: Coroutine[Any, Any, T]) -> T:
    """Run a call on a shard of this process, which may leave it."""
    try:
        return await call
    except NotHereError:
        raise _not_ready(shard) from None


def _lost(shard: int) -> LostCallError:
    return LostCallError(f"the process of shard {shard} is gone")


def _checked(method: RemoteMethod, body: bytes) -> bytes:
    if len(body) > MAX_FRAME - 16:
        message = f"the call of {method.name} takes {len(body)} bytes, more than may be sent to its shard"
        raise TopicsError(Reason.PAYLOAD_TOO_LARGE, message)
    return body


def _not_ready(shard: int) -> TopicsError:
    return TopicsError(Reason.NOT_READY, f"shard {shard} can't be reached: its process starts, or is gone")
