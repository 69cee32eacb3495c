"""TLS below the requests: clients that stop reading, that leave in the middle, and what they leave behind."""

import asyncio
import os
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gateway.transport.conftest import run, serve  # noqa: F401  # fixtures
from security.secure_server import TlsServer

from support.tls_proxy import certificate
from support.waiting import poll
from topics_kafka.listener import tls_context

KIB = 1024
GET = b"GET /%b HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """The server's context and that of its clients."""
    cert, key = certificate(tmp_path_factory.mktemp("cert"))
    return tls_context(str(cert), str(key)), ssl.create_default_context(cafile=str(cert))


async def slow_client(service: Any, client: ssl.SSLContext, path: bytes) -> asyncio.StreamReader:
    """Sends a request; the answer is not read, so that little of it leaves the server. Hold what it returns."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * KIB)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", service.port))
    reader, writer = await asyncio.open_connection(sock=sock, ssl=client, server_hostname="localhost", limit=KIB)
    service.writers.append(writer)
    writer.write(GET.replace(b"%b", path))
    await service.app.started.acquire()
    return reader


def test_a_client_that_takes_nothing_is_cut_off(run: Any, serve: Any, pair: Any) -> None:  # noqa: F811
    async def main() -> None:
        async with serve(send_timeout=0.5, tls=pair[0]) as service:
            reader = await slow_client(service, pair[1], b"big?2000")
            await service.idle()
            assert service.app.sent == 2000 * 64 * KIB  # `send` was let go
            assert not reader.at_eof()  # it was not the client that left

    run(main())


def test_a_client_that_takes_nothing_costs_little(run: Any, serve: Any, pair: Any) -> None:  # noqa: F811
    async def main() -> None:
        async with serve(tls=pair[0]) as service:
            reader = await slow_client(service, pair[1], b"big?2000")
            sent = -1
            while sent != service.app.sent:
                sent = service.app.sent
                await asyncio.sleep(0.1)
            assert sent < 2048 * KIB
            assert service.server.connections == 1
            assert not reader.at_eof()

    run(main())


def test_a_stop_cuts_who_does_not_say_goodbye(run: Any, serve: Any, pair: Any) -> None:  # noqa: F811
    async def main() -> None:
        async with serve(tls=pair[0]) as service:
            reader = await slow_client(service, pair[1], b"big?2000")
            async with asyncio.timeout(10):
                await service.server.stop(0.2)
            assert not reader.at_eof()

    run(main())


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsServer]:
    with TlsServer(tmp_path_factory.mktemp("tls")) as server:
        yield server
        assert server.stop() == 0
        assert "Traceback" not in server.log
        assert " ERROR " not in server.log


def test_clients_that_leave_in_the_middle_leave_nothing(server: TlsServer) -> None:
    """Before, within and behind the handshake, and in requests; with a reset too."""
    fds = Path(f"/proc/{server.pid}/fd")

    def opened() -> int:
        return len(os.listdir(fds))

    with server.socket() as first:
        first.sendall(GET.replace(b"%b", b"v0/health"))
        assert first.recv(12) == b"HTTP/1.1 200"
    poll(lambda: opened() > 0, 20)
    before = opened()
    for n in range(300):
        if n % 3 == 0:
            sock: socket.socket = socket.create_connection(("127.0.0.1", server.http_port), timeout=30)
            sent = b"\x16\x03\x01\x02\x00\x01\x00" if n % 2 else b"\x80nonsense"
        else:
            sock = server.socket()
            sent = GET.replace(b"%b", b"v0/health")[: n % 40]
        with sock:
            sock.sendall(sent)
            if n % 2:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    poll(lambda: opened() <= before + 1, 20, f"file descriptors as before: {before}, and now {opened()}")
