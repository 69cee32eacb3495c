"""What the README shows of Spark and the lakehouse, run as it is printed."""

import os
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.server import TOPICS
from support.spark import Server, environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_the_tour_of_spark(
    server: Server, spark: "SparkSession", tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    at = ["--server", server.grpc_target]
    command = [str(TOPICS), "import", "examples/webhooks.ndjson", "--topic", "gh", *at]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=60)

    (block,) = (each for each in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "pyspark" in each)
    assert '.option("subscribe", "gh")' in block
    names: dict[str, Any] = {"spark": spark}
    exec(block.replace('.option("subscribe"', f'.option("url", "{server.url}").option("subscribe"'), names)
    counts = re.findall(r"\|\s*([\w.]+)\|\s*(\d+)\|", capsys.readouterr().out)
    assert sum(int(count) for _, count in counts) == 12

    environment()
    (commands,) = (each for each in re.findall(r"```sh\n(.*?)```", README, re.DOTALL) if "lakehouse run" in each)
    done = subprocess.run(
        ["bash", "-euc", commands.replace(".venv/bin/topics", str(TOPICS))],
        cwd=tmp_path,
        env=dict(os.environ) | {"TOPICS_URL": server.url},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"records\W+last", done.stdout)
    assert re.search(r"\b12\W+12\b", done.stdout)
