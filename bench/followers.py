"""Followers of a topic on raw sockets: SSE of ours, XREAD BLOCK of Redis, a JetStream push consumer of NATS.

All of them run in one loop, do as little as they can, and note when each stamped record reached them.
"""

import asyncio
import json
import re
import time
from typing import cast
from urllib.parse import urlsplit

import hiredis

_STAMP = re.compile(rb'"t":(\d{12,})\b')


def stamped(i: int) -> bytes:
    """A record's data of about 150 bytes that says when it was made (ns of the monotonic clock)."""
    return b'{"t":%d,"i":%d,"note":"%s"}' % (time.monotonic_ns(), i, b"x" * 110)


class Follower(asyncio.Protocol):
    """Counts records, and keeps their ages in ms if asked to."""

    def __init__(self, *, ages: bool = True) -> None:
        self.transport: asyncio.Transport | None = None
        self.records = 0
        self.heartbeats = 0
        self.ages: list[float] | None = [] if ages else None
        self.started = asyncio.get_running_loop().create_future()
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def send(self, data: bytes) -> None:
        """Write to the server."""
        assert self.transport is not None
        self.transport.write(data)

    def data_received(self, data: bytes) -> None:
        """Record the data."""
        now = time.monotonic_ns()
        if self.ages is None:
            self.records += data.count(b'"t":')  # one in 8,000 lies across two reads and is missed
        else:
            text = self._rest + data
            end = 0
            for match in _STAMP.finditer(text):
                if match.end() < len(text):
                    self.ages.append((now - int(match[1])) / 1e6)
                    end = match.end()
            self.records = len(self.ages)
            self._rest = text[max(end, len(text) - 40) :]
        self.more(data)

    def more(self, data: bytes) -> None:
        """Other messages of the protocol."""
        if not self.started.done():
            self.started.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.started.done():
            self.started.set_exception(error or ConnectionError("closed"))

    def close(self) -> None:
        """Leave."""
        self.started.cancel()
        if self.transport is not None:
            self.transport.abort()


class SseFollower(Follower):
    """One EventSource."""

    def more(self, data: bytes) -> None:
        self.heartbeats += data.count(b": hb ")
        if b"event: caught-up" in data:
            super().more(data)


class RedisFollower(Follower):
    """One blocking reader that continues after its last id."""

    def __init__(self, *, ages: bool = True) -> None:
        super().__init__(ages=ages)
        self._replies = hiredis.Reader()

    def ask(self, after: bytes) -> None:
        """Wait for entries after this id."""
        self.send(hiredis.pack_command(("XREAD", "BLOCK", 0, "STREAMS", "s", after)))

    def more(self, data: bytes) -> None:
        self._replies.feed(data)
        reply = self._replies.gets()
        if reply is not False:
            self.ask(reply[0][1][-1][0])


class NatsFollower(Follower):
    """One push consumer without acks."""

    def begin(self, number: int) -> None:
        inbox, stream = b"_IN.%d" % number, b"s"
        config = {
            "stream_name": "s",
            "config": {"deliver_subject": inbox.decode(), "ack_policy": "none", "deliver_policy": "new"},
        }
        text = json.dumps(config).encode()
        self.send(b'CONNECT {"verbose":false,"pedantic":false,"headers":false}\r\n')
        self.send(b"SUB %s 1\r\nSUB _R.%d 2\r\n" % (inbox, number))
        self.send(b"PUB $JS.API.CONSUMER.CREATE.%s _R.%d %d\r\n%s\r\n" % (stream, number, len(text), text))

    def data_received(self, data: bytes) -> None:
        if b"PING\r\n" in data:
            self.send(b"PONG\r\n")
        super().data_received(data)

    def more(self, data: bytes) -> None:
        if b"consumer_create_response" in data:
            super().more(data)


async def follow_sse(base: str, url: str, *, ages: bool = True) -> SseFollower:
    """Open the stream of a watch session."""
    address = urlsplit(base)
    _, follower = await asyncio.get_running_loop().create_connection(
        lambda: SseFollower(ages=ages), address.hostname, address.port
    )
    follower.send(b"GET %s HTTP/1.1\r\nhost: localhost\r\naccept: text/event-stream\r\n\r\n" % url.encode())
    await asyncio.wait_for(follower.started, 30)
    return follower


async def follow_redis(port: int, after: bytes, *, ages: bool = True) -> RedisFollower:
    """Block on the stream `s` behind an id."""
    _, follower = await asyncio.get_running_loop().create_connection(
        lambda: RedisFollower(ages=ages), "127.0.0.1", port
    )
    follower.ask(after)
    return follower


async def follow_nats(port: int, number: int, *, ages: bool = True) -> NatsFollower:
    """Consume the stream `s`."""
    _, follower = await asyncio.get_running_loop().create_connection(lambda: NatsFollower(ages=ages), "127.0.0.1", port)
    follower.begin(number)
    await asyncio.wait_for(follower.started, 30)
    return follower
