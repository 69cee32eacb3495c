"""Tasks as a Spark job."""

import os
import pickle
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from topics_client.address import Address
from topics_lakehouse.files import FileTask, TaskResult, run_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class RunnerLostError(Exception):
    """The executor of the tasks has ended, and no more tasks can run."""


class Runner(Protocol):
    """Does tasks, somewhere. `parallelism` is how many it does at a time."""

    @property
    def parallelism(self) -> int: ...

    def __call__(self, address: Address, tasks: Sequence[FileTask]) -> list[TaskResult]:
        """One result for each task, in any order. Raises where the whole job failed, and RunnerLostError where it is
        no use to try again."""


class SparkRunner:
    """One Spark task for each task, on whatever the session runs on: threads, a cluster, Connect."""

    def __init__(self, spark: "SparkSession") -> None:
        self._spark = spark

    @property
    def parallelism(self) -> int:
        """Cores of the executors."""
        try:
            return int(self._spark.sparkContext.defaultParallelism)
        except Exception:  # Connect has no such thing
            configured = self._spark.conf.get("spark.default.parallelism", None)
            return int(configured) if configured else os.cpu_count() or 1

    def __call__(self, address: Address, tasks: Sequence[FileTask]) -> list[TaskResult]:
        """Run the job and wait for its end."""
        # A plain function of a number, called once in each task. mapInArrow would do as well, but wants pandas.
        from pyspark.sql.functions import udf

        work = udf(_on_executor(pickle.dumps((address, list(tasks)))), "binary", useArrow=False)
        try:
            count = len(tasks)
            rows = self._spark.range(0, count, 1, count).select(work("id").alias("result")).collect()
        except Exception as error:
            try:
                self._spark.range(1).count()
            except Exception as gone:
                raise RunnerLostError(f"the Spark session has ended: {gone}".partition("\n")[0]) from error
            raise
        return [pickle.loads(bytes(row.result)) for row in rows]


def _on_executor(packed: bytes) -> Callable[[int], bytes]:
    def write_range(number: int) -> bytes:
        address, tasks = pickle.loads(packed)
        return pickle.dumps(next(iter(run_tasks(address, [tasks[number]]))))

    return write_range
