"""Topics whose partitions lie in several shards: the calls between the home of a topic and its parts.

See `engine.parts`. Without other shards nothing of this is ever called.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextvars import Context
from typing import Any, Concatenate, Final, NamedTuple, ParamSpec, Protocol, TypeVar

from topics_net.rate_limited_logger import RateLimitedLogger
from topics_service.api.running import LostCallError
from topics_service.engine.engine import Engine
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.parts import Extent, Pending, TopicDefinition

P = ParamSpec("P")
R = TypeVar("R")

_PATIENCE_SECONDS: Final = 5.0
_FIRST_DELAY: Final = 0.05
_LONGEST_DELAY: Final = 5.0


class ShardCalls(Protocol):
    """Calls on shards, as `topics_shards.shards.Shards` makes them."""

    async def call(
        self,
        shard: int,
        method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        """Run a method on a shard."""
        ...


class _Waiter(NamedTuple):
    """A call that waits until parts have learned something; the result is the names of removed routers."""

    order: tuple[bool, int]
    told: asyncio.Future[list[str]]


class PartsApi:
    """The parts of one shard. Belongs to the event loop; every method raises TopicsError.

    What parts have yet to learn is sent to them by a task for each topic, which begins with the change, continues after
    a crash with `resume`, and tries again while a shard does not answer.
    """

    def __init__(
        self,
        engine: Engine,
        admit: Callable[[], Engine],
        settle: Callable[[int], Coroutine[Any, Any, None]],
        patience_seconds: float = _PATIENCE_SECONDS,
    ) -> None:
        """`admit` returns the engine when it takes calls, `settle` waits for a ticket; `patience_seconds` is the time
        after which a change that not all shards have confirmed is answered with `not_ready`."""
        self.patience_seconds = patience_seconds
        self._parts = engine.parts
        self._writer = engine.writer
        self._admit = admit
        self._settle = settle
        self._shards: ShardCalls | None = None
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._waiting: dict[str, list[_Waiter]] = {}
        self._is_over = False
        self._log = RateLimitedLogger(logging.getLogger("topics.server"))

    def connect(self, shards: ShardCalls) -> None:
        """Reach other shards in this way from now on. The composition calls it before the first call of a client, and
        `resume` once the engine has recovered."""
        self._shards = shards
        self._parts.on_pending = self._begin

    def resume(self) -> None:
        """Continue what was under way at the last end."""
        for name in self._parts.pending:
            self._begin(name)

    def stop(self) -> None:
        """End what is under way, and begin nothing more; it continues after the next start."""
        self._is_over = True
        self._parts.on_pending = lambda _name: None
        for task in self._tasks.values():
            task.cancel()
        for waiters in self._waiting.values():
            for waiter in waiters:
                waiter.told.cancel()

    # --------------------------------------------------------------------- home

    async def describe(self, name: str) -> TopicDefinition:
        """A topic as its home has it, durable. Raises `topic_not_found`."""
        definition = self._admit().parts.define(name)
        await self._settle(self._writer.written)
        return definition

    async def extend(self, name: str, shard: int) -> TopicDefinition:
        """Have a part of the topic in that shard; return the topic. Raises `topic_not_found`, and `not_ready` if the
        shard does not answer."""
        definition = self._admit().parts.register(name, shard)
        await self._settle(self._writer.written)
        if shard != self._parts.place.shard:
            await self._call(shard, PartsApi.adopt, definition)
        return definition

    async def finish(self, name: str) -> list[str]:
        """Wait until all parts have learned of the last change; return the names of the routers removed with them.

        Raises `not_ready` if a shard does not answer for too long: it learns of it later.
        """
        pending = self._parts.pending.get(name)
        if pending is None:
            return []
        self._calls()
        self._begin(name)
        waiter = _Waiter(pending.order, asyncio.get_running_loop().create_future())
        waiters = self._waiting.setdefault(name, [])
        waiters.append(waiter)
        done, _ = await asyncio.wait((waiter.told,), timeout=self.patience_seconds)
        if not done or waiter.told.cancelled():
            if waiter in waiters:
                waiters.remove(waiter)
            raise TopicsError(
                Reason.NOT_READY,
                f'other shards have not confirmed the change of topic "{name}" yet; they learn of it once they answer',
                {"topic": name},
            )
        return waiter.told.result()

    def pending(self) -> dict[str, Pending]:
        """Changes that parts have yet to learn, by the names of the topics."""
        return dict(self._parts.pending)

    async def finish_since(self, known: Mapping[str, Pending]) -> None:
        """As `finish`, for all changes since `pending` returned `known`."""
        for name in [name for name, pending in self._parts.pending.items() if known.get(name) is not pending]:
            await self.finish(name)

    async def free(self, name: str) -> None:
        """Return once no earlier topic of this name is being deleted. Raises as `finish`."""
        pending = self._parts.pending.get(name)
        if pending is not None and pending.is_deleted:
            await self.finish(name)

    async def count_elsewhere(self, name: str) -> int:
        """The number of records in the partitions of other shards; 0 if there is no such topic."""
        count = 0
        for shard, partitions in self._admit().parts.elsewhere(name).items():
            extents = await self._call(shard, PartsApi.extents, [(name, each) for each in partitions])
            count += sum(each.state.count for each in extents if each is not None)
        return count

    # -------------------------------------------------------------------- parts

    async def adopt(self, definition: TopicDefinition) -> None:
        """See `Parts.adopt`; durable."""
        await self._settle(self._admit().parts.adopt(definition))

    async def drop(self, name: str, topic_id: str) -> list[str]:
        """See `Parts.drop`; durable."""
        routers, ticket = self._admit().parts.drop(name, topic_id)
        await self._settle(ticket)
        return routers

    async def extents(self, places: Sequence[tuple[str, int]]) -> list[Extent | None]:
        """The partitions (topic, number) as this shard has them; None for each that it has not got."""
        found = self._admit().parts.extents(places)
        await self._settle(0)
        return found

    # ---------------------------------------------------------------- internals

    async def _call(
        self,
        shard: int,
        method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        """Run a method that may be repeated on another shard."""
        try:
            return await self._calls().call(shard, method, *args, **kwargs)
        except LostCallError as error:
            raise TopicsError(Reason.NOT_READY, f"shard {shard} does not answer") from error

    def _calls(self) -> ShardCalls:
        if self._is_over:
            raise TopicsError(Reason.SHUTTING_DOWN, "the server is shutting down")
        if self._shards is None:
            raise TopicsError(Reason.NOT_READY, "the other shards are not connected yet")
        return self._shards

    def _begin(self, name: str) -> asyncio.Task[None]:
        task = self._tasks.get(name)
        if task is None or task.done():
            task = self._tasks[name] = asyncio.get_running_loop().create_task(
                self._tell(name), context=Context()  # what it does outlives the call that began it, and its deadline
            )  # fmt: skip
            task.add_done_callback(lambda ended: self._ended(name, ended))
        return task

    def _ended(self, name: str, task: asyncio.Task[None]) -> None:
        if self._tasks.get(name) is task:
            del self._tasks[name]

    async def _tell(self, name: str) -> None:
        """Tell the parts of a topic what they have to learn, until there is nothing more."""
        delay = _FIRST_DELAY
        while (pending := self._parts.pending.get(name)) is not None:
            try:
                await self._settle(self._writer.written)
                removed = await self._tell_once(name, pending)
                self._parts.done(name, pending)
                self._told(name, pending, removed)
                delay = _FIRST_DELAY
            except Exception as error:  # of any kind: another process, or node, may be gone
                self._log.warning(
                    'a change of topic "%s" waits for other shards: %s', name, str(error) or "a call was lost"
                )
                await asyncio.sleep(delay)
                delay = min(2 * delay, _LONGEST_DELAY)

    def _told(self, name: str, pending: Pending, removed: list[str]) -> None:
        """Answer the calls that wait for this, or for what it has replaced."""
        waiters = self._waiting.pop(name, [])
        later = [waiter for waiter in waiters if waiter.order > pending.order]
        if later:
            self._waiting[name] = later
        for waiter in waiters:
            if waiter.order <= pending.order and not waiter.told.done():
                waiter.told.set_result(removed)

    async def _tell_once(self, name: str, pending: Pending) -> list[str]:
        shards, definition = self._calls(), None if pending.is_deleted else self._parts.define(name)

        async def tell(shard: int) -> list[str]:
            if definition is None:
                return await shards.call(shard, PartsApi.drop, name, pending.topic_id)
            await shards.call(shard, PartsApi.adopt, definition)
            return []

        told = await asyncio.gather(*map(tell, pending.shards), return_exceptions=True)
        removed: list[str] = []
        for each in told:
            if isinstance(each, BaseException):
                raise each
            removed += each
        return removed
