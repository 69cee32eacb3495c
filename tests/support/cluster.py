"""A cluster of `topics serve` processes, on ports that stay over restarts, with an object store and an etcd."""

import base64
import contextlib
import json
import secrets
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

import httpx
import obstore
import requests
from obstore.exceptions import AlreadyExistsError
from obstore.store import from_url

from support.http import Api
from support.network import Network
from support.ports import free_ports
from support.server import DIE_WITH_US, TOPICS, ServerProcess
from support.waiting import poll
from topics_cluster import identity

NAMES: Final = "abcdefgh"
"""Of the nodes, in their order."""


class Node(ServerProcess):
    """One node. `start` returns once it answers calls, itself or by passing them on."""

    ready_seconds = 180.0  # it may have to read the whole log, beside everything else

    def __init__(
        self,
        name: str,
        folder: Path,
        env: Mapping[str, object],
        network: Network | None = None,
        *,
        postgres: bool = False,
    ) -> None:
        """`network` has a host of its name, on which it runs."""
        http, grpc, kafka, *others = free_ports(4 if postgres else 3)
        own: dict[str, object] = {"TOPICS_PORT": http, "TOPICS_GRPC_PORT": grpc, "TOPICS_KAFKA_PORT": kafka}
        own["TOPICS_CLUSTER_NODE"] = name
        if others:
            own["TOPICS_PG_PORT"] = others[0]
        if network is not None:
            own["TOPICS_HOST"] = own["TOPICS_CLUSTER_ADVERTISED"] = network.hosts[name]
            own["TOPICS_ALLOW_INSECURE_NO_AUTH"] = "1"
        super().__init__(folder, env={**own, **env}, kafka=True, postgres=postgres)
        self.name = name
        if network is not None:
            self.host, self.network = network.hosts[name], network.space(name)
        self.http_port, self.grpc_target, self.kafka_port = http, f"{self.host}:{grpc}", kafka

    def use(self, program: Path) -> None:
        """Start it by the command of another version from now on."""
        assert not self.alive(), "a version changes by a restart"
        self._program = program

    @property
    def kafka_target(self) -> str:
        """The Kafka port, as host:port."""
        return f"{self.host}:{self.kafka_port}"

    def metrics(self) -> dict[str, float]:
        """The samples of its own metrics without labels, and `name{label}` with one."""
        with Api(self.base) as api:
            lines = api.send("GET", "/v0/metrics").text.splitlines()
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[:1] != "#")}


class Cluster:
    """Nodes `a`, `b`, `c` and so on of one cluster, none of which runs at first."""

    def __init__(
        self,
        folder: Path,
        etcd: str,
        store: str,
        environment: Mapping[str, str],
        *,
        nodes: int = 3,
        env: Mapping[str, object] = {},
        own: Mapping[str, Mapping[str, object]] = {},
        network: Network | None = None,
        shards: int = 1,
        name: str = "",
        postgres: bool = False,
    ) -> None:
        """`etcd` is host:port, `store` a URL, `environment` what leads to it. It has a `name` that no other has, unless
        one is given.

        `env` are further settings of every node, `own` of one, by its name. `network` has hosts of the nodes' names, on
        which they run. With `postgres` they have a port of PostgreSQL.
        """
        self.shards = shards
        self.name = name or f"test-{secrets.token_hex(4)}"
        self._etcd = etcd
        folder.mkdir(parents=True, exist_ok=True)
        secret = folder / "secret"
        secret.write_text(secrets.token_hex(32))
        self.env = {
            **environment,
            "TOPICS_CLUSTER": self.name,
            "TOPICS_CLUSTER_STORE": store,
            "TOPICS_CLUSTER_ETCD": etcd,
            "TOPICS_CLUSTER_SECRET_FILE": secret,
            **env,
        }
        self.nodes = [
            Node(name, folder / name, {**self.env, **own.get(name, {})}, network, postgres=postgres)
            for name in NAMES[:nodes]
        ]

    def __getitem__(self, name: str) -> Node:
        return next(node for node in self.nodes if node.name == name)

    def command(self, *words: str, check: bool = True, program: Path = TOPICS) -> subprocess.CompletedProcess[str]:
        """Run `topics cluster ...` in the nodes' environment; `program` is the command of another version."""
        env = {name: str(value) for name, value in self.env.items()}
        done = subprocess.run(
            [*DIE_WITH_US, str(program), "cluster", *words],
            env={"PATH": "/usr/bin:/bin", **env}, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert not check or done.returncode == 0, f"{words}: {done.returncode}: {done.stderr}"
        return done

    def _found(self) -> None:
        """Make the cluster as `topics cluster init` does, in less time."""
        store = from_url(
            f"{self.env['TOPICS_CLUSTER_STORE']}/{self.name}",
            endpoint=self.env["AWS_ENDPOINT_URL"],
            access_key_id=self.env["AWS_ACCESS_KEY_ID"],
            secret_access_key=self.env["AWS_SECRET_ACCESS_KEY"],
            region=self.env.get("AWS_REGION", "us-east-1"),
            client_options={"allow_http": True},
        )
        with contextlib.suppress(AlreadyExistsError):
            obstore.put(store, identity.NAME, identity.encode(identity.make(self.shards)), mode="create")

    def start(self, nodes: Iterable[Node] | None = None) -> Self:
        """Start nodes, all by default, and wait until each answers calls. Makes the cluster if there is none."""
        self._found()
        each = list(self.nodes if nodes is None else nodes)
        spawned = [(node, node.spawn()) for node in each]
        for node, files in spawned:
            node.wait_until_ready(files)
        return self

    @property
    def running(self) -> Sequence[Node]:
        """The nodes whose processes are there."""
        return [node for node in self.nodes if node.alive()]

    def claimed(self, shard: int = 0) -> dict[str, Any] | None:
        """The owner's entry in etcd."""
        return self._claims().get(shard)

    def _claims(self) -> dict[int, dict[str, Any]]:
        """The entries of all owners in etcd, by shard."""
        return {int(name): entry for name, entry in self._entries("owner").items()}

    def lives(self, node: Node) -> bool:
        """Return whether etcd still has the entry of a node, which goes with its lease."""
        return node.name in self._entries("nodes")

    def forge_claim(self, shard: int, claim: Mapping[str, Any] | None) -> None:
        """Put another owner's entry into etcd, without a lease, or remove what is there."""
        key = _encoded(f"/topics/{self.name}/owner/{shard}")
        if claim is None:
            requests.post(f"http://{self._etcd}/v3/kv/deleterange", json={"key": key}, timeout=5).raise_for_status()
        else:
            body = {"key": key, "value": _encoded(json.dumps(claim))}
            requests.post(f"http://{self._etcd}/v3/kv/put", json=body, timeout=5).raise_for_status()

    def _entries(self, kind: str) -> dict[str, Any]:
        """The entries of a kind in etcd, by name."""
        start = f"/topics/{self.name}/{kind}/"
        body = {"key": _encoded(start), "range_end": _encoded(start[:-1] + "0")}  # what follows a slash
        found: dict[str, Any] = {}
        with contextlib.suppress(requests.RequestException):
            reply = requests.post(f"http://{self._etcd}/v3/kv/range", json=body, timeout=5).json()
            for entry in reply.get("kvs", []):
                key = base64.b64decode(entry["key"]).decode()
                found[key.removeprefix(start)] = json.loads(base64.b64decode(entry["value"]))
        return found

    def owners(self) -> dict[int, str]:
        """The names of the owners that serve their shards. A claim with epoch 0 is a takeover under way."""
        return {shard: claim["node"] for shard, claim in sorted(self._claims().items()) if claim["epoch"]}

    def owned(self, node: Node) -> list[int]:
        """The shards that a node serves."""
        return [shard for shard, name in self.owners().items() if name == node.name]

    def wait_until_spread(self, seconds: float = 120) -> None:
        """Wait until each running node owns its share of the shards, and each shard has a follower."""

        def spread() -> bool:
            owned = Counter(self.owners().values())
            least, names = self.shards // len(self.running), {node.name for node in self.running}
            return owned.keys() == names and all(least <= count <= least + 1 for count in owned.values())

        poll(spread, seconds, lambda: f"shards at all nodes: {self.owners()}; {self.logs()}", pause=0.05)
        self.wait_for_followers(1, seconds)

    def wait_until_taken_over(self, node: Node, seconds: float = 20) -> None:
        """Wait until other nodes serve all shards."""

        def taken_over() -> bool:
            owners = self.owners()
            return len(owners) == self.shards and node.name not in owners.values()

        poll(taken_over, seconds, lambda: f"other owners than {node.name}: {self.owners()}; {self.logs()}")

    def owner(self, seconds: float = 20, *, other_than: Node | None = None) -> Node:
        """The node that owns the shard and serves it; waits for one. A claim with epoch 0 is a takeover under way."""

        def found() -> Node | None:
            claim = self.claimed()
            if not claim or not claim["epoch"] or (other_than is not None and claim["node"] == other_than.name):
                return None
            return self[claim["node"]]

        node = poll(found, seconds, lambda: f"an owner; {self.logs()}")
        assert node is not None
        return node

    def wait_for_followers(self, count: int, seconds: float = 180) -> None:
        """Wait until the owner of each shard counts so many followers that are caught up."""

        def enough() -> bool:
            owners = self.owners()
            with contextlib.suppress(httpx.HTTPError, OSError):
                figures = {name: self[name].metrics() for name in {*owners.values()}}
                found = [
                    figures[name][f"topics_cluster_followers{self._label(shard)}"] for shard, name in owners.items()
                ]
                return len(found) == self.shards and min(found) >= count
            return False

        poll(enough, seconds, lambda: f"{count} followers; {self.owners()}; {self.logs()}", pause=0.05)

    def _label(self, shard: int) -> str:
        return f'{{shard="{shard}"}}' if self.shards > 1 else ""

    def metric(self, name: str) -> float:
        """The sum of a metric of all running nodes, and of all shards."""
        samples = [sample for node in self.running for sample in node.metrics().items()]
        return sum(value for sample, value in samples if sample.partition("{")[0] == name)

    def logs(self, size: int = 1500) -> str:
        """The ends of all logs."""
        return "\n".join(f"--- {node.name}\n{node.log[-size:]}" for node in self.nodes)

    def stop(self) -> None:
        """End all processes, at once."""
        for node in self.nodes:
            node.kill()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


def _encoded(text: str) -> str:
    """A key as the JSON API of etcd takes it."""
    return base64.b64encode(text.encode()).decode()
