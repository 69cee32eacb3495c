"""Calls to a shard of another process: their cost over the call itself, beside a unary call of gRPC.

Both ends are in this process, so that the CPU time of a call is that of both.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

import grpc
import uvloop

from bench.table import Row
from topics_proto.v1 import topics_service_pb2 as pb
from topics_server.server import Server
from topics_server.settings import Settings
from topics_service.api.access.auth import UNRESTRICTED
from topics_service.api.request_context import begin
from topics_service.api.topics import TopicsApi
from topics_service.engine.model import AppendRequest, Batch, DiffRequest
from topics_shards.remote import RemoteShards, remote_methods
from topics_shards.shards import Shard
from topics_shards.wire.client import Channel
from topics_shards.wire.server import ShardServer, unix

_RECORD = (
    b'{"id":123456,"user":"user-12","url":"https://example.com/some/page","n":1.5,"text":"lorem ipsum dolor sit amet'
)
_RECORD += b' consectetur adipiscing elit sed do"}'
_ROUNDS = 5

Call = Callable[[], Awaitable[object]]


class Cost(NamedTuple):
    """Microseconds of CPU for a call, and until it has its answer (p50)."""

    cpu: float
    p50: float


class _Case(NamedTuple):
    """Calls of one kind: so many in all, so many at a time."""

    name: str
    count: int
    at_a_time: int
    call: Callable[[RemoteShards], Awaitable[object]]
    message: tuple[str, bytes]


async def measure(call: Call, count: int, at_a_time: int) -> Cost:
    took: list[float] = []

    async def caller() -> None:
        begin(None, ("127.0.0.1", 1234))
        for _ in range(count // at_a_time):
            began = time.perf_counter()
            await call()
            took.append(time.perf_counter() - began)

    cpu = time.process_time()
    async with asyncio.TaskGroup() as group:
        for _ in range(at_a_time):
            group.create_task(caller())
    cpu = time.process_time() - cpu
    return Cost(cpu / len(took) * 1e6, sorted(took)[len(took) // 2] * 1e6)


def _cases() -> list[_Case]:
    def append(count: int) -> AppendRequest:
        return AppendRequest(topic=f"bench-{count}", batch=Batch([b"%d%b" % (i, _RECORD[1:]) for i in range(count)]))

    def message(count: int) -> tuple[str, bytes]:
        request = pb.AppendRequest(topic=f"bench-{count}")
        request.columns.data.extend([_RECORD] * count)
        return "Append", request.SerializeToString()

    page = DiffRequest(topic="bench-1000", from_seq=100, limit=100)
    pages = pb.DiffRequest(topic="bench-1000", from_seq=100, limit=100).SerializeToString()
    return [
        _Case("append of 1 record, 64 at a time", 16_000, 64,
              lambda shards: shards.call(1, TopicsApi.append, append(1), principal=UNRESTRICTED), message(1)),
        _Case("append of 1 record, one at a time", 3_000, 1,
              lambda shards: shards.call(1, TopicsApi.append, append(1), principal=UNRESTRICTED), message(1)),
        _Case("append of 1000 records, 4 at a time", 400, 4,
              lambda shards: shards.call(1, TopicsApi.append, append(1000), principal=UNRESTRICTED), message(1000)),
        _Case("page of 100 records of a block of 1000, 16 at a time", 4_000, 16,
              lambda shards: shards.call(1, TopicsApi.diff, page), ("Diff", pages)),
    ]  # fmt: skip


async def _rows(directory: Path) -> list[Row]:
    rows: list[Row] = []
    settings = Settings(data_dir=str(directory / "data"), port=0, grpc_port=0, drain_seconds=1)
    methods = remote_methods()
    async with (
        Server(settings) as server,
        grpc.aio.insecure_channel(f"127.0.0.1:{server.grpc_port}") as grpc_channel,
    ):
        shard = Shard(server.api)
        listening = ShardServer({1: shard}, methods)
        await listening.listen(directory / "socket")
        channel = Channel(unix(directory / "socket"), "shard", "bench")
        near, far = RemoteShards(2, {1: shard}, {}, methods), RemoteShards(2, {}, {1: channel}, methods)
        for case in _cases():
            name, body = case.message
            unary = grpc_channel.unary_unary(f"/topics.v1.TopicsService/{name}")
            calls: dict[str, Call] = {
                "direct": lambda case=case: case.call(near),  # type: ignore[misc]
                "forwarded": lambda case=case: case.call(far),  # type: ignore[misc]
                "gRPC": lambda unary=unary, body=body: unary(body),  # type: ignore[misc]
            }
            best: dict[str, Cost] = {}
            for _ in range(_ROUNDS):
                for kind, call in calls.items():
                    found = await measure(call, case.count if kind != "gRPC" else case.count // 4, case.at_a_time)
                    best[kind] = Cost(*map(min, found, best.get(kind, found)))
            direct, forwarded, unary_cost = best["direct"], best["forwarded"], best["gRPC"]
            note = (
                f"direct {direct.cpu:.0f} us, so {forwarded.cpu - direct.cpu:.0f} us for the way, of a gRPC call's"
                f" {unary_cost.cpu - direct.cpu:.0f}; p50 {forwarded.p50 - direct.p50:+.0f} us over direct"
            )
            rows.append(
                Row(f"forwarded {case.name}", forwarded.cpu, "us of CPU", "2 ms p50 over direct", unary_cost.cpu,
                    "by gRPC unary", note)
            )  # fmt: skip
        channel.close()
        await listening.drain(1)
        await listening.close()
    return rows


def run(directory: Path) -> list[Row]:
    """Measure, and return the rows."""
    directory.chmod(0o700)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_rows(directory))
