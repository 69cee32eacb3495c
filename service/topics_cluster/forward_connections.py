"""Connections of Kafka and PostgreSQL at a node that does not own the shard: they are passed on to the owner's port, as
bytes.

The owner names itself in Kafka's Metadata, so those clients stay here only for their first questions. Nothing is read
or changed: TLS and authentication are between the client and the owner, which sees the address of this node as the
client's.
"""

import asyncio
import contextlib
import logging
import socket
import zlib
from collections.abc import Callable
from typing import Final

from topics_cluster.coordinator import Addresses
from topics_cluster.owner_search import HOLD_SECONDS, OwnerSearch, OwnerSource
from topics_net import background
from topics_net.dead_peers import watch_peer
from topics_net.listener import Listener
from topics_net.rate_limited_logger import RateLimitedLogger
from topics_service.engine.errors import TopicsError

log: Final = logging.getLogger("topics.cluster")

_READ_BYTES: Final = 64 << 10  # held of each direction
_SEND_SECONDS: Final = 30.0
_FLUSH_SECONDS: Final = 2.0
_MAX_NODE_ID: Final = (1 << 31) - 1


def node_id(node: str) -> int:
    """The broker id of a node that is not given one: from 1, the same for the same name."""
    return zlib.crc32(node.encode()) % _MAX_NODE_ID + 1


class Splice(Listener):
    """Listens on a bound TCP socket, which it owns from `start` on, and connects each client to the owner.

    A client waits up to `hold_seconds` for an owner, then its connection is closed. Beyond `max_connections` further
    ones are closed at once; 0 is no limit.
    """

    def __init__(
        self,
        sock: socket.socket,
        owner: OwnerSource,
        address: Callable[[Addresses], str] = lambda found: found.kafka,
        limit: str = "TOPICS_KAFKA_MAX_CONNECTIONS",
        *,
        max_connections: int = 2000,
        hold_seconds: float = HOLD_SECONDS,
        connect_seconds: float = 1.0,
    ) -> None:
        """`address` gives the port of a node, as host:port; `limit` is the setting of `max_connections`."""
        super().__init__(max_connections, _SEND_SECONDS)
        self._sock = sock
        self._owner = owner
        self._address = address
        self._limit = limit
        self._hold_seconds = hold_seconds
        self._connect_seconds = connect_seconds
        self._log = RateLimitedLogger(log)
        self._listening: asyncio.Server | None = None

    async def start(self) -> None:
        """Start to listen. Raises OSError if the socket can't listen."""
        self._listening = await asyncio.start_server(self._accept, sock=self._sock, limit=_READ_BYTES)

    async def stop(self) -> None:
        """Accept no more connections and close all."""
        if self._listening is None:
            self._sock.close()
            return
        self._listening.close()
        self.draining = True
        self.abort()
        await self.empty()

    def refuse(self) -> None:
        self._log.warning("refusing a connection: %s is reached", self._limit)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.draining or self.is_full():
            if not self.draining:
                self.refuse()
            writer.transport.abort()
            return
        self.enter(_Connection(self, reader, writer))

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to the owner. Raises `not_ready`."""
        search = OwnerSearch(self._owner, self._hold_seconds)
        while True:
            host, _, port = self._address(await search.next()).rpartition(":")
            with contextlib.suppress(OSError, ValueError):
                async with asyncio.timeout(self._connect_seconds):
                    return await asyncio.open_connection(host.strip("[]"), int(port), limit=_READ_BYTES)


class _Connection:
    """A client and its connection to the owner."""

    def __init__(self, splice: Splice, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._splice = splice
        self._reader = reader
        self._writer = writer
        self._task = background.start(self._run())
        self._task.add_done_callback(self._done)

    def abort(self) -> None:
        """Close both connections at once."""
        self._task.cancel()

    shutdown = abort  # which requests are under way is not known here

    def _done(self, task: "asyncio.Task[None]") -> None:
        self._writer.transport.abort()
        self._splice.forget(self)

    async def _run(self) -> None:
        try:
            owner_reader, owner_writer = await self._splice.connect()
        except TopicsError as error:
            log.info("closing a connection: %s", error.message)
            return
        try:
            for writer in (self._writer, owner_writer):
                watch_peer(writer.get_extra_info("socket"))
            there = background.start(_pump(self._reader, owner_writer))
            back = background.start(_pump(owner_reader, self._writer))
            try:
                await asyncio.wait((there, back), return_when=asyncio.FIRST_COMPLETED)
            finally:
                there.cancel()
                back.cancel()
                await asyncio.wait((there, back))
            await asyncio.gather(_flush(self._writer), _flush(owner_writer))
        finally:
            owner_writer.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass bytes on until one side has ended its connection, or takes none for too long."""
    with contextlib.suppress(OSError):  # TimeoutError among them
        while data := await reader.read(_READ_BYTES):
            writer.write(data)
            async with asyncio.timeout(_SEND_SECONDS):
                await writer.drain()


async def _flush(writer: asyncio.StreamWriter) -> None:
    """Close once what was written is sent, or after two seconds."""
    with contextlib.suppress(OSError):
        async with asyncio.timeout(_FLUSH_SECONDS):
            writer.close()
            await writer.wait_closed()
