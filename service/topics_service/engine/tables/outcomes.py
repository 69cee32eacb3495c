"""Results of statements, within their bounds."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from topics_service.engine.errors import Reason
from topics_service.engine.tables.errors import sql_error
from topics_service.engine.tables.plans import Output
from topics_service.engine.tables.types import Kind, Value

MAX_ROWS: Final = 10_000
MAX_BYTES: Final = 16 << 20
_VALUE_BYTES: Final = 16
_LONG: Final = (Kind.TEXT, Kind.BYTES, Kind.JSON)


class TopicGap(NamedTuple):
    """Seqs of a partition, both included, that were lost; `reason` is that of the tombstones of `/v0`."""

    topic: str
    partition: int
    from_seq: int
    to_seq: int
    reason: str


class Outcome(NamedTuple):
    """The rows of a statement, and how many rows it read or changed."""

    rows: Sequence[Sequence[Value]]
    row_count: int
    gaps: Sequence[TopicGap] = ()
    """Records that a query of a topic would have read, had they not been lost."""


class Result:
    """Rows that are collected up to the bounds of a result."""

    def __init__(self, outputs: Sequence[Output]) -> None:
        self.rows: list[Sequence[Value]] = []
        self._nbytes = 0
        self._row_bytes = _VALUE_BYTES * len(outputs)
        self._long = [place for place, output in enumerate(outputs) if output.type is None or output.type.kind in _LONG]

    def add(self, row: Sequence[Value]) -> None:
        """Add a row. Raises `result_too_large`."""
        self.rows.append(row)
        self._nbytes += self._row_bytes
        for place in self._long:
            value = row[place]
            if isinstance(value, str | bytes):
                self._nbytes += len(value)
        if len(self.rows) > MAX_ROWS or self._nbytes > MAX_BYTES:
            raise too_large()


def too_large() -> Exception:
    """The error of a result beyond the bounds."""
    return sql_error(
        Reason.RESULT_TOO_LARGE, f"the result has more than {MAX_ROWS} rows or {MAX_BYTES} bytes: use LIMIT",
        max_rows=MAX_ROWS, max_bytes=MAX_BYTES,
    )  # fmt: skip
