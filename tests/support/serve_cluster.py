"""A cluster of three nodes and eight shards that runs in the foreground as one server does.

    CLUSTER_ETCD=host:port CLUSTER_STORE=s3://bucket python -m support.serve_cluster

TOPICS_PORT_FILE gets the address of the node CLUSTER_NODE (b). The settings are those of every node; a directory that
has had a cluster gets the same again. SIGTERM stops all nodes.
"""

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import httpx

from support.server import TOPICS

NAMES: Final = "abc"
_SECONDS: Final = 40.0


def main() -> int:
    folder = Path(os.environ["TOPICS_DATA_DIR"])
    folder.mkdir(parents=True, exist_ok=True)
    name_file, secret = folder / "name", folder / "secret"
    if not name_file.exists():
        secret.write_text(secrets.token_hex(32))
        name_file.write_text(f"c{secrets.token_hex(4)}")
    common = {
        **os.environ,
        "TOPICS_CLUSTER": name_file.read_text(),
        "TOPICS_CLUSTER_STORE": os.environ["CLUSTER_STORE"],
        "TOPICS_CLUSTER_ETCD": os.environ["CLUSTER_ETCD"],
        "TOPICS_CLUSTER_SECRET_FILE": str(secret),
        "TOPICS_PORT": "0",
        "TOPICS_GRPC_PORT": "0",
    }
    port_file = common.pop("TOPICS_PORT_FILE", "")
    common.pop("TOPICS_GRPC_PORT_FILE", None)
    subprocess.run([TOPICS, "cluster", "init", "--shards", "8"], env=common, stdout=subprocess.DEVNULL, check=False)
    nodes: dict[str, subprocess.Popen[bytes]] = {}
    files = {name: folder / f"{name}.port" for name in NAMES}
    for name in NAMES:
        files[name].unlink(missing_ok=True)
        env = {
            **common,
            "TOPICS_CLUSTER_NODE": name,
            "TOPICS_DATA_DIR": str(folder / name),
            "TOPICS_PORT_FILE": str(files[name]),
        }
        nodes[name] = subprocess.Popen([TOPICS, "serve"], env=env)

    def stop(*_: object) -> None:
        raise SystemExit

    signal.signal(signal.SIGTERM, stop)
    try:
        deadline = time.monotonic() + _SECONDS
        for name in NAMES:
            while not _is_ready(files[name]):
                if nodes[name].poll() is not None:
                    return int(nodes[name].returncode or 1)
                if time.monotonic() > deadline:
                    return 1
                time.sleep(0.05)
        if port_file:
            part = Path(f"{port_file}.part")
            part.write_text(files[os.environ.get("CLUSTER_NODE", "b")].read_text())
            part.replace(port_file)
        while all(node.poll() is None for node in nodes.values()):
            time.sleep(0.1)
        return 1
    finally:
        for node in nodes.values():
            if node.poll() is None:
                node.terminate()
        for node in nodes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                node.wait(20)
            node.kill()


def _is_ready(port_file: Path) -> bool:
    with contextlib.suppress(OSError, httpx.HTTPError):
        return httpx.get(f"http://{port_file.read_text()}/v0/ready", timeout=2).status_code != 503
    return False


if __name__ == "__main__":
    sys.exit(main())
