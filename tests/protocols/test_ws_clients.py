"""WebSocket clients that do not read, leave, or are there when the server stops."""

import contextlib
import json
import os
import time
from collections.abc import Callable
from typing import Any

from support.http import Api
from support.server import ServerProcess
from support.waiting import poll
from support.ws import CLOSE, TEXT, WebSocket, frame


def test_a_client_that_does_not_read_is_served(server: ServerProcess, api: Api, connect: Any) -> None:
    """Its publishes are executed while frames for it wait; later it gets everything, in order and once."""
    big, topic = api.make(), api.make()
    for _ in range(16):
        api.append(big, *["x" * 500_000] * 2)
    ws = connect(server.base, buffer=4096)
    ws.send({"op": "subscribe", "topic": big})
    for i in range(100):
        ws.send({"op": "publish", "request_id": i, "topic": topic, "records": [{"data": i}]})
    poll(lambda: api.state(topic)["head_seq"] == 100, what="the publishes of a client that does not read")
    acks, seqs = [], []
    while len(acks) < 100 or len(seqs) < 32:
        message = ws.recv()
        if message["op"] == "ack":
            acks.append(message["request_id"])
        elif message["op"] == "record":
            seqs += [r["$seq"] for r in message["records"]]
    assert acks == list(range(100))
    assert seqs == list(range(1, 33))


def test_commands_of_a_client_that_never_reads_are_bounded(start: Callable[..., ServerProcess], connect: Any) -> None:
    server = start()
    with Api(server.base) as api:
        topic = api.make()
        ws = connect(server.base, buffer=4096)
        ws.sock.settimeout(1)
        message = frame(TEXT, json.dumps({"op": "ping", "request_id": "x" * 900}).encode()) * 100
        sent = 0
        with contextlib.suppress(TimeoutError):
            while sent < 180 << 20:
                ws.sock.sendall(message)
                sent += len(message)
        assert sent < 40 << 20  # what fits into sockets, and 1 MiB of replies
        assert _memory(server.pid) < 400 << 20
        api.append(topic, 1)  # no effect on others


def test_idle_sockets_keep_nothing_of_their_last_message(start: Callable[..., ServerProcess], connect: Any) -> None:
    server = start()
    before = _memory(server.pid)
    message = frame(TEXT, json.dumps({"op": "ping", "request_id": "x" * 1_900_000}).encode())
    for _ in range(100):
        ws = connect(server.base)
        ws.write(message)
        assert len(ws.recv()["request_id"]) == 1_900_000
        ws.texts.clear()
    assert _memory(server.pid) - before < 100 << 20


def test_it_ends_with_the_server(start: Callable[..., ServerProcess], connect: Any) -> None:
    server = start()
    with Api(server.base) as api:
        topic = api.make(durability="fsync")
        for _ in range(8):
            api.append(topic, "x" * 900_000)
        idle, following, stuck = (connect(server.base, **kw) for kw in ({}, {}, {"buffer": 4096}))
        following.subscribe(topic=topic, tail=True)
        stuck.send({"op": "subscribe", "topic": topic})
        for i in range(20):
            following.send({"op": "publish", "request_id": i, "topic": topic, "records": [{"data": i}]})
        assert [following.wait("ack")["request_id"] for _ in range(20)] == list(range(20))
    started = time.monotonic()
    assert server.stop() == 0
    assert time.monotonic() - started < 9  # although one does not read
    for ws in (idle, following):
        last = ws.wait("error")
        assert list(last) == ["op", "request_id", "code", "message"]
        assert (last["request_id"], last["code"]) == (None, "server_shutting_down")
        assert ws.closed() == (1012, "the server is shutting down")


def test_nothing_is_left_of_2000_sockets(start: Callable[..., ServerProcess]) -> None:
    server = start()
    with Api(server.base) as api:
        topic = api.make()
        api.append(topic, "x" * 100_000)
        WebSocket(server.base).close()

        def left() -> tuple[int, int]:
            text = api.send("GET", "/v0/metrics").text
            return tuple(int(float(line.split()[1])) for line in text.splitlines() if line.startswith(LEFT))

        poll(lambda: left() == (0, 0))
        files = _files(server.pid)
        for i in range(2000):
            ws = WebSocket(server.base, buffer=4096 if i % 5 == 4 else 0)
            if i % 5:
                ws.send({"op": "subscribe", "topics": {topic: {}, "*": {}}})
            if i % 5 == 2:
                ws.send({"op": "publish", "topic": topic, "records": [{"data": 1}]})
            if i % 5 == 3:
                ws.write(frame(CLOSE, b"\x03\xe8"))
            ws.close()
        poll(lambda: left() == (0, 0), 20, "slots and streams")
        poll(lambda: _files(server.pid) <= files + 5, 20, "files")


LEFT = ("topics_sse_connections ", "topics_watch_streams ")


def _files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def _memory(pid: int) -> int:
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * 4096
