"""Live queries over a WebSocket, `GET /api/sql/ws`: many on one connection, each by the `request_id` of its command."""

import asyncio
import logging
from contextlib import aclosing
from typing import Final

import msgspec
from msgspec import Raw, Struct
from starlette.types import Message, Receive, Send

from topics_gateway.errors import internal
from topics_gateway.live_events import ChangeCache, LiveFrames, error_members
from topics_gateway.response import encode
from topics_gateway.sql_body import read_live
from topics_service.api.access.auth import Principal
from topics_service.api.access.authorizer import authorize
from topics_service.api.access.quota import count_refusal
from topics_service.api.interfaces import LiveQueries, Topics
from topics_service.engine.errors import Reason, TopicsError, invalid

log: Final = logging.getLogger("topics.http")

_MAX_QUERIES: Final = 64
_MAX_ID_BYTES: Final = 256
_MAX_COMMAND_BYTES: Final = 1 << 20
_SERVICE_RESTART: Final = 1012
_SUBSCRIBE: Final = "topics.v1.SqlService.Subscribe"


class _Command(Struct):
    """The members that all commands have; those of `subscribe` are the body of POST /api/sql/subscribe as well."""

    op: str
    request_id: Raw = Raw(b"null")


_COMMAND: Final = msgspec.json.Decoder(_Command)


class LiveSocket:
    """Serves an accepted WebSocket until the client leaves or the server drains.

    Each query has a task, which takes its next frame once the one before has been sent: a client that reads slowly gets
    changes that were put together, and nothing waits in memory. Commands are read one at a time.
    """

    def __init__(
        self,
        api: Topics,
        live: LiveQueries,
        principal: Principal,
        cache: ChangeCache,
        receive: Receive,
        send: Send,
        *,
        utf8: bool,
    ) -> None:
        """`utf8` says that texts go out as bytes."""
        self._api = api
        self._live = live
        self._principal = principal
        self._cache = cache
        self._receive = receive
        self._send = send
        self._utf8 = utf8
        self._sending = asyncio.Lock()
        self._queries: dict[bytes, asyncio.Task[None]] = {}
        self._tasks: asyncio.TaskGroup
        self._is_gone = False

    async def run(self) -> None:
        """Serve it. Everything that it held is released when this returns."""
        ended = asyncio.Event()
        try:
            with self._api.notify_on_drain(ended):
                if not self._api.draining:
                    await self._serve(ended)
            if not self._is_gone:
                await self._say(_SHUTTING_DOWN)
                reason = "the server is shutting down"
                await self._send({"type": "websocket.close", "code": _SERVICE_RESTART, "reason": reason})
        except* ConnectionError:
            pass  # it left while something was sent

    async def _serve(self, ended: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as self._tasks:
            reader = self._tasks.create_task(self._read(ended))
            await ended.wait()
            reader.cancel()
            for query in self._queries.values():
                query.cancel()

    async def _say(self, text: bytes) -> None:
        async with self._sending:
            await self._send({"type": "websocket.send", "text": text if self._utf8 else text.decode()})

    async def _read(self, ended: asyncio.Event) -> None:
        while True:
            message = await self._receive()
            if message["type"] == "websocket.disconnect":
                self._is_gone = True
                ended.set()
                return
            await self._take(message)
            await asyncio.sleep(0)

    async def _take(self, message: Message) -> None:
        text = message.get("text")
        if text is None:
            await self._say(_UNSUPPORTED)
            return
        text = text if isinstance(text, bytes) else text.encode()
        request_id = b"null"
        try:
            command = _read_command(text)
            request_id = bytes(command.request_id)
            match command.op:
                case "subscribe":
                    self._subscribe(request_id, text)
                case "unsubscribe":
                    await self._unsubscribe(request_id)
                case "ping":
                    await self._say(b'{"type":"pong","request_id":%b}' % request_id)
                case _:
                    raise invalid("op must be subscribe, unsubscribe or ping")
        except TopicsError as error:
            await self._fail(request_id, error)

    def _subscribe(self, request_id: bytes, text: bytes) -> None:
        authorize(self._principal, _SUBSCRIBE, "", self._api.observers)
        if request_id in self._queries:
            raise invalid("a query with this request_id is open: each needs its own")
        if len(self._queries) >= _MAX_QUERIES:
            raise TopicsError(
                Reason.THROTTLED,
                f"a WebSocket has at most {_MAX_QUERIES} live queries",
                {"limit": "live_queries", "max": _MAX_QUERIES},
            )
        wanted, as_text = read_live(text)
        frames = LiveFrames(self._cache, bigint_as_text=as_text)

        async def follow() -> None:
            try:
                async with aclosing(self._live.follow(wanted, principal=self._principal)) as found:
                    async for frame in found:
                        for name, members in frames.events(frame):
                            await self._say(_framed(name, request_id, members))
            except TopicsError as error:
                if not self._api.draining:  # else the whole socket has one error
                    await self._fail(request_id, error)
            except ConnectionError:
                raise
            except Exception:
                log.exception("a live query failed")
                await self._fail(request_id, internal())
            finally:
                self._queries.pop(request_id, None)

        self._queries[request_id] = self._tasks.create_task(follow())

    async def _unsubscribe(self, request_id: bytes) -> None:
        query = self._queries.get(request_id)
        if query is None:
            raise invalid("no query with this request_id is open")
        query.cancel()
        await asyncio.wait((query,))
        await self._say(b'{"type":"unsubscribed","request_id":%b}' % request_id)

    async def _fail(self, request_id: bytes, error: TopicsError) -> None:
        if error.reason is Reason.THROTTLED:
            count_refusal(self._api.metrics.refusals, "websocket", error)
        await self._say(_framed(b"error", request_id, encode(error_members(error))))


def _read_command(text: bytes) -> _Command:
    if len(text) > _MAX_COMMAND_BYTES:
        raise invalid(f"a command has at most {_MAX_COMMAND_BYTES} bytes")
    try:
        text.decode()  # msgspec skips over string bytes when it makes a Raw
        command = _COMMAND.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise invalid(f"the command is not a JSON object with an op: {error}") from None
    if len(command.request_id) > _MAX_ID_BYTES:
        raise invalid(f"request_id has at most {_MAX_ID_BYTES} bytes")
    return command


def _framed(kind: bytes, request_id: bytes, members: bytes) -> bytes:
    return b'{"type":"%b","request_id":%b,%b' % (kind, request_id, members[1:])


def _error(code: str, message: str) -> bytes:
    return _framed(b"error", b"null", encode({"code": code, "message": message}))


_UNSUPPORTED: Final = _error("unsupported_message", "commands are text messages, this one was binary")
_SHUTTING_DOWN: Final = _error("server_shutting_down", "the server is shutting down")
