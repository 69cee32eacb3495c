"""Rows of a query that a change runs for: collected to the end before the first of them is changed."""

from collections.abc import Sequence
from typing import Final

from topics_service.engine.errors import Reason
from topics_service.engine.tables.errors import sql_error
from topics_service.engine.tables.staging import MAX_BYTES
from topics_service.engine.tables.types import Value

_ROW_BYTES: Final = 200


class StagedRows:
    """Implements Rows: each is followed by the parameters of the statement."""

    def __init__(self, parameters: Sequence[Value]) -> None:
        self.rows: list[Sequence[Value]] = []
        self._parameters = parameters
        self._nbytes = 0

    def add(self, row: Sequence[Value]) -> None:
        """See Rows."""
        self.rows.append((*row, *self._parameters))
        self._nbytes += _ROW_BYTES
        for value in row:
            if value.__class__ is str or value.__class__ is bytes:
                self._nbytes += len(value)
        if self._nbytes > MAX_BYTES:
            message = f"the rows that the statement is about have more than {MAX_BYTES} bytes"
            raise sql_error(Reason.RESULT_TOO_LARGE, message, max_bytes=MAX_BYTES)
