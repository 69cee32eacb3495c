"""Nodes within one event loop, on a bucket and a coordinator in memory."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from topics_cluster import identity
from topics_cluster.memory import MemoryBucket, MemoryCoordinator, MemoryEntries
from topics_server.node import shards as shards_module
from topics_server.node.server import NodeServer
from topics_server.settings import Settings

SECRET = "0123456789abcdef" * 4


class World:
    """The nodes, with the store and the coordinator that they share."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bucket: MemoryBucket = MemoryBucket()
        self.entries = MemoryEntries()
        self.coordinators: dict[str, MemoryCoordinator] = {}
        (folder / "secret").write_text(SECRET)

    def node(self, name: str, **settings: Any) -> NodeServer:
        coordinator = self.coordinators[name] = MemoryCoordinator(self.entries)
        given = {
            "data_dir": str(self.folder / name),
            "port": 0,
            "grpc_port": 0,
            "cluster": "test",
            "cluster_store": "s3://memory",
            "cluster_node": name,
            "cluster_secret_file": str(self.folder / "secret"),
            "memory_bytes": 64 << 20,
            "drain_seconds": 1,
            "max_lag_ms": 0,
            **settings,
        }
        return NodeServer(Settings(**given), connect=lambda _: (self.bucket, coordinator))


async def world_of(shards: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """A cluster with several shards, which spread over new nodes without the pauses of a real one."""
    monkeypatch.setattr(shards_module, "SETTLED_SECONDS", 0.2)
    monkeypatch.setattr(shards_module, "_LOOK_SECONDS", 0.1)
    world = World(folder)
    await identity.create(world.bucket, shards)
    return world


@contextlib.asynccontextmanager
async def client(node: NodeServer) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{node.http_port}", timeout=20) as made:
        yield made
