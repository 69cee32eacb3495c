"""Records as Arrow: tables and batches."""

from typing import TYPE_CHECKING, Any

from topics_client.aio.streams import AsyncReadStream
from topics_client.aio_connection import AsyncConnection
from topics_client.arrow import ArrowReading, AsyncArrowExport
from topics_client.models import Gap

if TYPE_CHECKING:
    import pyarrow as pa


class AsyncArrowStream(AsyncReadStream["pa.RecordBatch"], AsyncArrowExport):
    """The records of one partition as Arrow batches; an iterator like the other streams."""

    def __init__(self, connection: AsyncConnection, reading: ArrowReading) -> None:
        """Created by `read_arrow`."""
        super().__init__(connection, reading)
        self._arrow = reading
        self._taken: list[Any] = []  # by a `read_all` that was interrupted

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """The gaps that retention left in the records yielded so far, with `gaps="report"`."""
        return tuple(self._arrow.gaps)

    async def read_all(self) -> "pa.Table":
        """Read all remaining records into one table, which is held in memory. After an error such as GapError, calling
        it again resumes after the failure and includes the records read before it."""
        async for batch in self:
            self._taken.append(batch)
        taken, self._taken = self._taken, []
        return self._arrow.table(taken)
