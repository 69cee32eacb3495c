"""A pipeline in a process of its own that kills itself at a given moment: `python -m support.lake_child JSON`."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from pyiceberg.catalog.sql import SqlCatalog

from support.lake_runs import LocalRunner
from topics_client.address import Address
from topics_lakehouse.config import load
from topics_lakehouse.files import FileTask, TaskResult
from topics_lakehouse.follower import Status
from topics_lakehouse.pipeline import Pipeline


class _Moment:
    """Dies when a step is taken for the nth time."""

    def __init__(self, step: str, nth: int) -> None:
        self._step = step
        self._left = nth

    def __call__(self, step: str, status: Status | None = None) -> None:
        if step == self._step:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


class _Runner(LocalRunner):
    def __init__(self, moment: _Moment) -> None:
        self._moment = moment

    def __call__(self, address: Address, tasks: Sequence[FileTask]) -> list[TaskResult]:
        results = super().__call__(address, tasks)
        self._moment("files")
        return results


def run(overrides: dict[str, Any], step: str, nth: int = 1) -> int:
    """Run a pipeline to the heads of its topics in a child that dies at the nth `step`: files (all of a round's files
    are written), a step that the pipeline reports, catalog-before or catalog-after (the nth commit that the catalog
    takes); the exit code."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "support.lake_child", json.dumps([overrides, step, nth])],
        env=environment(),
        timeout=60,
        check=False,
    ).returncode


def environment() -> dict[str, str]:
    """That of a child which finds the same modules."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(each for each in sys.path if each)}


def main() -> None:
    overrides, step, nth = json.loads(sys.argv[1])
    moment = _Moment(step, nth)
    landed = SqlCatalog.commit_table

    def commit_table(*given: Any) -> Any:
        moment("catalog-before")
        answer = landed(*given)
        moment("catalog-after")
        return answer

    SqlCatalog.commit_table = commit_table  # type: ignore[method-assign]
    pipeline = Pipeline(load(None, overrides), _Runner(moment), report=moment)
    sys.exit(0 if pipeline.once() else 1)


if __name__ == "__main__":
    main()
