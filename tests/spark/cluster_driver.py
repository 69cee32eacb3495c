"""The driver of test_cluster.py: `cluster_driver.py MASTER URL DIRECTORY`.

Each line of stdin names a step, and each result is a line of stdout, a JSON object. The steps with topic `source`:

- `read` it, and where;
- `copy` it to topic `copy`;
- `keep` it as a table;
- `slow`: copy it to topic `slow`, by tasks that stop in the middle until the file `go` is there. Each of them says
  where it runs in a file of its own.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TASKS = 4
STOP_AT = 2000  # rows into a task
CHUNK = 100


def say(**found: Any) -> None:
    print(json.dumps(found), flush=True)


def place() -> str:
    """The executor that a worker process belongs to: it runs in that executor's directory, app-…/NUMBER."""
    return Path.cwd().name


def stopping(directory: str) -> Callable[[bytes], bytes]:
    """A function of rows that waits at one row of the task, in the first attempt."""
    seen = 0

    def pass_on(data: bytes) -> bytes:
        nonlocal seen
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        seen += 1
        if seen == STOP_AT and context.attemptNumber() == 0:
            daemon = os.getppid()
            jvm = int(Path(f"/proc/{daemon}/stat").read_text().rpartition(")")[2].split()[1])
            mark = Path(directory, f"stopped-{context.partitionId()}")
            mark.with_suffix(".new").write_text(str(jvm))
            mark.with_suffix(".new").rename(mark)
            deadline = time.monotonic() + 90
            while not Path(directory, "go").exists() and time.monotonic() < deadline:
                time.sleep(0.05)
        return data

    return pass_on


def session(master: str, directory: str) -> Any:
    from pyspark.sql import SparkSession

    return (
        SparkSession.builder.master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.driver.memory", "512m")
        .config("spark.executor.extraJavaOptions", os.environ["SPARK_SUBMIT_OPTS"])
        .config("spark.executor.memory", "600m")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.executorEnv.PYTHONPATH", os.environ["PYTHONPATH"])
        .config("spark.local.dir", f"{directory}/local")
        .config("spark.sql.warehouse.dir", f"{directory}/warehouse")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", str(CHUNK))
        .config("spark.scheduler.minRegisteredResourcesRatio", "1.0")
        .config("spark.locality.wait", "0s")
        .config("spark.cores.max", "2")
        .getOrCreate()
    )


def write(frame: Any, url: str, topic: str) -> None:
    sink = frame.write.format("topics").option("url", url).option("topic", topic)
    sink.option("maxRecordsPerAppend", str(CHUNK)).mode("append").save()


def main() -> None:
    master, url, directory = sys.argv[1:]
    from pyspark.sql.functions import udf

    from topics_lakehouse.config import load
    from topics_lakehouse.pipeline import Pipeline
    from topics_lakehouse.runner import SparkRunner

    spark = session(master, directory)
    reading = spark.read.format("topics").option("url", url).option("subscribe", "source")
    for step in map(str.strip, sys.stdin):
        source = reading.option("minPartitions", str(TASKS)).load()
        if step == "read":
            where = udf(place, "string", useArrow=False)
            placed = source.selectExpr("seq", "spark_partition_id() as task").withColumn("executor", where())
            counted = placed.groupBy("task", "executor").count().collect()
            say(step="read", tasks=[[row["task"], row["executor"], row["count"]] for row in counted])
        elif step == "copy":
            write(source.select("tag", "data"), url, "copy")
            say(step="copy")
        elif step == "keep":
            config = load(
                overrides={
                    "server": url,
                    "warehouse": f"{directory}/lake",
                    "topics": [{"name": "source", "table": "kept"}],
                    "task_records": 3000,
                }
            )
            pipeline = Pipeline(config, SparkRunner(spark))
            say(step="keep", done=pipeline.once(), records=pipeline.metrics.records)
            pipeline.close()
        elif step == "slow":
            slow = udf(stopping(directory), "binary", useArrow=False)
            write(source.select("tag", slow("data").alias("data")), url, "slow")
            say(step="slow")
    spark.stop()


if __name__ == "__main__":
    main()
