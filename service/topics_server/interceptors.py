"""Wrappers of Kafka handlers: the audit log learns what they refuse, and connections end with their key."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
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

App = Callable[[Any, Any, Any], Awaitable[None]]
Make = Callable[[ServerContext], HandlerTable]


def audited_kafka(make: Make, log: AuditLog) -> Make:
    """Return a factory of the same handlers; refusals, and outcomes that only a response has, are logged from it."""

    def told(api: ApiKey, handler: Handler) -> Handler:
        def handle(context: Context, version: int, request: Message) -> Answer:
            answer = handler(context, version, request)
            if answer is None:
                return answer
            if isinstance(answer, dict):
                _tell(log, api, request, answer)
                return answer
            return _then(answer, lambda response: _tell(log, api, request, response))

        return handle if api in AUDIT_ACTIONS else handler

    return lambda door: {api: told(ApiKey(api), handler) for api, handler in make(door).items()}


def while_good(make: Make, authorizer: Authorizer) -> Make:
    """Return a factory of the same handlers, which end a connection once its key is revoked.

    The next request is answered as an unauthorized one, and the connection is closed behind the answer. A waiting fetch
    is cancelled and its connection closed: later records are not for that key.
    """

    def guarded(api: int, handler: Handler) -> Handler:
        # Only a fetch: a task of its own would begin later than its turn, and calls of a group have an order.
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

    return lambda door: {api: guarded(api, handler) for api, handler in make(door).items()}


async def _then(answer: Awaitable[Message | None], told: Callable[[Message], None]) -> Message | None:
    response = await answer
    if response is not None:
        told(response)
    return response


def _tell(log: AuditLog, api: ApiKey, request: Message, response: Message) -> None:
    action, kind, each = AUDIT_ACTIONS[api]
    for name in _denied(response):
        target = {kind: name if name is not None else request.get("group_id")}
        log.write(action, target, outcome="refused", reason="forbidden")
    if each and response["error_code"] not in _DENIED:
        failed = next(error_codes(api, response), 0)
        log.write(
            action,
            {kind: request[f"{kind}_id"], each: [entry["name"] for entry in request[each]]},
            outcome="refused" if failed else "done",
            reason=ErrorCode(failed).name.lower() if failed else "",
        )


def _denied(response: Any) -> Iterator[str | None]:
    """The names of what the response says is not allowed to the caller; None where it gives none."""
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
