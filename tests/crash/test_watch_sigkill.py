"""SIGKILL under watchers that keep their place themselves: what all their streams together gave is what `diff` gives.

Sessions die with the process, so after it a client of server-sent events makes a new one of its last id, and one of
gRPC calls Watch with its cursor map. Nothing may be lost, and nothing come twice but a frame that was not dealt with.
"""

import asyncio
import json
import os
import random
import time
from collections.abc import Callable
from typing import Any

import grpc
import httpx
import pytest

from support.http import Api, ok, path
from support.log_model import Lost
from support.server import ServerProcess
from support.watch_oracle import Frame, Records, Tombstone
from support.watch_wire import SseConnection, event_id, grpc_frame
from topics_proto.v1 import topics_service_pb2, topics_service_pb2_grpc, watch_service_pb2_grpc
from topics_proto.v1 import watch_service_pb2 as pb

KILLS = 2
SECONDS = 30.0
SOAK_SECONDS = float(os.environ.get("TOPICS_SOAK_SECONDS", "0"))
CONFIGS: dict[str, dict[str, Any]] = {
    "fsync-a": {"durability": "fsync"},
    "fsync-b": {"durability": "fsync", "cap_records": 40},
    "disk-a": {"durability": "disk"},
    "disk-b": {"durability": "disk"},
    "disk-c": {"durability": "disk", "cap_records": 60},
}


class Told:
    """What one topic gave a watcher, over all of its streams."""

    def __init__(self) -> None:
        self.records: dict[int, bytes] = {}
        self.lost: list[Lost] = []

    def take(self, name: str, cursor: int, frame: Frame) -> None:
        if isinstance(frame, Tombstone):
            assert frame.lost.first == cursor + 1, f"{name}: {frame.lost} at {cursor}"
            assert frame.lost.reason in ("cap", "from_seq_too_old"), f"{name}: {frame.lost}"
            self.lost.append(frame.lost)
        elif isinstance(frame, Records):
            seqs = [rec.seq for rec in frame.records]
            assert seqs == list(range(cursor + 1, frame.to_seq + 1)), f"{name}: {seqs} at {cursor}"
            for rec in frame.records:
                assert rec.seq not in self.records, f"{name}: {rec.seq} twice"
                self.records[rec.seq] = rec.data

    def forget(self, frame: Frame) -> None:
        """The frame was not dealt with."""
        if isinstance(frame, Tombstone):
            self.lost.pop()
        elif isinstance(frame, Records):
            for rec in frame.records:
                del self.records[rec.seq]


class Watcher:
    """Follows all topics, stream after stream. It may break off before it has dealt with the newest frame."""

    def __init__(self, seed: int, *, strong: bool) -> None:
        self.rng = random.Random(seed)
        self.strong = strong
        self.cursors = dict.fromkeys(CONFIGS, 0)
        self.told = {name: Told() for name in CONFIGS}
        self.streams = self.frames = 0
        self._undo: tuple[str, Frame, dict[str, int]] | None = None

    def take(self, name: str, frame: Frame, cursors: dict[str, int]) -> None:
        self.told[name].take(name, self.cursors[name], frame)
        self._undo = name, frame, self.cursors
        self.cursors = cursors
        self.frames += 1

    def broken_off(self) -> None:
        """The stream is over; sometimes with a frame that was read and not dealt with."""
        if self._undo is not None and self.rng.random() < 0.5:
            name, frame, self.cursors = self._undo
            self.told[name].forget(frame)
        self._undo = None

    def is_at(self, heads: dict[str, int]) -> bool:
        return self.cursors == heads

    async def run(self, server: ServerProcess) -> None:
        """Follow until the server is gone. It is cancelled at random before that too, and goes on."""
        while True:
            self.streams += 1
            try:
                async with asyncio.timeout(self.rng.choice((0.05, 0.3, 60))):
                    await self.follow(server)
            except TimeoutError:
                self.broken_off()
                continue
            except (OSError, EOFError):
                self.broken_off()
                return
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise
                self.broken_off()
                return

    async def follow(self, server: ServerProcess) -> None:
        raise NotImplementedError


class SseWatcher(Watcher):
    """Makes a session of its last id for each stream."""

    async def follow(self, server: ServerProcess) -> None:
        body = {
            "topics": {name: {} for name in CONFIGS}, "cursor": event_id(self.cursors), "limit": 7,
            "consistency": "strong" if self.strong else "eventual",
        }  # fmt: skip
        async with httpx.AsyncClient(base_url=server.base, trust_env=False, verify=False) as client:
            try:
                reply = (await client.post("/v0/watch", json=body)).json()
            except httpx.TransportError as error:
                raise EOFError from error
        connection = SseConnection(server.http_port)
        try:
            await connection.open(reply["stream_url"], {})
            async for piece in connection.pieces():
                for name, frame, cursors in piece:
                    assert frame is not None
                    self.take(name, frame, cursors)
        finally:
            connection.close()
        raise EOFError


class GrpcWatcher(Watcher):
    """Calls Watch with its cursor map."""

    async def follow(self, server: ServerProcess) -> None:
        level = pb.WATCH_CONSISTENCY_STRONG if self.strong else pb.WATCH_CONSISTENCY_EVENTUAL
        subscription = pb.WatchSubscription(
            topics=dict.fromkeys(CONFIGS, pb.WatchTopic()), cursor=self.cursors, limit=7, consistency=level
        )
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(server.grpc_target, options) as channel:
            stub: Any = watch_service_pb2_grpc.WatchServiceStub(channel)
            async for response in stub.Watch(pb.WatchRequest(subscription=subscription)):
                frame = response.frame
                kind = frame.WhichOneof("kind")
                if kind == "subscribed":
                    assert dict(frame.cursor) == self.cursors
                else:
                    told = getattr(frame, kind)
                    self.take(told.topic, grpc_frame(kind, told), self.cursors | dict(frame.cursor))
        raise EOFError


class Writer:
    """Appends to all topics over one protocol until the server is gone; `acked` is what was acknowledged, by topic."""

    def __init__(self, number: int) -> None:
        self.rng = random.Random(f"writer {number}")
        self.number = number
        self.acked: dict[str, dict[int, bytes]] = {name: {} for name in CONFIGS}
        self.count = 0

    async def run(self, server: ServerProcess) -> None:
        async with (
            grpc.aio.insecure_channel(server.grpc_target, [("grpc.use_local_subchannel_pool", 1)]) as channel,
            httpx.AsyncClient(base_url=server.base, trust_env=False, verify=False) as client,
        ):
            stub: Any = topics_service_pb2_grpc.TopicsServiceStub(channel)
            while True:
                name = self.rng.choice(list(CONFIGS))
                datas = [self.data() for _ in range(self.rng.choice((1, 1, 2, 9)))]
                try:
                    if self.number % 2:
                        text = ",".join(f'{{"data":{data.decode()}}}' for data in datas)
                        first = (await client.post(path(name), content=f'{{"records":[{text}]}}', headers=JSON)).json()[
                            "first_seq"
                        ]
                    else:
                        request = topics_service_pb2.AppendRequest(topic=name)
                        for data in datas:
                            request.records.add(data=data)
                        first = (await stub.Append(request)).first_seq
                except (httpx.TransportError, grpc.RpcError):
                    return
                self.acked[name].update(enumerate(datas, first))

    def data(self) -> bytes:
        self.count += 1
        return b'{"writer":%d,"n": %d}' % (self.number, self.count)

    @property
    def acks(self) -> int:
        return sum(map(len, self.acked.values()))


JSON = {"content-type": "application/json"}


async def kill_and_compare(server: ServerProcess, seed: int, until: Callable[[int], bool]) -> int:
    """Load, kill and start again as long as `until(kills)` says no, then compare; returns the kills."""
    rng = random.Random(seed)
    watchers = [
        SseWatcher(rng.randrange(1 << 30), strong=False), SseWatcher(rng.randrange(1 << 30), strong=True),
        GrpcWatcher(rng.randrange(1 << 30), strong=False), GrpcWatcher(rng.randrange(1 << 30), strong=True),
    ]  # fmt: skip
    writers = [Writer(i) for i in range(4)]
    await asyncio.to_thread(server.start)
    with Api(server.base) as api:
        for name, config in CONFIGS.items():
            ok(api.put(name, **config), 201)
    kills = 0
    while not until(kills):
        old = await a_session(server)
        tasks = [asyncio.create_task(each.run(server)) for each in (*watchers, *writers)]
        wanted = sum(writer.acks for writer in writers) + rng.randint(150, 1000)
        await until_true(lambda wanted=wanted: sum(writer.acks for writer in writers) >= wanted, tasks)
        server.kill()
        await asyncio.gather(*tasks)
        kills += 1
        await asyncio.to_thread(server.start)
        async with httpx.AsyncClient(base_url=server.base, trust_env=False, verify=False) as client:
            assert (await client.get(old)).status_code == 404, "sessions are in memory only"
    with Api(server.base) as api:
        heads = {name: api.state(name)["head_seq"] for name in CONFIGS}
        tasks = [asyncio.create_task(watcher.run(server)) for watcher in watchers]
        for watcher in watchers:
            await until_true(lambda watcher=watcher: watcher.is_at(heads), tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for name, head in heads.items():
            compare(api, name, head, watchers, writers)
    assert all(watcher.streams > kills for watcher in watchers)
    return kills


async def a_session(server: ServerProcess) -> str:
    async with httpx.AsyncClient(base_url=server.base, trust_env=False, verify=False) as client:
        return str((await client.post("/v0/watch", json={"topics": {"disk-a": {}}})).json()["stream_url"])


def compare(api: Api, name: str, head: int, watchers: list[Watcher], writers: list[Writer]) -> None:
    """Each watcher knows of each seq: its record, which is the one that `diff` gives, or that it was lost."""
    live = {record["$seq"]: record["data"] for record in api.read_all(name)}
    acked = {seq: data for writer in writers for seq, data in writer.acked[name].items()}
    for watcher in watchers:
        told = watcher.told[name]
        lost = {seq for gap in told.lost for seq in range(gap.first, gap.last + 1)}
        about = f"{name} of {type(watcher).__name__} strong={watcher.strong}"
        assert lost.isdisjoint(told.records), about
        assert lost | told.records.keys() == set(range(1, head + 1)), about
        assert {seq: json.loads(told.records[seq]) for seq in live if seq not in lost} == {
            seq: data for seq, data in live.items() if seq not in lost
        }, about
        assert not lost & live.keys(), about
        for seq, data in acked.items():
            assert told.records.get(seq, data) == data, f"{about}: {seq}"
        if "cap_records" not in CONFIGS[name]:
            assert not lost, about
            assert acked.items() <= told.records.items(), about


async def until_true(condition: Callable[[], bool], tasks: "list[asyncio.Task[None]]") -> None:
    end = time.monotonic() + SECONDS
    while not condition():
        for task in tasks:
            if task.done():
                await task
        assert time.monotonic() < end, "not in time"
        await asyncio.sleep(0.005)


@pytest.mark.timeout(120)
async def test_watchers_resume_after_a_sigkill(make_server: Callable[..., ServerProcess]) -> None:
    assert await kill_and_compare(make_server(), 1, lambda kills: kills == KILLS) == KILLS


@pytest.mark.soak
@pytest.mark.skipif(not SOAK_SECONDS, reason="TOPICS_SOAK_SECONDS says for how long")
@pytest.mark.timeout(0)
async def test_watchers_resume_after_many_sigkills(make_server: Callable[..., ServerProcess]) -> None:
    end = time.monotonic() + SOAK_SECONDS
    seed = int(os.environ.get("TOPICS_SOAK_SEED", time.time_ns() % 100_000))
    kills = await kill_and_compare(make_server(), seed, lambda _: time.monotonic() > end)
    print(f"{kills} kills with TOPICS_SOAK_SEED={seed}")
