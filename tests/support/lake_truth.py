"""What the tables of a topic hold, to be compared with what the topic holds."""

from datetime import UTC
from typing import Any

from pyiceberg.catalog import Catalog

from support.spark import Row
from topics_lakehouse.catalog import ERRORS, GAPS, RECORDS, identifier, open_catalog
from topics_lakehouse.config import Config


class Lake:
    """The tables of a configuration, read afresh each time."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.catalog: Catalog = open_catalog(config)

    def records(self, topic: str) -> list[Row]:
        """Every row of the topic's table, by partition and seq, as `support.spark.rows` gives records."""
        return [
            Row(
                each["partition"],
                each["seq"],
                each["ts"].astimezone(UTC),
                each["node"],
                each["tag"],
                each["meta"],
                each["data"],
                each["kind"],
            )
            for each in self.rows(topic)
        ]

    def rows(self, topic: str, role: str = RECORDS) -> list[dict[str, Any]]:
        """Every row of one of the topic's tables, with all its columns."""
        found = self.catalog.load_table(identifier(self.config, topic, role)).scan().to_arrow().to_pylist()
        return sorted(found, key=lambda row: (row["partition"], row.get("seq") or row["gap_from"]))

    def errors(self, topic: str) -> list[tuple[int, int]]:
        """Partition and seq of each record that did not fit."""
        return [(each["partition"], each["seq"]) for each in self.rows(topic, ERRORS)]

    def gaps(self, topic: str) -> list[tuple[int, int, int]]:
        """Partition, first and last seq of each gap."""
        return [(each["partition"], each["gap_from"], each["gap_to"]) for each in self.rows(topic, GAPS)]
