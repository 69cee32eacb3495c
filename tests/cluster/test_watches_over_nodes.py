"""Watches and their sessions at the doors of nodes, while shards move between these."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from cluster.world import World, client

from support.waiting import until
from topics_cluster import identity
from topics_server.node import shards as shards_module
from topics_service.engine.placement import home_of

SHARDS = 3
TOPICS = [next(f"t{n}" for n in range(100) if home_of(f"t{n}", SHARDS) == shard) for shard in range(SHARDS)]


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(shards_module, "SETTLED_SECONDS", 60)  # nothing moves by itself
    world = World(tmp_path)
    await identity.create(world.bucket, SHARDS)
    return world


def owners(world: World) -> dict[int, str]:
    """The owners that serve their shards."""
    return {shard: owner.node for shard, owner in world.entries.view().owners.items() if owner.epoch}


async def all_warm(world: World, count: int) -> None:
    """Return once each shard has an owner, and so many replicas are caught up."""
    await until(
        lambda: (
            len(owners(world)) == SHARDS
            and sum(len(node.warm) for node in world.entries.view().nodes.values()) >= count
        ),
        30,
    )


async def append(http: httpx.AsyncClient, topic: str, number: int) -> None:
    """Append a record, and repeat the call while the shard has no owner; its key keeps the record from being there
    twice."""
    headers = {"Idempotency-Key": f"{topic}-{number}"}
    async with asyncio.timeout(20):
        while True:
            with contextlib.suppress(httpx.TransportError):
                body = {"records": [{"data": number}], "config": {"durability": "fsync"}}
                reply = await http.post(f"/v0/topics/{topic}", json=body, headers=headers)
                if reply.status_code < 300:
                    return
                assert reply.status_code == 503, reply.text


class Events:
    """The events of a session's stream: the data of its records, and the codes of errors."""

    def __init__(self) -> None:
        self.records: dict[str, list[int]] = {topic: [] for topic in TOPICS}
        self.errors: list[int] = []
        self.last_id = ""
        self.is_over = False
        self.status = 0

    async def read(self, http: httpx.AsyncClient, url: str) -> None:
        """Read until the stream ends."""
        async with http.stream("GET", url, headers={"accept": "text/event-stream"}, timeout=60) as reply:
            self.status = reply.status_code
            event = ""
            async for line in reply.aiter_lines():
                name, _, value = line.partition(": ")
                if name == "event":
                    event = value
                elif name == "id":
                    self.last_id = value
                elif name == "data":
                    self._take(event, json.loads(value))
        self.is_over = True

    def _take(self, event: str, data: dict[str, Any]) -> None:
        if event == "record":
            self.records[data["topic"]] += [record["data"] for record in data["records"]]
        elif event == "error":
            self.errors.append(data["code"])


async def session(http: httpx.AsyncClient, **members: Any) -> str:
    reply = await http.post("/v0/watch", json={"topics": {"t*": {}}} | members)
    assert reply.status_code == 200, reply.text
    return str(reply.json()["stream_url"])


@contextlib.asynccontextmanager
async def reading(http: httpx.AsyncClient, url: str) -> AsyncIterator[Events]:
    events = Events()
    task = asyncio.create_task(events.read(http, url))
    try:
        yield events
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.timeout(120)
async def test_streams_continue_while_shards_move_and_are_taken_over(world: World) -> None:
    async with contextlib.AsyncExitStack() as stack:
        nodes = {name: await stack.enter_async_context(world.node(name)) for name in "abc"}
        doors = {name: await stack.enter_async_context(client(node)) for name, node in nodes.items()}
        await all_warm(world, 2 * SHARDS)
        head = 1
        for topic in TOPICS:
            await append(doors["a"], topic, head)
        ways = [("a", "a"), ("b", "b"), ("c", "c"), ("c", "b")]
        """The nodes of sessions, and those at which their streams are."""
        streams = [
            await stack.enter_async_context(reading(doors[there], await session(doors[made]))) for made, there in ways
        ]

        async def told() -> None:
            nonlocal head
            expected = {topic: list(range(1, head + 1)) for topic in TOPICS}
            await until(lambda: all(stream.records == expected for stream in streams), 20)
            head += 1
            for topic in TOPICS:
                await append(doors["b"], topic, head)
            expected = {topic: list(range(1, head + 1)) for topic in TOPICS}
            await until(lambda: all(stream.records == expected for stream in streams), 20)

        await told()
        for shard in (0, 1):
            place = world.entries.view()
            owner = owners(world)[shard]
            to = next(name for name, node in place.nodes.items() if name != owner and shard in node.warm)
            await nodes["a"]._running._admin.move(shard, to)  # type: ignore[union-attr]
            await until(lambda shard=shard, to=to: owners(world).get(shard) == to, 20)
            await told()
            await until(lambda: sum(len(node.warm) for node in world.entries.view().nodes.values()) >= 2 * SHARDS, 20)
        gone = owners(world)[0]
        world.coordinators[gone].reachable = False  # its shards are taken over, and it learns of that later
        await until(lambda: len(owners(world)) == SHARDS and gone not in owners(world).values(), 20)
        others = next(name for name in "abc" if name != gone)
        head += 1
        for topic in TOPICS:
            await append(doors[others], topic, head)
        expected = {topic: list(range(1, head + 1)) for topic in TOPICS}
        left = [stream for stream, way in zip(streams, ways, strict=True) if gone not in way]
        assert left
        await until(lambda: all(stream.records == expected for stream in left), 20)
        world.coordinators[gone].reachable = True
        await until(lambda: all(stream.records == expected for stream in streams), 30)
        assert not any(stream.is_over or stream.errors for stream in streams)


@pytest.mark.timeout(120)
async def test_a_session_of_a_node_that_goes_is_begun_anew_from_its_cursors(world: World) -> None:
    async with world.node("a") as a, client(a) as door, contextlib.AsyncExitStack() as stack:
        b = await stack.enter_async_context(world.node("b"))
        await all_warm(world, SHARDS + 1)
        for topic in TOPICS:
            await append(door, topic, 1)
        async with client(b) as other:
            url = await session(other)
        async with reading(door, url) as events:
            await until(lambda: all(found == [1] for found in events.records.values()))
            await stack.aclose()  # b stops
            await until(lambda: events.is_over, 20)
        assert events.errors in ([503], [410])
        missing = await door.get(url, headers={"accept": "text/event-stream"})
        assert (missing.status_code, missing.json()["error"]["code"]) == (404, "not_found")
        await until(lambda: set(owners(world).values()) == {"a"}, 20)
        for topic in TOPICS:
            await append(door, topic, 2)
        async with reading(door, await session(door, cursor=events.last_id)) as again:
            await until(lambda: all(found == [2] for found in again.records.values()))
