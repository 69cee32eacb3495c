"""Hostile input to a real server: it costs bounded memory, ends its connection, and has no effect on others."""

import gzip
import json
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import httpx
import pytest
from hpack import Encoder
from protocols.conftest import with_key
from security.held import bearer

from support.http import JSON, Api, Wire, ok, path, refused, request
from support.http2 import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    HEADERS,
    PING,
    PRIORITY,
    RST,
    SETTINGS,
    WINDOW_UPDATE,
    Http2,
    h2frame,
    head,
)
from support.server import ServerProcess
from support.waiting import poll
from support.ws import WebSocket
from topics_server.keys import from_text

MIB = 1 << 20
CONNECTIONS = 150


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    env = {
        "TOPICS_API_KEYS": "k",
        "TOPICS_MAX_BODY_BYTES": MIB,
        "TOPICS_HEADER_TIMEOUT_SECONDS": 2,
        "TOPICS_MAX_CONNECTIONS": CONNECTIONS,
        "TOPICS_GRPC_MAX_CONNECTIONS": CONNECTIONS,
    }
    with ServerProcess(tmp_path_factory.mktemp("hostile"), env=env) as server:
        with with_key(server.base, "k") as api:  # whatever the first calls take is not the attack's
            ok(api.put("t"), 201)
            ok(api.write("t", [{"data": "x" * 1000} for _ in range(500)]))
        flood_with_resets(server)  # nor is what gRPC's core keeps for as many calls as it has had at a time
        yield server
        assert server.stop() == 0
        assert " ERROR " not in server.log
        assert "Traceback" not in server.log


# Channels of one process with the same options share a connection, and would share what befalls the attacker's.
OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1)]


@pytest.fixture
def server(running: ServerProcess, request: pytest.FixtureRequest) -> Iterator[ServerProcess]:
    """The server; while the test lasts it works little before it answers another client, and takes little memory."""
    before, slowest, ended = rss(running), [0.0], threading.Event()

    def ask() -> None:
        started: float | None = None
        while not ended.wait(0.02):
            started = running.cpu_seconds() if started is None else started
            if is_answered(running):
                slowest[0], started = max(slowest[0], running.cpu_seconds() - started), None

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield running
    finally:
        ended.set()
        thread.join(25)
    assert slowest[0] < 3, slowest  # of its own time: others use the machine too
    assert rss(running) - before < getattr(request, "param", 48 * MIB)
    with with_key(running.base, "k") as api:
        ok(api.state("t") and api.get("t"))


def rss(server: ServerProcess) -> int:
    """Bytes of memory that the process holds."""
    return int(Path(f"/proc/{server.pid}/statm").read_text().split()[1]) * 4096


# ---------------------------------------------------------------------- HTTP/2


@pytest.mark.parametrize(
    "frame",
    [
        h2frame(PING, data=b"12345678"),
        h2frame(SETTINGS, data=struct.pack("!HI", 4, 65535)),
        h2frame(PRIORITY, stream=1, data=b"\0\0\0\0\x10"),
        h2frame(0xEE, data=b"x" * 8),
        pytest.param(h2frame(DATA, stream=1), id="empty data"),
    ],
    ids=lambda frame: f"type {frame[3]}" if isinstance(frame, bytes) else None,
)
def test_http2_frames_that_ask_for_work_only(server: ServerProcess, frame: bytes) -> None:
    """CVE-2019-9512, 9515, 9518 and their like, by a client without a key."""
    with Http2(server.http_port) as attack:
        attack.send(head(1) + frame * 500)
        attack.send(frame * 1000, 20)
        assert attack.goaway() == ENHANCE_YOUR_CALM


def test_http2_rapid_reset(server: ServerProcess) -> None:
    """CVE-2023-44487."""
    with Http2(server.http_port) as attack:
        pairs = [head(n) + h2frame(RST, stream=n, data=b"\0\0\0\x08") for n in range(1, 10_001, 2)]
        attack.send(b"".join(pairs))
        assert attack.goaway() == ENHANCE_YOUR_CALM


@pytest.mark.parametrize(
    "again",
    {
        "a window that overflows": lambda n: head(n) + h2frame(WINDOW_UPDATE, stream=n, data=b"\x7f\xff\xff\xff"),
        "data behind the end": lambda n: head(n, END_HEADERS | END_STREAM) + h2frame(DATA, stream=n, data=b"x"),
        "a reset stream": lambda n: (
            (head(n) + h2frame(RST, stream=n, data=bytes(4)) if n == 1 else b"") + h2frame(DATA, stream=1, data=b"x")
        ),
        "windows of a reset stream": lambda n: (
            (head(n) + h2frame(RST, stream=n, data=bytes(4)) if n == 1 else b"")
            + h2frame(WINDOW_UPDATE, stream=1, data=b"\0\0\0\1")
        ),
        "resets of a reset stream": lambda n: (head(n) if n == 1 else b"") + h2frame(RST, stream=1, data=bytes(4)),
        "a window by the byte": lambda n: (head(n) if n == 1 else b"") + h2frame(WINDOW_UPDATE, data=b"\0\0\0\1"),
        "heads that are none": lambda n: h2frame(HEADERS, END_HEADERS | END_STREAM, n, b"\x82"),
    }.items(),
    ids=lambda case: case[0].replace(" ", "-"),
)
def test_http2_made_you_reset(server: ServerProcess, again: tuple[str, Callable[[int], bytes]]) -> None:
    """CVE-2025-8671, and frames without an event of h2: a request each, or an ended stream."""
    with Http2(server.http_port) as attack:
        attack.send(b"".join(again[1](n) for n in range(1, 20_001, 2)))
        assert attack.goaway() == ENHANCE_YOUR_CALM
        assert sum(kind == RST for kind, _, _ in attack.frames()) < 3000


@pytest.mark.parametrize(
    "again",
    {
        "no window": lambda n: head(n) + h2frame(WINDOW_UPDATE, stream=n, data=bytes(4)),
        "a head behind the end": lambda n: head(n, END_HEADERS | END_STREAM) + head(n),
        "a priority over itself": lambda n: head(n) + h2frame(PRIORITY, stream=n, data=struct.pack("!IB", n, 1)),
        "another length": lambda n: head(n, **{"content-length": "1"}) + h2frame(DATA, END_STREAM, n, b"xx"),
        "half a priority": lambda n: head(n) + h2frame(PRIORITY, stream=n, data=bytes(3)),
        "continuations of nothing": lambda n: head(n, 0) + h2frame(CONTINUATION, stream=n) * 100,
    }.items(),
    ids=lambda case: case[0].replace(" ", "-"),
)
def test_http2_violations_end_the_connection(server: ServerProcess, again: tuple[str, Callable[[int], bytes]]) -> None:
    """The first one."""
    with Http2(server.http_port) as attack:
        attack.send(b"".join(again[1](n) for n in range(1, 2001, 2)))
        assert attack.goaway() not in (None, 0)
        assert sum(kind == RST for kind, _, _ in attack.frames()) < 1100  # streams that were refused behind


def test_http2_headers_without_an_end(server: ServerProcess) -> None:
    """CVE-2024-27316: CONTINUATION frames, one after the other."""
    with Http2(server.http_port) as attack:
        attack.send(head(1, flags=0))
        attack.send(h2frame(CONTINUATION, stream=1, data=b"\0\x01a" + b"\x7f\x81\x7e" + b"x" * 16256), 500)
        assert attack.goaway() not in (None, 0)


def test_http2_headers_that_grow_when_unpacked(server: ServerProcess) -> None:
    """A field of 4000 bytes, named 15,000 times by one byte each: 60 MB of headers in 15 KB."""
    with Http2(server.http_port) as attack:
        encoder = Encoder()
        block = encoder.encode(
            [(":method", "GET"), (":path", "/"), (":scheme", "http"), ("a", "x" * 4000)], huffman=False
        )
        attack.send(h2frame(HEADERS, END_HEADERS | END_STREAM, 1, block + b"\xbe" * 15_000))
        assert attack.goaway() == ENHANCE_YOUR_CALM


# ------------------------------------------------------------------------ gRPC


def flood_with_resets(server: ServerProcess) -> None:
    """Begin ten thousand calls, and reset each at once."""
    with Http2(int(server.grpc_target.rpartition(":")[2])) as attack:
        fields = {"content-type": "application/grpc", "te": "trailers"}
        pairs = [head(n, **fields) + h2frame(RST, stream=n, data=b"\0\0\0\x08") for n in range(1, 20_001, 2)]
        attack.send(b"".join(pairs) + h2frame(PING, data=b"all read"))
        # Only once it has read them all, and answers a call that came behind them, is this over.
        poll(
            lambda: not attack.reading.is_alive() or any(kind == PING for kind, _, _ in attack.frames()),
            what="an answer",
        )
    poll(lambda: is_answered(server), what="an answer to another client")


def is_answered(server: ServerProcess) -> bool:
    """Return whether another client's call is answered: gRPC's core refuses some calls while a thousand wait."""
    with grpc.insecure_channel(server.grpc_target, options=OWN_CONNECTION) as channel:
        try:
            channel.unary_unary("/topics.v1.AdminService/GetReady")(b"", timeout=20)
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.CANCELLED:
                raise
            return False
        return True


@pytest.mark.parametrize(
    ("server", "kind"), [(48 * MIB, "ping"), (96 * MIB, "reset")], indirect=["server"], ids=["ping", "reset"]
)
def test_grpc_floods(server: ServerProcess, kind: str) -> None:
    """What gRPC's own core has against them."""
    if kind == "ping":
        with Http2(int(server.grpc_target.rpartition(":")[2])) as attack:
            attack.send(h2frame(PING, data=b"12345678") * 1000, 50)
            assert attack.goaway() == ENHANCE_YOUR_CALM
    else:
        flood_with_resets(server)


def test_grpc_metadata_is_bounded(server: ServerProcess) -> None:
    with grpc.insecure_channel(server.grpc_target) as channel:
        call = channel.unary_unary("/topics.v1.AdminService/GetReady")
        with pytest.raises(grpc.RpcError) as error:
            call(b"", metadata=[("x", "y" * (100 << 10))], timeout=30)
    assert error.value.code() in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE)


def test_grpc_messages_are_not_inflated_beyond_the_limit(server: ServerProcess) -> None:
    options = [("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(server.grpc_target, options=options, compression=grpc.Compression.Gzip) as channel:
        call = channel.unary_unary("/topics.v1.TopicsService/Append")
        for _ in range(3):
            with pytest.raises(grpc.RpcError) as error:
                call(bytes(100 * MIB), metadata=bearer("k"), timeout=20)
            assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


# ---------------------------------------------------------------------- HTTP/1


def test_slowloris(server: ServerProcess) -> None:
    """A hundred connections that send a byte of their head now and then: each has two seconds."""
    with ExitStack() as held:
        wires = [held.enter_context(Wire(server.http_port)) for _ in range(100)]
        for wire in wires:
            wire.send(b"GET /v0/topics HTTP/1.1\r\nhost: localhost\r\n")
        started = time.monotonic()
        while time.monotonic() - started < 1.5:
            for wire in wires:
                wire.send(b"a")
            time.sleep(0.1)
        for wire in wires:
            assert wire.reply() is None
        assert time.monotonic() - started < 10


def test_connections_are_bounded(server: ServerProcess) -> None:
    def asked() -> int:
        with Wire(server.http_port) as wire:
            try:
                reply = wire.send(request("GET", "/v0/ready")).reply()
            except (AssertionError, OSError):
                return 0
            return reply.status if reply is not None else 0

    with ExitStack() as held:
        for _ in range(CONNECTIONS):
            held.enter_context(Wire(server.http_port)).send(b"G")
        poll(lambda: asked() == 0, what="a refusal")
        assert "refusing connections: there are 150" in server.log
    poll(lambda: asked() == 200, 20, "room again")


def test_connections_of_grpc_are_bounded(running: ServerProcess) -> None:
    """Further ones are closed at once; the next one is taken as soon as there is room."""
    port = int(running.grpc_target.rpartition(":")[2])

    def taken() -> bool:
        with Wire(port) as wire:
            try:
                return bool(wire.socket.recv(1))  # of the server's settings
            except ConnectionResetError:
                return False

    with ExitStack() as held:
        for _ in range(CONNECTIONS):
            held.enter_context(Wire(port))
        poll(lambda: not taken(), 20, "a refusal")
    poll(taken, 20, "room again")


def test_heads_are_bounded(server: ServerProcess) -> None:
    with Wire(server.http_port) as wire:
        wire.send(b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 100_000)
        reply = wire.reply()
        assert reply is not None
        assert reply.status == 431


@pytest.mark.parametrize("key", ["k", None])
def test_gzip_bomb(server: ServerProcess, key: str | None) -> None:
    bomb = gzip.compress(bytes(400 * MIB), 9)
    assert len(bomb) < MIB
    with with_key(server.base, key) as api:
        reply = api.send("POST", path("t"), bomb, headers={"content-encoding": "gzip"})
        refused(reply, 413 if key else 401, "payload_too_large" if key else "unauthorized")


def test_deep_json(server: ServerProcess) -> None:
    deep = "[" * 300_000
    with with_key(server.base, "k") as api:
        for body in (f'{{"records":[{{"data":{deep}', f'{{"records":{deep}', deep, '{"a":' * 150_000):
            for target in (path("t"), path("t", "/diff"), "/v0/watch"):
                refused(api.send("POST", target, body), 400, "invalid_request")
    with WebSocket(server.base, key="k") as ws:
        for text in (f'{{"op":"publish","topic":"t","records":[{{"data":{deep}', deep):
            ws.send(text)
            assert ws.recv()["op"] == "error"


def test_many_members(server: ServerProcess) -> None:
    """Small bodies are read by Python: a million members would stop everybody for seconds."""
    elements = b"1," * 110_000 + b"1"
    with with_key(server.base, "k") as api:
        for target, body in (
            ("/v0/watch", b'{"topics":{"t":{}},"x":[' + elements + b"]}"),
            (path("t", "/diff"), b'{"from_seq":0,"node":[' + elements + b"]}"),
            (path("t"), b'{"records":[{"data":1}],"x":[' + elements + b"]}"),
        ):
            compressed = gzip.compress(body, 1)
            reply = api.send("POST", target, compressed, headers={"content-encoding": "gzip"})
            assert "members and elements" in refused(reply, 400, "invalid_request")["message"]
        data = [1] * 200_000  # of a record: they are not looked at
        ok(api.send("POST", path("t"), b'{ "records" : [ { "data" : %b } ] }' % json.dumps(data).encode()))


def test_without_a_key_a_body_is_not_kept(server: ServerProcess) -> None:
    def body() -> Iterator[bytes]:
        for _ in range(200):
            yield bytes(MIB)

    with Api(server.base) as api:
        try:
            reply = api.client.post(path("t"), content=body(), headers=JSON)
        except httpx.WriteError:  # the server has answered and closed
            return
        assert reply.status_code == 401


# ------------------------------------------------------------------------ keys


def test_every_key_is_compared_whoever_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the time reveals neither a similar key nor its similarity; `compare_digest` sees to each comparison."""
    keys = from_text(",".join(f"key-{n}" for n in range(20)))
    assert keys is not None
    seen: list[int] = []

    def counting(known: bytes, given: bytes) -> bool:
        seen.append(len(known))
        return known == given

    monkeypatch.setattr("topics_service.api.access.auth.compare_digest", counting)
    for asked in (b"key-0", b"key-19", b"key-", b"", b"x" * 1000):
        seen.clear()
        assert (keys.find(asked) is not None) is (asked in (b"key-0", b"key-19"))
        assert seen == [32] * 20
