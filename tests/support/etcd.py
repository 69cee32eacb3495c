"""An etcd of one member (Debian's `etcd-server`) on the loopback, and ways to take it away."""

import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any, Self

import requests

from support.missing import without
from support.ports import free_ports
from support.server import DIE_WITH_US
from support.waiting import poll


def need_etcd() -> Path:
    """The binary. Without one the test is skipped; with TOPICS_ALL_CLIENTS=1 (CI) it fails."""
    found = os.environ.get("TOPICS_ETCD") or shutil.which("etcd")
    if not found:
        without("no `etcd`: apt install etcd-server")
    return Path(found)


class Etcd:
    """One member. It grants leases of at least 1.5 times its election timeout, so 2 s.

    With `certificate`, its certificate and key, it speaks TLS, and wants a client to show the same.
    """

    def __init__(self, folder: Path, *, certificate: tuple[Path, Path] | None = None, host: str = "127.0.0.1") -> None:
        """`host` is the address that it listens at."""
        self._binary = need_etcd()
        self._folder = folder
        self._host = host
        self._client, self._peer = free_ports(2)
        self._certificate = certificate
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """The host and port of clients."""
        return f"{'localhost' if self._certificate else self._host}:{self._client}"

    @property
    def url(self) -> str:
        """The URL of its JSON API."""
        return f"{'https' if self._certificate else 'http'}://{self.address}"

    def start(self) -> None:
        """Start, on the data that is there, and wait until it answers."""
        self._folder.mkdir(parents=True, exist_ok=True)
        client = self.url.replace("localhost", "127.0.0.1")
        peer = f"http://127.0.0.1:{self._peer}"
        tls: list[str] = []
        if self._certificate:
            cert, key = self._certificate
            tls = [f"--cert-file={cert}", f"--key-file={key}", f"--trusted-ca-file={cert}", "--client-cert-auth"]
        with (self._folder / "etcd.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *DIE_WITH_US, str(self._binary), "--name=one", f"--data-dir={self._folder / 'data'}",
                    f"--listen-client-urls={client}", f"--advertise-client-urls={client}",
                    f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}",
                    f"--initial-cluster=one={peer}", *tls,
                ],
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )  # fmt: skip
        try:
            poll(self._ready, 30, f"etcd; log: {self._folder / 'etcd.log'}")
        except BaseException:
            self.stop()
            raise

    def _ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._folder / "etcd.log").read_text(errors="replace")[-3000:]
        try:
            tls: dict[str, Any] = (
                {"verify": self._certificate[0], "cert": self._certificate} if self._certificate else {}
            )
            return bool(requests.get(f"{self.url}/health", timeout=5, **tls).json()["health"] == "true")
        except requests.RequestException:
            return False

    def stop(self) -> None:
        """End it, at once."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(10)

    def empty(self) -> None:
        """End it and remove its data."""
        self.stop()
        shutil.rmtree(self._folder / "data")

    def pause(self) -> None:
        """Let it answer nothing any more; connections stay, and new ones are taken."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it answer again."""
        self._signal(signal.SIGCONT)

    def _signal(self, signum: int) -> None:
        assert self._process is not None
        os.killpg(self._process.pid, signum)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
