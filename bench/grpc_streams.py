"""The gRPC streams against a server process of their own: records a second, and what each costs the server.

    .venv/bin/python -m bench.grpc_streams [seconds per line]

The client is this process; messages are encoded once and sent again and again, so that it takes little of the cores
it shares with the server. "server us" is processor time of the whole server process, storage threads included;
"loop us" that of its main thread, whose inverse is what one core can do.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import grpc

from topics.v1 import topics_service_pb2 as pb

_SERVICE = "/topics.v1.TopicsService/"
_BATCH = 1000
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
        async for frame in call(message):
            records += len(frame.records.data.offsets) // 4 - 1
    return records


def _used(pid: int) -> tuple[float, float]:
    """Processor seconds of the process and of its main thread."""
    used = []
    for stat in (f"/proc/{pid}/stat", f"/proc/{pid}/task/{pid}/stat"):
        fields = Path(stat).read_text().rpartition(")")[2].split()
        used.append((int(fields[11]) + int(fields[12])) / _TICK)
    return used[0], used[1]


async def _measure(target: str, pid: int, seconds: float) -> None:
    writes = {
        "columns, tags": _request("tagged", columns=True, tags=True, fsync=False),
        "columns": _request("plain", columns=True, tags=False, fsync=False),
        "columns, tags, fsync": _request("synced", columns=True, tags=True, fsync=True),
        "rows, tags": _request("rows", columns=False, tags=True, fsync=False),
    }
    print(f"{'':32}{'k rec/s':>10}{'server us':>11}{'loop us':>10}")
    async with grpc.aio.insecure_channel(target) as channel:
        cases = [(f"AppendStream {name}", _append(channel, message, seconds)) for name, message in writes.items()]
        for tags in (False, True):
            name = "BulkDiff" + (", tags" if tags else "")
            cases.append((name, _bulk(channel, "tagged", seconds, include_tags=tags, frame_bytes=1 << 20)))
        for name, case in cases:
            (before, loop_before), started = _used(pid), time.perf_counter()
            records = await case
            took, (after, loop_after) = time.perf_counter() - started, _used(pid)
            server, loop = (after - before) / records * 1e6, (loop_after - loop_before) / records * 1e6
            print(f"{name:32}{records / took / 1e3:10.0f}{server:11.2f}{loop:10.2f}")


def main() -> None:
    """Start a server, measure, stop it."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 5.0
    with tempfile.TemporaryDirectory() as work:
        port_file = Path(work) / "grpc"
        env = os.environ | {
            "TOPICS_PORT": "0",
            "TOPICS_GRPC_PORT": "0",
            "TOPICS_GRPC_PORT_FILE": str(port_file),
            "TOPICS_DATA_DIR": f"{work}/data",
            "TOPICS_LOG_LEVEL": "warning",
        }
        server = subprocess.Popen([Path(sys.executable).parent / "topics", "serve"], env=env)
        try:
            deadline = time.monotonic() + 30
            while not port_file.exists():
                assert server.poll() is None, "the server did not start"
                assert time.monotonic() < deadline, "the server did not start in time"
                time.sleep(0.05)
            print(f"{os.cpu_count()} cores shared by server and client; load average {os.getloadavg()[0]:.1f}")
            asyncio.run(_measure(port_file.read_text(), server.pid, seconds))
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(30)


if __name__ == "__main__":
    main()
