"""Records of other shards on their way to the routers of one, which live where their destinations are."""

import asyncio
import contextlib
import logging
from collections import defaultdict
from contextlib import aclosing
from typing import Any, Final

from topics_net import background
from topics_net.rate_limited_logger import RateLimitedLogger
from topics_service.api.routers import RoutersApi
from topics_service.engine.clock import Clock
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.router.foreign import ForeignSource
from topics_service.engine.router.places import RouterPlace
from topics_service.engine.router.routers import Routers
from topics_service.engine.router.stretch import PullRequest
from topics_shards.locating import Located, is_unknown
from topics_shards.shards import LostCallError

_FIRST_DELAY: Final = 0.05
_LONGEST_DELAY: Final = 2.0
_GONE_MS: Final = 60_000
"""The time after which routers go with a source whose home does not tell this shard of its end, as it should."""
_SWEEP_SECONDS: Final = 60.0
_SWEPT_NAMES: Final = 500
UNMADE_MS: Final = 10_000
"""The time after which a router that has a place and is not there is taken for one that is not being made."""


class Puller:
    """One stream for each source, which brings the next stretch once there is room for it. Belongs to the event loop.

    A stream that breaks begins again behind what was taken: stretches name the seqs that they are about, so nothing is
    left out or there twice, whatever dies.
    """

    def __init__(self, located: Located, api: RoutersApi, routers: Routers, clock: Clock) -> None:
        """Of one shard of this process: its routers, and the calls on them."""
        self._located = located
        self._api = api
        self._routers = routers
        self._clock = clock
        self._tasks: dict[ForeignSource, asyncio.Task[None]] = {}
        self._retries: dict[ForeignSource, asyncio.Event] = {}  # of those that wait after an error
        self._others: set[asyncio.Task[Any]] = set()
        self._asking: dict[tuple[str, str], asyncio.Task[int | None]] = {}
        self._asked: dict[tuple[str, str], asyncio.Task[int | None]] = {}
        self._swept_to = ""
        self._is_over = False
        self._log = RateLimitedLogger(logging.getLogger("topics.forwarder"))

    def start(self) -> None:
        """Pull from now on. The routers are loaded."""
        routers = self._routers
        routers.rings.is_sharded = True
        routers.foreign.on_opened, routers.foreign.on_closed = self._open, self._close
        self._api.pulls = self
        for source in routers.foreign:
            self._open(source)
        self._keep(background.start(self._sweep()))

    async def stop(self) -> None:
        """End all streams. Readers that wait for what was to come are refused: it comes after the next start."""
        self._routers.foreign.on_opened = self._routers.foreign.on_closed = lambda _source: None
        self._is_over = True
        tasks = [*self._tasks.values(), *self._others, *self._asking.values(), *self._asked.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for source in self._routers.foreign:
            source.fail(_shutting_down())

    async def head(self, topic: str, topic_id: str) -> int | None:
        """See Pulls. Calls that come while one is under way share the next one."""
        if self._is_over:
            raise _shutting_down()
        key = (topic, topic_id)
        task = self._asked.get(key)
        if task is None:
            task = self._asked[key] = background.start(self._ask(key))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise _shutting_down() from None
            raise

    # --------------------------------------------------------------- internals

    async def _ask(self, key: tuple[str, str]) -> int | None:
        before = self._asking.get(key)
        if before is not None:
            await asyncio.wait([before])
        self._asking[key] = self._asked.pop(key)
        try:
            head = await self._located.call(key[0], 0, RoutersApi.head, *key)
            self._resume(key[0])
            return head
        except (TopicsError, LostCallError):
            return None
        finally:
            if self._asking.get(key) is asyncio.current_task():
                del self._asking[key]

    def _resume(self, topic: str) -> None:
        """The shard of a topic answers again: readers wait for what comes from there."""
        for source, retry in self._retries.items():
            if source.name == topic and source.error is not None:
                source.error = None
                retry.set()

    def _open(self, source: ForeignSource) -> None:
        self._tasks[source] = background.start(self._pull(source))

    def _close(self, source: ForeignSource) -> None:
        self._retries.pop(source, None)
        task = self._tasks.pop(source, None)
        if task is not None:
            task.cancel()

    async def _pull(self, source: ForeignSource) -> None:
        """Pull from a source until it is closed."""
        delay, gone_since = _FIRST_DELAY, 0
        while True:
            before = source.log.view.head
            try:
                await self._follow(source)
                error = TopicsError(Reason.NOT_READY, f'the shard of topic "{source.name}" has ended its stream')
            except LostCallError:
                error = TopicsError(Reason.NOT_READY, f'the shard of topic "{source.name}" does not answer')
            except TopicsError as refused:
                error = refused
                is_gone = is_unknown(refused, source.name) and await self._is_gone(source)
                gone_since = (gone_since or self._clock.now_ms()) if is_gone else 0
                if gone_since and self._clock.now_ms() - gone_since > _GONE_MS:
                    self._keep(background.start(self._api.drop_source(source.name, source.identity.topic_id)))
                    return
            except Exception as failed:
                self._log.error('the pull from topic "%s" failed: %r', source.name, failed)
                error = TopicsError(Reason.INTERNAL, f'the pull from topic "{source.name}" failed')
            delay = _FIRST_DELAY if source.log.view.head > before else delay
            retry = self._retries[source] = asyncio.Event()
            source.fail(error)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await retry.wait()
            self._retries.pop(source, None)
            delay = min(2 * delay, _LONGEST_DELAY)

    async def _follow(self, source: ForeignSource) -> None:
        """Take stretches, one by one, while there is room."""
        room = asyncio.Event()
        source.on_room = room.set
        shard = self._located.home(source.name)
        request = PullRequest(topic=source.name, topic_id=source.identity.topic_id, after=source.log.view.head)
        while not source.has_room:
            await room.wait()
            room.clear()
        async with aclosing(self._located.shards.stream(shard, RoutersApi.pull, request)) as stretches:
            async for stretch in stretches:
                if stretch.head < stretch.after:  # a backup of its shard was restored
                    self._routers.rewind(source, stretch.head)
                source.take(stretch)
                while not source.has_room:
                    room.clear()
                    await room.wait()

    async def _is_gone(self, source: ForeignSource) -> bool:
        """Return whether a topic that was not found was deleted, and is not in a shard that this process forgot."""
        try:
            return (await self._located.describe(source.name)).topic_id != source.identity.topic_id
        except LostCallError:
            return False
        except TopicsError as error:
            return is_unknown(error, source.name)

    async def _sweep(self) -> None:
        """Forget the places of routers that are gone: removed with a topic, or never made."""
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            with contextlib.suppress(TopicsError, LostCallError):
                await self.sweep_once()

    async def sweep_once(self) -> None:
        """One slice of them."""
        found = self._routers.places.page(self._swept_to, _SWEPT_NAMES)
        self._swept_to = found[-1][0] if len(found) == _SWEPT_NAMES else ""
        before = self._clock.now_ms() - UNMADE_MS
        by_shard: dict[int, dict[str, RouterPlace]] = defaultdict(dict)
        for name, place in found:
            if place.ts < before:
                by_shard[place.shard][name] = place
        for shard, places in by_shard.items():
            there = set(await self._located.shards.call(shard, RoutersApi.having, list(places)))
            for name, place in places.items():
                if name not in there:
                    await self._api.remove_place(name, place)

    def _keep(self, task: "asyncio.Task[Any]") -> None:
        self._others.add(task)
        task.add_done_callback(self._others.discard)


def _shutting_down() -> TopicsError:
    return TopicsError(Reason.SHUTTING_DOWN, "the shard is shutting down")
