"""Every version of Spark that the connector is for, classic and Connect, each thing once.

`make test-spark` and `make soak` make the environments of the earlier versions.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.missing import without
from support.server import DIE_WITH_US
from support.spark import Server, fill, need_java, rows

ROOT = Path(__file__).parents[3]
SCENARIO = Path(__file__).with_name("scenario.py")
RECORDS = 1000

INSTALLED = "installed"
ENVIRONMENTS = {
    "4.1": ROOT / "build/spark-4.1/bin/python",
    "4.2": ROOT / "build/spark-4.2/bin/python",
    "4.3": ROOT / "build/spark-4.3/bin/python",
    INSTALLED: Path(sys.executable),
}
soak = pytest.mark.soak


@pytest.mark.parametrize(
    ("version", "mode"),
    [
        pytest.param(INSTALLED, "classic", marks=soak),  # what all the other tests run with
        ("4.3", "connect"),
        ("4.1", "classic"),
        pytest.param("4.1", "connect", marks=soak),
        pytest.param("4.2", "classic", marks=soak),
        pytest.param("4.2", "connect", marks=soak),
    ],
)
def test_scenario(server: Server, tmp_path: Path, version: str, mode: str) -> None:
    python = ENVIRONMENTS[version]
    if not python.exists():
        without(f"Spark {version} is not installed: make build/spark-{version}/.installed")
    need_java()
    topic = f"numbers-{version}-{mode}"
    with server.connect() as connection:
        fill(connection, topic, RECORDS, tag=lambda i: f"t{i % 3}")
        truth = rows(connection, topic)

    found = scenario(python, mode, server.url, topic, tmp_path)

    assert version == INSTALLED or found["version"].startswith(f"{version}.")
    assert ("connect" in found["kind"]) is (mode == "connect")
    assert found["columns"] == ["topic", "seq", "ts", "node", "tag", "meta", "data", "partition"]
    total = sum(row.seq for row in truth)
    assert found["read"] == [RECORDS, [total, sum(len(row.data) for row in truth)]]
    assert found["where"] == [6, 7, 8]
    assert found["typed"] == [sum(range(RECORDS)), sum(i % 1000 + 0.25 for i in range(RECORDS))]
    assert found["batches"] >= 3
    assert found["streamed"] == [RECORDS, RECORDS, total]
    assert found["lakehouse"] is True
    assert found["table"] == [RECORDS, total]
    with server.connect() as connection:
        for copy in ("batch", "stream"):
            copied = rows(connection, f"{topic}-{copy}")
            assert sorted((row.tag, row.data) for row in copied) == sorted((row.tag, row.data) for row in truth)


def scenario(python: Path, mode: str, url: str, topic: str, directory: Path) -> dict[str, Any]:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK_", "SPARK_"))}
    env["PYTHONPATH"] = str(ROOT / "spark_connector")
    with subprocess.Popen(
        [*DIE_WITH_US, python, SCENARIO, mode, url, topic, directory],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            out, errors = process.communicate(timeout=170)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with the server that it may have started
    assert process.returncode == 0, out + errors
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found
