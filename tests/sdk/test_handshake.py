"""Connections that can never be made end at once; those that a server may still answer are tried again."""

import asyncio
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from contextlib import ExitStack, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import grpc
import pytest

from support.missing import without
from support.ports import free_port
from topics_cli import main
from topics_client import AsyncTopicsClient, ConnectError, TopicsClient, UnavailableError
from topics_client.address import Address
from topics_client.connection import Connection
from topics_client.errors import InvalidRequestError, may_be_done
from topics_client.retry import Retry
from topics_client.worker.errors import passes
from topics_proto.v1 import topics_service_pb2 as pb

_EC = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


class Authority:
    """Certificates of an authority of one's own."""

    def __init__(self, folder: Path) -> None:
        if shutil.which("openssl") is None:
            without("openssl is not installed")
        self._folder = folder
        self.ca, self.other = (self._own(name) for name in ("ca", "other"))

    def _run(self, *given: str) -> None:
        subprocess.run(["openssl", *given], check=True, capture_output=True, cwd=self._folder)

    def _own(self, name: str) -> Path:
        self._run("req", "-x509", *_EC, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.pem")
        return self._folder / f"{name}.pem"

    def issue(self, name: str, host: str, days: int = 2) -> tuple[Path, Path]:
        """A certificate for the host, and its key; of fewer than no days it has expired."""
        self._run("req", *_EC, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        (self._folder / f"{name}.ext").write_text(f"subjectAltName=DNS:{host}")
        asked = ["x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial"]
        self._run(*asked, "-extfile", f"{name}.ext", "-days", str(days), "-out", f"{name}.pem")
        return self._folder / f"{name}.pem", self._folder / f"{name}.key"


class _Http(BaseHTTPRequestHandler):
    def log_message(self, *given: object) -> None:
        """Nothing."""


def _hangs_up(pair: tuple[Path, Path] | None = None) -> tuple[socket.socket, int]:
    """A port that takes connections and ends them, with `pair` behind a TLS handshake: a proxy in front of nothing."""
    listener = socket.create_server(("127.0.0.1", 0))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    if pair is not None:
        context.load_cert_chain(*pair)
        context.set_alpn_protocols(["h2"])

    def serve() -> None:
        while True:
            try:
                taken = listener.accept()[0]
            except OSError:
                return
            with suppress(OSError), taken:
                if pair is not None:
                    context.wrap_socket(taken, server_side=True).close()

    threading.Thread(target=serve, daemon=True).start()
    return listener, listener.getsockname()[1]


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
    """URLs of ports of all kinds, by what is the matter."""
    folder = tmp_path_factory.mktemp("tls")
    authority = Authority(folder)
    good, wrong = authority.issue("good", "localhost"), authority.issue("wrong", "other.example")
    old, shown = authority.issue("old", "localhost", -1), authority.issue("shown", "client")
    (folder / "client.pem").write_bytes(shown[0].read_bytes() + shown[1].read_bytes())
    stray = authority.other.read_bytes() + (folder / "other.key").read_bytes()
    (folder / "stray.pem").write_bytes(stray)
    with ExitStack() as ends:

        def served(pair: tuple[Path, Path] | None, *, asks: bool = False) -> int:
            server = grpc.server(futures.ThreadPoolExecutor(1))
            if pair is None:
                port = server.add_insecure_port("localhost:0")
            else:
                roots = authority.ca.read_bytes() if asks else None
                keys = [(pair[1].read_bytes(), pair[0].read_bytes())]
                port = server.add_secure_port("localhost:0", grpc.ssl_server_credentials(keys, roots, asks))
            server.start()
            ends.callback(lambda: server.stop(None).wait())
            return port

        http = ThreadingHTTPServer(("127.0.0.1", 0), _Http)
        threading.Thread(target=http.serve_forever, daemon=True).start()
        ends.callback(http.server_close)
        ends.callback(http.shutdown)
        (listener, hangs_up), (proxy, away) = _hangs_up(), _hangs_up(good)
        ends.callback(listener.close)
        ends.callback(proxy.close)
        free = free_port()
        secure, asking = served(good), served(good, asks=True)
        ca = f"?ca={authority.ca}"
        yield {
            "fine": f"topics+tls://localhost:{secure}{ca}",
            "fine with a certificate": f"topics+tls://localhost:{asking}{ca}&cert={folder / 'client.pem'}",
            "not accepted": f"topics+tls://localhost:{secure}?ca={authority.other}",
            "issuer certificate": f"topics+tls://localhost:{secure}",
            "certificate has expired": f"topics+tls://localhost:{served(old)}{ca}",
            "is not for localhost": f"topics+tls://localhost:{served(wrong)}{ca}",
            "wants a client's certificate": f"topics+tls://localhost:{asking}{ca}",
            "does not accept the certificate of": f"topics+tls://localhost:{asking}{ca}&cert={folder / 'stray.pem'}",
            "that port has TLS": f"topics://localhost:{secure}",
            "port has TLS": f"topics://localhost:{asking}",
            "there is no TLS": f"topics+tls://localhost:{served(None)}{ca}",
            "no TLS at that port": f"topics+tls://127.0.0.1:{http.server_address[1]}{ca}",
            "there is no gRPC": f"topics://127.0.0.1:{http.server_address[1]}",
            "not up yet": f"topics://127.0.0.1:{free}",
            "not up yet, TLS": f"topics+tls://127.0.0.1:{free}{ca}",
            "hangs up": f"topics://127.0.0.1:{hangs_up}",
            "hangs up, TLS": f"topics+tls://127.0.0.1:{hangs_up}{ca}",
            "proxy in front of nothing": f"topics+tls://localhost:{away}{ca}",
        }


NEVER = [
    "not accepted",
    "issuer certificate",
    "certificate has expired",
    "is not for localhost",
    "wants a client's certificate",
    "does not accept the certificate of",
    "that port has TLS",
    "port has TLS",
    "there is no TLS",
    "no TLS at that port",
    "there is no gRPC",
]
LATER = ["not up yet", "not up yet, TLS", "hangs up", "hangs up, TLS", "proxy in front of nothing"]


def _at_once(call: Callable[[], object], why: str) -> ConnectError:
    began = time.monotonic()
    with pytest.raises(ConnectError, match=why) as refused:
        call()
    assert time.monotonic() - began < 20, "a retry lasts a minute"
    assert refused.value.reason == "unavailable"
    assert not may_be_done(refused.value)
    return refused.value


@pytest.mark.parametrize("why", NEVER)
def test_what_can_never_be_connected_fails_at_once(urls: Mapping[str, str], why: str) -> None:
    with Connection(Address.parse(urls[why])) as connection:
        request = pb.GetTopicRequest(topic="a")
        error = _at_once(lambda: connection.unary(connection.topics.GetTopic, request, repeatable=True), why)
        assert passes(error) is None

        def streamed() -> object:
            with connection.stream(connection.topics.BulkDiff, pb.BulkDiffRequest(topic="a")) as frames:
                return list(frames)

        _at_once(streamed, why)


@pytest.mark.parametrize("why", ["not accepted", "that port has TLS", "wants a client's certificate"])
def test_every_face_of_the_client_fails_at_once(
    urls: Mapping[str, str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with TopicsClient(urls[why]) as client:
        _at_once(lambda: client.append("a", 1), why)
        _at_once(lambda: list(client.watch("a")), why)
        with client.producer() as producer:
            _at_once(producer.append("a", 1).result, why)

    async def awaited() -> None:
        async with AsyncTopicsClient(urls[why]) as client:
            await client.append("a", 1)

    _at_once(lambda: asyncio.run(awaited()), why)
    for command in (["ls"], ["wait-ready", "--timeout", "60"]):
        began = time.monotonic()
        assert main([command[0], "--server", urls[why], *command[1:]]) == 3
        assert why in capsys.readouterr().err
        assert time.monotonic() - began < 20


@pytest.mark.parametrize("why", LATER)
def test_what_may_be_up_later_is_tried_again(urls: Mapping[str, str], why: str) -> None:
    pauses: list[float] = []
    with Connection(Address.parse(urls[why])) as connection, pytest.raises(UnavailableError):
        Retry(seconds=0.5).run(
            lambda: connection.unary(connection.topics.GetTopic, pb.GetTopicRequest(topic="a"), repeatable=False),
            sleep=lambda pause: pauses.append(pause) or time.sleep(pause),  # type: ignore[func-returns-value]
        )
    assert pauses


@pytest.mark.parametrize("why", ["fine", "fine with a certificate"])
def test_what_is_in_order_gets_an_answer(urls: Mapping[str, str], why: str) -> None:
    with Connection(Address.parse(urls[why])) as connection:
        request = pb.GetTopicRequest(topic="a")
        with pytest.raises(InvalidRequestError, match="unimplemented"):  # by a server without a service
            connection.unary(connection.topics.GetTopic, request, repeatable=True)
