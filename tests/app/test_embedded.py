"""A server embedded in a program: started and ended by its event loop, with its own clock and store."""

import asyncio
import contextlib
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from topics_client import AsyncTopicsClient
from topics_server.errors import StartError
from topics_server.server import Server
from topics_server.settings import Settings
from topics_service.storage.rocks import RocksStore
from topics_service.storage.store import StoreError

ROOT = Path(__file__).parents[2]


class ManualClock:
    """A clock that stands still until it is advanced."""

    def __init__(self) -> None:
        self.ms = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.ms


def settings(path: Path, **others: Any) -> Settings:
    return Settings(data_dir=str(path), port=0, grpc_port=0, drain_seconds=1, **others)


async def test_serves_inside_the_block_and_keeps_its_data(tmp_path: Path) -> None:
    async with Server(settings(tmp_path, kafka_port="0")) as server:
        assert 0 not in {server.http_port, server.grpc_port, server.kafka_port}
        async with AsyncTopicsClient(f"127.0.0.1:{server.grpc_port}") as client:
            assert (await client.append("orders", {"n": 1})).head_seq == 1
        port = server.http_port
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port)).close()
    async with Server(settings(tmp_path)) as server, httpx.AsyncClient() as http:
        reply = await http.post(f"http://127.0.0.1:{server.http_port}/v0/topics/orders/diff", json={"from_seq": 0})
        assert [record["data"] for record in reply.json()["records"]] == [{"n": 1}]
        assert server.kafka_port == 0


async def test_two_servers_share_a_loop(tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        one, two = [await stack.enter_async_context(Server(settings(tmp_path / name))) for name in ("one", "two")]
        client = await stack.enter_async_context(AsyncTopicsClient(f"127.0.0.1:{one.grpc_port}"))
        other = await stack.enter_async_context(AsyncTopicsClient(f"127.0.0.1:{two.grpc_port}"))
        await client.append("a", 1)
        assert [topic.topic async for topic in other.list_topics()] == []
        assert [topic.topic async for topic in client.list_topics()] == ["a"]


async def test_a_taken_port_is_a_start_error_and_leaves_nothing_open(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(StartError, match="another server running"):
            async with Server(Settings(data_dir=str(tmp_path), port=taken.getsockname()[1], grpc_port=0)):
                raise AssertionError("it must not start")
        with pytest.raises(StartError, match="gRPC"):
            async with Server(Settings(data_dir=str(tmp_path), port=0, grpc_port=taken.getsockname()[1])):
                raise AssertionError("it must not start")
    async with Server(settings(tmp_path)):  # the data directory is free
        pass
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []


async def test_an_error_in_the_block_ends_the_server(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        async with Server(settings(tmp_path)):
            raise ZeroDivisionError
    RocksStore(tmp_path, block_cache_bytes=1 << 20, write_buffer_bytes=1 << 20).close()


async def test_clock_and_store_are_those_that_are_given(tmp_path: Path) -> None:
    clock = ManualClock()
    store = RocksStore(tmp_path, block_cache_bytes=1 << 20, write_buffer_bytes=1 << 20)
    async with Server(settings(tmp_path), clock=clock, store=store) as server:
        base = f"http://127.0.0.1:{server.http_port}/v0/topics/short"
        async with httpx.AsyncClient() as http:
            await http.put(base, json={"ttl_ms": 1000})
            await http.post(base, json={"records": [{"data": 1}]})
            assert len((await http.post(f"{base}/diff", json={"from_seq": 0})).json()["records"]) == 1
            clock.ms += 1001
            assert (await http.post(f"{base}/diff", json={"from_seq": 0})).json()["records"] == []
    with pytest.raises(StoreError):  # the server has closed it
        store.sync()


def test_the_example_of_the_docs_runs(tmp_path: Path) -> None:
    (example,) = re.findall(
        r"^```python\n(.*?)^```", (ROOT / "docs/deployment.md").read_text(), re.DOTALL | re.MULTILINE
    )
    done = subprocess.run([sys.executable, "-c", example], cwd=tmp_path, capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"HTTP on port \d+\n", done.stdout)
    assert (tmp_path / "embedded-data").is_dir()
