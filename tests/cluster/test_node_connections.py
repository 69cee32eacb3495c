"""Calls between nodes of a cluster with several shards: who is let in at the port of nodes, and TLS at it."""

import json
import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from cluster.world import SECRET, World, world_of
from security.authority import Authority
from shards.wire_nodes import wire

from support.waiting import until
from topics_cluster.trust import Secret
from topics_server.node.server import NodeServer
from topics_shards.wire.framing import HEAD, HELLO, PROOF, REFUSED
from topics_shards.wire.handshake import CallerHandshake, Identity, decode_refusal

SHARDS = 4
TOPICS = 12


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return await world_of(SHARDS, tmp_path, monkeypatch)


def port_of(world: World, name: str) -> int:
    """The port at which a node takes the calls of others."""
    return int(world.entries.view().nodes[name].addresses.shards.rpartition(":")[2])


def owners(world: World) -> set[str]:
    """The owners of the shards, once all have one."""
    found = [owner.node for owner in world.entries.view().owners.values() if owner.epoch]
    return set(found) if len(found) == SHARDS and not world.entries.wanted else set()


@asynccontextmanager
async def two(
    world: World, tls: ssl.SSLContext | None = None, **settings: Any
) -> AsyncIterator[list[httpx.AsyncClient]]:
    """Clients of two nodes that share the shards."""
    async with AsyncExitStack() as stack:
        nodes: list[NodeServer] = [await stack.enter_async_context(world.node(name, **settings)) for name in "ab"]
        await until(lambda: owners(world) == {"a", "b"}, seconds=20)
        bases = [f"{'https' if tls else 'http'}://localhost:{node.http_port}" for node in nodes]
        made = [httpx.AsyncClient(base_url=base, verify=tls or True, trust_env=False, timeout=20) for base in bases]
        yield [await stack.enter_async_context(client) for client in made]


async def each_topic_at_each_node(clients: list[httpx.AsyncClient], prefix: str = "t") -> None:
    for number in range(TOPICS):
        answer = await clients[number % 2].post(f"/v0/topics/{prefix}{number}", json={"records": [{"data": number}]})
        assert answer.status_code in (200, 201), answer.text
    for at in clients:
        for number in range(TOPICS):
            answer = await at.post(f"/v0/topics/{prefix}{number}/diff", json={"from_seq": 0})
            assert answer.status_code == 200, answer.text
            assert [record["data"] for record in answer.json()["records"]] == [number]


async def test_nodes_call_each_other_over_tls(world: World, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    cert = str(authority.node("node"))
    tls = ssl.create_default_context(cafile=str(authority.ca))
    tls.load_cert_chain(authority.client("client"))
    settings = {"tls_cert_file": cert, "tls_client_ca_file": str(authority.ca), "cluster_advertised": "localhost"}
    async with two(world, tls, **settings) as clients:
        await each_topic_at_each_node(clients)
        async with wire(port_of(world, "b")) as plain:
            plain.send(HELLO, CallerHandshake(Identity("a", "x", Secret([SECRET.encode()])), "b").hello)
            assert await plain.is_ended(), "nothing is served without TLS"


async def test_the_port_of_nodes_is_for_nodes_of_the_cluster(
    world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    audit = tmp_path / "audit"
    async with two(world, audit_log=str(audit)) as clients:
        await each_topic_at_each_node(clients)
        cluster = world.entries.view().nodes["a"].cluster
        strangers = {
            "the proof does not hold": Identity("a", cluster, Secret([b"another secret " * 4])),
            "the clusters differ": Identity("a", "another", Secret([SECRET.encode()])),
        }
        for cause, stranger in strangers.items():
            calling = CallerHandshake(stranger, "b")
            async with wire(port_of(world, "b")) as connection:
                connection.send(HELLO, calling.hello)
                kind, body = await connection.receive()
                if kind == HELLO:
                    await connection.receive()
                    connection.send_raw(HEAD.pack(1, PROOF, 0) + b"\xa0")
                    kind, body = await connection.receive()
                assert kind == REFUSED
                assert cause in decode_refusal(memoryview(body))
        await each_topic_at_each_node(clients, "later")
    entries = [json.loads(line) for line in audit.read_text().splitlines()]
    refused = [entry for entry in entries if entry["action"] == "node.connect"]
    assert [(entry["outcome"], entry["reason"]) for entry in refused] == 2 * [("refused", "unauthorized")]
    assert all(entry["peer"].startswith("127.0.0.1:") for entry in refused)
    assert "the connection from 127.0.0.1:" in caplog.text


async def test_nodes_whose_secrets_differ_say_so(world: World, caplog: pytest.LogCaptureFixture) -> None:
    other = world.folder / "other"
    other.write_text("x" * 64)
    async with world.node("a"):
        await until(lambda: owners(world) == {"a"}, seconds=20)
        stranger = world.node("b", cluster_secret_file=str(other))
        stranger.open()
        try:
            await stranger.startup()
            with caplog.at_level(logging.WARNING):
                await until(lambda: "no calls go to a: the proof does not hold" in caplog.text)
                await until(lambda: "no calls go to b: the proof does not hold" in caplog.text)
        finally:
            await stranger.shutdown()
            stranger.close()
