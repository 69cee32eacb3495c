"""Records as Arrow: tables and batches."""

from typing import TYPE_CHECKING, Any

from topics_client.aio.streams import AsyncReadStream
from topics_client.aio_connection import AsyncConnection
from topics_client.arrow import ArrowReading, AsyncArrowExport
from topics_client.models import Gap

if TYPE_CHECKING:
    import pyarrow as pa


class AsyncArrowStream(AsyncReadStream["pa.RecordBatch"], AsyncArrowExport):
    """The records of one partition in batches of Arrow, as they come; an iterator, as other streams are."""

    def __init__(self, connection: AsyncConnection, reading: ArrowReading) -> None:
        """Made by `read_arrow`."""
        super().__init__(connection, reading)
        self._arrow = reading
        self._taken: list[Any] = []  # by a `read_all` that was interrupted

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """What retention had taken from the records that were handed out, with `gaps="report"`."""
        return tuple(self._arrow.gaps)

    async def read_all(self) -> "pa.Table":
        """All that is left, as one table, which is as large as the records are. After an error, such as a GapError, to
        call it again goes on behind what failed, and gives what came before it too."""
        async for batch in self:
            self._taken.append(batch)
        taken, self._taken = self._taken, []
        return self._arrow.table(taken)
