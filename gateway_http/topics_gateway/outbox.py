"""Replies on their way to one client, in the order of its commands, and bounded."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

_MAX_REPLIES: Final = 256
_MAX_BYTES: Final = 1 << 20


class Reply:
    """A reply: its `text`, perhaps after a wait, is sent, then `sent` is called. `weight` is its memory until it is
    sent.
    """

    __slots__ = ("sent", "text", "weight")

    def __init__(
        self, text: bytes | Callable[[], Awaitable[bytes]], weight: int, sent: Callable[[], None] | None = None
    ) -> None:
        self.text = text
        self.weight = weight
        self.sent = sent


class Outbox:
    """A queue for one writer and one reader. `put` never refuses: call `wait_for_space` first to stay in bounds."""

    def __init__(self) -> None:
        self._replies: deque[Reply] = deque()
        self._bytes = 0
        self._changed = asyncio.Event()
        self._closed = False

    async def wait_for_space(self) -> None:
        """Wait until the queue is below its limits."""
        while len(self._replies) >= _MAX_REPLIES or self._bytes >= _MAX_BYTES:
            await self._change()

    def put(self, reply: Reply) -> None:
        """Add a reply."""
        self._replies.append(reply)
        self._bytes += reply.weight
        self._changed.set()

    def close(self) -> None:
        """Nothing more is added."""
        self._closed = True
        self._changed.set()

    async def send_all(self, send: Callable[[bytes], Awaitable[None]]) -> None:
        """Send the added messages, in order, until the box is closed and empty."""
        while True:
            while self._replies:
                await self._send_first(send)
            if self._closed:
                return
            await self._change()

    async def _send_first(self, send: Callable[[bytes], Awaitable[None]]) -> None:
        reply = self._replies[0]
        await send(reply.text if isinstance(reply.text, bytes) else await reply.text())
        self._replies.popleft()
        self._bytes -= reply.weight
        self._changed.set()
        if reply.sent is not None:
            reply.sent()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()
