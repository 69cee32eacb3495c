"""Clients of all three protocols that follow topics, break off and come back, and check each frame with the oracle."""

import asyncio
import contextlib
import itertools
import json
import random
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import grpc
import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from support.local_server import LocalServer
from support.log_model import Rec
from support.watch_model import Mark, Model, Reading, tag_json
from support.watch_oracle import (
    Deleted,
    Frame,
    Place,
    Records,
    State,
    Tombstone,
    Waits,
    resumed,
    seen,
    started,
)
from support.watch_wire import (
    Connection,
    OpenWatchConnection,
    Raw,
    SseConnection,
    event_id,
    grpc_frame,
    http,
    json_frame,
)
from topics_proto.v1 import stream_pb2, watch_service_pb2_grpc
from topics_proto.v1 import watch_service_pb2 as pb

_KEPT = 40  # frames for a failure to show, and places to come back to
_ids = itertools.count(1)


class Wish(NamedTuple):
    """A subscription. The keys of `topics` are names and patterns, with where to start."""

    topics: dict[str, dict[str, Any]]
    reading: Reading
    tags: bool = False
    metas: bool = True
    datas: bool = True

    @property
    def prefixes(self) -> tuple[str, ...]:
        return tuple(key[:-1] for key in self.topics if key.endswith("*"))

    def shown(self, rec: Rec) -> Rec:
        return replace(
            rec,
            tag=rec.tag if self.tags else None,
            meta=rec.meta if self.metas else None,
            data=rec.data if self.datas else b"",
        )

    def json(self) -> dict[str, Any]:
        """The members of a request that all JSON protocols have."""
        reading = self.reading
        return {
            "topics": self.topics,
            "node": reading.node_names,
            "limit": reading.limit,
            "max_batch_bytes": reading.max_bytes,
            "consistency": "strong" if reading.strong else "eventual",
            "include_tags": self.tags,
            "include_meta": self.metas,
            "include_data": self.datas,
        } | ({} if reading.match is None else {"filter": tag_json(reading.match)})


@dataclass(eq=False)
class Stream:
    """One open stream: a place for each topic it is known to follow."""

    places: dict[str, Place]
    marks: dict[str, Mark]
    before: dict[str, frozenset[State]] = field(default_factory=dict)
    """Where it stood before what came last: whether the server saw that go out is not known when it breaks off."""

    def states(self) -> dict[str, frozenset[State]]:
        return {name: place.states for name, place in self.places.items()}


class Follower(ABC):
    """One client of one protocol; `run` follows until it is cancelled, `shake` lets it break off and come back."""

    masks = True

    def __init__(self, label: str, server: LocalServer, model: Model, wish: Wish, rng: random.Random) -> None:
        self.label = label
        self.server = server
        self.model = model
        self.wish = wish
        self.rng = rng
        self.frames = 0
        self.changed = asyncio.Event()
        self.stream: Stream | None = None
        self.recent: deque[Any] = deque(maxlen=_KEPT)

    @abstractmethod
    async def run(self) -> None: ...

    @abstractmethod
    async def shake(self) -> None: ...

    def settled(self) -> bool:
        """True once everything was reported."""
        if self.stream is None:
            return False
        told = [place.settled() for place in self.stream.places.values()]  # all look, and move on
        if not all(told):
            return False
        there = (name for name, subject in self.model.subjects.items() if subject.alive is not None)
        return all(name in self.stream.places for name in there if name.startswith(self.wish.prefixes or ("\0",)))

    def marks(self) -> dict[str, Mark]:
        return {name: subject.mark() for name, subject in self.model.subjects.items()}

    def place(self, name: str, states: Iterable[State], wish: Wish | None = None) -> Place:
        wish = wish or self.wish
        pattern = name.startswith(wish.prefixes) if wish.prefixes else False
        return Place(
            self.model.subjects[name], wish.reading, states, wish.shown, pattern=pattern, masks=self.masks
        )  # fmt: skip

    def found(self, stream: Stream, name: str, wish: Wish | None = None) -> Place:
        """The place of a topic that the stream speaks of; one that a pattern brings in has none yet."""
        if name not in stream.places:
            mark = stream.marks[name]
            states = [Waits(mark.first), *started(self.model.subjects[name], mark, 0)]
            stream.places[name] = self.place(name, states, wish)
            assert stream.places[name]._pattern, f"{name} is not followed"
        return stream.places[name]

    def take(self, stream: Stream, name: str, frame: Frame, wish: Wish | None = None) -> None:
        self.recent.append((name, frame))
        self.frames += 1
        place = self.found(stream, name, wish)
        place.take(frame)
        if place.reading.strong and isinstance(frame, Records) and not place.may_be_ephemeral:
            assert all(self.server.is_durable(name, rec.seq) for rec in frame.records), f"not durable: {frame}"

    def opened(self, positions: Mapping[str, Any], expected: Mapping[str, int | None], wish: Wish | None = None,
               marks: dict[str, Mark] | None = None) -> dict[str, Place]:  # fmt: skip
        """The places of a new watch, from what the server says of it; `expected` cursors, None for any or the head."""
        wish, places = wish or self.wish, {}
        for name, (cursor, head, earliest) in positions.items():
            assert name in wish.topics or name.startswith(wish.prefixes), name
            wanted = expected.get(name)
            assert cursor == (head if wanted is None else wanted), f"{name} starts at {cursor}, not {wanted}"
            assert marks is not None
            places[name] = self.place(name, seen(self.model.subjects[name], marks[name], cursor, head, earliest), wish)
        assert marks is not None
        for name, subject in self.model.subjects.items():
            if (name in wish.topics or (wish.prefixes and name.startswith(wish.prefixes))) and name not in places:
                assert subject.may_be_absent(marks[name]), f"{name} is left out"
        return places

    def start_of(self, name: str, cursor: Mapping[str, int] = {}, wish: Wish | None = None) -> int | None:
        """Where the watch of a topic is to begin; None: at its head."""
        wish = wish or self.wish
        if name in cursor:
            return cursor[name]
        start = wish.topics.get(name)
        if start is None:
            prefix = max((prefix for prefix in wish.prefixes if name.startswith(prefix)), key=len)
            if any(other.startswith(prefix) for other in cursor):
                return 0
            start = wish.topics[prefix + "*"]
        return None if start.get("tail") else int(start.get("from_seq", 0))

    def __str__(self) -> str:
        lines = [f"{self.label} {self.wish}", *(str(each)[:1000] for each in self.recent)]
        if self.stream is not None:
            lines += [f"{name}: {place.describe()}" for name, place in self.stream.places.items()]
        return "\n".join(lines)


# ------------------------------------------------------------------------------ SSE


class _Session(NamedTuple):
    """What an SSE client can come back to: the map of an id, and the states of that moment."""

    cursors: dict[str, int]
    states: dict[str, frozenset[State]]


class SessionFollower(Follower):
    """A watch session. It comes back by its session, by the last id, by an old one, or makes a new one of the last.

    Its streams are server-sent events and, as both protocols know the session, now and then gRPC's OpenWatch.
    """

    HOW = ("last", "last", "old", "drained", "zombie", "renew")

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._url = ""
        self._how = self._opened = "first"
        self._told = False
        self._history: list[_Session] = []
        self._reading: asyncio.Task[None] | None = None
        self._connection: Connection | None = None
        self._drained: Stream | None = None
        self._zombies: list[tuple[asyncio.Task[None], Connection]] = []

    async def shake(self) -> None:
        reading, connection = self._reading, self._connection
        if self.stream is None or reading is None or reading.done() or connection is None:
            self.model.stir()
            return
        if self._opened == "old" and not self._told:
            return  # the session stands at the old place, and this client has no id for that yet
        self._how = self.rng.choice(self.HOW)
        if self._how == "drained" and not connection.half_close():
            self._how = "last"
        self._drained = self.stream if self._how == "drained" else None
        self.stream = None
        if self._how == "zombie":
            self._zombies.append((reading, connection))
            self._reading = None
            self._left.set()
        elif self._how != "drained":
            reading.cancel()

    async def run(self) -> None:
        async with grpc.aio.insecure_channel(self.server.grpc_target) as channel:
            self._stub: Any = watch_service_pb2_grpc.WatchServiceStub(channel)
            try:
                while True:
                    await self._follow()
            finally:
                if self._reading is not None and self._connection is not None:
                    self._zombies.append((self._reading, self._connection))
                await self._bury()

    async def _bury(self) -> None:
        """End the streams that were left open."""
        zombies, self._zombies = self._zombies, []
        for task, connection in zombies:
            if task.done() and not task.cancelled():
                await task
            task.cancel()
            connection.close()

    async def _follow(self) -> None:
        stirs = self.model.stirs
        if not self._url or self._how == "renew":
            await self._create(self._history[-1].cursors if self._how == "renew" and self._history else None)
        if not self._history[-1].states and not self.wish.prefixes:
            self._url = ""
            self.stream = Stream({}, self.marks())
            self.changed.set()
            await self.model.stirred(stirs)
            return
        marks = self.marks()
        target, back = self._target()
        by_grpc = self.rng.random() < 0.3
        connection = OpenWatchConnection(self._stub) if by_grpc else SseConnection(self.server.http_port)
        await connection.open(self._url, {} if target is None else target.cursors)
        stream = Stream({name: self.place(name, states) for name, states in back(marks).items()}, marks)
        self.recent.append((self._opened, type(connection), target and target.cursors, stream.states()))
        self.stream, self._connection = stream, connection
        self._left = asyncio.Event()
        reading = self._reading = asyncio.create_task(self._read(connection, stream))
        self.changed.set()
        left = asyncio.create_task(self._left.wait())
        try:
            await asyncio.wait((reading, left), return_when=asyncio.FIRST_COMPLETED)
        finally:
            left.cancel()
        if not reading.done():
            return  # it continues as a zombie
        if reading.cancelled():  # the server continues for a moment, and its frames are lost
            await asyncio.sleep(self.rng.choice((0, 0, 0.003, 0.02)))
        connection.close()
        await self._bury()
        if not reading.cancelled():
            await reading
            if self._how != "drained":  # the server has ended it: no topic is left
                self.stream = stream
                self._how = "last"
                self.changed.set()
                await self.model.stirred(stirs)

    async def _create(self, cursor: dict[str, int] | None) -> None:
        marks = self.marks()
        body = self.wish.json() | {"heartbeat_ms": 60_000} | ({"cursor": event_id(cursor)} if cursor else {})
        reply = await http(self.server.http_port, "POST", "/v0/watch?lenient=true", body)
        self._url = urlsplit(reply["stream_url"]).path
        positions = {name: (p["from_seq"], p["head_seq"], p["earliest_seq"]) for name, p in reply["topics"].items()}
        expected = {name: self.start_of(name, cursor or {}) for name in positions}
        places = self.opened(positions, expected, marks=marks)
        states = {name: place.states for name, place in places.items()}
        self._original = {name: at[0] for name, at in positions.items()}
        self._history = [_Session({name: at[0] for name, at in positions.items()}, states)]
        self._how = "first"

    def _target(self) -> Any:
        """What to send as Last-Event-ID, and a function that gives the states behind it."""
        how, self._how = self._how, "last"
        self._opened, self._told = how, False
        newest = self._history[-1]
        if how == "drained":
            stream = self._drained
            assert stream is not None
            both = {name: place.reach() | stream.before.get(name, set()) for name, place in stream.places.items()}
            return None, lambda marks: self._resumed(marks, both, None)
        if how == "first":
            return None, lambda marks: self._resumed(marks, newest.states, None)
        if how == "old" and len(self._history) > 1:
            del self._history[self.rng.randrange(len(self._history)) + 1 :]  # later ones are ahead of it then
            newest = self._history[-1]
        return newest, lambda marks: self._resumed(marks, newest.states, newest.cursors)

    def _resumed(
        self, marks: dict[str, Mark], states: Mapping[str, Iterable[State]], cursors: Mapping[str, int] | None
    ) -> dict[str, set[State]]:
        return {
            name: resumed(self.model.subjects[name], marks[name], found, cursors, original=self._original.get(name))
            for name, found in states.items()
        }

    async def _read(self, connection: Connection, stream: Stream) -> None:
        async for piece in connection.pieces():
            stream.before = {name: frozenset(place.reach()) for name, place in stream.places.items()}
            for topic, frame, cursors in piece:
                if frame is not None:
                    self.take(stream, topic, frame)
                for name in cursors:
                    if not name.endswith("#"):
                        self.found(stream, name)
                for name, place in stream.places.items():
                    place.stands(cursors.get(name))
                if stream in (self.stream, self._drained):
                    self._told = True
                    self._history = [*self._history[-_KEPT:], _Session(cursors, stream.states())]
            self.changed.set()
            if self.rng.random() < 0.2:
                await asyncio.sleep(self.rng.choice((0, 0, 0.002)))
        assert self._how == "drained" or not connection.broken, "the connection broke"


# ----------------------------------------------------------------------------- gRPC


class GrpcFollower(Follower):
    """Streams of Watch, each with the cursor map that the client has merged, or had at some earlier time."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._cursor: dict[str, int] = {}
        self._history: list[dict[str, int]] = [{}]
        self._call: Any = None

    async def shake(self) -> None:
        if self._call is None:
            self.model.stir()
            return
        self.stream = None
        call, self._call = self._call, None
        call.cancel()
        if self.rng.random() < 0.3:
            self._cursor = dict(self.rng.choice(self._history))

    async def run(self) -> None:
        async with grpc.aio.insecure_channel(self.server.grpc_target) as channel:
            stub: Any = watch_service_pb2_grpc.WatchServiceStub(channel)
            while True:
                await self._follow(stub)

    async def _follow(self, stub: Any) -> None:
        stirs = self.model.stirs
        wish, reading = self.wish, self.wish.reading
        subscription = pb.WatchSubscription(
            topics={key: pb.WatchTopic(**start) for key, start in wish.topics.items()},
            cursor=self._cursor, node=reading.node_names, limit=reading.limit, max_batch_bytes=reading.max_bytes,
            heartbeat_ms=60_000, include_meta=wish.metas, include_tags=wish.tags, include_data=wish.datas,
            consistency=pb.WATCH_CONSISTENCY_STRONG if reading.strong else pb.WATCH_CONSISTENCY_EVENTUAL,
        )  # fmt: skip
        if reading.match is not None:
            setattr(subscription.filter, "eq" if reading.match.op == "Eq" else "prefix", reading.match.value.decode())
        marks = self.marks()
        call = self._call = stub.Watch(pb.WatchRequest(subscription=subscription, lenient=True))
        try:
            response = await call.read()
            if self._call is not call:
                return  # shaken meanwhile
            assert response is not grpc.aio.EOF
            self._open(response.frame, marks)
            while (response := await call.read()) is not grpc.aio.EOF:
                if self._call is not call:
                    return  # shaken meanwhile
                self._frame(response.frame)
                self.changed.set()
                if self.rng.random() < 0.2:
                    await asyncio.sleep(self.rng.choice((0, 0, 0.002)))
            if self._call is not call:
                return
            self._call = None
            await self.model.stirred(stirs)  # it follows nothing
        except asyncio.CancelledError:
            if asyncio.current_task().cancelling():  # type: ignore[union-attr]
                call.cancel()
                raise
            assert self._call is not call
        finally:
            if self._call is call:
                self._call = None

    def _open(self, frame: stream_pb2.Frame, marks: dict[str, Mark]) -> None:
        found = frame.subscribed.topics
        positions = {name: (p.from_seq, p.head_seq, p.earliest_seq) for name, p in found.items()}
        expected = {name: self.start_of(name, self._cursor) for name in positions}
        self.recent.append(("opened", self._cursor, positions))
        self.stream = Stream(self.opened(positions, expected, marks=marks), marks)
        assert dict(frame.cursor) == {name: at[0] for name, at in positions.items()}
        self._merge(frame.cursor)
        self.changed.set()

    def _frame(self, frame: stream_pb2.Frame) -> None:
        assert self.stream is not None
        kind = frame.WhichOneof("kind")
        told = getattr(frame, kind)
        if kind == "topic_deleted":
            self._cursor.pop(told.topic, None)
        self._merge(frame.cursor)
        if kind == "error":
            assert told.code == 429
            return
        self.take(self.stream, told.topic, grpc_frame(kind, told))
        for name in frame.cursor:
            self.found(self.stream, name)
        for name, place in self.stream.places.items():
            place.stands(self._cursor.get(name))

    def _merge(self, moved: Mapping[str, int]) -> None:
        self._cursor = self._cursor | dict(moved)
        self._history = [*self._history[-_KEPT:], self._cursor]


# ------------------------------------------------------------------------ WebSocket


class WsFollower(Follower):
    """A socket whose subscriptions are left, taken up again and replaced; now and then the socket is a new one."""

    masks = False

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._socket: ClientConnection | None = None
        self._cursors: dict[str, int] = {}
        self._old: dict[str, list[int]] = {}
        self._replies: dict[str, Any] = {}
        self._wishes: dict[str, Wish] = {}
        self._keys: set[str] = set()

    async def shake(self) -> None:
        socket = self._socket
        if socket is None or self._replies:
            return
        how = self.rng.random()
        with contextlib.suppress(ConnectionClosed):
            if how < 0.25:
                self.stream = self._socket = None
                socket.transport.abort()
            elif self.wish.prefixes:
                await self._unsubscribe(socket, sorted(self._keys))
                await self._resubscribe(socket, self.wish.topics)
            elif how < 0.5 and self._keys:
                await self._unsubscribe(socket, self.rng.sample(sorted(self._keys), 1))
            else:
                keys = sorted(self.wish.topics)
                await self._resubscribe(socket, self.rng.sample(keys, self.rng.randint(1, len(keys))))

    async def run(self) -> None:
        url = f"ws://127.0.0.1:{self.server.http_port}/v0/ws"
        while True:
            self._replies.clear()
            self._keys = set()
            async with connect(url, compression=None, max_queue=4, max_size=None, ping_interval=None) as socket:
                self._wishes = {}
                self.stream = Stream({}, self.marks())
                self._socket = socket
                await self._resubscribe(socket, self.wish.topics)
                try:
                    async for text in socket:
                        if self._socket is not socket:
                            break
                        assert isinstance(text, str)
                        self._message(msgspec.json.decode(text, type=Raw))
                        self.changed.set()
                        if self.rng.random() < 0.2:
                            await asyncio.sleep(self.rng.choice((0, 0, 0.002)))
                except ConnectionClosed:
                    pass
                assert self._socket is not socket, "the server has closed the socket"

    def settled(self) -> bool:
        return not self._replies and super().settled()

    async def _resubscribe(self, socket: ClientConnection, keys: Iterable[str]) -> None:
        """Follow these keys from where this client is, was, or said at first."""
        starts = {key: dict(self.wish.topics[key]) for key in keys}
        named = set(starts) | {name for name in self._cursors if name.startswith(self.wish.prefixes or ("\0",))}
        for name in named - {key for key in starts if key.endswith("*")}:
            match self.rng.choice(("here", "here", "old", "start", "tail")):
                case "here" if name in self._cursors:
                    starts[name] = {"from_seq": self._cursors[name]}
                case "old" if name in self._old:
                    starts[name] = {"from_seq": self.rng.choice(self._old[name])}
                case "tail":
                    starts[name] = {"tail": True}
                case _:
                    starts.setdefault(name, {})
        wish = self.wish._replace(topics=starts)
        marks = self.marks()
        await self._command(socket, "subscribe", lambda reply: self._subscribed(reply, wish, marks),
                            **wish.json(), lenient=True)  # fmt: skip

    def _subscribed(self, reply: Raw, wish: Wish, marks: dict[str, Mark]) -> None:
        assert self.stream is not None
        found = msgspec.json.decode(reply["topics"])
        positions = {name: (p["from_seq"], p["head_seq"], p["earliest_seq"]) for name, p in found.items()}
        expected = {name: self.start_of(name, wish=wish) for name in positions}
        places = self.opened(positions, expected, wish, marks)
        self.stream.places |= places
        self.stream.marks |= marks
        for name, at in positions.items():
            self._cursors[name] = at[0]
        self._keys |= {key for key in wish.topics if key in positions or key.endswith("*")}
        self._wishes |= dict.fromkeys(wish.topics, wish)

    async def _unsubscribe(self, socket: ClientConnection, names: list[str]) -> None:
        def done(reply: Raw) -> None:
            assert self.stream is not None
            ended = msgspec.json.decode(reply["topics"])
            assert set(ended) <= set(names)
            for name in names:
                if name not in ended:  # its end was reported before
                    assert name not in self._keys, name
                self.stream.places.pop(name, None)
                self._keys.discard(name)
            if self.wish.prefixes:
                self.stream.places.clear()

        await self._command(socket, "unsubscribe", done, topics=names)

    async def _command(self, socket: ClientConnection, op: str, done: Any, **members: Any) -> None:
        request_id = f"r{next(_ids)}"
        self._replies[request_id] = done
        await socket.send(json.dumps({"op": op, "request_id": request_id, **members}))

    def _message(self, data: Raw) -> None:
        op = msgspec.json.decode(data["op"])
        assert self.stream is not None
        if op in ("subscribed", "unsubscribed"):
            self.recent.append((op, {key: bytes(text) for key, text in data.items()}))
            self._replies.pop(msgspec.json.decode(data["request_id"]))(data)
            return
        if op == "error":
            assert msgspec.json.decode(data["code"]) == "throttled", bytes(data["message"])
            return
        name = msgspec.json.decode(data["topic"])
        frame = json_frame(op, data)
        if isinstance(frame, Deleted):
            frame = Deleted(None)
            self._keys.discard(name)
        wish = self.wish if self.wish.prefixes else self._wishes[name]
        self.take(self.stream, name, frame, wish)
        if isinstance(frame, Records):
            self._cursors[name] = frame.to_seq
        elif isinstance(frame, Tombstone):
            recreated = frame.lost.reason == "recreated"
            self._cursors[name] = frame.earliest - 1 if recreated else frame.lost.last
        if name in self._cursors:
            self._old[name] = [*self._old.get(name, [])[-_KEPT:], self._cursors[name]]
