"""A shard of a few calls that a test steers."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Final

from topics_service.api.request_context import RequestContext, current_request
from topics_service.engine.errors import Reason, TopicsError
from topics_shards.shards import Shard
from topics_shards.wire.methods import RemoteMethod


class Toy(Shard):
    """A shard whose calls a test steers."""

    def __init__(self, number: int = 1) -> None:
        self.number = number
        self.gate = asyncio.Event()
        self.began: list[str] = []
        self.ended: list[str] = []
        self.seen: list[RequestContext | None] = []

    def of(self, _: object) -> "Toy":
        return self

    async def echo(self, value: bytes) -> bytes:
        self.seen.append(current_request.get())
        return value

    async def wait(self, name: str) -> int:
        self.began.append(name)
        try:
            await self.gate.wait()
        finally:
            self.ended.append(name)
        return self.number

    async def read(self, name: str) -> int:
        return await self.wait(name)

    async def fail(self, reason: Reason) -> None:
        raise TopicsError(reason, "refused", {"a": 1}, retry_after_ms=5)

    async def items(self, count: int) -> AsyncGenerator[int, None]:
        try:
            for number in range(count):
                self.began.append(str(number))
                yield number
        finally:
            self.ended.append("items")

    async def large(self, size: int) -> bytes:
        return bytes(size)


METHODS: Final = [
    RemoteMethod(method, is_read=method is Toy.read)
    for method in (Toy.echo, Toy.wait, Toy.read, Toy.fail, Toy.items, Toy.large)
]
