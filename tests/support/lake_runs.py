"""Runs of the pipeline in this process, without Spark."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from support.spark import Server
from topics_client.address import Address
from topics_lakehouse.config import Config, load
from topics_lakehouse.files import FileTask, TaskResult, run_tasks
from topics_lakehouse.pipeline import Pipeline


class LocalRunner:
    """Does the tasks of a pipeline one after the other, here."""

    parallelism = 2

    def __call__(self, address: Address, tasks: Sequence[FileTask]) -> list[TaskResult]:
        """The results."""
        return list(run_tasks(address, tasks))


def settings(server: Server, folder: Path, *topics: str | Mapping[str, object], **given: object) -> Config:
    """A configuration with an embedded catalog in the folder."""
    wanted = [{"name": each} if isinstance(each, str) else dict(each) for each in topics]
    overrides: dict[str, Any] = {"server": server.url, "warehouse": str(folder), "topics": wanted, **given}
    return load(None, overrides)


def follow(config: Config) -> None:
    """Bring every table to the head of its topic."""
    pipeline = Pipeline(config, LocalRunner())
    try:
        assert pipeline.once(), pipeline.statuses
    finally:
        pipeline.close()
