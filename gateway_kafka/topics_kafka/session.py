"""The requests of one connection: authentication, the order in which they run, and responses in the same order."""

import asyncio
import contextvars
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from topics_kafka.handlers import Api, Context, Handler, advertised_versions
from topics_kafka.handlers.sasl import raw_token
from topics_kafka.protocol import (
    ApiKey,
    ErrorCode,
    MalformedError,
    Message,
    decode_request,
    encode_response,
    request_header,
)
from topics_net import background
from topics_service.api.budget import MemoryBudget, Share
from topics_service.api.request_context import KafkaRequest, current_request
from topics_service.api.running import LostCallError

if TYPE_CHECKING:
    from topics_kafka.connection import Connection

log: Final = logging.getLogger("topics.kafka")

MAX_PIPELINED: Final = 64
MAX_PIPELINED_BYTES: Final = 16 << 20
"""Limit of the Produce requests of a connection that wait for durability. A single one may be larger."""
MAX_OTHER_BYTES: Final = 16 << 20
"""Limit of any other request, since it takes more memory once it is decoded."""

_RETRY_SECONDS: Final = 0.02
_ERRORS: Final = {code.value: code.name for code in ErrorCode}

Buffer = bytes | bytearray | memoryview


class _Request:
    """A request that is not answered yet."""

    __slots__ = ("api", "correlation", "future", "response", "slot", "started", "taken", "version")

    def __init__(self, api: Api, version: int, correlation: int, taken: int, slot: str) -> None:
        self.api = api
        self.version = version
        self.correlation = correlation
        self.taken = taken
        self.slot = slot  # id of the key whose slot it holds; empty if none
        self.started = time.perf_counter()
        self.future: asyncio.Future[Message | None] | None = None
        self.response: Message | None = None

    @property
    def is_done(self) -> bool:
        return self.future is None or self.future.done()


class Session:
    """Runs the requests of one connection, one at a time except Produce, and answers them in order.

    Up to 64 Produce requests of 16 MiB in total are pipelined. The next request is held while the client does not read
    its responses or its key has no free slot, and a Fetch also while `is_congested()`: responses fill the memory.
    """

    def __init__(
        self,
        context: Context,
        handlers: Mapping[int, Handler],
        budget: MemoryBudget,
        link: "Connection",
        is_congested: Callable[[], bool],
    ) -> None:
        self._context = context
        self._handlers = handlers
        self._apis = context.server.apis
        self._budget = budget
        self._link = link
        self._is_congested = is_congested
        self._share: Share | None = None
        self._loop = asyncio.get_running_loop()
        self._statistics = context.server.statistics
        self._running: deque[_Request] = deque()
        self._running_bytes = 0
        self._held: tuple[Buffer, int] | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._checking: asyncio.Future[bool] | None = None
        self._draining = False
        self._over = False

    @property
    def authenticated(self) -> bool:
        """True once the client is authenticated, or if no authentication is needed."""
        return self._context.authenticated

    @property
    def share(self) -> Share | None:
        """The share of the memory budget of the connection's key, from the first request after authentication on."""
        if self._share is None and not self._running and self._held is None:
            self._share = self._context.server.share(self._context.principal)
        return self._share

    @property
    def is_idle(self) -> bool:
        """True if no request is running or held."""
        return not self._running and self._held is None and self._checking is None

    # ------------------------------------------------------------- requests

    @property
    def is_writing(self) -> bool:
        """True while a Produce is being appended or held: with acks=0 a client may disconnect right after it."""
        return self._context.appending or (self._held is not None and not (self._held[0][0] or self._held[0][1]))

    def room(self) -> bool:
        """Return whether another frame is accepted now; it may be held until earlier requests are done."""
        if self._held is not None or self._checking is not None:
            return False
        if self._over or self._draining or self._link.write_paused:
            return False
        running = self._running
        if not running:
            return True
        return (
            running[-1].api.key is ApiKey.PRODUCE
            and not self._context.appending
            and len(running) < MAX_PIPELINED
            and self._running_bytes < MAX_PIPELINED_BYTES
        )

    def feed(self, frame: Buffer, taken: int) -> None:
        """Accept a frame, which holds `taken` bytes of the budget until it is answered."""
        if self._must_wait(frame):
            self._held = (frame, taken)
            return
        self._start(frame, taken)
        if not self._running and not self._over and self._held is None:
            self._link.idle()

    def _must_wait(self, frame: Buffer) -> bool:
        """Return whether the frame must wait for running requests: anything but a Produce must."""
        return bool(self._running) and (bool(frame[0] or frame[1]) or self._context.appending)

    def _start(self, frame: Buffer, taken: int) -> None:
        context = self._context
        if context.raw_tokens:
            self._budget.release(taken, self._share)
            self._answer_token(bytes(frame))
            return
        try:
            key, version, correlation = request_header(frame)
        except MalformedError as error:
            self._refuse(taken, "malformed", "%s", error)
            return
        api = self._apis.get(key)
        handler = self._handlers.get(key)
        if api is None or handler is None or not api.versions[0] <= version <= api.versions[1]:
            self._unsupported(key, version, correlation, taken)
            return
        if not context.authenticated and not api.before_authentication:
            self._refuse(taken, "unauthenticated", "a %s request before authentication", api.name)
            return
        if len(frame) > MAX_OTHER_BYTES and api.key is not ApiKey.PRODUCE:
            self._refuse(taken, "length", "a %s request of %d bytes", api.name, len(frame))
            return
        slot = context.principal.key_id if api.rule.slot else ""
        if (api.key is ApiKey.FETCH and self._is_congested()) or (slot and not context.server.authorizer.acquire(slot)):
            self._held = (frame, taken)
            self._retry = background.call_later(_RETRY_SECONDS, self._advance)
            return
        try:
            header, body = decode_request(frame)
        except MalformedError as error:
            if slot:
                context.server.authorizer.release(slot)
            self._refuse(taken, "malformed", "%s", error)
            return
        context.client_id = header["client_id"]
        request = _Request(api, version, correlation, taken, slot)
        within = contextvars.Context()  # a context of its own: the connection's must not keep the request id
        within.run(current_request.set, KafkaRequest(context.peer, correlation, context.principal))
        self._statistics.requests.in_flight += 1
        try:
            answer = within.run(handler, context, version, body)
        except Exception:
            within.run(log.exception, "%s version %d failed", api.name, version)
            self._forget(request, "failed")
            self._end("failed", "internal error in %s", api.name)
            return
        if answer is None or isinstance(answer, dict):
            if answer is not None and not context.server.api.is_expiry_durable():
                answer = self._settled(answer)
        elif api.key is not ApiKey.PRODUCE:  # Produce reports only its own writes
            answer = self._then_settled(answer)
        if answer is None or isinstance(answer, dict):
            request.response = answer
            if not self._running:
                self._respond(request)
                return
        else:
            request.future = within.run(asyncio.ensure_future, answer)
            request.future.add_done_callback(self._completed)
        self._running.append(request)
        self._running_bytes += taken

    async def _settled(self, response: Message | None) -> Message | None:
        """Return the response once the losses that it reports are durable according to the topics' classes."""
        await self._context.server.api.expiry_durable()
        return response

    async def _then_settled(self, answer: Awaitable[Message | None]) -> Message | None:
        return await self._settled(await answer)

    def _answer_token(self, token: bytes) -> None:
        """Answer a SASL token without a request around it, as after SaslHandshake version 0, with an empty one."""
        right = raw_token(self._context, token)
        if isinstance(right, bool):
            self._answered_token(right)
        else:
            self._checking = asyncio.ensure_future(right)
            self._checking.add_done_callback(self._checked)

    def _checked(self, checking: "asyncio.Future[bool]") -> None:
        self._checking = None
        if self._over or checking.cancelled():
            return
        if checking.exception() is not None:
            log.error("the check of a SASL token failed", exc_info=checking.exception())
            self._end("failed", "internal error in a SASL token")
            return
        self._answered_token(checking.result())
        self._advance()

    def _answered_token(self, right: bool) -> None:
        if right:
            self._link.send([b""])
        else:
            self._end("credentials", "wrong credentials")

    def _unsupported(self, key: int, version: int, correlation: int, taken: int) -> None:
        if key != ApiKey.API_VERSIONS:
            self._refuse(taken, "unsupported", "unsupported API %d version %d", key, version)
            return
        # KIP-511: an unknown version is answered in version 0, so that the client can choose another.
        self._budget.release(taken, self._share)
        body = {"error_code": ErrorCode.UNSUPPORTED_VERSION, "api_keys": advertised_versions(self._apis)}
        self._link.send(encode_response(ApiKey.API_VERSIONS, 0, correlation, body))

    # ------------------------------------------------------------ responses

    def _completed(self, _: "asyncio.Future[Message | None]") -> None:
        """Answer the requests at the front that are done, then continue."""
        while self._running and self._running[0].is_done and not self._over:
            request = self._running.popleft()
            self._running_bytes -= request.taken
            if request.future is not None:
                if request.future.cancelled():
                    self._forget(request, "gone")
                    self._end("failed", "%s was cancelled", request.api.name)
                    return
                error = request.future.exception()
                if isinstance(error, LostCallError):  # the client learns as little as if the broker had died
                    self._forget(request, "gone")
                    self._end("failed", "%s may have had its effect or not: %s", request.api.name, error)
                    return
                if error is not None:
                    extra = {"request": KafkaRequest(self._context.peer, request.correlation).text}
                    log.error("%s version %d failed", request.api.name, request.version, exc_info=error, extra=extra)
                    self._forget(request, "failed")
                    self._end("failed", "internal error in %s", request.api.name)
                    return
                request.response = request.future.result()
            self._respond(request)
        self._advance()

    def _advance(self) -> None:
        """Start the held request if it can run, and accept more."""
        self._cancel_timer()
        if self._over:
            return
        if self._draining:
            self._finish()
            return
        held = self._held
        if held is not None:
            frame, taken = held
            if self._link.write_paused or self._must_wait(frame):
                return
            self._held = None
            self._start(frame, taken)
        if self.room():
            self._link.proceed()
        else:
            self._link.regulate()
        if self.is_idle and not self._over:
            self._link.idle()

    def _respond(self, request: _Request) -> None:
        response = request.response
        if response is None:
            self._forget(request, "silent")
        else:
            try:
                parts = encode_response(request.api.key, request.version, request.correlation, response)
            except Exception:
                name, request_id = request.api.name, KafkaRequest(self._context.peer, request.correlation).text
                log.exception(
                    "could not encode the response of %s version %d",
                    name,
                    request.version,
                    extra={"request": request_id},
                )
                self._forget(request, "failed")
                self._end("failed", "internal error in %s", request.api.name)
                return
            self._link.send(parts)
            self._forget(request, "answered")
            for code in request.api.error_codes(response):
                self._statistics.errors[request.api.name, _ERRORS.get(code, str(code))] += 1
        if self._context.closing and not self._over:
            self._over = True
            self._link.close()

    def _forget(self, request: _Request, outcome: str) -> None:
        """Release the resources of an ended request and count it."""
        self._budget.release(request.taken, self._share)
        if request.slot:
            self._context.server.authorizer.release(request.slot)
        requests = self._statistics.requests
        requests.in_flight -= 1
        requests.observe(request.api.name, outcome, time.perf_counter() - request.started)

    # ------------------------------------------------------------------ end

    def _refuse(self, taken: int, reason: str, message: str, *arguments: object) -> None:
        """Close the connection because of a request that is not accepted."""
        self._budget.release(taken, self._share)
        self._end(reason, message, *arguments)

    def _end(self, reason: str, message: str, *arguments: object) -> None:
        self._over = True
        self._link.end(reason, message, *arguments)

    def writable(self) -> None:
        """Called when the client reads again."""
        self._advance()

    def shutdown(self) -> None:
        """Finish running requests, then close. Requests that have not started are dropped."""
        self._draining = True
        self._finish()

    def _finish(self) -> None:
        if not self._running and not self._over:
            self._over = True
            self._link.close()

    def lost(self) -> None:
        """Cancel running requests, except a Produce that is being appended. Completed writes stay."""
        self._over = True
        self._cancel_timer()
        if self._checking is not None:
            self._checking.cancel()
        if self._held is not None:
            self._budget.release(self._held[1], self._share)
            self._held = None
        while self._running:
            request = self._running.popleft()
            if request.future is not None:
                request.future.remove_done_callback(self._completed)
                request.future.add_done_callback(_retrieve)
                if self._context.appending and not self._running:
                    request.future.add_done_callback(partial(self._appended, request))
                    continue
                request.future.cancel()
            self._forget(request, "gone")
        context = self._context
        context.gone = True
        for callback in context.on_gone:
            callback()
        context.on_gone.clear()

    def _appended(self, request: _Request, _: "asyncio.Future[Message | None]") -> None:
        """Count a Produce that ended after its client disconnected."""
        self._forget(request, "gone")

    def _cancel_timer(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None


def _retrieve(future: "asyncio.Future[Message | None]") -> None:
    """Log the exception of a request that no client waits for any more."""
    if not future.cancelled() and not isinstance(future.exception(), LostCallError | None):
        log.error("a request failed after its client disconnected", exc_info=future.exception())
