"""SASL: who the caller of a connection is.

- PLAIN: a user and its password, or any user name and an API key or token as the password.
- SCRAM-SHA-256 and SCRAM-SHA-512: the password of a user, which is not sent.
- OAUTHBEARER (RFC 7628): a token, or an API key.

A server without authentication accepts every password and token.
"""

import time
from collections.abc import Awaitable
from typing import Final

from topics_kafka.handlers import Answer, Context, HandlerTable, SaslState, ServerContext
from topics_kafka.protocol import ApiKey, ErrorCode, Message
from topics_service.api.access import scram
from topics_service.api.access.auth import Principal, kind_of
from topics_service.api.access.passwords import UnverifiedPasswordError, network_of
from topics_service.api.access.quota import count_refusal
from topics_service.engine.errors import TopicsError

_PLAIN: Final = "PLAIN"
_BEARER: Final = "OAUTHBEARER"
_MECHANISMS: Final = (_PLAIN, scram.SHA_256, scram.SHA_512, _BEARER)
_MAX_LIFETIME_MS: Final = (1 << 63) - 1
_INVALID_TOKEN: Final = b'{"status":"invalid_token"}'


def handlers(_: ServerContext) -> HandlerTable:
    """SaslHandshake and SaslAuthenticate."""
    return {ApiKey.SASL_HANDSHAKE: handshake, ApiKey.SASL_AUTHENTICATE: authenticate}


def handshake(context: Context, version: int, request: Message) -> Message:
    """Choose the mechanism. After version 0, of PLAIN only, a bare token follows, after version 1 SaslAuthenticate."""
    mechanism = request["mechanism"]
    if mechanism not in _MECHANISMS or (version == 0 and mechanism != _PLAIN):
        return {"error_code": ErrorCode.UNSUPPORTED_SASL_MECHANISM, "mechanisms": list(_MECHANISMS)}
    context.sasl = SaslState(mechanism)
    context.raw_tokens = version == 0
    return {"error_code": ErrorCode.NONE, "mechanisms": list(_MECHANISMS)}


def authenticate(context: Context, version: int, request: Message) -> Answer:
    """Check the credentials, in two steps for SCRAM. On failure, reply with an error and disconnect.

    Re-authentication must use the same principal.
    """
    mechanism, token = context.sasl.mechanism, bytes(request["auth_bytes"])
    if not mechanism:
        context.closing = True
        return _refusal(ErrorCode.ILLEGAL_SASL_STATE, "SaslHandshake comes first")
    if mechanism == _PLAIN:
        context.sasl = SaslState()
        refusal = _check(context, token)
        return _answer(context, refusal) if isinstance(refusal, str) or refusal is None else _later(context, refusal)
    if mechanism == _BEARER:
        return _bearer(context, token)
    try:
        return _scram(context, context.sasl, token)
    except scram.ScramError as error:
        return _answer(context, str(error))


async def _later(context: Context, refusal: Awaitable[str | None]) -> Message:
    return _answer(context, await refusal)


def _answer(context: Context, refusal: str | None, token: bytes = b"") -> Message:
    """The end of an authentication, with the last token of the server."""
    context.sasl = SaslState()
    if refusal is not None:
        context.closing = True
        context.server.statistics.closed["credentials"] += 1
        context.server.log.warning("SASL authentication from %s failed: %s", context.peer, refusal)
        return _refusal(ErrorCode.SASL_AUTHENTICATION_FAILED, refusal)
    expires = context.principal.expires
    lifetime = 0 if expires is None else max(1, int((expires - time.time()) * 1000))
    return _step(token, min(lifetime, _MAX_LIFETIME_MS))


def _step(token: bytes, lifetime: int = 0) -> Message:
    return {"error_code": ErrorCode.NONE, "error_message": None, "auth_bytes": token, "session_lifetime": lifetime}


def raw_token(context: Context, token: bytes) -> bool | Awaitable[bool]:
    """Check a token without a request around it, after SaslHandshake version 0."""
    context.sasl, context.raw_tokens = SaslState(), False
    refusal = _check(context, token)
    return refusal is None if isinstance(refusal, str) or refusal is None else _is_none(refusal)


async def _is_none(refusal: Awaitable[str | None]) -> bool:
    return await refusal is None


# ---------------------------------------------------------------------------------------------------- PLAIN


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


# ---------------------------------------------------------------------------------------------------- SCRAM


def _scram(context: Context, state: SaslState, token: bytes) -> Message:
    """Answer the first or the last message of SCRAM. Raises ScramError."""
    authorizer = context.server.authorizer
    users, failures = authorizer.users, authorizer.passwords.failures
    if state.exchange is None:
        state.user = scram.user_of(token)
        state.known = users.find(state.user)
        verifier = None if state.known is None else state.known[0].verifier
        state.exchange = scram.Exchange(state.mechanism, verifier, state.user, context.server.mock_key)
        return _step(state.exchange.first(token))
    address = network_of(context.peer)
    try:
        failures.check(address, state.user)
    except TopicsError as error:
        return _answer(context, error.message)
    last = state.exchange.final(token)
    now = users.find(state.user)
    if last is None or now is None or now != state.known:
        failures.add(address, state.user)
        return _answer(context, "wrong credentials")
    return _answer(context, _enter(context, now[1]), last)


# ---------------------------------------------------------------------------------------------------- OAUTHBEARER


def _bearer(context: Context, message: bytes) -> Message:
    """Check the token of a client's first message. A wrong one is answered with JSON, and its next message with the
    error (RFC 7628, 3.2.2)."""
    if context.sasl.refusal:
        return _answer(context, context.sasl.refusal)
    header, _, pairs = message.partition(b"\1")
    fields = dict(pair.partition(b"=")[::2] for pair in pairs.split(b"\1") if pair)
    scheme, _, token = fields.get(b"auth", b"").partition(b" ")
    if header[:2] not in (b"n,", b"y,") or scheme.lower() != b"bearer" or not message.endswith(b"\1\1"):
        return _answer(context, "an OAUTHBEARER message is n,,^Aauth=Bearer TOKEN^A^A")
    refusal = _enter(context, context.server.authorizer.find_bearer(token))
    if refusal is None:
        return _answer(context, None)
    context.sasl.refusal = refusal
    return _step(_INVALID_TOKEN)


# ---------------------------------------------------------------------------------------------------- all


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
