"""The pipeline as a program: `spark-submit …/topics_lakehouse/job.py --config lakehouse.toml`, or `python -m
topics_lakehouse.job`, which creates a session.
"""

import argparse
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from topics_lakehouse.config import Config, ConfigError, assignments, load
from topics_lakehouse.pipeline import Pipeline, Report
from topics_lakehouse.runner import SparkRunner
from topics_lakehouse.upkeep import MaintenanceSchedule

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger("topics_lakehouse")


def follow(
    config: Config,
    *,
    once: bool = False,
    refill: bool = False,
    report: Report | None = None,
    started: Callable[[Pipeline], None] | None = None,
) -> bool:
    """Run the pipeline on Spark until SIGTERM or SIGINT, or with `once` until everything that is there now is written;
    whether all topics are then in order. With `refill` tables that were rolled back are refilled first. `started`
    is given the pipeline before its first round."""
    with session(config) as spark:
        upkeep = MaintenanceSchedule(config)
        pipeline = Pipeline(config, SparkRunner(spark), report=report, after_commit=upkeep, refill=refill)
        upkeep.lag = pipeline.lag
        try:
            with _stopped_by_signals(pipeline):
                if started is not None:
                    started(pipeline)
                if once:
                    return pipeline.once()
                pipeline.run()
                return all(status.state == "live" for status in pipeline.statuses)
        finally:
            pipeline.close()


@contextmanager
def session(config: Config) -> "Iterator[SparkSession]":
    """The session of spark-submit, else a new one with the settings under `spark`; stopped in the end.
    `spark.master` may be `sc://…` for Connect."""
    from pyspark.sql import SparkSession

    settings = dict(config.spark)
    master = settings.pop("master", "")
    if "PYSPARK_GATEWAY_PORT" not in os.environ and not master.startswith("sc://"):  # not from spark-submit
        from pyspark_topics.java import ensure_java

        ensure_java()
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        settings = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", **settings}
    builder: Any = SparkSession.builder
    builder = builder.appName("topics-lakehouse")
    if master.startswith("sc://"):
        builder = builder.remote(master)
    elif master:
        builder = builder.master(master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark: SparkSession = builder.getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()


@contextmanager
def _stopped_by_signals(pipeline: Pipeline) -> Iterator[None]:
    """SIGTERM and SIGINT end the pipeline when the running round is committed; a second SIGINT ends it at once."""

    def stop(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        pipeline.stop()

    before = {each: signal.signal(each, stop) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def arguments(given: Sequence[str]) -> argparse.Namespace:
    """The parsed command line."""
    parser = argparse.ArgumentParser(prog="topics_lakehouse.job", description="Replicate topics to Iceberg tables.")
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="settings file (default: lakehouse.toml, if it exists)"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="setting that overrides the file's"
    )
    parser.add_argument("--topic", action="append", default=[], metavar="NAME", help="topic, instead of the file's")
    parser.add_argument("--once", action="store_true", help="write the current records, then exit")
    parser.add_argument("--refill", action="store_true", help="first restore rows lost by a rollback of the tables")
    return parser.parse_args(given)


def settings(parsed: argparse.Namespace) -> Config:
    """The configuration that a command line asks for. Raises ConfigError."""
    overrides: dict[str, Any] = {**assignments(parsed.set)}
    if parsed.topic:
        overrides["topics"] = [{"name": name} for name in parsed.topic]
    return load(parsed.config, overrides)


def main(given: Sequence[str] | None = None) -> int:
    """Return the exit code: 0 success, 1 a topic failed (with --once: or did not reach its head), 2 invalid
    settings."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    parsed = arguments(sys.argv[1:] if given is None else given)
    try:
        config = settings(parsed)
    except ConfigError as error:
        _log.error("%s", error)
        return 2
    return 0 if follow(config, once=parsed.once, refill=parsed.refill) else 1


if __name__ == "__main__":  # as a script, its folder is on the path: no module may be imported by its short name
    sys.path[:] = [each for each in sys.path if not each or Path(each).resolve() != Path(__file__).parent.resolve()]
    sys.exit(main())
