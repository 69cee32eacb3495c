"""`scenario.py (classic|connect) URL TOPIC DIRECTORY`: each thing once with the Spark of this interpreter.

Reads the topic, streams it, writes it to two other topics in batch and as a stream, keeps it as a table. What it found
goes to stdout as one JSON object; the test compares it with the truth. Runs in environments that have the project and
Spark, and nothing of the tests.
"""

import faulthandler
import json
import os
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

warnings.simplefilter("error")
warnings.filterwarnings("ignore", module="pandas")  # Connect's affair
warnings.filterwarnings("ignore", category=ResourceWarning)  # sockets that Spark 4.1 leaves to the garbage collector
warnings.filterwarnings("ignore", category=DeprecationWarning, module="google|grpc|pyspark")


SECONDS = 165


def settings(directory: Path) -> dict[str, str]:
    return {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.log.level": "ERROR",
        "spark.local.dir": str(directory / "local"),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
    }


@contextmanager
def session(mode: str, directory: Path) -> Iterator[Any]:
    """A session in this process, or one at a Connect server of its own, which is a process as everywhere."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder
    if mode == "classic":
        for name, value in settings(directory).items():
            builder = builder.config(name, value)
        spark = builder.master("local[2]").getOrCreate()
        yield spark
        spark.stop()
        return
    with connect_server(directory) as url:
        spark = builder.remote(url).getOrCreate()
        yield spark
        spark.stop()


@contextmanager
def connect_server(directory: Path) -> Iterator[str]:
    import pyspark

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    wanted = settings(directory) | {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
    }
    command = [f"{Path(pyspark.__file__).parent}/bin/spark-submit", "--master", "local[2]"]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    for name, value in wanted.items():
        command += ["--conf", f"{name}={value}"]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr)
    try:
        while True:
            if process.poll() is not None:
                raise RuntimeError(f"the Connect server ended with {process.returncode}")
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                time.sleep(0.1)
        yield f"sc://127.0.0.1:{port}"
    finally:
        if process.poll() is None:
            process.kill()  # the script has become the JVM
        process.wait(10)


def run(spark: Any, url: str, topic: str, directory: Path) -> dict[str, Any]:
    import pyspark

    from topics_lakehouse.config import load
    from topics_lakehouse.pipeline import Pipeline
    from topics_lakehouse.query import Lakehouse
    from topics_lakehouse.runner import SparkRunner

    found: dict[str, Any] = {"version": pyspark.__version__, "kind": type(spark).__module__}

    def reading(source: str) -> Any:
        return spark.read.format("topics").option("url", url).option("subscribe", source)

    frame = reading(topic).load()
    found["columns"] = frame.columns
    found["read"] = [frame.count(), frame.selectExpr("sum(seq)", "sum(length(data))").collect()[0][:]]
    found["where"] = [row.seq for row in frame.where("seq > 5 and seq <= 8").orderBy("seq").collect()]
    typed = reading(topic).option("dataSchema", "id bigint, amount double").load()
    found["typed"] = list(typed.selectExpr("sum(id)", "sum(amount)").collect()[0])

    streaming = spark.readStream.format("topics").option("url", url).option("subscribe", topic)
    streaming = streaming.option("startingOffsets", "earliest").option("maxRecordsPerTrigger", "400")
    all_of_it = 3 if found["version"].startswith("4.1.") else 1  # AvailableNow ends with the first batch there

    def stream(columns: list[str], sink: str, where: str, **options: str) -> None:
        checkpoint = str(directory / f"checkpoint-{sink}")
        for _ in range(all_of_it):
            writer = streaming.load().select(*columns).writeStream.format(sink).options(**options)
            query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start(where or None)
            query.awaitTermination()

    stream(["*"], "parquet", str(directory / "rows"))
    found["batches"] = len(list((directory / "checkpoint-parquet" / "commits").glob("[0-9]*")))
    streamed = spark.read.parquet(str(directory / "rows"))
    found["streamed"] = list(streamed.selectExpr("count(*)", "count(distinct seq)", "sum(seq)").collect()[0])

    frame.select("tag", "data").write.format("topics").option("url", url).option("topic", f"{topic}-batch").mode(
        "append"
    ).save()
    stream(["tag", "data"], "topics", "", url=url, topic=f"{topic}-stream")

    config = load(
        overrides={"server": url, "warehouse": str(directory / "lake"), "topics": [{"name": topic, "table": "kept"}]}
    )
    pipeline = Pipeline(config, SparkRunner(spark))
    found["lakehouse"] = pipeline.once()
    pipeline.close()
    with Lakehouse(config) as lake:
        result = lake.query("select count(*) as n, sum(seq)::bigint as total from kept", fresh=False)
        found["table"] = [result["n"][0].as_py(), result["total"][0].as_py()]
    return found


def main() -> None:
    mode, url, topic, place = sys.argv[1:]
    faulthandler.dump_traceback_later(SECONDS, exit=True)  # a blocked one shows where
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    from pyspark_topics.java import ensure_java

    ensure_java()
    directory = Path(place)
    directory.mkdir(exist_ok=True)
    with session(mode, directory) as spark:
        found = run(spark, url, topic, directory)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
