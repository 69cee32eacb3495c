"""Topics in PySpark: read them as data frames, stream them, and write data frames to them.

    spark.read.format("topics").option("url", "topics://127.0.0.1:4001").option("subscribe", "orders").load()

Spark finds the format if this package is installed for its workers; `register` does it by hand.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pyspark_topics.source import DefaultSource

__all__ = ["DefaultSource", "register"]


def register(spark: "SparkSession") -> None:
    """Make the format `topics` known to a session."""
    from pyspark_topics.source import DefaultSource

    spark.dataSource.register(DefaultSource)


def __getattr__(name: str) -> Any:
    # Not imported above: the other modules work without Spark, which takes half a second to import.
    if name == "DefaultSource":
        from pyspark_topics.source import DefaultSource

        return DefaultSource
    raise AttributeError(name)
