"""A standalone master and two workers, each a process: reads side by side, writes, a table, a killed executor."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from pyspark_topics.inventory import find_topic
from support.server import DIE_WITH_US
from support.spark import Row, Server, fill, need_java, rows
from support.spark_cluster import Cluster
from support.waiting import poll
from topics_client.connection import Connection
from topics_client.errors import NotFoundError
from topics_lakehouse.config import load
from topics_lakehouse.query import Lakehouse

DRIVER = Path(__file__).with_name("cluster_driver.py")
RECORDS = 10_000

pytestmark = pytest.mark.timeout(300)


class Driver:
    """A process of cluster_driver.py, which does one step after the other."""

    def __init__(self, cluster: Cluster, server: Server, directory: Path) -> None:
        self.directory = directory
        self._log = directory / "driver.log"
        with self._log.open("ab") as errors:
            self._process = subprocess.Popen(
                [*DIE_WITH_US, sys.executable, DRIVER, cluster.master, server.url, directory],
                env=cluster.env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )

    def begin(self, step: str) -> None:
        """Have it do a step."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{step}\n")
        self._process.stdin.flush()

    def found(self, step: str) -> dict[str, Any]:
        """The result of the step that has begun."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, self._log.read_text(errors="replace")[-4000:]
        found: dict[str, Any] = json.loads(line)
        assert found.pop("step") == step
        return found

    def do(self, step: str) -> dict[str, Any]:
        """Have it do a step; what it found."""
        self.begin(step)
        return self.found(step)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(10)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    need_java()
    with Cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="module")
def driver(cluster: Cluster, server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """One for all tests: a session starts three JVMs."""
    with Driver(cluster, server, tmp_path_factory.mktemp("driver")) as running:
        yield running


@pytest.fixture(scope="module")
def source(server: Server) -> list[Row]:
    """The topic that is read."""
    with server.connect() as connection:
        fill(connection, "source", RECORDS, tag=lambda i: f"t{i % 5}")
        return rows(connection, "source")


def written(connection: Connection, topic: str) -> int:
    """How many records a topic has, also if it is not there yet."""
    try:
        return sum(each.count for each in find_topic(connection, topic).partitions)
    except NotFoundError:
        return 0


def as_written(records: list[Row]) -> Counter[tuple[str | None, bytes]]:
    return Counter((row.tag, row.data) for row in records)


def test_executors_read_write_and_keep(
    driver: Driver, server: Server, source: list[Row], connection: Connection
) -> None:
    tasks = driver.do("read")["tasks"]
    assert sum(count for _, _, count in tasks) == RECORDS
    assert len({task for task, _, _ in tasks}) >= 4
    assert len({executor for _, executor, _ in tasks}) == 2

    driver.do("copy")
    assert as_written(rows(connection, "copy")) == as_written(source)

    assert driver.do("keep") == {"done": True, "records": RECORDS}
    config = load(
        overrides={
            "server": server.url,
            "warehouse": str(driver.directory / "lake"),
            "topics": [{"name": "source", "table": "kept"}],
        }
    )
    with Lakehouse(config) as lake:
        kept = lake.query("select seq, tag, data from kept order by seq", fresh=False).to_pylist()
    assert kept == [{"seq": row.seq, "tag": row.tag, "data": row.data} for row in source]


def test_executor_dies_in_the_middle_of_a_write(driver: Driver, source: list[Row], connection: Connection) -> None:
    driver.begin("slow")
    poll(lambda: len(list(driver.directory.glob("stopped-?"))) == 2, 150, "two tasks that stand still")
    poll(lambda: 0 < written(connection, "slow") < RECORDS, 30, "records of a write that is not done")
    executors = {int(mark.read_text()) for mark in driver.directory.glob("stopped-?")}
    assert len(executors) == 2
    os.kill(min(executors), signal.SIGKILL)
    (driver.directory / "go").touch()
    driver.found("slow")
    assert as_written(rows(connection, "slow")) == as_written(source)
