"""Kafka listeners of two processes over three shards, in the process of a test."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
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
from topics_shards.shards import LocalShards, Shard
from topics_shards.topics import ShardedTopics

SETTINGS = KafkaSettings(initial_rebalance_ms=0, min_session_timeout_ms=50)


class Process:
    """One of the processes: it has some of the shards, and a listener for all of them."""

    def __init__(self, world: ShardsWorld, local: Iterable[int], groups: Any) -> None:
        shards = {number: Shard(api) for number, api in enumerate(world.apis)}
        here = set(local)
        self.shards = FarShards(LocalShards(shards), {number: shards[number] for number in here})
        located = Located(self.shards)
        first = world.apis[min(here)]
        self.topics = ShardedTopics(located, first.limits, first.metrics, NO_OBSERVERS, LocalHealth(world.apis))
        if groups is not None:
            self.topics.groups = groups(located)
        self.kafka = ShardedKafka(self.topics, located)
        self.server: KafkaServer | None = None
        self.port = 0

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

    def __init__(self, world: ShardsWorld, groups: Any) -> None:
        self.world = world
        self.processes = [Process(world, (0,), groups), Process(world, (1, 2), groups)]

    @property
    def first(self) -> Process:
        """The process with shard 0."""
        return self.processes[0]

    @property
    def second(self) -> Process:
        """The process with the others."""
        return self.processes[1]


@asynccontextmanager
async def open_kafka(groups: Any = None) -> AsyncIterator[KafkaWorld]:
    """Both processes, listening."""
    async with open_shards(3) as world:
        kafka = KafkaWorld(world, groups)
        started: list[Process] = []
        try:
            for process in kafka.processes:
                started.append(process)
                await process.start()
            yield kafka
        finally:
            for process in started:
                await process.stop()


async def over_wire(port: int, api: ApiKey, version: int | None = None, **body: Any) -> Message:
    """One request on a connection of its own."""

    def call() -> Message:
        with Wire(port) as wire:
            return wire.call(api, version, **body)

    return await asyncio.to_thread(call)
