"""Rows of a table that is too large to be kept as Arrow: read for one query, a part at a time, as DuckDB asks for them.

The store is read on the event loop, in turns with others; rows become Arrow in the thread of the query. At most two
parts are in memory for each scan.
"""

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from itertools import chain, islice
from typing import Any, Final

from topics_service.api.sql.analysis import columns
from topics_service.engine.errors import Reason
from topics_service.engine.tables.errors import sql_error
from topics_service.engine.tables.runtime import DAMAGE, TableRuntime, unreadable
from topics_service.storage import keys
from topics_service.storage.store import Family, Reader

SCANS: Final = 8
"""Times that a query may read one such table; all of them begin at its moment."""
ROWS_A_PART: Final = 4096
BYTES_A_PART: Final = 1 << 20
_ROWS_A_TURN: Final = 256

Item = tuple[bytes, bytes]


class Stream:
    """Implements the Arrow stream protocol (`__arrow_c_stream__`): each scan of DuckDB is one of the store."""

    def __init__(self, runtime: TableRuntime, reader: Reader) -> None:
        """The scans begin here, on the event loop."""
        self.failure: Exception | None = None
        """The error with which a scan ended."""
        self._read = runtime.read
        self._columns = [(column.id, column.type) for column in runtime.table.columns]
        self._name = runtime.table.table_id
        self._scans = [begun(reader.scan(Family.ROWS, *keys.prefix_range(runtime.prefix))) for _ in range(SCANS)]
        self._loop = asyncio.get_running_loop()

    @property
    def nbytes(self) -> int:
        """The bytes of parts that may be in memory at once."""
        return 2 * BYTES_A_PART

    def __arrow_c_schema__(self) -> Any:
        """See the protocol."""
        return columns.schema(self._columns).__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """See the protocol. Called in the thread of the query, once for each scan."""
        import pyarrow as pa

        schema = columns.schema(self._columns)
        return pa.RecordBatchReader.from_batches(schema, self._batches(schema)).__arrow_c_stream__()

    def _batches(self, schema: Any) -> Iterator[Any]:
        if not self._scans:
            message = f"the query reads {self._name}, which takes more than TOPICS_SQL_CACHE_BYTES, over {SCANS} times"
            self.failure = sql_error(Reason.QUERY_TOO_LARGE, message)
            raise self.failure
        scan = self._scans.pop()
        try:
            following = self._part(scan)
            while part := self._wait(following):
                following = self._part(scan)
                yield columns.batch(self._columns, [self._read(stored) for _, stored in part], schema)
        except DAMAGE as error:
            self.failure = unreadable(error)
            raise
        except Exception as error:
            self.failure = error
            raise

    def _wait(self, following: "Future[Sequence[Item]]") -> Sequence[Item]:
        while True:
            try:
                return following.result(timeout=1.0)
            except TimeoutError:
                if self._loop.is_closed():
                    raise

    def _part(self, scan: Iterator[Item]) -> "Future[Sequence[Item]]":
        return asyncio.run_coroutine_threadsafe(_part(scan), self._loop)


async def _part(scan: Iterator[Item]) -> Sequence[Item]:
    """Read the next rows; none is the end."""
    part: list[Item] = []
    nbytes = 0
    while len(part) < ROWS_A_PART and nbytes < BYTES_A_PART:
        some = list(islice(scan, _ROWS_A_TURN))
        part += some
        nbytes += sum(len(stored) for _, stored in some)
        if len(some) < _ROWS_A_TURN:
            break
        await asyncio.sleep(0)
    return part


def begun(rows: Iterator[Item]) -> Iterator[Item]:
    """The same rows, as they are now."""
    first = next(rows, None)
    return rows if first is None else chain((first,), rows)
