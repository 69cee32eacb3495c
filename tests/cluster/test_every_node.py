"""Nodes with many shards: any node answers any call on each of its doors, wherever the shards are."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from cluster.world import World, client, world_of

from support.waiting import until
from topics_proto.v1 import admin_service_pb2 as pb
from topics_proto.v1.admin_service_pb2_grpc import AdminServiceStub
from topics_server import users
from topics_server.errors import StartError
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


async def test_system_tables_have_the_rows_of_all_nodes(world: World) -> None:
    async with three(world) as nodes, contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(client(node)) for node in nodes.values()]

        async def sql(at: httpx.AsyncClient, text: str) -> list[list[Any]]:
            answer = await at.post("/api/sql", json={"sql": text})
            assert answer.status_code == 200, answer.text
            rows: list[list[Any]] = answer.json()["results"][-1]["rows"]
            return rows

        for number in range(12):
            at = clients[number % 3]
            await append(at, f"topic-{number:02}", "one", "two")
            ack = {"topic": f"topic-{number:02}", "group_id": f"g{number:02}", "upto_offset": 0}
            assert (await at.post("/api/topics/ack", json=ack)).status_code == 200
        names = [f"topic-{number:02}" for number in range(12)]
        for at in clients:
            assert [name for (name,) in await sql(at, "SELECT name FROM system.topics ORDER BY name")] == names
            counts = await sql(at, "SELECT topic, next_offset FROM system.topic_partitions ORDER BY topic")
            assert counts == [[name, 2] for name in names]
            offsets = await sql(at, "SELECT group_id, topic, lag FROM system.topic_offsets ORDER BY group_id")
            assert offsets == [[f"g{number:02}", names[number], 1] for number in range(12)]


async def test_metrics_are_sums_over_all_nodes_and_limits_count_all_shards(world: World) -> None:
    async with three(world, max_topics=12) as nodes, contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(client(node)) for node in nodes.values()]
        for number in range(12):
            await append(clients[number % 3], f"topic-{number}", "record")
        assert len({*owners(world).values()}) == 3
        for at in clients:
            counted = (await at.get("/v0/metrics", headers={"accept": "application/json"})).json()
            assert (counted["topics"], counted["records_live"]) == (12, 12)
        figures = [node._running._composition.figures for node in nodes.values()]  # type: ignore[union-attr]
        await until(lambda: all(each.sum("topics") == 12 for each in figures))
        for number, at in enumerate(clients):
            for further in range(4):
                answer = await at.put(f"/v0/topics/further-{number}-{further}", json={})
                assert answer.status_code == 429, answer.text
                assert answer.json()["error"]["detail"] == {"limit": "max_topics", "max": 12}


async def test_users_that_sql_makes_are_known_at_all_nodes(world: World) -> None:
    async with (
        three(world, sql_users=users.from_text("root:secret:system")) as nodes,
        contextlib.AsyncExitStack() as stack,
    ):
        clients = [await stack.enter_async_context(client(node)) for node in nodes.values()]

        async def sql(at: httpx.AsyncClient, text: str) -> None:
            answer = await at.post("/api/sql", json={"sql": text}, auth=("root", "secret"))
            assert answer.json()["status"] == "success", answer.text

        async def statuses(password: str) -> list[int]:
            return [(await at.get("/v0/topics", auth=("ann", password))).status_code for at in clients]

        assert await statuses("first") == [401] * 3
        for at, text, password, expected in (
            (clients[0], "CREATE USER 'ann' WITH PASSWORD 'first' ROLE service", "first", 200),
            (clients[1], "ALTER USER 'ann' SET PASSWORD 'second'", "second", 200),
            (clients[2], "DROP USER 'ann'", "second", 401),
        ):
            await sql(at, text)
            async with asyncio.timeout(5):  # of a revocation
                while await statuses(password) != [expected] * 3:
                    await asyncio.sleep(0.05)
        assert await statuses("first") == [401] * 3


async def test_nodes_stay_ready_while_shards_move(world: World) -> None:
    async with three(world) as nodes, contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(client(node)) for node in nodes.values()]
        await until(lambda: all(node.warm for node in world.entries.view().nodes.values()))
        shard, owner = next(iter(owners(world).items()))
        target = next(name for name, node in world.entries.view().nodes.items() if name != owner and shard in node.warm)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{nodes[owner].grpc_port}") as channel:
            stub: Any = AdminServiceStub(channel)  # type: ignore[no-untyped-call]
            moving = asyncio.ensure_future(stub.MoveShard(pb.MoveShardRequest(shard=shard, node=target)))
            seen = 0
            while not moving.done() or owners(world).get(shard) != target:
                answers = await asyncio.gather(*(at.get("/v0/ready") for at in clients))
                assert [answer.status_code for answer in answers] == [200] * 3
                seen += 1
            await moving
        assert seen > 3


async def test_a_node_with_the_number_of_another_does_not_start(world: World) -> None:
    async with world.node("a", kafka_node_id=7):
        await until(lambda: len(owners(world)) == SHARDS)
        with pytest.raises(StartError, match="has the number 7 as well: TOPICS_KAFKA_NODE_ID must be another"):
            async with world.node("b", kafka_node_id=7):
                pass
        async with world.node("b", kafka_node_id=8):
            pass
