"""Frames of live queries, and the position from which one resumes. Makes no calls."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from topics_client.reading import Resuming
from topics_client.sqlresults import OPS, SqlColumn, columns_of, read_row, readers_of
from topics_proto.v1 import sql_pb2
from topics_proto.v1 import sql_service_pb2 as pb

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class LiveSnapshot:
    """Rows of one moment. `begins`: what was known before is void. More of them follow while `position` is None."""

    rows: Sequence[Row]
    begins: bool
    position: str | None


@dataclass(frozen=True, slots=True)
class LiveChange:
    """A row that is there now, is another one, or is gone: `old` is None for Insert, `row` for Delete."""

    op: Literal["Insert", "Update", "Delete"]
    row: Row | None
    old: Row | None
    position: str


@dataclass(frozen=True, slots=True)
class LiveCaughtUp:
    """There was nothing more at this moment."""

    position: str


@dataclass(frozen=True, slots=True)
class LiveGap:
    """Changes that are missing; a snapshot follows. `reason` is `too_old`, `lost` or `unknown`."""

    from_position: str
    to_position: str
    reason: str


LiveEvent = LiveSnapshot | LiveChange | LiveCaughtUp | LiveGap


class Following(Resuming):
    """Implements Feed for a live query."""

    done = False

    def __init__(self, request: pb.SubscribeRequest) -> None:
        self._request = request
        self.position: str | None = request.after if request.HasField("after") else None
        self.columns: tuple[SqlColumn, ...] = ()
        self._names: list[str] = []
        self._readers: list[Callable[[Any], Any] | None] = []
        self._is_whole = True

    def __str__(self) -> str:
        """Return the query and its position."""
        return f"{self._request.sql!r}, position {self.position}"

    def request(self) -> pb.SubscribeRequest:
        """See Feed."""
        self._is_whole = True
        if self.position is not None:
            self._request.after = self.position
        return self._request

    def take(self, response: pb.SubscribeResponse) -> Iterator[LiveEvent]:
        """See Feed."""
        match response.WhichOneof("frame"):
            case "opened":
                self.columns = columns_of(response.opened.schema)
                self._names = [column.name for column in self.columns]
                self._readers = readers_of(self.columns)
            case "snapshot":
                snapshot = response.snapshot
                position = snapshot.position if snapshot.HasField("position") else None
                begins, self._is_whole = self._is_whole, position is not None
                yield LiveSnapshot([self._row(row) for row in snapshot.rows], begins, position)
            case "changes":
                for change in response.changes.changes:
                    row = self._row(change.row) if change.HasField("row") else None
                    old = self._row(change.old) if change.HasField("old") else None
                    yield LiveChange(OPS[change.op], row, old, change.position)
            case "caught_up":
                yield LiveCaughtUp(response.caught_up.position)
            case "gap":
                gap = response.gap
                yield LiveGap(gap.from_position, gap.to_position, gap.reason)

    def at(self, item: LiveEvent) -> None:
        """See Feed."""
        if isinstance(item, LiveGap):
            self.position = None
        elif item.position is not None:
            self.position = item.position

    def passed(self, response: pb.SubscribeResponse) -> None:
        """See Feed."""

    def _row(self, row: sql_pb2.SqlRow) -> Row:
        return dict(zip(self._names, read_row(row, self._readers), strict=True))
