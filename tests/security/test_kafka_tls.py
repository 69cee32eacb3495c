"""TLS handshakes on the Kafka port of a real server: they count as connections, and lock out no client."""

import contextlib
import re
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from security.secure_server import TlsServer

from support.kafka_wire import Wire
from support.waiting import poll
from topics_kafka.protocol import ApiKey

MAX_CONNECTIONS = 8


@pytest.fixture
def server(tmp_path: Path) -> Iterator[TlsServer]:
    with TlsServer(tmp_path, env={"TOPICS_KAFKA_MAX_CONNECTIONS": MAX_CONNECTIONS}, kafka=True) as server:
        yield server
        assert server.stop() == 0
        assert "Traceback" not in server.log
        assert " ERROR " not in server.log


@contextlib.contextmanager
def silent(server: TlsServer, count: int, sent: bytes = b"") -> Iterator[None]:
    """Connections that begin a handshake at most."""
    with contextlib.ExitStack() as opened:
        for _ in range(count):
            sock = opened.enter_context(socket.create_connection(("127.0.0.1", server.kafka_port), timeout=30))
            sock.sendall(sent)
        yield


def metrics(server: TlsServer) -> dict[str, float]:
    """The open connections, and those that the server has ended by reason."""
    text = httpx.get(f"{server.base}/v0/metrics", verify=server.trust).text
    found = re.findall(r'^topics_kafka_connections(?:_closed_total\{reason="(\w+)"\})? (\S+)$', text, re.MULTILINE)
    return {reason or "open": float(count) for reason, count in found}


def descriptors(server: TlsServer) -> int:
    return len(list(Path(f"/proc/{server.pid}/fd").iterdir()))


def is_served(server: TlsServer) -> bool:
    """Whether a client gets in, and an answer."""
    try:
        with Wire(server.kafka_port, tls=server.trust, timeout=5) as wire:
            return bool(wire.call(ApiKey.METADATA, topics=[])["brokers"])
    except OSError:  # closed before, or in, its handshake
        return False


def test_connections_in_a_handshake_count(server: TlsServer) -> None:
    """Else unlimited handshakes would take the file descriptors of the database."""
    before = descriptors(server)
    with silent(server, 5 * MAX_CONNECTIONS, b"\x16\x03\x01"):
        poll(lambda: metrics(server).get("limit") == 4 * MAX_CONNECTIONS, 20, "refusals")
        assert metrics(server)["open"] == MAX_CONNECTIONS
        assert descriptors(server) <= before + MAX_CONNECTIONS + 2  # and that of the metrics
    poll(lambda: metrics(server)["open"] == 0, 20, "the end of the handshakes")
    assert metrics(server)["handshake"] == MAX_CONNECTIONS


def test_who_never_finishes_keeps_nobody_out(server: TlsServer) -> None:
    with (
        Wire(server.kafka_port, tls=server.trust) as old,
        silent(server, 2 * MAX_CONNECTIONS),
        contextlib.ExitStack() as opened,
    ):
        poll(lambda: metrics(server)["open"] == MAX_CONNECTIONS, 20, "a full house")
        begun = time.monotonic()
        good = []
        for _ in range(3):
            poll(lambda: is_served(server), 20, "a good client gets in")
            good.append(opened.enter_context(Wire(server.kafka_port, tls=server.trust)))
            assert metrics(server)["open"] <= MAX_CONNECTIONS
        assert time.monotonic() - begun < 10  # a handshake has 15 s
        for wire in (old, *good):  # open connections stay
            assert wire.call(ApiKey.METADATA, topics=[])["brokers"]


def test_who_speaks_no_tls_is_counted_and_the_first_is_logged(server: TlsServer) -> None:
    with Wire(server.kafka_port) as plain:
        plain.write_frame(b"".join(plain.request(ApiKey.API_VERSIONS, 0, 1, {})))
        assert plain.is_closed()
    with pytest.raises(ssl.SSLError):  # it does not trust the certificate
        Wire(server.kafka_port, tls=ssl.create_default_context())
    poll(lambda: metrics(server).get("handshake") == 2, 20, "both are counted")
    assert metrics(server)["open"] == 0
    lines = [line for line in server.log.splitlines() if "TLS handshake failed" in line]
    assert len(lines) == 1, server.log
    assert "closing the connection from 127.0.0.1:" in lines[0]


def test_the_core_of_grpc_logs_no_stranger(server: TlsServer) -> None:
    """It would write a line of its own format for each."""
    before = server.log
    for data in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01" + bytes(511)):
        with socket.create_connection(
            ("127.0.0.1", int(server.grpc_target.rpartition(":")[2])), timeout=30
        ) as stranger:
            stranger.sendall(data)
            with contextlib.suppress(ConnectionResetError):
                while stranger.recv(1000):
                    pass
    assert server.log == before


def test_a_stop_waits_for_no_handshake(tmp_path: Path) -> None:
    with TlsServer(tmp_path, kafka=True) as server:
        with silent(server, MAX_CONNECTIONS, b"\x16\x03\x01"):
            poll(lambda: metrics(server)["open"] == MAX_CONNECTIONS, 20, "handshakes that have begun")
            begun = time.monotonic()
            assert server.stop() == 0
            assert time.monotonic() - begun < 5
        assert "Traceback" not in server.log
