"""Frames of live queries as JSON: the events of POST /api/sql/subscribe, and the frames of WebSockets."""

from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Any, Final

from topics_gateway import sse
from topics_gateway.body import read_json
from topics_gateway.request import Request
from topics_gateway.response import EventStream, encode
from topics_gateway.settings import GatewaySettings
from topics_gateway.sql_body import read_live
from topics_gateway.sql_endpoints import converter
from topics_service.api.interfaces import LiveQueries
from topics_service.api.sql.live import LiveCaughtUp, LiveFrame, LiveGap, LiveOpened, LiveRows
from topics_service.api.sql.requests import ResultColumn
from topics_service.engine.errors import TopicsError
from topics_service.engine.tables.live import RowChange, RowChanges
from topics_service.engine.watch.frames import HeartbeatFrame

_KEPT: Final = 256
_KEPT_BYTES: Final = 32 << 10

Event = tuple[bytes, bytes]
"""The name of a frame, and its JSON."""


class LiveEndpoint:
    """Opens streams of live queries."""

    def __init__(self, api: LiveQueries, settings: GatewaySettings, cache: "ChangeCache") -> None:
        self._api = api
        self._settings = settings
        self.cache = cache

    async def subscribe(self, request: Request) -> EventStream:
        """POST /api/sql/subscribe."""
        sse.require_event_stream(request)
        wanted, as_text = read_live(await read_json(request, self._settings.max_body_bytes))
        frames = self._api.follow(wanted, principal=request.principal)
        return EventStream(sse.opened(told(frames)), lambda _: _encoder(LiveFrames(self.cache, bigint_as_text=as_text)))


class ChangeCache:
    """The JSON of the last changes, which those who follow the same query are sent alike."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[int, bool], tuple[RowChanges, tuple[Event, ...]]] = OrderedDict()

    def get(self, frame: RowChanges, make: Callable[[RowChange], bytes], *, as_text: bool) -> tuple[Event, ...]:
        """The events of a frame, made if they are not there."""
        key = id(frame), as_text
        found = self._kept.get(key)
        if found is not None:
            return found[1]
        made = tuple((b"change", make(change)) for change in frame.changes)
        nbytes = sum(len(text) for _, text in made)
        if nbytes <= _KEPT_BYTES:
            self._kept[key] = frame, made  # the frame is kept, so that no other gets its id
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return made


class LiveFrames:
    """The frames of one live query as names and JSON."""

    def __init__(self, cache: ChangeCache, *, bigint_as_text: bool) -> None:
        self._cache = cache
        self._bigint_as_text = bigint_as_text
        self.columns: tuple[ResultColumn, ...] = ()
        self._names: list[str] = []
        self._converters: list[tuple[int, Callable[[Any], Any]]] = []

    def events(self, frame: LiveFrame | TopicsError) -> Sequence[Event]:
        """The events of a frame, the first of which has the columns; none for what JSON has no frame for."""
        match frame:
            case RowChanges():
                return self._cache.get(frame, self._change, as_text=self._bigint_as_text)
            case LiveOpened(columns=columns):
                self.columns, self._names = columns, [column.name for column in columns]
                found = [converter(column.type, bigint_as_text=self._bigint_as_text) for column in columns]
                self._converters = [(at, convert) for at, convert in enumerate(found) if convert is not None]
            case LiveRows(rows=rows, position=position):
                members: dict[str, Any] = {"rows": [self._row(row) for row in rows]}
                return ((b"snapshot", encode(members if position is None else members | {"position": position})),)
            case LiveCaughtUp(position=position):
                return ((b"caught-up", encode({"position": position})),)
            case LiveGap():
                gap = {"from": frame.from_position, "to": frame.to_position, "reason": frame.reason}
                return ((b"gap", encode(gap)),)
            case TopicsError():
                return ((b"error", encode(error_members(frame))),)
        return ()

    def _change(self, change: RowChange) -> bytes:
        return encode(
            {
                "op": change.op,
                "row": None if change.row is None else self._row(change.row),
                "old": None if change.old is None else self._row(change.old),
                "position": change.position,
            }
        )

    def _row(self, row: Sequence[Any]) -> dict[str, Any]:
        made = dict(zip(self._names, row, strict=True))
        for at, convert in self._converters:
            value = row[at]
            if value is not None:
                made[self._names[at]] = convert(value)
        return made


async def told(frames: AsyncGenerator[LiveFrame, None]) -> AsyncGenerator[LiveFrame | TopicsError, None]:
    """The frames, and the error that ends them as the last. One before the first is raised."""
    is_open = False
    async with aclosing(frames):
        try:
            async for frame in frames:
                is_open = True
                yield frame
        except TopicsError as error:
            if not is_open:
                raise
            yield error


def error_members(error: TopicsError) -> dict[str, Any]:
    """An error as an object."""
    members: dict[str, Any] = {"code": error.reason.code, "message": error.message}
    return members if error.detail is None else members | {"detail": error.detail}


def _encoder(frames: LiveFrames) -> Callable[[LiveFrame | TopicsError], bytes]:
    def encoder(frame: LiveFrame | TopicsError) -> bytes:
        if isinstance(frame, HeartbeatFrame):
            return sse.heartbeat(frame)
        return b"".join([sse.event(name, text) for name, text in frames.events(frame)])

    return encoder
