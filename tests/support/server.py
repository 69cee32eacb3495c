"""A `topics serve` process of one's own, on free ports and a directory of its own."""

import http.client
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from support.ports import free_ports
from support.preloaded import Forked, Preloaded
from support.waiting import poll

TOPICS = Path(sys.executable).parent / "topics"
START_SECONDS = 30.0
DIE_WITH_US = ["setpriv", "--pdeathsig", "KILL", "--"] if shutil.which("setpriv") else []

PRELOADED = Preloaded("topics_cli.serve", "topics_server.server")
PRELOADED_NODE = Preloaded("topics_cli.serve", "topics_server.server", "topics_server.node.server")
"""The same for nodes of a cluster."""
FORKED = {
    "backup", "clients", "cluster", "corruption", "docs", "fuzz", "gateway", "kafka", "lakehouse", "observability",
    "postgres", "protocols", "sdk", "security", "shards", "spark",
}  # fmt: skip
"""Folders of tests whose servers are forked from a process that has imported everything."""
EXECED = {
    "observability/test_tracing.py",
    "security/test_key_reload.py",
    "security/test_private.py",
    "security/test_secrets.py",
    "security/test_small_container.py",
}
"""Files in these folders whose tests are about the process itself: its environment, umask, a signal while it starts."""

TESTS = Path(__file__).parents[1]
assert all((TESTS / name).exists() for name in FORKED | EXECED), "a name above has changed"


class StartFailedError(AssertionError):
    """The server ended before it was ready."""


class ServerProcess:
    """Runs `topics serve`; only ever signals the process group that it started.

    `data_dir` stays over restarts. `prefix` is put in front of the command (a tracer). `env` wins over the defaults.
    With `kafka` it has a Kafka port too, with `postgres` one of PostgreSQL.
    `program` is the command of another version.
    """

    ready_seconds = START_SECONDS
    """Time that recovery may take."""

    def __init__(
        self,
        work_dir: Path,
        *,
        data_dir: Path | None = None,
        env: Mapping[str, object] = {},
        prefix: Sequence[str] = (),
        kafka: bool = False,
        postgres: bool = False,
        program: Path = TOPICS,
        same_ports: bool = False,
    ) -> None:
        """`same_ports`: the ports stay over restarts, and no other process gets them meanwhile."""
        self.work_dir = work_dir
        self.work_dir.mkdir(parents=True, exist_ok=True)
        self.data_dir = data_dir if data_dir is not None else work_dir / "data"
        self.log_file = work_dir / "server.log"
        self.host = "127.0.0.1"
        """The address of its ports."""
        self.network: Path | None = None
        """The network namespace that it runs in, where that is another; it has to be one of FORKED then."""
        self._env = {name: str(value) for name, value in env.items()}
        if same_ports:
            names = ("TOPICS_PORT", "TOPICS_GRPC_PORT", "TOPICS_KAFKA_PORT")[: 3 if kafka else 2]
            self._env = {name: str(port) for name, port in zip(names, free_ports(len(names)), strict=True)} | self._env
        self._prefix = list(prefix)
        self._kafka = kafka
        self._postgres = postgres
        self._program = program
        self._process: subprocess.Popen[bytes] | Forked | None = None
        self.http_port = 0
        self.grpc_target = ""
        self.kafka_port = self.pg_port = 0

    @property
    def pid(self) -> int:
        """The process id (of the prefix, where there is one)."""
        assert self._process is not None
        return self._process.pid

    @property
    def base(self) -> str:
        """The URL of the HTTP API."""
        return f"http://{self.host}:{self.http_port}"

    @property
    def log(self) -> str:
        """Everything that the server has printed, over all its starts."""
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""

    def start(self) -> "ServerProcess":
        """Start and wait until both protocols are open and everything is recovered."""
        return self.wait_until_ready(self.spawn())

    def wait_until_ready(self, files: Sequence[Path]) -> "ServerProcess":
        """Wait as `start` does, after `spawn`, which gives `files`."""

        def ready() -> bool:
            if not self.alive():
                raise StartFailedError(f"the server exited with {self.wait(5)}:\n{self.log[-3000:]}")
            return all(file.exists() for file in files)

        try:
            poll(ready, START_SECONDS, f"port files; log: {self.log[-2000:]}")
        except AssertionError:
            self.kill()
            raise
        http, grpc, *others = (file.read_text() for file in files)
        assert re.fullmatch(rf"{re.escape(self.host)}:\d+", http), http
        self.http_port, self.grpc_target = int(http.rpartition(":")[2]), grpc
        ports = [int(each.rpartition(":")[2]) for each in others]
        self.pg_port = ports.pop() if self._postgres else 0
        self.kafka_port = ports.pop() if self._kafka else 0
        poll(self._recovered, self.ready_seconds, f"readiness; log: {self.log[-2000:]}")
        return self

    def _recovered(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.base}/v0/ready", timeout=10) as reply:
                return bool(reply.status == 200)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code not in (401, 503):
                raise
            return error.code == 401  # TOPICS_PROBE_AUTH: a test that sets it waits for readiness with a key
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, TimeoutError) or isinstance(getattr(error, "reason", None), TimeoutError):
                return False
            # It ends, with its ports open: an answer may break off in the middle.
            raise StartFailedError(f"the server exited with {self.wait(30)}:\n{self.log[-3000:]}") from error

    def spawn(self) -> tuple[Path, ...]:
        """Start without waiting; returns the port files to expect."""
        assert not self.alive(), "it runs already"
        mark = uuid.uuid4().hex[:8]
        protocols = ["http", "grpc", *(["kafka"] if self._kafka else []), *(["postgres"] if self._postgres else [])]
        files = [self.work_dir / f"{protocol}-{mark}" for protocol in protocols]
        env = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
        env |= {
            "TOPICS_PORT": "0",
            "TOPICS_GRPC_PORT": "0",
            "TOPICS_PORT_FILE": str(files[0]),
            "TOPICS_GRPC_PORT_FILE": str(files[1]),
            "TOPICS_DATA_DIR": str(self.data_dir),
            "TOPICS_MAX_LAG_MS": "0",  # a busy machine must not turn writes into 429
        }
        if self._kafka:
            env |= {"TOPICS_KAFKA_PORT": "0", "TOPICS_KAFKA_PORT_FILE": str(files[2])}
        if self._postgres:
            env |= {"TOPICS_PG_PORT": "0", "TOPICS_PG_PORT_FILE": str(files[-1])}
        env |= self._env
        with self.log_file.open("ab") as out:
            if self._may_be_forked():
                with open(os.devnull) as nothing:
                    preloaded = PRELOADED_NODE if "TOPICS_CLUSTER_STORE" in env else PRELOADED
                    self._process = preloaded.start(
                        ["serve"], env, nothing.fileno(), out.fileno(), out.fileno(), self.network
                    )
                return tuple(files)
            assert self.network is None
            self._process = subprocess.Popen(
                [*DIE_WITH_US, *self._prefix, str(self._program), "serve"],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        return tuple(files)

    def _may_be_forked(self) -> bool:
        """True where an `exec` would prove nothing: no other program in front, no variable that an import reads."""
        _, _, path = os.environ.get("PYTEST_CURRENT_TEST", "").partition("tests/")
        if path.partition("/")[0] not in FORKED or path.partition("::")[0] in EXECED or self._prefix:
            return False
        if self._program != TOPICS:
            return False
        return all(name.startswith(("TOPICS_", "AWS_")) for name in self._env)

    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.poll() is None

    def cpu_seconds(self) -> float:
        """The CPU time that the process has used, without its children."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def signal(self, signum: signal.Signals) -> None:
        """Send a signal to the process group."""
        os.killpg(self.pid, signum)

    def wait(self, seconds: float) -> int:
        """The exit code, once there is one."""
        assert self._process is not None
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the server did not exit within {seconds} s:\n{self.log[-3000:]}") from None

    def stop(self, seconds: float = 15) -> int:
        """SIGTERM, and the exit code."""
        self.signal(signal.SIGTERM)
        return self.wait(seconds)

    def kill(self) -> None:
        """SIGKILL, whatever the state; returns when it is gone."""
        if self.alive():
            self.signal(signal.SIGKILL)
            assert self._process is not None
            self._process.wait(10)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()
