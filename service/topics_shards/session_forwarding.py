"""Stream of a watch session that is in another process: opened there, and handed on frame by frame."""

import asyncio
from collections.abc import AsyncGenerator
from types import TracebackType
from typing import Self

from msgspec import Struct

from topics_net import background
from topics_service.api.watch_journal import MAX_IN_ID
from topics_service.api.watch_stream import INSTANCE, SessionStream
from topics_service.engine.errors import Reason
from topics_service.engine.watch.frames import (
    CaughtUpFrame,
    ErrorFrame,
    Frame,
    HeartbeatFrame,
    Position,
    RecordsFrame,
    TombstoneFrame,
    TopicDeletedFrame,
    WatchRequest,
)
from topics_shards.shards import LostCallError

_GONE = ErrorFrame(reason=Reason.NOT_FOUND, code=410, message="the process of the watch session has ended")


class ForwardedItem(Struct, kw_only=True, omit_defaults=True):
    """A frame, with what a client can resume with after it. The first item has the start of the stream in its place.

    `resume` are the resume cursors that have changed since the item before, `gone` those that are none any more.
    `token` stands for all of them, where there are too many for an id.
    """

    frame: RecordsFrame | TombstoneFrame | CaughtUpFrame | TopicDeletedFrame | HeartbeatFrame | ErrorFrame | None = None
    resume: dict[str, int] = {}
    gone: list[str] = []
    token: str = ""
    request: WatchRequest | None = None
    positions: dict[str, Position] = {}


async def forwarded(stream: SessionStream) -> AsyncGenerator[ForwardedItem, None]:
    """The items of an open stream. Asking for the next one confirms that the one before was handed over."""
    sent: dict[str, int] = {}

    def item(frame: Frame | None) -> ForwardedItem:
        nonlocal sent
        now = stream.resume_cursors
        made = ForwardedItem(
            frame=frame,
            resume=dict(now.items() - sent.items()),
            gone=[*(sent.keys() - now.keys())],
            token=stream.resume_token() if len(stream.cursors) > MAX_IN_ID else "",
        )
        sent = now.copy()
        return made

    first = item(None)
    first.request, first.positions = stream.request, stream.positions
    yield first
    async for frame in stream:
        yield item(frame)


class ForwardedStream:
    """See SessionStream. Holds no frame but the one that was asked for.

    When the process of the session goes away, the last frame is an error of code 410: the client needs another session.
    """

    def __init__(self, first: ForwardedItem, items: AsyncGenerator[ForwardedItem, None]) -> None:
        """`items` are the others."""
        assert first.request is not None, "the first item has the request"
        self.request = first.request
        self.positions = first.positions
        self.resume_cursors: dict[str, int] = {}
        self.over = False
        self._token = ""
        self._frame: Frame | None = None
        self._items = items
        self._asked: asyncio.Task[ForwardedItem | None] | None = None
        self._take(first)

    @property
    def cursors(self) -> dict[str, int]:
        """See SessionStream."""
        return {name: seq for name, seq in self.resume_cursors.items() if not name.endswith(INSTANCE)}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.over = True
        task = background.start(self._end())
        _ending.add(task)
        task.add_done_callback(_ending.discard)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Frame:
        """Wait for the next frame."""
        while (frame := self.poll()) is None:
            if self.over:
                raise StopAsyncIteration
            await self.ready()
        return frame

    def resume_token(self) -> str:
        """See SessionStream."""
        return self._token

    async def ready(self) -> None:
        """See SessionStream. Asks for the next frame, and so confirms the one before."""
        if self._frame is not None or self.over:
            return
        if self._asked is None:
            self._asked = asyncio.create_task(self._next())
        await asyncio.wait((self._asked,))  # a cancelled wait leaves it
        item, self._asked = self._asked.result(), None
        if item is None:
            self.over = True
        else:
            self._take(item)

    def poll(self, *, handed_over: bool = True) -> Frame | None:
        """See SessionStream."""
        frame, self._frame = self._frame, None
        if isinstance(frame, ErrorFrame) and frame.terminal:
            self.over = True
        return frame

    async def _next(self) -> ForwardedItem | None:
        try:
            return await anext(self._items, None)
        except LostCallError:
            return ForwardedItem(frame=_GONE)

    async def _end(self) -> None:
        if self._asked is not None:
            self._asked.cancel()
            await asyncio.wait((self._asked,))
        await self._items.aclose()

    def _take(self, item: ForwardedItem) -> None:
        self.resume_cursors.update(item.resume)
        for name in item.gone:
            self.resume_cursors.pop(name, None)
        self._token = item.token
        self._frame = item.frame


_ending: set[asyncio.Task[None]] = set()
