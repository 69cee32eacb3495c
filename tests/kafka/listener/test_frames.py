"""Hostile bytes on the port of a real server: they close their own connection, and nothing else."""

import os
import random
import re
import socket
import ssl
import struct
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from support.kafka_wire import ClosedError, Wire
from support.server import ServerProcess
from support.waiting import poll
from topics_kafka.protocol import SUPPORTED, ApiKey, encode_request
from topics_kafka.registry import APIS

SOFTWARE = {"client_software_name": "test", "client_software_version": "1"}


def scrape(server: ServerProcess, key: str = "") -> str:
    """The metrics of the server."""
    request = urllib.request.Request(f"{server.base}/v0/metrics", headers={"authorization": f"Bearer {key}"})
    with urllib.request.urlopen(request, timeout=30) as reply:
        return str(reply.read().decode())


def closed(server: ServerProcess, key: str = "") -> dict[str, float]:
    """The number of connections that the server has closed, by reason."""
    text = scrape(server, key)
    found = re.findall(r'^topics_kafka_connections_closed_total\{reason="(\w+)"\} (\S+)$', text, re.MULTILINE)
    return {reason: float(count) for reason, count in found}


def rss(server: ServerProcess) -> int:
    """Resident bytes of the server."""
    # setpriv has replaced itself by the server.
    pages = int(Path(f"/proc/{server.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "http"),
        (b"POST /v0/topics/t HTTP/1.1\r\n\r\n", "http"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "http"),
        (struct.pack(">i", -1), "length"),
        (struct.pack(">i", 0), "length"),
        (struct.pack(">i", 7) + bytes(7), "length"),
        (struct.pack(">i", (100 << 20) + 1), "length"),
        (struct.pack(">i", 8) + struct.pack(">hhi", 999, 0, 1), "unsupported"),
        (struct.pack(">i", 8) + struct.pack(">hhi", 24, 0, 1), "unsupported"),
        (struct.pack(">i", 8) + struct.pack(">hhi", -1, -1, 1), "unsupported"),
        (struct.pack(">i", 8) + struct.pack(">hhi", ApiKey.PRODUCE, 2, 1), "unsupported"),
        (struct.pack(">i", 8) + struct.pack(">hhi", ApiKey.METADATA, 99, 1), "unsupported"),
        (struct.pack(">i", 8) + struct.pack(">hhi", ApiKey.METADATA, 5, 1), "malformed"),
        (struct.pack(">ihhihi", 14, ApiKey.METADATA, 5, 1, -1, 1 << 30), "malformed"),
    ],
)  # fmt: skip
def test_what_is_no_request_ends_the_connection(sent: bytes, reason: str, server: ServerProcess, wire: Wire) -> None:
    before = closed(server).get(reason, 0)
    with Wire(server.kafka_port) as hostile:
        hostile.socket.sendall(sent)
        assert hostile.is_closed()
    assert closed(server)[reason] == before + 1
    assert wire.call(ApiKey.API_VERSIONS, **SOFTWARE)["error_code"] == 0


def test_a_tls_hello_on_a_plain_port(server: ServerProcess) -> None:
    before = closed(server).get("tls", 0)
    context = ssl.create_default_context()
    with socket.create_connection(("127.0.0.1", server.kafka_port), 10) as sock, pytest.raises(OSError):  # noqa: PT011
        context.wrap_socket(sock, server_hostname="localhost")
    assert closed(server)["tls"] == before + 1


def test_the_first_of_a_flood_is_logged_and_the_others_are_counted(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, kafka=True) as alone:
        for _ in range(40):
            with Wire(alone.kafka_port) as hostile:
                hostile.socket.sendall(b"GET / HTTP/1.1\r\n\r\n")
                assert hostile.is_closed()
        lines = [line for line in alone.log.splitlines() if "HTTP request on the Kafka port" in line]
        assert len(lines) == 1
        assert "closing the connection from 127.0.0.1:" in lines[0]
        assert closed(alone) == {"http": 40}


def test_trailing_bytes_are_tolerated(server: ServerProcess, wire: Wire) -> None:
    frame = b"".join(wire.request(ApiKey.METADATA, 13, 5, {"topics": [], "allow_auto_topic_creation": False}))
    wire.write_frame(frame + b"\0\0\0")
    assert wire.receive(ApiKey.METADATA, 13, 5)["topics"] == []


def test_a_request_in_single_bytes(wire: Wire) -> None:
    frame = b"".join(wire.request(ApiKey.API_VERSIONS, 3, 9, SOFTWARE))
    for byte in struct.pack(">i", len(frame)) + frame:
        wire.socket.sendall(bytes([byte]))
    assert wire.receive(ApiKey.API_VERSIONS, 3, 9)["error_code"] == 0


def test_many_requests_in_one_write(wire: Wire) -> None:
    sent = bytearray()
    for number in range(3000):
        frame = b"".join(wire.request(ApiKey.API_VERSIONS, 0, number, {}))
        sent += struct.pack(">i", len(frame)) + frame
    wire.socket.sendall(sent)
    for number in range(3000):
        wire.receive(ApiKey.API_VERSIONS, 0, number)


def _random_frames(seed: int) -> list[bytes]:
    """Frames that are random, random after a valid header, or valid except for some bytes or their end."""
    random_ = random.Random(seed)
    frames = [random_.randbytes(random_.randrange(8, 200)) for _ in range(50)]
    for _ in range(250):
        api = random_.choice(list(ApiKey))
        version = random_.randint(*SUPPORTED[api])
        header = struct.pack(">hhih", api, version, 1, -1)
        frames.append(header + random_.randbytes(random_.randrange(0, 120)))
        if api in (ApiKey.CREATE_TOPICS, ApiKey.SASL_AUTHENTICATE):
            continue
        right = bytearray(b"".join(encode_request(api, version, 1, "fuzz", {})))
        frames.append(bytes(right[: random_.randrange(8, len(right) + 1)]))
        for _ in range(random_.randrange(1, 4)):
            right[random_.randrange(4, len(right))] = random_.randrange(256)
        frames.append(bytes(right))
    return frames


@pytest.mark.parametrize("seed", [1, 2])
def test_random_frames(seed: int, server: ServerProcess, wire: Wire) -> None:
    before = rss(server)
    for frame in _random_frames(seed):
        with Wire(server.kafka_port) as hostile:
            hostile.write_frame(frame)
            hostile.socket.shutdown(socket.SHUT_WR)
            try:
                while True:
                    hostile.read_frame()
            except ClosedError:
                pass
    assert wire.call(ApiKey.API_VERSIONS, **SOFTWARE)["error_code"] == 0
    assert server.alive()
    assert "Traceback" not in server.log
    assert rss(server) - before < 64 << 20


def test_announced_memory_is_not_taken(server: ServerProcess, wire: Wire) -> None:
    before = rss(server)
    with ExitStack() as hostile:
        for _ in range(300):
            each = hostile.enter_context(Wire(server.kafka_port))
            each.socket.sendall(struct.pack(">i", 100 << 20) + bytes(20_000))
        assert wire.call(ApiKey.API_VERSIONS, **SOFTWARE)["error_code"] == 0
        assert rss(server) - before < 96 << 20
    poll(lambda: _gauge(server, "topics_kafka_connections") == 1, what="closed connections")
    assert _gauge(server, "topics_kafka_frame_bytes") == 0


def _gauge(server: ServerProcess, name: str) -> float:
    (value,) = re.findall(rf"^{name} (\S+)$", scrape(server), re.MULTILINE)
    return float(value)


def test_before_authentication(keyed: ServerProcess, login: Callable[[str], Wire]) -> None:
    for api in APIS:
        if api in (ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE):
            continue
        with Wire(keyed.kafka_port) as early:
            early.send(ApiKey(api), SUPPORTED[api][1], {})
            assert early.is_closed(), ApiKey(api)
    with Wire(keyed.kafka_port) as early:
        early.socket.sendall(struct.pack(">i", (512 << 10) + 1))
        assert early.is_closed()
    late = login("full")
    late.socket.sendall(struct.pack(">i", 1 << 20) + struct.pack(">hhih", ApiKey.METADATA, 5, 1, -1))
    late.socket.sendall(struct.pack(">i", 0) + bytes((1 << 20) - 14))  # no topics, and a long tail
    assert late.read_frame()
