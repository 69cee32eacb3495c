"""Records as Arrow batches, without processing single records. Makes no calls."""

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
    """A read in Arrow format: each batch refers to the received bytes, without a copy."""

    def __init__(self, request: BulkDiffRequest, *, raise_gaps: bool) -> None:
        """Raises ModuleNotFoundError without pyarrow."""
        super().__init__(request, raise_gaps=raise_gaps)
        with needs("arrow", "reading as Arrow takes {name}, which is not installed: {install}"):
            import pyarrow as pa

        self._arrow = pa
        self.gaps: list[Gap] = []  # that were reported
        self.schema: pa.Schema | None = None  # known from the first response on
        self._is_new = True  # whether the next frame is the first of its call
        self._next = 0  # the cursor after the current frame

    def request(self) -> BulkDiffRequest:
        """See Feed."""
        self._is_new = True
        return super().request()

    def take(self, response: BulkDiffResponse) -> Sequence[Any]:
        """The gap, if it is to be raised, and the batch after it. Raises InvalidRequestError for a server without Arrow
        support."""
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
        """Move the cursor past a batch, which is the whole frame. Raises GapError."""
        if isinstance(item, Gap):
            self.position = behind(item)
            raise GapError(item)
        self.position = self._next


class AsyncArrowExport:
    """Empty: the Arrow protocol is synchronous."""


class ArrowExport:
    """Export of a stream to other Arrow libraries."""

    def reader(self: Any) -> "pa.RecordBatchReader":
        """The batches as a pyarrow reader, which reads from the server on demand. Raises as `read_arrow`."""
        batches: Iterator[Any] = iter(self)
        first = list(islice(batches, 1))  # it carries the schema
        return self._reading._arrow.RecordBatchReader.from_batches(self._reading.schema, chain(first, batches))

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """The Arrow C stream protocol: `pl.DataFrame(stream)`, `pa.table(stream)`."""
        return self.reader().__arrow_c_stream__(requested_schema)
