"""TLS on every protocol of a real server: by which clients, what is refused, and how it starts and stops."""

import os
import shutil
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import httpx
import pytest
from security.secure_server import TlsServer, refusal, reload
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from support.kafka_wire import Wire
from support.missing import without
from support.server import TOPICS, ServerProcess
from support.tls_proxy import certificate
from topics_client import Retry, TopicsClient
from topics_client.errors import ConnectError
from topics_kafka.protocol import ApiKey


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsServer]:
    env: dict[str, object] = {"TOPICS_MAX_BODY_BYTES": 12 << 20}
    with TlsServer(tmp_path_factory.mktemp("tls"), env=env, kafka=True) as server:
        yield server
        assert server.stop() == 0
        assert "Traceback" not in server.log
        assert " ERROR " not in server.log


@pytest.fixture(params=["1.1", "2"])
def http(request: pytest.FixtureRequest, server: TlsServer) -> Iterator[httpx.Client]:
    """A client that offers only this version by ALPN."""
    version = request.param
    with httpx.Client(
        base_url=server.base, verify=server.trust, http1=version == "1.1", http2=version == "2", timeout=20
    ) as client:
        yield client
        assert client.get("/v0/health").http_version == f"HTTP/{version}"


def test_requests_by_alpn(http: httpx.Client) -> None:
    name = "/v0/topics/tls"
    big = "x" * 900_000
    for _ in range(3):
        written = http.post(name, json={"records": [{"data": big} for _ in range(8)]})
        assert written.status_code in (200, 201)
    page = http.post(f"{name}/diff", json={"from_seq": 0, "limit": 1000, "max_batch_bytes": 64 << 20}).json()
    assert [record["data"] == big for record in page["records"]] == [True] * 9  # 8 MiB
    assert http.delete(name).status_code == 200


@pytest.mark.parametrize("version", ["--http1.1", "--http2"])
def test_a_refusal_reaches_a_client_that_still_sends(server: TlsServer, tmp_path: Path, version: str) -> None:
    body = tmp_path / "body.json"
    body.write_bytes(b'{"records":[{"data":"' + b"x" * (13 << 20) + b'"}]}')
    answer = curl(server, version, f"{server.base}/v0/topics/large", "-H", "content-type: application/json",
                  "--data-binary", f"@{body}")  # fmt: skip
    assert '"code":"payload_too_large"' in answer


def test_server_sent_events(http: httpx.Client) -> None:
    assert http.put("/v0/topics/sse", json={}).status_code in (200, 201)
    watch = http.post("/v0/watch", json={"topics": {"sse": {"tail": True}}}).json()
    with http.stream("GET", watch["stream_url"], headers={"accept": "text/event-stream"}) as events:
        assert events.status_code == 200
        lines = events.iter_lines()
        assert http.post("/v0/topics/sse", json={"records": [{"data": "hello"}]}).status_code == 200
        assert "hello" in next(line for line in lines if line.startswith("data:") and "hello" in line)


def test_web_sockets(server: TlsServer) -> None:
    with connect(f"wss://localhost:{server.http_port}/v0/ws", ssl=server.trust, proxy=None, open_timeout=30) as socket:
        socket.send('{"op":"publish","topic":"wss","records":[{"data":7}]}')
        assert '"head_seq":1' in socket.recv(10).replace(" ", "")
        socket.send("x" * 100)  # no command: an error, and the connection continues
        assert "error" in socket.recv(10)
    with connect(f"wss://localhost:{server.http_port}/v0/ws", ssl=server.trust, proxy=None, open_timeout=30) as socket:
        socket.send(b"\xff\xfe", text=True)  # breaks the rules: the close frame must arrive all the same
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(10)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1007


def test_a_malformed_request_is_answered(server: TlsServer) -> None:
    with server.socket() as wire:
        wire.sendall(b"NO HTTP\r\n\r\n" + b"x" * 100_000)
        assert wire.recv(12) == b"HTTP/1.1 400"


def test_the_python_sdk(server: TlsServer) -> None:
    with TopicsClient(server.url) as client:
        client.append_many("sdk", [{"n": n} for n in range(10)])
        assert [record.value["n"] for record in client.read("sdk")] == list(range(10))
        with client.watch("sdk") as watch:
            assert next(iter(watch)).seq == 1


def test_the_sdk_trusts_only_what_it_is_told_to(server: TlsServer) -> None:
    stranger = server.url.partition("?")[0]
    plain = f"topics://{server.grpc_target}"
    for url in (stranger, plain):
        with TopicsClient(url, retry=Retry(seconds=0), timeout=5) as client, pytest.raises(ConnectError):
            client.get_topic("sdk")


def test_the_command_line(server: TlsServer) -> None:
    env = {"PATH": os.environ["PATH"], "TOPICS_URL": server.url, "SSL_CERT_FILE": str(server.cert)}
    for command in (["append", "cli", "1"], ["wait-ready", "--url", server.base, "--timeout", "10"]):
        done = subprocess.run([TOPICS, *command], env=env, capture_output=True, text=True, timeout=30)
        assert done.returncode == 0, done


@pytest.mark.parametrize("version", ["--http1.1", "--http2"])
def test_curl(server: TlsServer, version: str) -> None:
    answer = curl(server, version, f"{server.base}/v0/ready", "-w", " %{http_version}")
    assert answer.endswith(" 1.1" if version == "--http1.1" else " 2")


def curl(server: TlsServer, *arguments: str) -> str:
    if shutil.which("curl") is None:
        without("curl is not installed")
    command = ["curl", "-sS", "--noproxy", "*", "--cacert", str(server.cert), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_kafka_has_the_same_certificate(server: TlsServer) -> None:
    with Wire(server.kafka_port, tls=server.trust) as wire:
        assert wire.call(ApiKey.METADATA, topics=[])["brokers"]


def test_cleartext_gets_nothing(server: TlsServer) -> None:
    for port in (server.http_port, server.kafka_port):
        with socket.create_connection(("127.0.0.1", port), timeout=30) as plain:
            plain.sendall(b"GET /v0/topics HTTP/1.1\r\nhost: localhost\r\n\r\n")
            answer = b""
            try:
                while data := plain.recv(4096):
                    answer += data
            except ConnectionResetError:
                pass
            assert b"HTTP" not in answer
    with grpc.insecure_channel(server.grpc_target) as channel:
        call = channel.unary_unary("/topics.v1.AdminService/GetHealth")
        with pytest.raises(grpc.RpcError) as error:
            call(b"", timeout=20)
        assert error.value.code() is grpc.StatusCode.UNAVAILABLE


def test_old_versions_of_tls_are_refused(server: TlsServer) -> None:
    for option, good in (("-tls1_2", True), ("-tls1_1", False)):
        command = ["openssl", "s_client", option, "-cipher", "ALL:@SECLEVEL=0", "-CAfile", str(server.cert), "-connect"]
        done = subprocess.run([*command, f"127.0.0.1:{server.http_port}"], input=b"", capture_output=True, timeout=30)
        assert (b"Verify return code: 0" in done.stdout and b"Cipher is (NONE)" not in done.stdout) is good, done


def test_a_handshake_that_stalls_is_cut_off(tmp_path: Path) -> None:
    with TlsServer(tmp_path, env={"TOPICS_HEADER_TIMEOUT_SECONDS": 1}) as server:
        with socket.create_connection(("127.0.0.1", server.http_port), timeout=30) as silent:
            silent.sendall(b"\x16\x03\x01")  # a handshake begins, and stalls
            assert silent.recv(1) == b""
        with server.socket() as slow:  # and a request that stalls behind one
            slow.sendall(b"GET /v0/health HT")
            assert slow.recv(1) == b""


def test_connections_in_a_handshake_count(tmp_path: Path) -> None:
    """Else unlimited handshakes would take the file descriptors of the database."""
    patience = 5
    env = {"TOPICS_MAX_CONNECTIONS": 5, "TOPICS_HEADER_TIMEOUT_SECONDS": patience}
    with TlsServer(tmp_path, env=env) as server, ExitStack() as open_sockets:

        def silent(count: int) -> list[socket.socket]:
            address = ("127.0.0.1", server.http_port)
            return [open_sockets.enter_context(socket.create_connection(address, 30)) for _ in range(count)]

        begun = time.monotonic()
        within, beyond = silent(5), silent(15)
        assert all(map(is_closed, beyond))
        assert time.monotonic() - begun < patience, "they are refused at once"
        assert all(map(is_closed, within)), "the end of the handshakes"
        assert httpx.get(f"{server.base}/v0/ready", verify=server.trust).status_code == 200
        silent(3)
        assert server.stop() == 0  # which waits for no handshake
        assert "Traceback" not in server.log
        assert server.log.count("refusing connections") == 1


def is_closed(wire: socket.socket) -> bool:
    """Return whether the server has closed it, or does in 20 s."""
    wire.settimeout(20)
    try:
        return wire.recv(1) == b""
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False


def test_a_stop_drains_and_ends_streams(tmp_path: Path) -> None:
    with TlsServer(tmp_path) as server, httpx.Client(base_url=server.base, verify=server.trust, timeout=20) as http:
        http.put("/v0/topics/t", json={})
        watch = http.post("/v0/watch", json={"topics": {"t": {}}}).json()
        with http.stream("GET", watch["stream_url"]) as events, server.socket() as idle:
            lines = events.iter_lines()
            next(lines)
            server.signal(signal.SIGTERM)
            assert any("shutting" in line or "shutdown" in line for line in lines)
            assert server.wait(10) == 0
            assert idle.recv(1) == b""
        assert "Traceback" not in server.log


def test_files_that_cannot_be_served_with(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    _, other_key = certificate(other)
    garbage, encrypted = tmp_path / "garbage.pem", tmp_path / "encrypted.pem"
    garbage.write_text("-----BEGIN CERTIFICATE-----\nno\n-----END CERTIFICATE-----\n")
    command = ["openssl", "rsa", "-aes128", "-passout", "pass:secret", "-in", str(key), "-out", str(encrypted)]
    subprocess.run(command, check=True, capture_output=True)
    absent = tmp_path / "absent.pem"

    def said(cert_file: object, key_file: object = "", **more: object) -> str:
        return refusal(tmp_path, TOPICS_TLS_CERT_FILE=cert_file, TOPICS_TLS_KEY_FILE=key_file, **more)

    assert said(absent, key) == f"topics: TOPICS_TLS_CERT_FILE {absent}: No such file or directory"
    assert said(cert, absent) == f"topics: TOPICS_TLS_KEY_FILE {absent}: No such file or directory"
    assert said(cert, tmp_path) == f"topics: TOPICS_TLS_KEY_FILE {tmp_path}: Is a directory"
    assert "does not belong to the certificate" in said(cert, other_key)
    assert "certificate chain and its private key in PEM" in said(garbage, key)
    assert "certificate chain and its private key in PEM" in said(cert)  # no key in it
    assert "the key is encrypted" in said(cert, encrypted)
    assert "needs TOPICS_TLS_CERT_FILE" in said("", key)
    ca = {"TOPICS_TLS_CLIENT_CA_FILE": garbage}
    assert said(cert, key, **ca).startswith(f"topics: TOPICS_TLS_CLIENT_CA_FILE {garbage}: there must be certificates")
    assert said(cert, key, TOPICS_TLS_CLIENT_CA_FILE=absent).endswith(f"{absent}: No such file or directory")
    kafka = refusal(tmp_path, TOPICS_KAFKA_PORT=0, TOPICS_KAFKA_TLS_CERT=cert, TOPICS_KAFKA_TLS_KEY=other_key)
    assert "TOPICS_KAFKA_TLS_KEY" in kafka


def test_one_file_may_hold_both(tmp_path: Path) -> None:
    both = tmp_path / "both.pem"
    server = TlsServer(tmp_path, env={"TOPICS_TLS_CERT_FILE": both, "TOPICS_TLS_KEY_FILE": ""})
    both.write_bytes(server.cert.read_bytes() + server.key.read_bytes())
    with server:
        assert httpx.get(f"{server.base}/v0/ready", verify=server.trust).status_code == 200


def test_a_new_certificate_is_shown_without_a_restart(tmp_path: Path) -> None:
    with TlsServer(tmp_path, kafka=True) as server, server.socket() as stays:
        old = server.cert.read_text()
        other = tmp_path / "other"
        other.mkdir()
        new = TlsServer(other)
        server.key.write_bytes(new.key.read_bytes())  # half of it: they do not belong together
        reload(server, "SIGHUP: the certificate stays as it was: TOPICS_TLS_KEY_FILE")
        assert shown(server.http_port) == shown(server.kafka_port) == shown(grpc_port(server)) == old.strip()
        server.cert.write_bytes(new.cert.read_bytes())
        reload(server, "the certificate was read again and is another one")
        expected = new.cert.read_text().strip()
        assert shown(server.http_port) == shown(server.kafka_port) == shown(grpc_port(server)) == expected
        assert httpx.get(f"{server.base}/v0/ready", verify=server.trust).status_code == 200
        stays.sendall(b"GET /v0/health HTTP/1.1\r\nhost: localhost\r\n\r\n")  # open connections continue
        assert stays.recv(12) == b"HTTP/1.1 200"
        reload(server, "the certificate was read again and is the same")


def shown(port: int) -> str:
    return ssl.get_server_certificate(("127.0.0.1", port), timeout=30).strip()


def grpc_port(server: ServerProcess) -> int:
    return int(server.grpc_target.rpartition(":")[2])
