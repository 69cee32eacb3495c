"""Writes of Spark programs in which tasks fail and processes are killed: nothing is lost or written twice."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from spark.write_faults_jobs import FILES, LINES, ROWS

from support.spark import Server, environment, need_java
from support.spark import rows as stored_rows
from support.waiting import poll
from topics_client.connection import Connection
from topics_client.errors import NotFoundError
from topics_proto.v1 import topics_service_pb2 as pb

pytestmark = pytest.mark.timeout(240)
JOBS = Path(__file__).with_name("write_faults_jobs.py")
SECONDS = 150


class Job:
    """A Spark program in a process group of its own."""

    def __init__(self, name: str, url: str, directory: Path) -> None:
        need_java()
        environment()
        directory.mkdir(exist_ok=True)
        self._log = directory / f"{name}.log"
        with self._log.open("ab") as out:
            self._process = subprocess.Popen(
                [sys.executable, str(JOBS), name, url, str(directory)], stdout=out, stderr=out, start_new_session=True
            )

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def wait(self) -> None:
        """Until it has ended well."""
        assert self._process.wait(SECONDS) == 0, self._log.read_text()[-5000:]

    def kill(self) -> None:
        """SIGKILL for the driver, its JVM and every worker."""
        if self.running:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(10)


@contextmanager
def job(name: str, url: str, directory: Path) -> Iterator[Job]:
    made = Job(name, url, directory)
    try:
        yield made
    finally:
        made.kill()


def stored(connection: Connection, topic: str) -> int:
    try:
        asked = pb.GetTopicRequest(topic=topic)
        return connection.unary(connection.topics.GetTopic, asked, repeatable=True).state.head_seq
    except NotFoundError:
        return 0


def texts(server: Server, topic: str) -> list[str]:
    with server.connect() as connection:
        return [row.data.decode() for row in stored_rows(connection, topic)]


def test_tasks_that_fail_once(tmp_path: Path) -> None:
    with Server(tmp_path / "server") as server, job("tasks", server.url, tmp_path) as running:
        running.wait()
        for topic in ("broken", "killed", "writer"):
            assert (tmp_path / topic).exists(), "it did fail"
            assert sorted(json.loads(text)["id"] for text in texts(server, topic)) == list(range(ROWS))


def fill(directory: Path) -> list[str]:
    (directory / "in").mkdir()
    lines = [json.dumps({"file": number, "line": i}) for number in range(FILES) for i in range(LINES)]
    for number in range(FILES):
        (directory / "in" / f"{number}.txt").write_text("\n".join(lines[number * LINES : (number + 1) * LINES]) + "\n")
    return lines


def test_a_streaming_query_that_is_killed(tmp_path: Path) -> None:
    lines = fill(tmp_path)
    with Server(tmp_path / "server") as server:
        with server.connect() as connection, job("stream", server.url, tmp_path) as first:
            some = LINES + LINES // 4
            poll(lambda: stored(connection, "stream") > some or not first.running, SECONDS, pause=0.03)
            first.kill()
        with job("stream", server.url, tmp_path) as second:
            second.wait()
        found = texts(server, "stream")
        assert len(found) == len(lines)
        assert sorted(found) == sorted(lines)
