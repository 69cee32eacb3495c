"""Wrappers of Kafka handlers: observers see whole requests, and connections end with their key."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any, Final

from topics_kafka.handlers import Answer, Context, Handler, HandlerTable, ServerContext
from topics_kafka.protocol import ApiKey, ErrorCode, Message
from topics_kafka.registry import AUDIT_ACTIONS, error_codes
from topics_service.api.access.auth import ANONYMOUS
from topics_service.api.access.authorizer import Authorizer
from topics_service.api.audit import AuditLog

_DENIED: Final = frozenset(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    }
)

Make = Callable[[ServerContext], HandlerTable]

KafkaEnd = Callable[[Message | None, BaseException | None], None]
"""Called with the response, None if there is none, and the error that the handler raised."""

KafkaObserver = Callable[[ApiKey, int, Context, Message], KafkaEnd | None]
"""Called with a request: its API and version, its connection and its body; returns None to ignore the request."""


def observed_kafka(make: Make, *observers: KafkaObserver) -> Make:
    """Return a factory of the same handlers, with each request observed until its response is there."""

    def observed(api: ApiKey, handler: Handler) -> Handler:
        def handle(context: Context, version: int, request: Message) -> Answer:
            begun = [observe(api, version, context, request) for observe in observers]
            ends = [each for each in begun if each is not None]
            if not ends:
                return handler(context, version, request)

            def end(response: Message | None, error: BaseException | None) -> None:
                for each in reversed(ends):
                    each(response, error)

            try:
                answer = handler(context, version, request)
            except BaseException as error:
                end(None, error)
                raise
            if answer is None or isinstance(answer, dict):
                end(answer, None)
            elif isinstance(answer, asyncio.Future):
                answer.add_done_callback(partial(_done, end))
            else:
                return _awaited(answer, end)
            return answer

        return handle

    if not observers:
        return make
    return lambda server: {api: observed(ApiKey(api), handler) for api, handler in make(server).items()}


async def _awaited(answer: Awaitable[Message | None], end: KafkaEnd) -> Message | None:
    try:
        response = await answer
    except BaseException as error:
        end(None, error)
        raise
    end(response, None)
    return response


def _done(end: KafkaEnd, future: "asyncio.Future[Message | None]") -> None:
    error = asyncio.CancelledError() if future.cancelled() else future.exception()
    end(None if error is not None else future.result(), error)


def while_good(make: Make, authorizer: Authorizer) -> Make:
    """Return a factory of the same handlers, which end a connection once its key is revoked.

    The next request is answered as an unauthorized one, and the connection is closed behind the answer. A waiting fetch
    is cancelled and its connection closed: later records are not for that key.
    """

    def guarded(api: int, handler: Handler) -> Handler:
        # Only a fetch: a separate task would begin later than its turn, and calls of a group are ordered.
        waits = api == ApiKey.FETCH and not authorizer.open

        def handle(context: Context, version: int, request: Message) -> Answer:
            if not authorizer.is_valid(context.principal):
                context.principal, context.closing = ANONYMOUS, True
            answer = handler(context, version, request)
            if not waits or answer is None or isinstance(answer, dict):
                return answer
            running = asyncio.ensure_future(answer)
            authorizer.cancel_on_revocation(context.principal, running)
            return running

        return handle

    return lambda context: {api: guarded(api, handler) for api, handler in make(context).items()}


class KafkaAudit:
    """Logs facts that only a response has: refusals, and outcomes of several changes in one request."""

    def __init__(self, log: AuditLog) -> None:
        self._log = log

    def __call__(self, api: ApiKey, _version: int, _context: Context, request: Message) -> KafkaEnd | None:
        return partial(self._end, api, request) if api in AUDIT_ACTIONS else None

    def _end(self, api: ApiKey, request: Message, response: Message | None, _error: BaseException | None) -> None:
        if response is None:
            return
        action, kind, each = AUDIT_ACTIONS[api]
        for name in _denied(response):
            target = {kind: name if name is not None else request.get("group_id")}
            self._log.write(action, target, outcome="refused", reason="forbidden")
        if each and response["error_code"] not in _DENIED:
            failed = next(error_codes(api, response), 0)
            self._log.write(
                action,
                {kind: request[f"{kind}_id"], each: [entry["name"] for entry in request[each]]},
                outcome="refused" if failed else "done",
                reason=ErrorCode(failed).name.lower() if failed else "",
            )


def _denied(response: Any) -> Iterator[str | None]:
    """The names that the response denies to the caller; None where it gives none."""
    if isinstance(response, list):
        for each in response:
            yield from _denied(each)
    elif isinstance(response, dict):
        if response.get("error_code") in _DENIED:
            yield next((response[name] for name in ("name", "group_id", "resource_name") if response.get(name)), None)
            return
        for name, value in response.items():
            if isinstance(value, list):
                below = list(_denied(value))
                yield from [response["name"]] if "name" in response and below and name == "partitions" else below
