"""Records as batches of Arrow, without a look at single ones. No calls are made here."""

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from topics_client.decoding import gap_of
from topics_client.errors import InvalidRequestError
from topics_client.installation import needs
from topics_client.models import Gap, GapError
from topics_client.reading import Reading, behind
from topics_proto.v1.topics_service_pb2 import BulkDiffRequest, BulkDiffResponse

if TYPE_CHECKING:
    import pyarrow as pa


class ArrowReading(Reading):
    """A read whose answers hold Arrow: each batch lies in the bytes that came, with no copy made of them."""

    def __init__(self, request: BulkDiffRequest, *, raise_gaps: bool) -> None:
        """Raises ModuleNotFoundError without pyarrow."""
        super().__init__(request, raise_gaps=raise_gaps)
        with needs("arrow", "reading as Arrow takes {name}, which is not installed: {install}"):
            import pyarrow as pa

        self._arrow = pa
        self.gaps: list[Gap] = []  # that were reported
        self.schema: pa.Schema | None = None  # once there was an answer
        self._is_new = True  # whether the next frame is the first of its call
        self._next = 0  # the cursor behind the frame at hand

    def request(self) -> BulkDiffRequest:
        """See Feed."""
        self._is_new = True
        return super().request()

    def take(self, response: BulkDiffResponse) -> Sequence[Any]:
        """The gap, if it is to be raised, and the batch behind it. Raises InvalidRequestError for a server that knows
        no Arrow."""
        if response.HasField("records"):
            raise InvalidRequestError("unimplemented", "the server is too old to answer in Arrow")
        self._began_at(response)
        items: list[Any] = []
        if response.HasField("tombstone"):
            gap = gap_of(self._request.topic, response.partition, response.tombstone)
            if self._raise_gaps:
                items.append(gap)
            else:
                self.position = behind(gap)
                self.gaps.append(gap)
        data = response.arrow
        messages = self._arrow.BufferReader(data)
        if self._is_new and data:
            self.schema = self._arrow.ipc.read_schema(messages)
            self._is_new = False
        while messages.tell() < messages.size():
            message = self._arrow.ipc.read_message(messages)
            items.append(self._arrow.ipc.read_record_batch(message, self.schema))
        self._next = response.next_from_seq
        return items

    def table(self, batches: Sequence[Any]) -> "pa.Table":
        """Batches of this read as a table."""
        return self._arrow.Table.from_batches(batches, self.schema)

    def at(self, item: Any) -> None:
        """Move the cursor behind a batch, which is all of its frame. Raises GapError."""
        if isinstance(item, Gap):
            self.position = behind(item)
            raise GapError(item)
        self.position = self._next


class AsyncArrowExport:
    """Nothing: who takes Arrow from another library does not await."""


class ArrowExport:
    """What hands a stream to other libraries."""

    def reader(self: Any) -> "pa.RecordBatchReader":
        """The batches as pyarrow's reader, which asks the server as it is read. Raises as `read_arrow`."""
        batches: Iterator[Any] = iter(self)
        first = list(islice(batches, 1))  # with it comes the schema
        return self._reading._arrow.RecordBatchReader.from_batches(self._reading.schema, chain(first, batches))

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Arrow's protocol between libraries: `pl.DataFrame(stream)`, `pa.table(stream)`."""
        return self.reader().__arrow_c_stream__(requested_schema)
