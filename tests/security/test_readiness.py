"""Health checks as deployments run them, on servers with TLS: the commands are read out of service/deploy."""

import json
import os
import re
import shlex
import socket
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from security.authority import Authority
from security.secure_server import TlsServer
from security.test_client_certificates import MutualServer

from support.server import TOPICS, ServerProcess
from support.tls_proxy import certificate

DEPLOY = Path(__file__).parents[2] / "service" / "deploy"
INSTALLED = "/opt/topics/bin/topics"


def unit_command() -> list[str]:
    """Return what systemd runs before the unit counts as started."""
    found = re.search(r"^ExecStartPost=(.+)$", (DEPLOY / "topics.service").read_text(), re.MULTILINE)
    assert found is not None
    return shlex.split(found[1])


def image_command() -> list[str]:
    """Return what Docker runs to see whether a container is healthy."""
    found = re.search(r"^HEALTHCHECK(?:[^\n]|\\\n)*?CMD (\[.+\])$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    assert found is not None
    command: list[str] = json.loads(found[1])
    return command


def image_environment() -> dict[str, str]:
    """Return what the image sets, but for the ports, which are those of the test."""
    found = re.search(r"^ENV (TOPICS_.+)$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    assert found is not None
    return dict(each.split("=", 1) for each in shlex.split(found[1]))


COMMANDS = pytest.mark.parametrize("command", [unit_command(), image_command()], ids=["systemd", "image"])


def run(command: Sequence[str], server: ServerProcess, **env: object) -> subprocess.CompletedProcess[str]:
    """The command of an installation with the environment of its server."""
    assert command[0] == INSTALLED
    own = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
    own |= image_environment() | server._env | {"TOPICS_PORT": str(server.http_port)}
    own |= {name: str(value) for name, value in env.items()}
    return subprocess.run(
        [str(TOPICS), *command[1:]], env=own, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL
    )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsServer]:
    with TlsServer(tmp_path_factory.mktemp("tls")) as server:
        yield server


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("mine") / "ca")


@pytest.fixture(scope="module")
def mutual(tmp_path_factory: pytest.TempPathFactory, mine: Authority) -> Iterator[MutualServer]:
    with MutualServer(tmp_path_factory.mktemp("mutual"), mine, mine.client("client")) as server:
        yield server


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("plain")) as server:
        yield server


@COMMANDS
def test_a_server_with_tls_is_ready_whatever_name_its_certificate_is_for(
    server: TlsServer, command: list[str], tmp_path: Path
) -> None:
    done = run(command, server)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    file = tmp_path / "port"
    file.write_text(f"127.0.0.1:{server.http_port}")
    assert run(command, server, TOPICS_PORT=0, TOPICS_PORT_FILE=file, http_proxy="http://127.0.0.1:9").returncode == 0


@COMMANDS
def test_a_server_that_wants_certificates_of_clients_is_ready_too(mutual: MutualServer, command: list[str]) -> None:
    done = run(command, mutual)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    shown = run([*command, "--cert", str(mutual.own)], mutual)
    assert (shown.returncode, shown.stderr) == (0, "")


@COMMANDS
def test_a_server_without_tls_still_is(plain: ServerProcess, command: list[str]) -> None:
    assert run(command, plain).returncode == 0


def test_another_certificate_than_the_configured_one_is_told(server: TlsServer, tmp_path: Path) -> None:
    other, _ = certificate(tmp_path)
    done = run([INSTALLED, "wait-ready", "--timeout", "300ms"], server, TOPICS_TLS_CERT_FILE=other)
    assert done.returncode == 3
    assert (
        f"https://127.0.0.1:{server.http_port}: the server presents a different certificate than {other}" in done.stderr
    )
    done = run([INSTALLED, "wait-ready"], server, TOPICS_TLS_CERT_FILE=tmp_path / "none.pem")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"TOPICS_TLS_CERT_FILE {tmp_path}/none.pem: No such file or directory" in done.stderr


def test_a_client_certificate_of_nobody_is_not_enough(mutual: MutualServer, tmp_path: Path) -> None:
    stranger = Authority(tmp_path / "ca").client("client")
    done = run([INSTALLED, "wait-ready", "--timeout", "300ms", "--cert", str(stranger)], mutual)
    assert done.returncode == 3
    assert "not ready after 0.3 s: https://127.0.0.1:" in done.stderr
    assert re.search("it may not accept the certificate of --cert|the TLS handshake failed", done.stderr)


def test_what_is_wrong_at_a_port_is_said(server: TlsServer, mutual: MutualServer, plain: ServerProcess) -> None:
    def told(url: str, *more: str) -> str:
        done = run([INSTALLED, "wait-ready", "--timeout", "300ms", "--url", url, *more], server)
        assert done.returncode == 3, done
        (line,) = done.stderr.splitlines()
        return line.partition(f"{url}: ")[2]

    port = server.http_port
    with socket.create_server(("127.0.0.1", 0)) as free:
        closed = free.getsockname()[1]
        free.close()
        assert told(f"https://127.0.0.1:{plain.http_port}") == "that port does not use TLS: give http://"
        assert (
            told(f"http://{plain.grpc_target}")
            == "that port does not speak HTTP: give the server's HTTP port, 4000 by default"
        )
        assert told(f"http://127.0.0.1:{port}").endswith("if that port uses TLS, give https://")
        assert "self-signed certificate): give its CA with --ca FILE" in told(f"https://127.0.0.1:{port}")
        assert "not valid for '127.0.0.1'" in told(f"https://127.0.0.1:{port}", "--ca", str(server.cert))
        wanted = told(f"https://localhost:{mutual.http_port}", "--ca", str(mutual.cert))
        assert wanted.endswith("give an accepted one with --cert FILE")
        assert told(f"http://127.0.0.1:{closed}") == "Connection refused"
    assert (
        run(
            [INSTALLED, "wait-ready", "--url", f"https://localhost:{port}", "--ca", str(server.cert)], server
        ).returncode
        == 0
    )
