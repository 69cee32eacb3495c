"""Nodes with many shards: any node answers any call on each of its doors, wherever the shards are."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from cluster.world import World, client, world_of

from support.waiting import until
from topics_server.node.server import NodeServer

SHARDS = 8


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return await world_of(SHARDS, tmp_path, monkeypatch)


def owners(world: World) -> dict[int, str]:
    """The owners that serve their shards."""
    return {shard: owner.node for shard, owner in world.entries.view().owners.items() if owner.epoch}


def is_spread(world: World, nodes: int) -> bool:
    """Return whether each shard has an owner, and each node some, with nothing under way."""
    found = owners(world)
    return len(found) == SHARDS and len({*found.values()}) == nodes and not world.entries.wanted


@contextlib.asynccontextmanager
async def three(world: World, **settings: Any) -> AsyncIterator[dict[str, NodeServer]]:
    """Three nodes that share the shards."""
    async with contextlib.AsyncExitStack() as stack:
        nodes = {name: await stack.enter_async_context(world.node(name, **settings)) for name in "abc"}
        await until(lambda: is_spread(world, 3), seconds=60)
        yield nodes


async def append(at: httpx.AsyncClient, topic: str, *texts: str) -> int:
    answer = await at.post(f"/v0/topics/{topic}", json={"records": [{"data": text} for text in texts]})
    assert answer.status_code in (200, 201), answer.text
    return int(answer.json()["last_seq"])


async def texts(at: httpx.AsyncClient, topic: str) -> list[str]:
    answer = await at.post(f"/v0/topics/{topic}/diff", json={"from_seq": 0})
    assert answer.status_code == 200, answer.text
    return [record["data"] for record in answer.json()["records"]]


async def test_records_of_all_shards_at_all_nodes(world: World) -> None:
    async with three(world) as nodes, contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(client(node)) for node in nodes.values()]
        for number in range(24):
            await append(clients[number % 3], f"topic-{number}", f"record {number}")
        for at in clients:
            for number in range(24):
                assert await texts(at, f"topic-{number}") == [f"record {number}"]
            listed = (await at.get("/v0/topics", params={"limit": 100})).json()
            assert {topic["topic"] for topic in listed["topics"]} == {f"topic-{number}" for number in range(24)}
            assert (await at.get("/v0/ready")).status_code == 200
            assert (await at.get("/v0/metrics")).status_code == 200
