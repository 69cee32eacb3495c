"""The gRPC streams: records per second, and loop time per record.

The client is this process; messages are encoded once and sent again and again, so that it takes little of the cores
it shares with the server. The inverse of the loop time is about the throughput of one free core.
"""

import asyncio
import json
import os
import time
from pathlib import Path
from typing import Any

import grpc

from bench.table import Row
from support.server import ServerProcess
from topics_proto.v1 import topics_service_pb2 as pb

_SERVICE = "/topics.v1.TopicsService/"
_BATCH = 1000
_SECONDS = 4.0
_TICK = os.sysconf("SC_CLK_TCK")
_TEXT = "lorem ipsum dolor sit amet consectetur"


def _request(topic: str, *, columns: bool, tags: bool, fsync: bool) -> bytes:
    """A batch of about 150 bytes of JSON a record, encoded."""
    request = pb.AppendRequest(topic=topic)
    for i in range(_BATCH):
        body = {"id": i, "user": f"user-{i % 97}", "url": "https://example.com/some/page", "n": i * 1.5, "text": _TEXT}
        data, tag = json.dumps(body).encode(), f"user-{i % 97}"
        if not columns:
            request.records.add(data=data, tag=tag if tags else None)
            continue
        request.columns.data.append(data)
        if tags:
            request.columns.tag.value.append(tag.encode())
    request.config.durable = fsync
    return pb.AppendStreamRequest(append=request).SerializeToString()


async def _append(channel: grpc.aio.Channel, message: bytes, seconds: float) -> int:
    call: Any = channel.stream_stream(
        f"{_SERVICE}AppendStream", response_deserializer=pb.AppendStreamResponse.FromString
    )()
    acked = 0

    async def read() -> None:
        nonlocal acked
        while (reply := await call.read()) is not grpc.aio.EOF:
            acked += sum(ack.appended.count for ack in reply.acks)

    reader, sent, stop = asyncio.create_task(read()), 0, time.perf_counter() + seconds
    while time.perf_counter() < stop:
        await call.write(message)
        sent += _BATCH
    await call.done_writing()
    await reader
    assert acked == sent, "every batch is acknowledged"
    return acked


async def _bulk(channel: grpc.aio.Channel, topic: str, seconds: float, **fields: Any) -> int:
    message, records, stop = (
        pb.BulkDiffRequest(topic=topic, **fields).SerializeToString(),
        0,
        time.perf_counter() + seconds,
    )
    call = channel.unary_stream(f"{_SERVICE}BulkDiff", response_deserializer=pb.BulkDiffResponse.FromString)
    while time.perf_counter() < stop:
        cursor = 0
        async for frame in call(message):
            records += frame.next_from_seq - cursor  # nothing was deleted
            cursor = frame.next_from_seq
    return records


def _loop_seconds(pid: int) -> float:
    """Processor seconds of the process's main thread, where the event loop runs."""
    fields = Path(f"/proc/{pid}/task/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICK


async def _measure(server: ServerProcess) -> list[Row]:
    writes = {
        "columns, tagged": (_request("tagged", columns=True, tags=True, fsync=False), "1 M rec/s"),
        "columns, untagged": (_request("plain", columns=True, tags=False, fsync=False), "1 M rec/s"),
        "columns, tagged, fsync class": (_request("synced", columns=True, tags=True, fsync=True), ""),
        "rows, tagged": (_request("rows", columns=False, tags=True, fsync=False), "450 k rec/s"),
    }
    rows = []
    async with grpc.aio.insecure_channel(server.grpc_target) as channel:
        cases = [
            (f"gRPC AppendStream, {name}", bar, _append(channel, message, _SECONDS))
            for name, (message, bar) in writes.items()
        ]
        cases += [
            (
                f"gRPC BulkDiff{', Arrow' if form == pb.BULK_FORMAT_ARROW else ''}{', with tags' if tags else ''}",
                "2 M rec/s",
                _bulk(channel, "tagged", _SECONDS, include_tags=tags, frame_bytes=1 << 20, format=form),
            )
            for form in (pb.BULK_FORMAT_COLUMNS, pb.BULK_FORMAT_ARROW)
            for tags in (False, True)
        ]
        for name, bar, case in cases:
            loop_before, started = _loop_seconds(server.pid), time.perf_counter()
            records = await case
            took, loop = time.perf_counter() - started, (_loop_seconds(server.pid) - loop_before) / records
            note = f"{loop * 1e6:.2f} us of the server's loop per record; Python client on the same cores"
            rows.append(Row(name, records / took, "rec/s", bar, note=note))
    return rows


def run(directory: Path) -> list[Row]:
    """Every row of the gRPC streams."""
    with ServerProcess(directory / "topics") as server:
        return asyncio.run(_measure(server))
