"""The ownership of one of several shards: its APIs are called by all nodes, this one among them."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, Protocol

from topics_server.core import Core
from topics_server.node.gate import LostShardError, ReadGate
from topics_server.node.place import Place
from topics_server.node.term import Term
from topics_service.api.running import RunningCalls
from topics_shards.shards import LostCallError, Method, NotHereError, P, R, Shard, StreamMethod


class Work(Protocol):
    """The work of a shard with the others."""

    async def stop(self) -> None:
        """End it."""
        ...


class OwnedShard(Shard):
    """A shard as long as this node owns it. Calls that are under way when it is lost or handed over end with
    LostCallError."""

    def __init__(
        self, core: Core, gate: ReadGate, running: RunningCalls, lose: Callable[[BaseException], None]
    ) -> None:
        """`lose` gets the error that says that the shard is lost."""
        super().__init__(core.api)
        self._gate = gate
        self._running = running
        self._lose = lose

    @property
    def is_open(self) -> bool:  # type: ignore[override]
        """See Shard."""
        return self._gate.is_open

    async def run(self, method: Method[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """See Shard."""
        if not self._gate.is_open:
            await self._look()
        return await self._tracked(method(self.of(method), *args, **kwargs))

    async def stream(self, method: StreamMethod[P, R], /, *args: P.args, **kwargs: P.kwargs) -> AsyncGenerator[R, None]:
        """See Shard."""
        if not self._gate.is_open:
            await self._look()
        items = method(self.of(method), *args, **kwargs)
        try:
            while True:
                if self._running.is_over:
                    raise _lost()
                try:
                    item = await self._tracked(anext(items))
                except StopAsyncIteration:
                    return
                yield item
        finally:
            await items.aclose()

    async def _tracked(self, call: Awaitable[R]) -> R:
        """The result of a call that may be broken off."""
        task, running = asyncio.current_task(), self._running
        if task is None or not running.begin(task):
            return await call
        try:
            return await call
        except asyncio.CancelledError:
            if running.is_broken_off():
                raise _lost() from None
            raise
        finally:
            running.end(task)

    async def _look(self) -> None:
        """Return once it is certain that the shard is owned here. Raises NotHereError, and `not_ready`."""
        try:
            await self._gate.look()
        except LostShardError as error:
            self._lose(error)
            raise NotHereError from None


class ComingShard(Shard):
    """A shard of which this node is becoming the owner: calls of other nodes, which may know of that already, wait."""

    is_open = False

    def __init__(self, place: Place) -> None:
        self._place = place

    async def run(self, method: Method[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """See Shard."""
        return await (await self._arrived()).run(method, *args, **kwargs)

    async def stream(self, method: StreamMethod[P, R], /, *args: P.args, **kwargs: P.kwargs) -> AsyncGenerator[R, None]:
        """See Shard."""
        async with aclosing((await self._arrived()).stream(method, *args, **kwargs)) as items:
            async for item in items:
                yield item

    async def _arrived(self) -> Shard:
        term = await self._place.arrived()
        if not isinstance(term, ShardTerm):
            raise NotHereError
        return term.shard


class ShardTerm(Term):
    """An ownership of one of several shards."""

    def __init__(
        self,
        *args: Any,
        enter: Callable[["ShardTerm"], Work],
        leave: Callable[["ShardTerm"], None],
        **kwargs: Any,
    ) -> None:
        """See Term. `enter` lets calls come to `shard` and begins its work, `leave` lets none come any more."""
        super().__init__(*args, **kwargs)
        self.shard = OwnedShard(self.core, self.gate, self._running, self.lose)
        self._enter = enter
        self._leave = leave
        self._work: Work | None = None

    def open(self) -> None:
        """See Term."""
        self._work = self._enter(self)

    async def drain(self) -> None:
        """See Term."""
        self._leave(self)
        await super().drain()

    async def abort(self) -> None:
        """See Term."""
        self._leave(self)
        await super().abort()

    async def _stop_background(self) -> None:
        work, self._work = self._work, None
        if work is not None:
            await work.stop()
        await super()._stop_background()


def _lost() -> LostCallError:
    return LostCallError("the shard has left the node")
