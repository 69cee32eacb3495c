"""A Kafka broker of its own as the peer: one KRaft node from Maven's jars, in a temporary directory."""

import base64
import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.tools import have

_POM = Path(__file__).parent / "kafka_peer/pom.xml"
_JARS = Path(__file__).parents[1] / "build/kafka-peer"
_START_SECONDS = 60.0
MISSING = "not installed (apt-get install -y default-jdk-headless maven)"


@dataclass(frozen=True)
class Broker:
    """A broker that runs."""

    port: int
    pid: int


def fetched() -> bool:
    """Whether its jars are there, after an attempt to fetch them."""
    if not have("java"):
        return False
    if not (_JARS / ".fetched").exists():
        if not have("mvn"):
            return False
        command = ["mvn", "--quiet", "--batch-mode", "--file", str(_POM), "dependency:copy-dependencies"]
        done = subprocess.run([*command, f"-DoutputDirectory={_JARS}"], stdout=subprocess.DEVNULL, check=False)
        if done.returncode:
            return False
        (_JARS / ".fetched").touch()
    return True


@contextlib.contextmanager
def kafka_broker(directory: Path) -> Iterator[Broker]:
    """A broker in its default configuration, but with one replica of everything; RuntimeError if it does not start."""
    directory.mkdir(parents=True, exist_ok=True)
    port, controller = _free_port(), _free_port()
    config = directory / "server.properties"
    config.write_text(
        f"""process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
log.dirs={directory / "logs"}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=200
"""
    )
    java = ["java", "-cp", f"{_JARS}/*"]
    cluster = base64.urlsafe_b64encode(os.urandom(16)).decode().rstrip("=").replace("-", "A", 1)
    with (directory / "kafka.log").open("ab") as log:
        subprocess.run(
            [*java, "-Xmx256m", "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(config)],
            stdout=log, stderr=log, check=True,
        )  # fmt: skip
        process = subprocess.Popen(
            [*java, "-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "kafka.Kafka", str(config)],  # the heap of Kafka's own scripts
            stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        try:
            _wait(port, process, directory / "kafka.log")
            yield Broker(port, process.pid)
        finally:
            process.kill()  # its graceful stop takes longer than the measurement
            process.wait(10)


def resident_bytes(pid: int) -> int:
    """The memory of a process (RSS)."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def cpu_seconds(pid: int) -> float:
    """The processor time that a process has used, all threads, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def _wait(port: int, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.1)
    raise RuntimeError(f"Kafka does not start:\n{log.read_text(errors='replace')[-2000:]}")
