"""SASL/PLAIN with a user and its password, or with any user name and an API key or token as the password.

A server without authentication accepts every password.
"""

import time
from collections.abc import Awaitable
from typing import Final

from topics_kafka.handlers import Answer, Context, HandlerTable, ServerContext
from topics_kafka.protocol import ApiKey, ErrorCode, Message
from topics_service.api.access.auth import Principal, kind_of
from topics_service.api.access.passwords import UnverifiedPasswordError
from topics_service.api.access.quota import count_refusal
from topics_service.engine.errors import TopicsError

_MECHANISM: Final = "PLAIN"
_MAX_LIFETIME_MS: Final = (1 << 63) - 1


def handlers(_: ServerContext) -> HandlerTable:
    """SaslHandshake and SaslAuthenticate."""
    return {ApiKey.SASL_HANDSHAKE: handshake, ApiKey.SASL_AUTHENTICATE: authenticate}


def handshake(context: Context, version: int, request: Message) -> Message:
    """Choose the mechanism. After version 0 the bare token follows, after version 1 SaslAuthenticate."""
    if request["mechanism"] != _MECHANISM:
        return {"error_code": ErrorCode.UNSUPPORTED_SASL_MECHANISM, "mechanisms": [_MECHANISM]}
    context.mechanism = _MECHANISM
    context.raw_tokens = version == 0
    return {"error_code": ErrorCode.NONE, "mechanisms": [_MECHANISM]}


def authenticate(context: Context, version: int, request: Message) -> Answer:
    """Check the credentials. On failure, reply with an error and disconnect.

    Re-authentication must use the same principal.
    """
    if not context.mechanism:
        context.closing = True
        return _refusal(ErrorCode.ILLEGAL_SASL_STATE, "SaslHandshake comes first")
    context.mechanism = ""
    refusal = _check(context, bytes(request["auth_bytes"]))
    if isinstance(refusal, str) or refusal is None:
        return _answer(context, refusal)
    return _answer_later(context, refusal)


async def _answer_later(context: Context, refusal: Awaitable[str | None]) -> Message:
    return _answer(context, await refusal)


def _answer(context: Context, refusal: str | None) -> Message:
    if refusal is not None:
        context.closing = True
        context.server.statistics.closed["credentials"] += 1
        context.server.log.warning("SASL authentication from %s failed: %s", context.peer, refusal)
        return _refusal(ErrorCode.SASL_AUTHENTICATION_FAILED, refusal)
    expires = context.principal.expires
    lifetime = 0 if expires is None else max(1, int((expires - time.time()) * 1000))
    return {
        "error_code": ErrorCode.NONE,
        "error_message": None,
        "auth_bytes": b"",
        "session_lifetime": min(lifetime, _MAX_LIFETIME_MS),
    }


def raw_token(context: Context, token: bytes) -> bool | Awaitable[bool]:
    """Check a token without a request around it, after SaslHandshake version 0."""
    context.mechanism, context.raw_tokens = "", False
    refusal = _check(context, token)
    return refusal is None if isinstance(refusal, str) or refusal is None else _is_none(refusal)


async def _is_none(refusal: Awaitable[str | None]) -> bool:
    return await refusal is None


def _check(context: Context, token: bytes) -> str | Awaitable[str | None] | None:
    """Authenticate the caller, or return the refusal. Token (RFC 4616): authorization id, NUL, user, NUL, password."""
    parts = token.split(b"\0")
    if len(parts) != 3:
        return "a PLAIN token has three parts"
    authorization_id, user, password = parts
    if authorization_id not in (b"", user):
        return "the authorization id must be empty or the user name"
    try:
        return _enter(context, context.server.authorizer.find(user, password))
    except UnverifiedPasswordError as unverified:
        return _verify(context, unverified)


async def _verify(context: Context, unverified: UnverifiedPasswordError) -> str | None:
    """Check a password, which takes a thread."""
    try:
        principal = await context.server.authorizer.passwords.verify(unverified.name, unverified.password, context.peer)
    except TopicsError as error:
        return error.message
    return _enter(context, principal)


def _enter(context: Context, principal: Principal | None) -> str | None:
    """Make the principal the caller of the connection, or return the refusal."""
    if principal is None:
        return "unknown API key" if context.server.authorizer.keys_only else "wrong credentials"
    if context.authenticated and principal.key_id != context.principal.key_id:
        return f"a connection can't change its {kind_of(context.principal)}"
    if not context.authenticated and principal.key_id:
        usage = context.server.authorizer.quotas.for_key(principal.key_id)
        try:
            usage.take_connection()
        except TopicsError as error:
            count_refusal(context.server.api.metrics.refusals, "kafka", error)
            return error.message
        context.on_gone.append(usage.leave_connection)
    context.principal, context.authenticated = principal, True
    return None


def _refusal(code: ErrorCode, message: str) -> Message:
    return {"error_code": code, "error_message": message, "auth_bytes": b""}
