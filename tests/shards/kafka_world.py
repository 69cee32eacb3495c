"""Kafka listeners of two processes over three shards, in the process of a test."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from shards.far import FarShards
from shards.world import ShardsWorld, open_shards

from support.kafka_wire import Wire
from topics_kafka.handlers import Context
from topics_kafka.listener import KafkaServer, create_kafka
from topics_kafka.protocol import ApiKey, Message, decode_request, decode_response, encode_request, encode_response
from topics_kafka.registry import all_handlers
from topics_kafka.settings import KafkaSettings
from topics_service.api.access.auth import UNRESTRICTED
from topics_service.api.access.authorizer import Authorizer
from topics_service.api.observers import NO_OBSERVERS
from topics_shards.health import LocalHealth
from topics_shards.kafka import ShardedKafka
from topics_shards.locating import Located
from topics_shards.remote import RemoteShards, remote_methods
from topics_shards.shards import LocalShards, Shard, Shards
from topics_shards.topics import ShardedTopics
from topics_shards.wire.client import Channel
from topics_shards.wire.server import ShardServer, unix

SETTINGS = KafkaSettings(initial_rebalance_ms=0, min_session_timeout_ms=50)


class Process:
    """One of the processes: it has some of the shards, and a listener for all of them.

    With a `directory` it calls the other process through a socket there.
    """

    def __init__(self, world: ShardsWorld, number: int, directory: Path | None) -> None:
        shards = {shard: Shard(api) for shard, api in enumerate(world.apis)}
        here = {shard: each for shard, each in shards.items() if (shard > 0) == number}
        self.far: FarShards | None = None
        self._wire: tuple[ShardServer, Channel, Path] | None = None
        all_shards: Shards
        if directory is None:
            all_shards = self.far = FarShards(LocalShards(shards), here)
        else:
            methods = remote_methods()
            channel = Channel(unix(directory / str(1 - number)), "other", f"process {number}")
            owners = {shard: channel for shard in shards if shard not in here}
            all_shards = RemoteShards(len(shards), here, owners, methods)
            self._wire = ShardServer(here, methods, f"process {number}"), channel, directory / str(number)
        located = Located(all_shards)
        first = world.apis[min(here)]
        self.topics = ShardedTopics(located, first.limits, first.metrics, NO_OBSERVERS, LocalHealth(world.apis))
        self.kafka = ShardedKafka(self.topics, located)
        self.server: KafkaServer | None = None
        self.port = 0

    async def connect(self) -> None:
        """Take calls of the other process."""
        if self._wire is not None:
            server, _, path = self._wire
            await server.listen(path)

    async def start(self) -> None:
        """Listen."""
        await self.kafka.start(SETTINGS.groups)
        sock = socket.create_server(("127.0.0.1", 0))
        sock.setblocking(False)
        self.port = sock.getsockname()[1]
        server = create_kafka(self.kafka, Authorizer(), SETTINGS, sock, host="127.0.0.1", port=self.port)
        self.server = server
        self.handlers = all_handlers(server.context)
        self.context = Context(server=server.context, peer="127.0.0.1:5000", principal=UNRESTRICTED, authenticated=True)
        await server.start()

    async def stop(self) -> None:
        """End the listener."""
        if self.server is not None:
            await self.server.stop(0)
        await self.kafka.stop()

    async def disconnect(self) -> None:
        """End the calls between the processes."""
        if self._wire is not None:
            server, channel, _ = self._wire
            channel.close()
            await server.drain(1)
            await server.close()

    async def call(self, api: ApiKey, version: int, **body: Any) -> Any:
        """The response as a client sees it; requests of one process may overlap, unlike on one connection."""
        _, decoded = decode_request(b"".join(encode_request(api, version, 7, "client", body)))
        self.context.client_id = "client"
        answer = self.handlers[api](self.context, version, decoded)
        response: Message | None = answer if answer is None or isinstance(answer, dict) else await answer
        if response is None:
            return None
        return decode_response(api, version, b"".join(encode_response(api, version, 7, response)))[1]


class KafkaWorld:
    """Two processes: the first has shard 0, the second the others."""

    def __init__(self, world: ShardsWorld, directory: Path | None) -> None:
        self.world = world
        self.processes = [Process(world, number, directory) for number in range(2)]

    @property
    def first(self) -> Process:
        """The process with shard 0."""
        return self.processes[0]

    @property
    def second(self) -> Process:
        """The process with the others."""
        return self.processes[1]


@asynccontextmanager
async def open_kafka(*, wired: bool = False) -> AsyncIterator[KafkaWorld]:
    """Both processes, listening."""
    async with open_shards(3, wired=False) as world:
        with TemporaryDirectory(prefix="kafka-") as directory:
            kafka = KafkaWorld(world, Path(directory) if wired else None)
            try:
                for process in kafka.processes:
                    await process.connect()
                await asyncio.gather(*(process.start() for process in kafka.processes))
                yield kafka
            finally:
                for process in kafka.processes:
                    await process.stop()
                for process in kafka.processes:
                    await process.disconnect()


async def over_wire(port: int, api: ApiKey, version: int | None = None, **body: Any) -> Message:
    """One request on a connection of its own."""

    def call() -> Message:
        with Wire(port) as wire:
            return wire.call(api, version, **body)

    return await asyncio.to_thread(call)
