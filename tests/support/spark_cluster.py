"""A standalone Spark cluster on the loopback: a master and workers as processes of their own, from the PyPI package."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any, Self

from support.ports import free_port
from support.server import DIE_WITH_US
from support.spark import QUICK_START
from support.waiting import poll

ROOT = Path(__file__).parents[2]
_START_SECONDS = 90.0


class Cluster:
    """`master` is the URL for a session. Only ever signals the process groups that it started."""

    def __init__(self, directory: Path, *, workers: int = 2) -> None:
        self._directory = directory
        self._count = workers
        self._processes: list[subprocess.Popen[bytes]] = []
        self._web = free_port()
        self.port = free_port()

    @property
    def master(self) -> str:
        """Where a session connects to."""
        return f"spark://127.0.0.1:{self.port}"

    @property
    def env(self) -> dict[str, str]:
        """The environment of the daemons and of a driver."""
        import pyspark

        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
        return kept | {
            "SPARK_HOME": str(Path(pyspark.__file__).parent),
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": str(ROOT / "spark_connector"),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": QUICK_START,
            "SPARK_SUBMIT_OPTS": QUICK_START,
            "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",
        }

    def state(self) -> dict[str, Any]:
        """What the master says of itself."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._web}/json/", timeout=10) as reply:
            state: dict[str, Any] = json.load(reply)
        return state

    def __enter__(self) -> Self:
        self._directory.mkdir(parents=True, exist_ok=True)
        try:
            self._spawn(
                "master",
                "master.Master",
                "--host",
                "127.0.0.1",
                "--port",
                str(self.port),
                "--webui-port",
                str(self._web),
            )
            # A worker that comes before the master waits for long.
            poll(lambda: self._answers(0), _START_SECONDS, "the master", pause=0.1)
            for i in range(self._count):
                work = self._directory / f"worker-{i}"
                resources = ["--cores", "1", "--memory", "1g", "--webui-port", str(free_port())]
                self._spawn(
                    f"worker-{i}",
                    "worker.Worker",
                    "--host",
                    "127.0.0.1",
                    *resources,
                    "--work-dir",
                    str(work),
                    self.master,
                )
            poll(lambda: self._answers(self._count), _START_SECONDS, "the workers", pause=0.1)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._processes):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(10)

    def _answers(self, workers: int) -> bool:
        for process in self._processes:
            if process.poll() is not None:
                logs = "".join(log.read_text(errors="replace")[-2000:] for log in self._directory.glob("*.log"))
                raise AssertionError(f"a daemon ended with {process.returncode}:\n{logs}")
        try:
            return len([each for each in self.state()["workers"] if each["state"] == "ALIVE"]) >= workers
        except (OSError, ValueError):
            return False

    def _spawn(self, name: str, main: str, *arguments: str) -> None:
        command = [
            *DIE_WITH_US,
            f"{self.env['SPARK_HOME']}/bin/spark-class",
            f"org.apache.spark.deploy.{main}",
            *arguments,
        ]
        with (self._directory / f"{name}.log").open("ab") as log:
            self._processes.append(
                subprocess.Popen(
                    command,
                    env=self.env,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )
