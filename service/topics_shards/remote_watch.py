"""Watch of a shard that may be in another process, and moves: it is opened again where it stood, where the shard is."""

import asyncio
import logging
import math
import random
import secrets
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, suppress
from contextvars import copy_context
from typing import Final

from msgspec.structs import replace

from topics_net import background
from topics_service.api.watch import WatchApi
from topics_service.api.watch_feed import FeedItem, heads_of
from topics_service.api.watch_stream import Watch
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.watch.core import FIRST
from topics_service.engine.watch.frames import (
    CaughtUpFrame,
    ErrorFrame,
    Position,
    RecordsFrame,
    TombstoneFrame,
    TopicDeletedFrame,
    WatchFrame,
    WatchRequest,
)
from topics_shards.shards import LostCallError, Shards

log: Final = logging.getLogger("topics.shards")

_FIRST_PAUSE: Final = 0.05  # seconds before it is opened again, doubled each time
_LONGEST_PAUSE: Final = 2.0
_SETTLED_SECONDS: Final = 1.0  # of a feed, after which the next one is opened without a pause
_OPENING_SECONDS: Final = 1.0
_PATIENCE_SECONDS: Final = 5.0
_PASSING: Final = frozenset({Reason.NOT_READY, Reason.SHUTTING_DOWN})
_NO_TOPIC: Final = "*"


class RemoteWatch:
    """The same as an engine's watch, of a shard that is elsewhere, or may go there.

    While the shard is in this process its engine's watch is read directly. Otherwise its frames come as items of a
    feed, of which at most one is here that is not taken yet.

    When the shard leaves, or its process goes away, the watch is opened again at the cursors of the last frame, as a
    session is. What a client has seen already is not sent again. Topics that are deleted meanwhile are reported as
    deleted.
    """

    def __init__(
        self,
        shards: Shards,
        shard: int,
        request: WatchRequest,
        wake: Callable[[str], None],
        note_priority: Callable[[str, int], None],
    ) -> None:
        """`note_priority` gets the priority of each topic partition as the shard knows it.

        `is_away` says that it began without an answer.
        """
        self.positions: dict[str, Position] = {}
        self.cursors: dict[str, int] = {}
        self.epochs: dict[str, int] = {}
        self._shards = shards
        self._shard = shard
        self._request = replace(request, heartbeat_ms=None)
        self._prefixes = _prefixes(request)
        self._wake = wake
        self._note_priority = note_priority
        self._context = copy_context()
        self._near: Watch | None = None
        self._near_api: WatchApi | None = None
        self._feed = ""
        # As of the last item that came, which may not be taken yet.
        self._at: dict[str, int] = {}
        self._at_epochs: dict[str, int] = {}
        self._heads: dict[str, int] = {}
        self._live: set[str] = set()
        self._opened: set[str] = set()
        self._over: set[str] = set()  # topics that were reported as deleted, and did not come again
        self._item: FeedItem | None = None
        self._taken = asyncio.Event()
        self._number = 0  # of that item in its feed
        self._unwanted: dict[str, float] = {}  # dropped topics, with the last item that may have a frame of them
        self._dropping: set[asyncio.Task[None]] = set()
        self.is_away = False
        self._is_first_round = False
        self._last = ""  # topic of the frame that was taken last
        self._final = ""  # of the first round
        self._ended = False
        self._task: asyncio.Task[None] | None = None

    async def open(self, epochs: Mapping[str, int] | None, heads: Mapping[str, int] | None) -> None:
        """Begin. Raises TopicsError.

        While the shard is away, or does not answer, one with `heads` begins after a second as well; others wait for it,
        and are refused with `not_ready` after five.
        """
        feed: AsyncGenerator[FeedItem, None] | None = None
        first: FeedItem | None = None
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS if heads is None else _OPENING_SECONDS):
                opened = await self._begun(epochs, heads)
                if opened is not None:
                    feed, first = opened
        except (TopicsError, TimeoutError) as error:
            if isinstance(error, TopicsError) and not error.reason.value.retryable:
                raise
            if heads is None:
                raise error if isinstance(error, TopicsError) else _not_ready(self._shard) from None
            self.is_away = True
            self._heads = dict(heads)
            self._at = {name: self._request.cursor.get(name, 0) for name in heads}
            self._at_epochs = {name: number for name, number in (epochs or {}).items() if name in heads}
        if self._near is not None:
            self.positions, self._is_first_round = self._near.positions, True
            self.cursors, self.epochs = self._near.cursors, self._near.epochs
            return
        if first is not None:
            self.positions = first.positions
            self._final = max(first.positions or first.cursors, default="")
            self._is_first_round = bool(self._final)
            self._receive(first)
        self.cursors, self.epochs = self._at.copy(), self._at_epochs.copy()
        self._start(feed)

    @property
    def heads(self) -> dict[str, int]:
        """The highest visible seq of each topic, as far as the shard has sent it."""
        if self._near is not None:
            return self._near.heads
        return {name: self._heads.get(name, seq) for name, seq in self._at.items()}

    @property
    def lag(self) -> int:
        """The number of seqs between the cursors and the heads that the shard has sent."""
        if self._near is not None:
            return self._near.lag
        return sum(max(0, head - self.cursors.get(name, head)) for name, head in self._heads.items())

    @property
    def finished(self) -> bool:
        """See `engine.watch.core.Watch`."""
        return self._near.finished if self._near is not None else self._ended and self._item is None

    def share(self, cursors: dict[str, int], epochs: dict[str, int]) -> None:
        """See `engine.watch.core.Watch`."""
        cursors.update(self.cursors)
        epochs.update(self.epochs)
        self.cursors, self.epochs = cursors, epochs
        if self._near is not None:
            self._near.share(cursors, epochs)

    @property
    def upcoming(self) -> str | None:
        """See `Watch`."""
        if not self._is_first_round or self._ended:
            return None
        if self._near is not None:
            return self._near.upcoming
        frame = None if self._item is None else self._item.frame
        if frame is None or isinstance(frame, ErrorFrame):
            return ""
        return f"{FIRST}{frame.topic}" if isinstance(frame, TopicDeletedFrame) else frame.topic_partition

    def next(self) -> WatchFrame | ErrorFrame | None:
        """See `engine.watch.core.Watch`. Lets the next item come."""
        if self._near is not None:
            while (frame := self._near.next()) is not None:
                if isinstance(frame, ErrorFrame) or (frame := self._unseen(frame)) is not None:
                    break
            return frame
        item = self._item
        if item is None:
            return None
        self._item = None
        self._taken.set()
        self.cursors.update(item.cursors)
        self.epochs.update(item.epochs)
        for name in item.gone:
            self.cursors.pop(name, None)
            self.epochs.pop(name, None)
        if self._is_first_round and item.frame is not None:
            self._note_round(item.frame)
        return item.frame

    def _note_round(self, frame: WatchFrame | ErrorFrame) -> None:
        """Note the end of the first round: after the last topic, or when one comes that was there before."""
        if isinstance(frame, ErrorFrame):
            return
        name = frame.topic_partition
        if name < self._last or (name == self._final and _ends_turn(frame)):
            self._is_first_round = False
        if not isinstance(frame, TopicDeletedFrame):
            self._last = name

    def drop(self, topic: str) -> bool:
        """See `engine.watch.core.Watch`."""
        if self._near is not None:
            self._request = _without(self._request, topic)
            self._prefixes = _prefixes(self._request)
            return self._near.drop(topic)
        if topic.endswith("*") and topic[:-1] in self._prefixes:
            self._request = _without(self._request, topic)
            self._prefixes = _prefixes(self._request)
            named = self._request.topics
            dropped = [name for name in self._at if name not in named and not name.startswith(self._prefixes)]
        elif topic in self._at:
            self._request = _without(self._request, topic)
            dropped = [topic]
        else:
            return False
        for name in dropped:
            for known in (self.cursors, self.epochs, self._at, self._at_epochs, self._heads):
                known.pop(name, None)
            self._live.discard(name)
            self._opened.discard(name)
            self._unwanted[name] = math.inf
        if self._item is not None:
            self._item = self._wanted(self._item)
        task = background.start(self._unfollow(self._feed, topic, dropped))
        self._dropping.add(task)
        task.add_done_callback(self._dropping.discard)
        return True

    def close(self) -> None:
        """See `engine.watch.core.Watch`."""
        self._ended, self._item = True, None
        if self._near is not None and self._near_api is not None:
            self._near_api.detach(self._near)
            self._near.close()
        if self._task is not None:
            self._task.cancel()

    # ------------------------------------------------------------------ in this process

    async def _nearby(
        self, request: WatchRequest, epochs: Mapping[str, int] | None, heads: Mapping[str, int] | None
    ) -> Watch | None:
        """Follow the shard directly if it is in this process. Raises TopicsError."""
        local = self._shards.local.get(self._shard)
        if local is None or not local.is_open:
            return None
        self._near_api = local.api.watches
        self._near = await self._near_api.watch(request, self._wake, epochs=epochs, heads=heads)
        self._near_api.attach(self._near, self._left)
        return self._near

    def _left(self) -> None:
        """Follow the shard where it goes."""
        near, self._near = self._near, None
        assert near is not None, "it was here"
        self._is_first_round = False
        self._heads = near.heads
        self._at = {name: self.cursors[name] for name in self._heads if name in self.cursors}
        self._at_epochs = {name: self.epochs[name] for name in self._heads if name in self.epochs}
        near.close()
        self._start(None)

    # ------------------------------------------------------------------ the feed

    def _start(self, feed: AsyncGenerator[FeedItem, None] | None) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(feed), context=self._context)

    async def _begun(
        self, epochs: Mapping[str, int] | None, heads: Mapping[str, int] | None
    ) -> tuple[AsyncGenerator[FeedItem, None], FeedItem] | None:
        """Follow the shard once it is where it can be: directly, or by a feed, which is returned with its first item.
        Raises TopicsError.
        """
        while True:
            feed = self._stream(self._request, epochs, heads)
            try:
                if await self._nearby(self._request, epochs, heads) is not None:
                    return None
                return feed, await anext(feed)
            except LostCallError:
                pass
            except TopicsError as error:
                if error.reason not in _PASSING:
                    raise
            except BaseException:
                await feed.aclose()
                raise
            await asyncio.sleep(_FIRST_PAUSE * random.uniform(0.5, 1.0))

    def _stream(
        self, request: WatchRequest, epochs: Mapping[str, int] | None, heads: Mapping[str, int] | None
    ) -> AsyncGenerator[FeedItem, None]:
        self._feed, self._number = secrets.token_urlsafe(12), 0
        return self._shards.stream(
            self._shard,
            WatchApi.follow,
            request,
            self._feed,
            None if epochs is None else dict(epochs),
            None if heads is None else dict(heads),
        )

    async def _run(self, feed: AsyncGenerator[FeedItem, None] | None) -> None:
        """Take in the items of the feed, and of those after it, until one ends by itself, or the shard is here."""
        now = asyncio.get_running_loop().time
        pause = 0.0
        while True:
            began = now()
            try:
                if feed is None:
                    request = self._again()
                    if not request.topics:
                        break
                    near = await self._nearby(request, self._at_epochs, self.heads)
                    if near is not None:
                        near.share(self.cursors, self.epochs)
                        self._wake(_NO_TOPIC)
                        return
                    feed = self._stream(request, self._at_epochs, self.heads)
                async with aclosing(feed):
                    while (item := await anext(feed, None)) is not None:
                        pause = 0.0
                        self._put(item)
                        while self._item is not None:
                            self._taken.clear()
                            await self._taken.wait()
            except (TopicsError, LostCallError) as error:
                log.debug("the watch of shard %d is opened again: %s", self._shard, error)
            except Exception:
                log.exception("the watch of shard %d is opened again", self._shard)
            else:
                break
            feed = None
            is_settled = now() - began >= _SETTLED_SECONDS
            pause = 0.0 if is_settled else min(max(_FIRST_PAUSE, 2 * pause), _LONGEST_PAUSE)
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
        self._ended = True
        self._wake(_NO_TOPIC)

    def _again(self) -> WatchRequest:
        """The request that continues where it stands."""
        self._unwanted.clear()
        for name in self._over:
            for known in (self._at, self._at_epochs, self._heads):
                known.pop(name, None)
            if name in self._request.topics:
                self._request = _without(self._request, name)
            else:
                self.cursors.pop(name, None)
                self.epochs.pop(name, None)
        self._over.clear()
        return replace(self._request, cursor=self._at.copy(), lenient=True)

    def _put(self, item: FeedItem) -> None:
        item = self._wanted(self._receive(item))
        if item.frame is None and not (item.cursors or item.epochs or item.gone):
            return
        self._item = item
        self._wake(
            _NO_TOPIC if item.frame is None or isinstance(item.frame, ErrorFrame) else item.frame.topic_partition
        )

    def _receive(self, item: FeedItem) -> FeedItem:
        """Note what the item says; return it without what the client knows already."""
        self._number += 1
        for name, priority in item.priorities.items():
            self._note_priority(name, priority)
        frame = item.frame
        self._at.update(item.cursors)
        self._at_epochs.update(item.epochs)
        self._heads.update(heads_of(item))
        for name in item.gone:
            for known in (self._at, self._at_epochs, self._heads):
                known.pop(name, None)
            self._live.discard(name)
            self._opened.discard(name)
        if frame is None or isinstance(frame, ErrorFrame):
            return item
        self._note_priority(frame.topic_partition, item.priority)
        item.frame = self._unseen(frame)
        return item

    def _unseen(self, frame: WatchFrame) -> WatchFrame | None:
        """The frame as the client is to see it; None if it has seen the same of an earlier feed."""
        name = frame.topic_partition
        is_read, was_live = name in self._opened, name in self._live
        self._opened.add(name)
        self._live.discard(name)
        self._over.discard(name)
        if isinstance(frame, CaughtUpFrame):
            self._live.add(name)
            if was_live:  # nothing came since, so this is the first of a watch that was opened again
                return None
        elif isinstance(frame, TombstoneFrame) and frame.opening and is_read:
            return replace(frame, opening=False)
        elif isinstance(frame, TopicDeletedFrame):
            self._opened.discard(name)
            self._over.add(name)
        return frame

    # ------------------------------------------------------------------ dropped topics

    def _wanted(self, item: FeedItem) -> FeedItem:
        """The item without what is about dropped topics."""
        if not self._unwanted:
            return item
        for name, last in list(self._unwanted.items()):
            if self._number > last:
                del self._unwanted[name]
        unwanted = self._unwanted
        frame = item.frame
        if frame is not None and not isinstance(frame, ErrorFrame) and frame.topic_partition in unwanted:
            item.frame = None
        for moved in (item.cursors, item.epochs):
            for name in unwanted.keys() & moved.keys():
                del moved[name]
        for known in (self._at, self._at_epochs, self._heads):
            for name in unwanted:
                known.pop(name, None)
        return item

    async def _unfollow(self, feed: str, topic: str, dropped: list[str]) -> None:
        """Drop a topic at the shard. A feed that is lost is opened again without it."""
        with suppress(TopicsError, LostCallError):
            given = await self._shards.call(self._shard, WatchApi.unfollow, feed, topic)
            for name in dropped if feed == self._feed else ():
                if name in self._unwanted:
                    self._unwanted[name] = given


def _not_ready(shard: int) -> TopicsError:
    return TopicsError(Reason.NOT_READY, f"shard {shard} does not answer at present")


def _ends_turn(frame: WatchFrame) -> bool:
    """Return whether no more of the topic comes in this round."""
    if isinstance(frame, RecordsFrame):
        return frame.to_seq < frame.head_seq
    return not isinstance(frame, TombstoneFrame)


def _prefixes(request: WatchRequest) -> tuple[str, ...]:
    return tuple(key[:-1] for key in request.topics if key.endswith("*"))


def _without(request: WatchRequest, topic: str) -> WatchRequest:
    return replace(request, topics={key: start for key, start in request.topics.items() if key != topic})
