"""Pipelines in processes of their own that kill themselves at a given moment.

Each is forked from one process, `python -m support.lake_child`, that has imported everything: an import of all that a
pipeline needs takes 1.4 s of CPU.
"""

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, Self

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


class Children:
    """The process that is forked, as a context. One child runs at a time."""

    def __init__(self) -> None:
        self._parent = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "support.lake_child"],
            env=environment() | {"OPENBLAS_NUM_THREADS": "1"},  # its threads would not survive the fork
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )

    def run(self, overrides: dict[str, Any], step: str, nth: int = 1, *, seconds: float | None = None) -> int:
        """Run a pipeline to the heads of its topics in a child that dies at the nth `step`: files (all files of a round
        are written), a step that the pipeline reports, catalog-before or catalog-after (the nth commit that the catalog
        takes). Returns the exit code. A child that still runs after `seconds`, if given, is killed."""
        assert self._parent.stdin is not None
        assert self._parent.stdout is not None
        self._parent.stdin.write(json.dumps([seconds, overrides, step, nth]).encode() + b"\n")
        return int(self._parent.stdout.readline())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._parent.communicate(timeout=10)
        finally:
            self._parent.kill()


def environment() -> dict[str, str]:
    """The environment of a child that finds the same modules."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(each for each in sys.path if each)}


def _pipeline(overrides: dict[str, Any], step: str, nth: int) -> int:
    moment = _Moment(step, nth)
    landed = SqlCatalog.commit_table

    def commit_table(*given: Any) -> Any:
        moment("catalog-before")
        answer = landed(*given)
        moment("catalog-after")
        return answer

    SqlCatalog.commit_table = commit_table  # type: ignore[method-assign]
    pipeline = Pipeline(load(None, overrides), _Runner(moment), report=moment)
    return 0 if pipeline.once() else 1


def main() -> None:
    for line in sys.stdin:
        seconds, *given = json.loads(line)
        pid = os.fork()
        if not pid:
            os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
            sys.exit(_pipeline(*given))
        ended = os.pidfd_open(pid)
        if not select.select([ended], [], [], seconds)[0]:
            os.kill(pid, signal.SIGKILL)
        os.close(ended)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
