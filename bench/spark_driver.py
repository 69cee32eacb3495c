"""A Spark driver that executes commands: `python -m bench.spark_driver`, with one JSON object per line on stdin and
stdout.

Runs with the Spark of its interpreter, which need not be the project's: the peer may want another one. The first line
holds settings for the session, each further one `{"do": NAME, ...}`; the answer is the function's result.
"""

import json
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

TYPED = "id bigint, type string, amount double"
TEXT = {"topics": "data", "kafka": "value", "json": "value"}


class Driver:
    """One session, two cores."""

    def __init__(self, settings: dict[str, str], directory: Path) -> None:
        from pyspark.sql import SparkSession

        builder = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.log.level", "ERROR")
            .config("spark.driver.memory", "2g")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.local.dir", str(directory / "local"))
            .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.sql.shuffle.partitions", "2")
        )
        for name, value in settings.items():
            builder = builder.config(name, value)
        self._spark = builder.getOrCreate()
        self._directory = directory
        self._stop = threading.Event()
        self._reader: threading.Thread | None = None
        self._reads = 0
        self._begun = 0.0

    def frame(self, source: str, options: dict[str, str], path: str = "", schema: str = "") -> Any:
        if source == "json":
            return self._spark.read.text(path)
        reader = self._spark.read.format(source).options(**options)
        return (reader.schema(schema) if schema else reader).load()

    def text(
        self, source: str, options: dict[str, str], path: str = "", *, every_column: bool = False
    ) -> dict[str, Any]:
        """Every record decoded as text. Spark drops columns of its own sources that a query does not use; for a source
        in Python the wanted columns must be named.
        """
        begun = time.perf_counter()
        schema = "data binary" if source == "topics" and not every_column else ""
        text = self.frame(source, options, path, schema).selectExpr(f"cast({TEXT[source]} as string) as text")
        count, length = text.selectExpr("count(text)", "sum(length(text))").collect()[0]
        return {"seconds": time.perf_counter() - begun, "count": count, "length": length, "rss": workers_rss()}

    def typed(self, source: str, options: dict[str, str], path: str = "") -> dict[str, Any]:
        """A number out of the JSON of every record."""
        begun = time.perf_counter()
        if source == "topics":
            frame = self.frame(source, options, schema=TYPED)
        elif source == "json":
            frame = self._spark.read.schema(TYPED).json(path)
        else:
            frame = self.frame(source, options).selectExpr(f"from_json(cast(value as string), '{TYPED}') as j")
            frame = frame.select("j.*")
        count, total = frame.selectExpr("count(amount)", "sum(id)").collect()[0]
        return {"seconds": time.perf_counter() - begun, "count": count, "total": total, "rss": workers_rss()}

    def stream(self, options: dict[str, str], name: str) -> dict[str, Any]:
        """Everything there is, in batches, to nowhere."""
        begun = time.perf_counter()
        stream = self._spark.readStream.format("topics").options(**options).schema("data binary").load()
        query = (
            stream.selectExpr("cast(data as string) as text")
            .writeStream.format("noop")
            .option("checkpointLocation", str(self._directory / f"checkpoint-{name}"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        seconds = time.perf_counter() - begun
        batches = [each["numInputRows"] for each in query.recentProgress if each["numInputRows"]]
        return {"seconds": seconds, "count": sum(batches), "batches": len(batches)}

    def write(self, options: dict[str, str], records: int) -> dict[str, Any]:
        """Rows of about 150 bytes that Spark makes up."""
        begun = time.perf_counter()
        rest = '.25,"text":"' + "lorem ipsum " * 8
        parts = f"""'{{"id":', id, ',"type":"k', id % 7, '","amount":', id % 1000, '{rest}"}}'"""
        rows = self._spark.range(0, records, 1, 2).selectExpr("concat('k', id % 7) as tag", f"concat({parts}) as data")
        rows.write.format("topics").options(**options).mode("append").save()
        return {"seconds": time.perf_counter() - begun, "count": records}

    def keep(self, config: dict[str, Any]) -> dict[str, Any]:
        """A round of the pipeline, up to the heads."""
        pipeline = self._pipeline(config)
        begun = time.perf_counter()
        done = pipeline.once()
        seconds = time.perf_counter() - begun
        metrics = pipeline.metrics
        pipeline.close()
        return {
            "seconds": seconds,
            "done": done,
            "count": metrics.records,
            "job": metrics.job_seconds,
            "commit": metrics.commit_seconds,
        }

    def follow(self, config: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Keep up with a topic for so long: when each position was in the table, [time since the epoch, seq]."""
        from topics_lakehouse.catalog import POSITIONS

        seen: list[tuple[float, int]] = []

        def committed(table: Any, _: str) -> None:
            seen.append((time.time(), json.loads(table.properties[POSITIONS])["0"]))

        pipeline = self._pipeline(config, after_commit=committed)
        timer = threading.Timer(seconds, pipeline.stop)
        timer.start()
        pipeline.run()
        pipeline.close()
        return {"commits": seen}

    def _pipeline(self, config: dict[str, Any], **more: Any) -> Any:
        from topics_lakehouse.config import load
        from topics_lakehouse.pipeline import Pipeline
        from topics_lakehouse.runner import SparkRunner

        return Pipeline(load(overrides=config), SparkRunner(self._spark), **more)

    def busy(self, options: dict[str, str] | None) -> dict[str, Any]:
        """Read a topic again and again, or without `options` just count, until `idle`."""

        def work() -> None:
            while not self._stop.is_set():
                if options is None:
                    self._spark.range(300_000_000).selectExpr("sum(hash(id))").collect()
                else:
                    self._reads += self.text("topics", options)["count"]

        self._stop.clear()
        self._reads = 0
        self._reader = threading.Thread(target=work)
        self._begun = time.perf_counter()
        self._reader.start()
        return {}

    def idle(self) -> dict[str, Any]:
        """End `busy`, after the read that runs; how many records were read."""
        self._stop.set()
        assert self._reader is not None
        self._reader.join()
        return {"seconds": time.perf_counter() - self._begun, "count": self._reads}

    def close(self) -> None:
        self._spark.stop()


def workers_rss() -> int:
    """The resident bytes of the largest Python worker of this driver."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:  # ended since
            continue
    ours, more = set[int](), {os.getpid()}
    while more:
        ours |= more
        more = {pid for pid, parent in parents.items() if parent in ours} - ours
    sizes = [0]
    for pid in ours:
        try:
            if b"pyspark.daemon" in Path(f"/proc/{pid}/cmdline").read_bytes():
                sizes.append(int(Path(f"/proc/{pid}/statm").read_text().split()[1]))
        except OSError:
            continue
    return max(sizes) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    answers = sys.stdout
    sys.stdout = sys.stderr
    with tempfile.TemporaryDirectory(prefix="topics-bench-spark-", ignore_cleanup_errors=True) as directory:
        driver = Driver(json.loads(sys.stdin.readline()), Path(directory))
        for line in sys.stdin:
            request = json.loads(line)
            answer = getattr(driver, request.pop("do"))(**request)
            print(json.dumps(answer), file=answers, flush=True)
        driver.close()


if __name__ == "__main__":
    main()
