"""Bytes on the sockets of a real server that no client library would send: heads of HTTP/1, frames of HTTP/2 and of
WebSockets, protobuf and metadata of gRPC. The server answers or ends the connection, soon, and serves the next one."""

import base64
import os
import random
import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from fuzz.target import mutated
from google.protobuf import message_factory
from google.protobuf.descriptor import MethodDescriptor

from support.http import Api, request
from support.server import ServerProcess
from support.ws import frame, upgrade
from topics_proto.v1 import (
    admin_service_pb2,
    errors_pb2,
    group_service_pb2,
    queue_service_pb2,
    router_service_pb2,
    sql_service_pb2,
    topics_service_pb2,
    watch_service_pb2,
)

PATIENCE = 0.5  # for an answer; a server that waits for more of a request sends none
ROUNDS = 1000
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
MODULES = (
    topics_service_pb2, queue_service_pb2, router_service_pb2, group_service_pb2, watch_service_pb2, sql_service_pb2,
    admin_service_pb2,
)  # fmt: skip
RPCS = [rpc for module in MODULES for service in module.DESCRIPTOR.services_by_name.values() for rpc in service.methods]
GRPC_STATUSES = {
    value.GetOptions().Extensions[errors_pb2.rule].grpc_status for value in errors_pb2.ErrorReason.DESCRIPTOR.values[1:]
} | {"DEADLINE_EXCEEDED", "CANCELLED", "UNAVAILABLE"}
BAD_LOG = ("Traceback", " ERROR ", " CRITICAL ", "was never awaited", "Task exception")


def heads() -> list[bytes]:
    """Requests of HTTP/1."""
    body = b'{"records":[{"data":1}]}'
    chunked = (
        b"POST /v0/topics/w HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    return [
        request("POST", "/v0/topics/w", body),
        request("GET", "/v0/topics?page_size=3&prefix=%61", Accept_Encoding="gzip;q=0.5, *"),
        request("POST", "/v0/topics/w/diff", b"{}", Expect="100-continue", Connection="close"),
        chunked + b"18;a=b\r\n" + body + b"\r\n0\r\nX: y\r\n\r\n",
        request("HEAD", "/v0/health") + request("GET", "/v0/ready"),
        request("GET", "/v0/watch/wid_x", Last_Event_ID="eyJhIjoxfQ", Accept="text/event-stream"),
        request("POST", "/v0/topics/w/diff", b"{}", Content_Encoding="gzip"),
    ]


def h2_frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def h2() -> list[bytes]:
    """Connections of HTTP/2. The heads are HPACK without Huffman: GET /v0/health, POST with a body."""
    path = b"\x04\x0a/v0/health"
    get = b"\x82\x86" + path + b"\x01\x01x"
    post = b"\x83\x86\x04\x0c/v0/topics/w\x01\x01x\x0f\x10\x10application/json"
    settings = h2_frame(4, 0, 0, b"\0\3\0\0\0\x64")
    return [
        PREFACE + settings + h2_frame(1, 5, 1, get),
        PREFACE + settings + h2_frame(1, 4, 1, post) + h2_frame(0, 1, 1, b'{"records":[{"data":1}]}'),
        PREFACE + settings + h2_frame(6, 0, 0, b"pingpong") + h2_frame(8, 0, 0, b"\0\0\1\0") + h2_frame(1, 5, 1, get),
        PREFACE + settings + h2_frame(1, 1, 1, get[:4]) + h2_frame(9, 4, 1, get[4:]) + h2_frame(3, 0, 1, b"\0\0\0\x08"),
        PREFACE + settings + h2_frame(2, 0, 1, b"\0\0\0\0\x10") + h2_frame(7, 0, 0, bytes(8)),
    ]


def sockets() -> list[bytes]:
    """What follows an upgrade."""
    return [
        frame(1, b'{"op":"ping","request_id":1}') + frame(8, b"\x03\xe8bye"),
        frame(1, b'{"op":"publish","topic":"w","records":[{"data":1}]}', fin=False) + frame(0, b"") + frame(9, b"p"),
        frame(1, b'{"op":"subscribe","topic":"w"}') + frame(2, b"\0\1") + frame(10, b""),
        frame(1, b"\xed\xa0\x80") + frame(1, b'{"op":"unsubscribe","topics":["w"]}'),
    ]


@pytest.fixture(scope="module")
def alive(server: ServerProcess) -> Iterator[ServerProcess]:
    """Afterwards the server is well, and has not been surprised."""
    with Api(server.base) as api:
        api.append("w", 1)
        yield server
        assert api.client.get("/v0/health").status_code == 200
        assert api.read(api.append("afterwards", 1)["topic"])["records"]
    assert not [line for line in server.log.splitlines() if any(bad in line for bad in BAD_LOG)]


def exchange(port: int, before: bytes, data: bytes, *, whole: bool = True) -> bytes:
    """Send, and take what comes until the server ends it or pauses; else the first of it."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as wire:
        wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if before:
            wire.sendall(before)
            assert b"101" in wire.recv(4096)
        with suppress(BrokenPipeError, ConnectionResetError):
            wire.sendall(data)
            if not whole:
                return wire.recv(1 << 16)
            wire.shutdown(socket.SHUT_WR)  # so that waits for more are short
        answer = b""
        wire.settimeout(PATIENCE)
        with suppress(TimeoutError, ConnectionResetError):
            while piece := wire.recv(1 << 16):
                answer += piece
        return answer


def honest(answer: bytes) -> None:
    """An answer of HTTP/1, if there is one, is one of ours; nothing of the inside is shown."""
    assert b"Traceback" not in answer, answer[:2000]
    for status in re.findall(rb"HTTP/1\.1 (\d+)", answer):
        assert int(status) < 500 or int(status) == 503, answer[:500]


@pytest.mark.parametrize("kind", ["heads", "h2", "sockets"])
def test_any_bytes_on_a_socket(alive: ServerProcess, kind: str) -> None:
    run(alive, kind, random.Random(kind), ROUNDS)


def run(alive: ServerProcess, kind: str, rng: random.Random, rounds: int) -> None:
    made: dict[str, Callable[[], list[bytes]]] = {"heads": heads, "h2": h2, "sockets": sockets}
    samples = made[kind]()
    before = upgrade("/v0/ws", {}) if kind == "sockets" else b""
    for sample in samples:
        answer = exchange(alive.http_port, before, sample, whole=False)
        assert answer, sample
        honest(answer)
    for i in range(rounds):
        data = (
            rng.randbytes(rng.randrange(1, 300))
            if i % 10 == 0
            else mutated(rng.choice(samples), rng.choice(samples), rng)
        )
        if kind == "h2" and rng.randrange(4):
            data = PREFACE + data.removeprefix(PREFACE)
        honest(exchange(alive.http_port, before, data))


@pytest.mark.parametrize("rpc", RPCS, ids=lambda rpc: rpc.name)
def test_any_bytes_as_a_message(alive: ServerProcess, rpc: MethodDescriptor) -> None:
    with grpc.insecure_channel(alive.grpc_target) as channel:
        run_rpc(channel, rpc, random.Random(rpc.full_name), 40)


def run_rpc(channel: grpc.Channel, rpc: MethodDescriptor, rng: random.Random, rounds: int) -> None:
    samples = [_message(rpc, rng) for _ in range(3)]
    for i in range(rounds):
        data = (
            rng.randbytes(rng.randrange(40)) if i % 4 == 0 else mutated(rng.choice(samples), rng.choice(samples), rng)
        )
        value = "".join(chr(rng.randrange(32, 127)) for _ in range(rng.randrange(30)))
        metadata = [("authorization", value), ("x-bin", base64.b64encode(data)), ("idempotency-key", value)]
        call(channel, rpc, data, metadata[: rng.randrange(4)])


def call(channel: grpc.Channel, rpc: MethodDescriptor, data: bytes, metadata: list[tuple[str, Any]]) -> None:
    """One call. Raises AssertionError for a status that no error of ours has."""
    path = f"/{rpc.containing_service.full_name}/{rpc.name}"
    kinds: dict[tuple[bool, bool], Any] = {
        (False, False): channel.unary_unary,
        (False, True): channel.unary_stream,
        (True, True): channel.stream_stream,
    }
    made = kinds[rpc.client_streaming, rpc.server_streaming](path)
    given: Any = iter([data]) if rpc.client_streaming else data
    try:
        answer = made(given, metadata=metadata, timeout=0.3 if rpc.server_streaming else 5)
        for _, _ in zip(answer if rpc.server_streaming else (), range(3), strict=False):
            pass
        if rpc.server_streaming:
            answer.cancel()
    except grpc.RpcError as error:
        code, details = error.code().name, error.details()
    else:
        return
    assert code in GRPC_STATUSES - {"INTERNAL"}, (rpc.name, data, code, details)
    assert "Traceback" not in str(details)


def _message(rpc: MethodDescriptor, rng: random.Random) -> bytes:
    """A message with a word in each text, and a number in each number, as far as it goes."""
    made = message_factory.GetMessageClass(rpc.input_type)()
    for field in rpc.input_type.fields:
        if field.is_repeated or field.message_type is not None:
            continue
        if field.type == field.TYPE_STRING:
            setattr(made, field.name, rng.choice(("w", "n", "x" * 20)))
        elif field.type == field.TYPE_BYTES:
            setattr(made, field.name, b"1")
        elif field.type not in (field.TYPE_BOOL, field.TYPE_ENUM, field.TYPE_DOUBLE) and field.name != "wait_ms":
            setattr(made, field.name, rng.randrange(3))
    return made.SerializeToString()


@pytest.mark.soak
def test_soak(tmp_path: Path) -> None:
    first = int(os.environ.get("TOPICS_SOAK_SEED", time.time_ns()))
    print(f"TOPICS_SOAK_SEED={first}")
    rounds = 0
    with ServerProcess(tmp_path) as running, Api(running.base) as api:
        deadline = time.monotonic() + float(os.environ.get("TOPICS_SOAK_SECONDS", "0"))
        while time.monotonic() < deadline:
            for kind in ("heads", "h2", "sockets"):
                run(running, kind, random.Random(f"{kind} {first + rounds}"), 20)
            with grpc.insecure_channel(running.grpc_target) as channel:
                for rpc in RPCS:
                    run_rpc(channel, rpc, random.Random(f"{rpc.full_name} {first + rounds}"), 3)
            rounds += 1
            assert api.client.get("/v0/health").status_code == 200
        assert not [line for line in running.log.splitlines() if any(bad in line for bad in BAD_LOG)]
    print(f"{rounds} rounds")
