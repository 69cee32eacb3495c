"""`spark.readStream.format("topics")`: the reader for the Spark that is installed."""

try:
    from pyspark_topics.stream_spark42 import StreamReader
except ImportError:  # Spark 4.1 has no pyspark.sql.streaming.datasource
    from pyspark_topics.stream_spark41 import StreamReader  # type: ignore[assignment]

__all__ = ["StreamReader"]
