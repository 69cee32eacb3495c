"""The gRPC API on a real engine and a real store, inside the process of the test, which can look into each."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import grpc

from support.waiting import until
from topics_proto.v1 import record_pb2, topics_service_pb2_grpc
from topics_proto.v1 import topics_service_pb2 as pb
from topics_service.api.access.authorizer import Authorizer
from topics_service.api.grpc.server import GrpcServer
from topics_service.api.scheduling.commit import GroupCommit
from topics_service.api.topics import TopicsApi
from topics_service.engine.clock import SystemClock
from topics_service.engine.engine import Engine
from topics_service.engine.limits import Limits
from topics_service.storage.rocks import RocksStore


class GatedStore(RocksStore):
    """Counts its fsyncs and holds them back while the gate is closed."""

    def __init__(self, path: Path) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.syncs = 0
        super().__init__(path)

    def sync(self) -> None:
        assert self.gate.wait(30), "the gate was not opened again"
        self.syncs += 1
        super().sync()


class GrpcService:
    """Store, engine, api and server, and a stub that talks to them over a socket."""

    def __init__(self, store: GatedStore, authorizer: Authorizer | None, limits: Limits | None) -> None:
        self.store = store
        self.engine = Engine(store, SystemClock(), limits=limits)
        self.commit = GroupCommit.for_engine(self.engine)
        self.api = TopicsApi(self.engine, self.commit)
        self.server = GrpcServer(self.api, host="127.0.0.1", port=0, authorizer=authorizer)
        self.address = ""
        self.stub: Any = None


@asynccontextmanager
async def open_service(
    path: Path, *, authorizer: Authorizer | None = None, limits: Limits | None = None
) -> AsyncIterator[GrpcService]:
    """A service on a new directory. At the end no task and no wait may be left behind."""
    before = asyncio.all_tasks()
    store = GatedStore(path)
    service = GrpcService(store, authorizer, limits)
    service.address = f"127.0.0.1:{await service.server.start()}"
    try:
        async with grpc.aio.insecure_channel(service.address) as channel:
            service.stub = topics_service_pb2_grpc.TopicsServiceStub(channel)
            yield service
    finally:
        store.gate.set()
        await service.server.stop(0)
        await until(lambda: not service.api._waiting)
        await asyncio.to_thread(service.commit.stop)
        store.close()
    await until(lambda: not {task for task in asyncio.all_tasks() - before if "topics_service" in repr(task)})


def column(*values: bytes | None) -> record_pb2.Column:
    """A column; None is absent."""
    absent = [i for i, value in enumerate(values) if value is None]
    return record_pb2.Column(value=[value or b"" for value in values], absent=absent)


def rows(frame: pb.BulkDiffResponse) -> list[record_pb2.Record]:
    """The records of a frame, one by one, as Diff would give them."""
    packed = frame.records
    count = sum(packed.run_count)
    datas = unpack(packed.data, 0) if packed.HasField("data") else [b""] * count
    seqs = [
        seq for first, n in zip(packed.run_first_seq, packed.run_count, strict=True) for seq in range(first, first + n)
    ]
    times = [ts for ts, n in zip(packed.time_ts_ms, packed.time_count, strict=True) for _ in range(n)]
    assert len(seqs) == len(times) == count
    assert (packed.kind == 0) == bool(packed.kinds) or not count
    kinds = packed.kinds or bytes([packed.kind]) * count
    records = []
    columns = [unpack(getattr(packed, name), count) if packed.HasField(name) else [None] * count for name in _TEXTS]
    for seq, ts, data, kind, tag, node, meta in zip(seqs, times, datas, kinds, *columns, strict=True):
        record = record_pb2.Record(seq=seq, ts_ms=ts, data=data, kind=kind, meta=meta or b"")
        if tag is not None:
            record.tag = tag.decode()
        if node is not None:
            record.node = node.decode()
        records.append(record)
    return records


_TEXTS = ("tag", "node", "meta")


def unpack(packed: record_pb2.PackedColumn, count: int) -> list[bytes | None]:
    """The values of a packed column of `count` records."""
    if not packed.offsets:
        assert not packed.absent
        return [packed.data] * count
    offsets = memoryview(packed.offsets).cast("I")
    assert offsets[0] == 0
    assert offsets[-1] == len(packed.data)
    values: list[bytes | None] = [packed.data[a:b] for a, b in pairwise(offsets)]
    for i in packed.absent:
        assert values[i] == b""
        values[i] = None
    return values
