"""An etcd of one member (Debian's `etcd-server`) on the loopback, and ways to take it away."""

import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Self

import requests

from support.missing import without
from support.server import DIE_WITH_US
from support.waiting import poll
from support.weed import free_ports

_ELECTION_MS = 1000


def need_etcd() -> Path:
    """The binary. Without one the test is skipped; with TOPICS_ALL_CLIENTS=1 (CI) it fails."""
    found = os.environ.get("TOPICS_ETCD") or shutil.which("etcd")
    if not found:
        without("no `etcd`: apt install etcd-server")
    return Path(found)


class Etcd:
    """One member. It grants leases of at least 1.5 times `election_ms`, so 2 s with etcd's own default."""

    def __init__(self, folder: Path, *, election_ms: int = _ELECTION_MS, options: tuple[str, ...] = ()) -> None:
        self._binary = need_etcd()
        self._folder = folder
        self._client, self._peer = free_ports(2)
        self._options = (f"--heartbeat-interval={election_ms // 10}", f"--election-timeout={election_ms}", *options)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """The host and port of clients."""
        return f"127.0.0.1:{self._client}"

    def start(self) -> None:
        """Start, on the data that is there, and wait until it answers."""
        self._folder.mkdir(parents=True, exist_ok=True)
        client, peer = f"http://{self.address}", f"http://127.0.0.1:{self._peer}"
        with (self._folder / "etcd.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *DIE_WITH_US, str(self._binary), "--name=one", f"--data-dir={self._folder / 'data'}",
                    f"--listen-client-urls={client}", f"--advertise-client-urls={client}",
                    f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}",
                    f"--initial-cluster=one={peer}", *self._options,
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
            return bool(requests.get(f"http://{self.address}/health", timeout=5).json()["health"] == "true")
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
