"""The stream for Spark 4.1, which does not report the position of a query: it is derived from the planned batches."""

from collections.abc import Sequence

from pyspark_topics.stream_base import StreamBase
from pyspark_topics.stream_offsets import Json
from pyspark_topics.stream_task import StreamTask


class StreamReader(StreamBase):
    """Applies its limits itself. Trigger.AvailableNow is one batch there: a limit ends it before the heads."""

    _at: Json | None = None

    def latestOffset(self) -> Json:  # type: ignore[override]  # noqa: N802  # later versions pass start and limit
        """The next offset behind the last one planned. See StreamBase.latest."""
        return self.latest(self.initialOffset() if self._at is None else self._at, self.limits)

    def partitions(self, start: Json, end: Json) -> Sequence[StreamTask]:
        """As StreamBase.partitions. Spark's first call: the position of a query from its checkpoint."""
        self._at = end
        return super().partitions(start, end)
