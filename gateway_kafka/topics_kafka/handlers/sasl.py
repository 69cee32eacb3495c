"""SASL/PLAIN with any user name and an API key as the password. A server without keys accepts every password."""

from typing import Final

from topics_kafka.handlers import Context, HandlerTable, ServerContext
from topics_kafka.protocol import ApiKey, ErrorCode, Message
from topics_service.api.access.quota import count_refusal
from topics_service.engine.errors import TopicsError

_MECHANISM: Final = "PLAIN"


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


def authenticate(context: Context, version: int, request: Message) -> Message:
    """Check the credentials. On failure, reply with an error and disconnect.

    Re-authentication must use the same principal.
    """
    if not context.mechanism:
        context.closing = True
        return _refusal(ErrorCode.ILLEGAL_SASL_STATE, "SaslHandshake comes first")
    refusal = _check(context, bytes(request["auth_bytes"]))
    context.mechanism = ""
    if refusal is not None:
        context.closing = True
        context.server.statistics.closed["credentials"] += 1
        context.server.log.warning("SASL authentication from %s failed: %s", context.peer, refusal)
        return _refusal(ErrorCode.SASL_AUTHENTICATION_FAILED, refusal)
    return {"error_code": ErrorCode.NONE, "error_message": None, "auth_bytes": b""}


def raw_token(context: Context, token: bytes) -> bool:
    """Check a token without a request around it, after SaslHandshake version 0."""
    context.mechanism, context.raw_tokens = "", False
    return _check(context, token) is None


def _check(context: Context, token: bytes) -> str | None:
    """Authenticate the caller, or return the refusal. Token (RFC 4616): authorization id, NUL, user, NUL, password."""
    parts = token.split(b"\0")
    if len(parts) != 3:
        return "a PLAIN token has three parts"
    authorization_id, user, password = parts
    if authorization_id not in (b"", user):
        return "the authorization id must be empty or the user name"
    principal = context.server.authorizer.find(password)
    if principal is None:
        return "unknown API key"
    if context.authenticated and principal.key_id != context.principal.key_id:
        return "a connection can't change its API key"
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
