"""A `topics serve` process with TLS, and what its clients need."""

import json
import os
import signal
import socket
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from support.server import PRELOADED, ServerProcess
from support.tls_proxy import certificate
from support.waiting import poll


class TlsServer(ServerProcess):
    """A server whose certificate signs itself; `folder` has it as cert.pem, its key as key.pem."""

    def __init__(self, folder: Path, *, env: dict[str, object] | None = None, kafka: bool = False) -> None:
        self.cert, self.key = certificate(folder)
        files = {"TOPICS_TLS_CERT_FILE": self.cert, "TOPICS_TLS_KEY_FILE": self.key}
        super().__init__(folder / "server", env=files | (env or {}), kafka=kafka)

    @property
    def base(self) -> str:
        return f"https://localhost:{self.http_port}"

    @property
    def url(self) -> str:
        """What the SDK takes."""
        return f"topics+tls://localhost:{self.grpc_target.rpartition(':')[2]}?ca={self.cert}"

    @property
    def trust(self) -> ssl.SSLContext:
        """A client's context that knows the certificate."""
        return ssl.create_default_context(cafile=str(self.cert))

    def socket(self, alpn: str = "http/1.1", seconds: float = 30) -> ssl.SSLSocket:
        """A TLS connection to the HTTP port."""
        context = self.trust
        context.set_alpn_protocols([alpn])
        plain = socket.create_connection(("127.0.0.1", self.http_port), timeout=seconds)
        return context.wrap_socket(plain, server_hostname="localhost")

    def _recovered(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.base}/v0/ready", timeout=30, context=self.trust) as reply:
                return bool(reply.status == 200)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code not in (401, 503):
                raise
            return error.code == 401


def refusal(folder: Path, **env: Any) -> str:
    """The one line that a server says which refuses to start."""
    settings = {name: str(value) for name, value in env.items()}
    ports = {"TOPICS_PORT": "0", "TOPICS_GRPC_PORT": "0", "TOPICS_DATA_DIR": str(folder / "data"), "PATH": "/usr/bin"}
    done = PRELOADED.run(["serve"], ports | settings, timeout=30)
    assert done.returncode == 1, done
    (line,) = done.stderr.decode().splitlines()
    return line


def audit_lines(file: Path) -> list[dict[str, Any]]:
    """What an audit log holds."""
    return [json.loads(line) for line in file.read_text().splitlines()]


def reload(server: ServerProcess, says: str) -> None:
    """SIGHUP, to the server and not to what it started, and wait until its log says so."""
    before = server.log.count(says)
    os.kill(server.pid, signal.SIGHUP)
    poll(lambda: server.log.count(says) > before, 10, says)
