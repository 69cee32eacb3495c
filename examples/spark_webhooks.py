"""From a running server to a chart: GitHub webhooks in a topic, counted with Spark, and kept as an Iceberg table.

Each `# %%` is a cell: editors and Jupyter (jupytext) run them one by one, `python examples/spark_webhooks.py` all of
them. `make run` is to run beside it. Needs `pip install -e '.[lakehouse]' matplotlib`, in the clone of the repository.
"""

# %% Where things are
import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
URL = os.environ.get("TOPICS_URL", "topics://127.0.0.1:4001")
WEBHOOKS = Path(os.environ.get("WEBHOOKS", HERE / "webhook-events.ndjson"))
PICTURE = Path(os.environ.get("PICTURE", HERE.parent / "docs" / "images" / "webhooks_by_type.png"))
LAKE = Path(os.environ.get("LAKE", "lake"))
TOPIC = "gh-webhooks"

# %% A Spark session; the format `topics` is there by itself
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from pyspark_topics.java import ensure_java

ensure_java()
os.environ["PYSPARK_PYTHON"] = sys.executable
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.log.level", "ERROR")
    .config("spark.sql.shuffle.partitions", "2")
    .getOrCreate()
)

# %% Write the webhooks: a line is a record, its event is the tag. Under its `writeId` the write happens once, however
# often this cell is run
lines = spark.read.text(str(WEBHOOKS)).coalesce(1)
webhooks = lines.select(sf.get_json_object("value", "$.event").alias("tag"), sf.col("value").alias("data"))
write = webhooks.write.format("topics").option("url", URL).option("topic", TOPIC).option("writeId", "webhooks")
write.mode("append").save()

# %% Read them, with columns taken from the JSON in `data`, and count
frame = (
    spark.read.format("topics")
    .option("url", URL)
    .option("subscribe", TOPIC)
    .option("dataSchema", "event string, action string, repository string, bytes bigint")
    .load()
)
by_type = frame.groupBy("event").agg(sf.count("*").alias("webhooks"), sf.sum("bytes").alias("bytes"))
counts = by_type.orderBy(sf.desc("webhooks"), "event").collect()

# %% The chart: the most frequent types, and the rest in one bar
import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

SHOWN = 20
names = [row.event for row in counts[:SHOWN]]
values = [row.webhooks for row in counts[:SHOWN]]
if rest := counts[SHOWN:]:
    names.append(f"{len(rest)} other types")
    values.append(sum(row.webhooks for row in rest))
figure, axes = plt.subplots(figsize=(8, 6), layout="constrained")
bars = axes.barh(names, values, color=["#2a6f97"] * min(SHOWN, len(counts)) + ["#b8c4cc"] * bool(rest))
axes.bar_label(bars, padding=3, fontsize=9)
axes.invert_yaxis()
axes.set_title(f"{sum(values)} GitHub webhooks by event type", loc="left")
axes.set_xlabel("webhooks")
axes.spines[["top", "right"]].set_visible(False)
axes.margins(x=0.08, y=0.01)
PICTURE.parent.mkdir(parents=True, exist_ok=True)
figure.savefig(PICTURE, dpi=110, metadata={"Software": None})
for name, bar in zip(names, bars, strict=True):
    print(f"{name:<32}{bar.get_width():>5.0f}")

# %% The same from an Iceberg table: `topics lakehouse run` keeps it up to date, here one round does
from topics_lakehouse.config import load
from topics_lakehouse.pipeline import Pipeline
from topics_lakehouse.query import Lakehouse
from topics_lakehouse.runner import SparkRunner

config = load(
    overrides={
        "server": URL,
        "warehouse": str(LAKE),
        "topics": [{"name": TOPIC, "table": "webhooks", "schema": {"event": "string", "bytes": "long"}}],
    }
)
pipeline = Pipeline(config, SparkRunner(spark))
pipeline.once()
pipeline.close()
with Lakehouse(config) as lake:
    table = lake.query("select event, count(*) as n from webhooks group by event order by n desc, event")
assert [(row.event, row.webhooks) for row in counts] == list(zip(*table.to_pydict().values(), strict=True))
print(f"table webhooks: {sum(table['n'].to_pylist())} rows, {table.num_rows} types")
spark.stop()
