"""The pipeline on Spark: tasks in its workers, and the program that is submitted."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.lake_child import environment as child_environment
from support.lake_runs import settings
from support.lake_truth import Lake
from support.spark import Server, environment, fill, need_java, put_topic, rows
from support.waiting import poll
from topics_client.connection import Connection
from topics_lakehouse import runner
from topics_lakehouse.config import Config
from topics_lakehouse.follower import FAILED, LIVE
from topics_lakehouse.job import main
from topics_lakehouse.pipeline import Pipeline
from topics_lakehouse.runner import RunnerLostError, SparkRunner
from topics_lakehouse.upkeep import MaintenanceSchedule

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def _once(config: Config, spark: "SparkSession") -> Pipeline:
    pipeline = Pipeline(config, SparkRunner(spark))
    try:
        assert pipeline.once(), pipeline.statuses
    finally:
        pipeline.close()
    return pipeline


def test_tables_are_their_topics(spark: "SparkSession", server: Server, connection: Connection, tmp_path: Path) -> None:
    put_topic(connection, "wide", partitions=2, cap_records=90_000)
    fill(connection, "wide", 100_000, tag=lambda i: f"t{i % 9}", node="n")
    fill(connection, "wide", 500, partition=1, data=b"\x00\x01", kind="binary")
    put_topic(connection, "small")
    fill(connection, "small", 10, data=[b"{}"] * 5 + [b"[]"] * 5)
    declared = {"pattern": "wide|small", "schema": "id bigint, amount double"}
    config = settings(server, tmp_path, declared, max_records_per_round=60_000, target_file_size="64kB")
    pipeline = _once(config, spark)
    lake = Lake(config)
    for topic in ("wide", "small"):
        assert lake.records(topic) == rows(connection, topic)
    assert lake.gaps("wide") == [(0, 1, 10_000)]
    assert len(lake.errors("wide")) == 500
    assert lake.errors("small") == [(0, seq) for seq in range(6, 11)]
    assert pipeline.metrics.files > 2 * pipeline.metrics.rounds


def test_a_live_topic(spark: "SparkSession", server: Server, connection: Connection, tmp_path: Path) -> None:
    put_topic(connection, "live")
    config = settings(server, tmp_path, "live", trigger=0, keep_snapshots=2)
    pipeline = Pipeline(config, SparkRunner(spark), after_commit=MaintenanceSchedule(config))
    for first in range(0, 1500, 100):
        fill(connection, "live", 100, first=first)
        assert pipeline.round()
    pipeline.close()
    lake = Lake(config)
    assert lake.records("live") == rows(connection, "live")
    assert len(lake.catalog.load_table("topics.live").metadata.snapshots) <= 13


@pytest.mark.parametrize("moment", ["before", "behind"])
def test_a_worker_killed_in_front_of_or_behind_its_files(
    spark: "SparkSession",
    server: Server,
    connection: Connection,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    moment: str,
) -> None:
    """In local mode Spark gives up a job for that, on a cluster it does the task again: nothing twice either way."""
    topic = f"killed-{moment}"
    put_topic(connection, topic)
    fill(connection, topic, 50_000)
    on_executor = runner._on_executor
    marker = tmp_path / "killed"

    def killing(packed: bytes) -> Callable[[int], bytes]:
        work = on_executor(packed)

        def write_range(number: int) -> bytes:
            if moment == "before" and number == 1 and not marker.exists():
                marker.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            result = work(number)
            if moment == "behind" and number == 1 and not marker.exists():
                marker.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return write_range

    monkeypatch.setattr(runner, "_on_executor", killing)
    config = settings(server, tmp_path / "lake", topic)
    pipeline = Pipeline(config, SparkRunner(spark))
    assert not pipeline.once()
    (status,) = pipeline.statuses
    assert status.state == FAILED
    assert f"topic {topic}, seq 1 to" in status.reason
    assert pipeline.once()
    assert pipeline.statuses[0].state == LIVE
    pipeline.close()
    assert marker.exists()
    assert Lake(config).records(topic) == rows(connection, topic)


def test_the_key_is_in_no_plan(spark: "SparkSession", tmp_path: Path) -> None:
    with Server(tmp_path / "server", env={"TOPICS_API_KEYS": "s3cr3t"}) as server:
        with server.connect("s3cr3t") as connection:
            put_topic(connection, "locked")
            fill(connection, "locked", 10)
        seen = []

        class Watching(SparkRunner):
            def __call__(self, *given: object) -> list[object]:  # type: ignore[override]
                collect = runner.pickle.dumps(given)
                seen.append(collect)
                return super().__call__(*given)  # type: ignore[arg-type,return-value]

        config = settings(server, tmp_path / "lake", "locked", key="s3cr3t")
        pipeline = Pipeline(config, Watching(spark))
        assert pipeline.once()
        pipeline.close()
        assert b"s3cr3t" in seen[0]  # it travels in the function
        work = runner._on_executor(seen[0])
        from pyspark.sql.functions import udf

        frame = spark.range(1).select(udf(work, "binary", useArrow=False)("id"))
        assert "s3cr3t" not in frame._jdf.queryExecution().toString()


def test_a_session_that_has_ended_is_told() -> None:
    class Ended:
        def range(self, *_: int) -> None:
            raise RuntimeError("Cannot call methods on a stopped SparkContext")

    from topics_client.address import Address

    with pytest.raises(RunnerLostError, match="stopped SparkContext"):
        SparkRunner(Ended())(Address("127.0.0.1"), [])  # type: ignore[arg-type]


def _write_settings(folder: Path, server: Server, topic: str) -> Path:
    file = folder / "lakehouse.toml"
    file.write_text(
        f'server = "{server.url}"\nwarehouse = "lake"\ntrigger = "100ms"\n'
        '[spark]\nmaster = "local[1]"\nspark.driver.memory = "512m"\nspark.driver.host = "127.0.0.1"\n'
        f'spark.driver.bindAddress = "127.0.0.1"\n[[topics]]\nname = "{topic}"\n'
    )
    return file


def _submitted(folder: Path, *command: str) -> "subprocess.Popen[bytes]":
    environment()
    env = child_environment()
    with (folder / "job.log").open("wb") as log:
        return subprocess.Popen(command, env=env, cwd=folder, stdout=log, stderr=log)


def test_the_program_runs_until_it_is_told_to_end(server: Server, connection: Connection, tmp_path: Path) -> None:
    need_java()
    put_topic(connection, "job")
    fill(connection, "job", 1000)
    file = _write_settings(tmp_path, server, "job")
    job = _submitted(tmp_path, sys.executable, "-m", "topics_lakehouse.job", "--config", str(file))
    config = settings(server, tmp_path / "lake", "job")
    try:
        poll(lambda: _rows_there(config, "job") == 1000, 180, (tmp_path / "job.log").read_text(), pause=0.3)
        fill(connection, "job", 1000)
        poll(lambda: _rows_there(config, "job") == 2000, 30, pause=0.3)
        job.send_signal(signal.SIGTERM)
        assert job.wait(60) == 0, (tmp_path / "job.log").read_text()
    finally:
        job.kill()
        job.wait(10)
    assert Lake(config).records("job") == rows(connection, "job")


def _rows_there(config: Config, topic: str) -> int:
    lake = Lake(config)
    return len(lake.records(topic)) if lake.catalog.table_exists(f"topics.{topic}") else 0


def test_the_program_is_submitted(server: Server, connection: Connection, tmp_path: Path) -> None:
    import pyspark

    need_java()
    put_topic(connection, "submitted")
    fill(connection, "submitted", 1000)
    file = _write_settings(tmp_path, server, "submitted")
    home = Path(pyspark.__file__).parent
    program = Path(runner.__file__).with_name("job.py")
    options = ["--master", "local[1]", "--driver-memory", "512m", "--conf", "spark.driver.host=127.0.0.1"]
    command = [str(home / "bin" / "spark-submit"), *options, str(program), "--config", str(file), "--once"]
    job = _submitted(tmp_path, *command)
    try:
        assert job.wait(120) == 0, (tmp_path / "job.log").read_text()
    finally:
        job.kill()
        job.wait(10)
    config = settings(server, tmp_path / "lake", "submitted")
    assert Lake(config).records("submitted") == rows(connection, "submitted")


def test_wrong_settings_end_the_program(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert main(["--config", str(tmp_path / "none.toml")]) == 2
    assert main(["--topic", "a", "--set", "triger=1"]) == 2
    assert "unknown setting triger" in caplog.text
    assert main(["--topic", "a", "--set", "trigger"]) == 2
