"""Consuming and acknowledging in fake time."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from support.routed_tables import RoutedTables
from support.watching import LoopClock
from topics_service.api.access.auth import UNRESTRICTED
from topics_service.api.observers import Observers
from topics_service.api.sql.claims import Wakeable
from topics_service.api.sql.consume import ConsumeApi
from topics_service.api.sql.requests import AckRequest, ConsumeReply, ConsumeRequest
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.tables.model import Op, PayloadMode


class Consuming(RoutedTables):
    """Routed tables, and the calls of consumers in front of them, in the time of the running loop."""

    def __init__(self, observers: Observers | None = None) -> None:
        super().__init__(clock=LoopClock())
        self.settles = 0
        self.waiting = set[Wakeable]()
        self._observers = observers or Observers()
        self.serve()

    def serve(self) -> None:
        """Serve the calls, as after a start."""
        self.api = ConsumeApi(
            lambda: self.engine, self._settle, self._forwarded, self._forwarded, self._notify, self._observers
        )

    async def _settle(self, ticket: int) -> None:
        if ticket > self.engine.writer.synced:
            self.settles += 1
            await asyncio.sleep(0.01)
            self.engine.sync()

    async def _forwarded(self, topic: str) -> None:
        """There are no routers."""

    @contextmanager
    def _notify(self, event: Wakeable) -> Iterator[None]:
        self.waiting.add(event)
        yield
        self.waiting.discard(event)

    def insert(self, *ids: int) -> None:
        self.write(*((1, [n, "ann", "", n], None) for n in ids))
        self.engine.sync()

    def routed(self, topic: str = "t", count: int = 10, mode: PayloadMode = PayloadMode.KEY, **options: Any) -> None:
        self.create(topic, **options)
        self.route(topic, Op.INSERT, mode)
        if count:
            self.insert(*range(count))

    async def consume(self, group: str | None = "g", topic: str = "t", **given: Any) -> ConsumeReply:
        who = given.pop("principal", UNRESTRICTED)
        given = {"start": "earliest", "timeout_seconds": 0} | given
        return await self.api.consume(ConsumeRequest(topic=topic, group=group, **given), principal=who)

    async def offsets(self, group: str | None = "g", **given: Any) -> list[int]:
        return [message.offset for message in (await self.consume(group, **given)).messages]

    async def claim(self, group: str = "g", seconds: int = 60, **given: Any) -> ConsumeReply:
        return await self.consume(group, visibility_seconds=seconds, **given)

    async def ack(self, upto: int | None, group: str = "g", topic: str = "t", **given: Any) -> int:
        who = given.pop("principal", UNRESTRICTED)
        request = AckRequest(topic=topic, group=group, upto_offset=upto, **given)
        return await self.api.ack(request, principal=who)

    def position(self, group: str = "g", partition: int = 0) -> int | None:
        found = self.engine.groups.position(group, "t", partition)
        return None if found is None else found.from_seq


async def refused(reason: Reason, call: Any) -> TopicsError:
    """The error of a call, which has this reason."""
    with pytest.raises(TopicsError) as caught:
        await call
    assert caught.value.reason is reason, caught.value
    return caught.value
