"""The stream for Spark 4.2 and later, which says where a query stands and how much it wants."""

from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from pyspark_topics.admission import Limits
from pyspark_topics.stream_base import StreamBase
from pyspark_topics.stream_offsets import Json


class StreamReader(StreamBase, SupportsTriggerAvailableNow):
    """Limits in Spark's terms, Trigger.AvailableNow in several batches, and the lag in the progress of the query."""

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The limit of the options; of two, that of records. Both are kept, see `latestOffset`."""
        if self.limits.records:
            return ReadMaxRows(self.limits.records)
        if self.limits.bytes:
            return ReadMaxBytes(self.limits.bytes)
        return ReadAllAvailable()

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:  # noqa: N802
        """The next offset within a limit, and within those of the options unless everything is asked for; `start`
        itself if there is nothing new. See StreamBase.latest."""
        if isinstance(limit, ReadMaxRows):
            limits = Limits(limit.max_rows, self.limits.bytes)
        elif isinstance(limit, ReadMaxBytes):
            limits = Limits(self.limits.records, limit.max_bytes)
        else:
            limits = Limits()
        return self.latest(start, limits)

    def reportLatestOffset(self) -> Json | None:  # noqa: N802
        """The heads, for the progress of the query."""
        return self.heads()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read up to the heads of this moment and then end."""
        self.aim()
