"""One open WebSocket: commands in, replies and the frames of subscriptions out (docs/contract.md, 9)."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import islice
from typing import Final

from msgspec.structs import replace
from starlette.types import Message, Receive, Send

from topics_gateway import socket_frames
from topics_gateway.errors import internal
from topics_gateway.outbox import Outbox, Reply
from topics_gateway.record_limit import refuse_too_many
from topics_gateway.render import Parts
from topics_gateway.request import ms_since
from topics_gateway.socket_commands import Command, MalformedError, Subscribe, Unsubscribe, Write, read_command
from topics_gateway.socket_frames import SocketFrames
from topics_gateway.transport import BrokenOffError
from topics_service.api.access.auth import Principal
from topics_service.api.access.authorizer import authorize
from topics_service.api.access.quota import Usage, count_refusal
from topics_service.api.interfaces import Topics
from topics_service.api.running import LostCallError
from topics_service.api.topics import Submitted
from topics_service.api.watch_stream import WatchStream
from topics_service.engine.errors import Reason, TopicsError, invalid
from topics_service.engine.limits import Limits
from topics_service.engine.watch.frames import ErrorFrame, Frame, Position, TopicDeletedFrame, WatchRequest

log: Final = logging.getLogger("topics.http")

_MAX_TOPICS: Final = 1024
_MAX_PREFIXES: Final = 64  # each may stand for 256 topics
_COMMANDS_A_STEP: Final = 16  # of the event loop
_PENDING_WEIGHT: Final = 500  # of a write that is not acknowledged yet, beside its names
_SERVICE_RESTART: Final = 1012

_WATCH: Final = "topics.v1.WatchService.Watch"
_APPEND: Final = "topics.v1.TopicsService.Append"
_PUT: Final = "topics.v1.TopicsService.PutTopic"


class SocketSession:
    """Serves an accepted WebSocket until the client leaves or the server drains.

    Commands take effect in their order and are answered in it. A client that does not read has its commands executed
    all the same, until 256 replies or 1 MiB of them wait; then it is not read any more. Frames of subscriptions are
    read from the logs when they can be sent, one at a time, so none wait in memory.
    """

    def __init__(
        self,
        api: Topics,
        limits: Limits,
        principal: Principal,
        frames: SocketFrames,
        receive: Receive,
        send: Send,
        *,
        utf8: bool,
        usage: Usage | None = None,
    ) -> None:
        """`utf8` says that texts go out as bytes. A write counts in `usage`, that of the key, until it has its ack."""
        self._api = api
        self._limits = limits
        self._principal = principal
        self._frames = frames
        self._receive = receive
        self._send = send
        self._utf8 = utf8
        self._usage = usage
        self._in_flight = 0  # of that
        self._gone = False  # the client
        self._unsettled: deque[Submitted] = deque()  # its writes that have no ack yet
        self._outbox = Outbox()
        self._sending = asyncio.Lock()
        self._followed: dict[str, _Subscription] = {}  # by place or pattern
        self._subscriptions: set[_Subscription] = set()
        self._tasks: asyncio.TaskGroup
        self._pumps: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Serve it. Everything that it held is released when this returns.

        Raises BrokenOffError when the outcome of a command is unknown.
        """
        ended, lost = asyncio.Event(), False
        try:
            with self._api.notify_on_drain(ended):
                await self._serve(ended)
            if not self._gone:
                await self._say(socket_frames.SHUTTING_DOWN)
                reason = "the server is shutting down"
                await self._send({"type": "websocket.close", "code": _SERVICE_RESTART, "reason": reason})
        except* ConnectionError:
            pass  # it left while something was sent
        except* LostCallError:
            lost = True
        finally:
            for subscription in list(self._subscriptions):
                self._close(subscription)
            if self._usage is not None:
                self._usage.in_flight -= self._in_flight
        if lost:
            raise BrokenOffError

    async def _serve(self, ended: asyncio.Event) -> None:
        if self._api.draining:
            return
        async with asyncio.TaskGroup() as self._tasks:
            reader = self._tasks.create_task(self._read(ended))
            writer = self._tasks.create_task(self._outbox.send_all(self._say))
            await ended.wait()
            reader.cancel()
            for pump in self._pumps:
                pump.cancel()
            if self._gone:
                writer.cancel()
            else:
                self._outbox.close()

    async def _say(self, text: bytes) -> None:
        async with self._sending:
            await self._put(text)

    async def _put(self, text: bytes) -> None:
        await self._send({"type": "websocket.send", "text": text if self._utf8 else text.decode()})

    # Commands

    async def _read(self, ended: asyncio.Event) -> None:
        taken = 0
        while True:
            await self._outbox.wait_for_space()
            message = await self._receive()
            if message["type"] == "websocket.disconnect":
                self._gone = True
                ended.set()
                return
            await self._take(message)
            del message  # it may be large, and the next one far away
            taken += 1
            if taken % _COMMANDS_A_STEP == 0:
                await asyncio.sleep(0)

    async def _take(self, message: Message) -> None:
        started = time.perf_counter()
        text = message.get("text")
        if text is None:
            self._answer(socket_frames.UNSUPPORTED)
            return
        text = text if isinstance(text, bytes) else text.encode()
        try:
            await refuse_too_many(text, self._limits)
            command = read_command(text)
        except TopicsError as error:
            self._answer(socket_frames.failure(b"null", error.reason.code, error.message))
            return
        except MalformedError as error:
            self._answer(socket_frames.failure(b"null", "invalid_json", str(error)))
            return
        try:
            await self._execute(command, started)
        except TopicsError as error:
            if error.reason is Reason.THROTTLED:
                count_refusal(self._api.metrics.refusals, "websocket", error)
            self._answer(socket_frames.refusal(command.request_id, error))
        except LostCallError:
            raise
        except Exception:
            log.exception("WebSocket command failed")
            self._answer(socket_frames.refusal(command.request_id, internal()))

    def _answer(self, text: bytes) -> None:
        self._outbox.put(Reply(text, len(text)))

    async def _execute(self, command: Command, started: float) -> None:
        match command:
            case Write():
                await self._write(command, started)
            case Subscribe():
                await self._subscribe(command)
            case Unsubscribe():
                self._unsubscribe(command)
            case _:
                self._answer(socket_frames.pong(command.request_id))

    async def _write(self, command: Write, started: float) -> None:
        request_id, topic, seqs = command.request_id, command.body.topic, command.body.return_seqs is not False
        authorize(self._principal, _APPEND, topic, self._api.observers)
        if command.options.config is not None:
            authorize(self._principal, _PUT, topic, self._api.observers)
        if self._usage is not None:
            self._usage.take_request()
            self._in_flight += 1
        try:
            submitted = await self._api.submit(command.read(self._limits), principal=self._principal)
        except BaseException:
            self._answered()
            raise
        self._unsettled.append(submitted)

        async def acked() -> bytes:
            text = await self._settled(submitted, request_id, seqs=seqs, started=started)
            self._unsettled.popleft()
            self._answered()
            return text

        self._outbox.put(Reply(acked, _PENDING_WEIGHT + len(request_id) + len(topic)))

    def _answered(self) -> None:
        """One write less is under way."""
        if self._usage is not None:
            self._usage.in_flight -= 1
            self._in_flight -= 1

    async def _settled(self, submitted: Submitted, request_id: bytes, *, seqs: bool, started: float) -> bytes:
        try:
            reply = await self._api.settle(submitted)
        except TopicsError as error:
            return socket_frames.refusal(request_id, error)
        except LostCallError:
            raise
        except Exception:
            log.exception("WebSocket publish failed")
            return socket_frames.refusal(request_id, internal())
        return socket_frames.ack(request_id, reply, seqs=seqs, total_ms=ms_since(started))

    async def _subscribe(self, command: Subscribe) -> None:
        authorize(self._principal, _WATCH, "", self._api.observers)
        await self._api.settle_all(self._unsettled)  # it comes after the client's own writes
        wanted = command.request.topics
        if not wanted:
            raise invalid("subscribe needs topic or topics")
        keys = self._followed.keys() | wanted.keys()
        if len(keys) > _MAX_TOPICS:
            raise invalid(f"a WebSocket follows at most {_MAX_TOPICS} topics")
        if sum(key.endswith("*") for key in keys) > _MAX_PREFIXES:
            raise invalid(f"a WebSocket follows at most {_MAX_PREFIXES} prefixes")
        opened = await self._open(command.request)
        positions: dict[str, Position] = {}
        for subscription in opened:
            positions |= subscription.stream.positions
            self._subscriptions.add(subscription)
            for key in subscription.keys:
                self._unfollow(key)
                self._followed[key] = subscription
            if not subscription.keys:
                self._close(subscription)
        text = socket_frames.subscribed(command.request_id, dict(sorted(positions.items())))
        self._outbox.put(Reply(text, len(text), lambda: self._start(opened)))

    async def _open(self, request: WatchRequest) -> "list[_Subscription]":
        """Streams that together follow the topics of `request`; all or none. Raises TopicsError."""
        parts = Parts(request.include_tags, request.include_metas, request.include_data)
        opened = []
        with ExitStack() as undo:
            topics = iter(request.topics.items())
            while some := dict(islice(topics, self._limits.max_watch_topics)):
                source = self._api.watches.stream(replace(request, topics=some), principal=self._principal, slot=False)
                stream = undo.enter_context(await source)
                keys = {key for key in some if key in stream.positions or key.endswith("*")}
                opened.append(_Subscription(stream, parts, keys))
            undo.pop_all()
        return opened

    def _unsubscribe(self, command: Unsubscribe) -> None:
        if not command.topics:
            raise invalid("unsubscribe needs topic or topics")
        ended = [key for key in dict.fromkeys(command.topics) if self._unfollow(key)]
        self._answer(socket_frames.unsubscribed(command.request_id, ended))

    # Subscriptions

    def _unfollow(self, key: str) -> bool:
        subscription = self._followed.pop(key, None)
        if subscription is None:
            return False
        subscription.stream.drop(key)
        subscription.keys.discard(key)
        if not subscription.keys:
            self._close(subscription)
        return True

    def _close(self, subscription: "_Subscription") -> None:
        """End its stream, and so its pump."""
        subscription.stream.close()
        self._subscriptions.discard(subscription)

    def _start(self, opened: "list[_Subscription]") -> None:
        """Send pending frames of new subscriptions: the client knows of them now."""
        for subscription in self._subscriptions.intersection(opened):
            pump = self._tasks.create_task(self._pump(subscription))
            self._pumps.add(pump)
            pump.add_done_callback(self._pumps.discard)

    async def _pump(self, subscription: "_Subscription") -> None:
        stream = subscription.stream
        while not stream.over:
            await stream.ready()
            async with self._sending:
                await self._send_frame(subscription)
        self._close(subscription)

    async def _send_frame(self, subscription: "_Subscription") -> None:
        frame = subscription.stream.poll()
        if frame is None or (isinstance(frame, ErrorFrame) and frame.reason is Reason.SHUTTING_DOWN):
            return  # the end is reported once for the whole socket
        for topic in _ended(frame):
            if self._followed.get(topic) is subscription:
                del self._followed[topic]
                subscription.keys.discard(topic)
        if text := self._frames.text(frame, subscription.parts):
            await self._put(text)


class _Subscription:
    """The streams of one `subscribe`. `keys` are its topic partitions and patterns that are still followed."""

    __slots__ = ("keys", "parts", "stream")

    def __init__(self, stream: WatchStream, parts: Parts, keys: set[str]) -> None:
        self.stream = stream
        self.parts = parts
        self.keys = keys


def _ended(frame: Frame) -> Sequence[str]:
    """The places that the stream follows no longer after `frame`."""
    if isinstance(frame, TopicDeletedFrame):
        return (frame.topic_partition,)
    if isinstance(frame, ErrorFrame) and frame.reason is not Reason.THROTTLED:
        return frame.topics
    return ()
