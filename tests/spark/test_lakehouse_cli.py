"""`topics lakehouse` as a user runs it: a process of its own, with its own Spark."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.lake_truth import Lake
from support.server import TOPICS
from support.spark import Server, environment, fill, need_java, put_topic, rows
from support.waiting import poll
from topics_client.connection import Connection
from topics_lakehouse.config import load


@pytest.fixture
def folder(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where `lakehouse.toml` is, which is about the topic `cli`."""
    need_java()
    for name in ("PYTHONPATH", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_LOCAL_IP", "SPARK_SUBMIT_OPTS"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    environment()
    (tmp_path / "lakehouse.toml").write_text(
        f'server = "{server.url}"\nwarehouse = "lake"\ntrigger = "100 ms"\n'
        '[[topics]]\nname = "cli"\nschema = "id bigint, amount double"\n'
        '[spark]\n"spark.driver.memory" = "600m"\n'
    )
    return tmp_path


def _topics(folder: Path, *arguments: str) -> "subprocess.Popen[str]":
    with (folder / "errors.log").open("w") as errors:
        return subprocess.Popen(
            [sys.executable, str(TOPICS), "lakehouse", *arguments],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )


def _done(folder: Path, *arguments: str) -> str:
    """Its output, once it has ended well."""
    with _topics(folder, *arguments) as process:
        try:
            out, _ = process.communicate(timeout=120)
        except BaseException:
            process.kill()
            raise
    assert process.returncode == 0, (folder / "errors.log").read_text()[-3000:]
    return out


def test_from_a_topic_to_an_answer(server: Server, connection: Connection, folder: Path) -> None:
    put_topic(connection, "cli", partitions=2)
    fill(connection, "cli", 20_000, tag=lambda i: f"t{i % 3}")
    assert "cli: 20,000 records written" in _done(folder, "run", "--once", "--master", "local[2]")
    fill(connection, "cli", 5, first=20_000, partition=1, tag="hot")
    answer = _done(folder, "query", "--json", "SELECT count(*) AS n, max(id) AS top FROM cli")
    assert json.loads(answer) == {"n": 20_005, "top": 20_004}
    lake = Lake(load(folder / "lakehouse.toml"))
    assert lake.records("cli") == rows(connection, "cli", 0)

    running = _topics(folder, "run", "--json", "--master", "local[2]")
    try:
        what = "the records of the second partition in the table"
        poll(lambda: len(lake.records("cli")) == 20_005, 90, what, pause=0.3)
    finally:
        running.send_signal(signal.SIGTERM)
        out, _ = running.communicate(timeout=60)
    assert running.returncode == 0, (folder / "errors.log").read_text()[-3000:]
    events = [json.loads(line) for line in out.splitlines()]
    assert [(event["event"], event["records"], event["lag"]) for event in events] == [("written", 5, 0)]
    found = json.loads(_done(folder, "status", "--json"))  # one topic, one line
    assert (found["lag"], found["rows"], found["problems"]) == (0, 20_005, [])
