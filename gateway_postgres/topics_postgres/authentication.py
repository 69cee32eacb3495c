"""The start of a session: TLS, versions, options, and who the client is."""

import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from topics_net.addresses import is_loopback
from topics_postgres import wire
from topics_postgres.connection import Connection
from topics_postgres.errors import FatalError, MalformedError, PgError
from topics_service.api.access import scram
from topics_service.api.access.auth import UNRESTRICTED, Principal
from topics_service.api.access.passwords import UnverifiedPasswordError, network_of
from topics_service.api.access.quota import count_refusal
from topics_service.engine.errors import TopicsError

if TYPE_CHECKING:
    from topics_postgres.listener import PostgresServer

_T = TypeVar("_T")

_PASSWORD: Final = ord("p")
_WRONG: Final = "28P01"
_REFUSED: Final = "28000"
_MAX_REQUESTS: Final = 3  # of encryption, before the session begins
_TOO_MANY: Final = "53300"


class Opened(NamedTuple):
    """A session that may begin."""

    principal: Principal
    user: str
    database: str
    options: dict[str, str]


class Cancel(NamedTuple):
    """The key of the session whose statement is to be cancelled."""

    pid: int
    secret: bytes


async def opened(connection: Connection, server: "PostgresServer") -> Opened | Cancel | None:
    """Let the client begin a session; None if it is gone. Raises FatalError, MalformedError, OSError."""
    for _ in range(_MAX_REQUESTS):
        message = await connection.receive()
        if message is None:
            return None
        code = int.from_bytes(message.body[:4], "big")
        if code == wire.CANCEL_REQUEST:
            return Cancel(int.from_bytes(message.body[4:8], "big"), message.body[8:])
        if code == wire.GSSENC_REQUEST and len(message.body) == 4:
            _answer(connection, b"N")
        elif code == wire.SSL_REQUEST and len(message.body) == 4:
            if server.tls is None or connection.is_tls:
                _answer(connection, b"N")
            else:
                _answer(connection, b"S")
                await connection.start_tls()
        else:
            return await _session(connection, server, message.body)
    raise MalformedError("too many requests for encryption")


def _answer(connection: Connection, letter: bytes) -> None:
    connection.send(letter)
    connection.flush()


async def _session(connection: Connection, server: "PostgresServer", body: bytes) -> Opened | None:
    try:
        given = wire.startup(body)
    except PgError as error:
        raise FatalError(error.sqlstate, error.message) from None
    connection.is_started = True
    if server.tls is not None and not connection.is_tls:
        raise FatalError(_REFUSED, "this server takes connections with TLS only: use sslmode=require")
    parameters = dict(given.parameters)
    unknown = [name for name in parameters if name.startswith("_pq_.")]
    if given.minor or unknown:
        connection.send(wire.negotiate(0, unknown))
    for name in unknown:
        del parameters[name]
    user = parameters.pop("user", "")
    if not user:
        raise FatalError(_REFUSED, "no user name specified in the startup packet")
    if parameters.pop("replication", "false").lower() not in ("false", "off", "no", "0"):
        raise FatalError("0A000", "replication is not supported: consume a topic")
    database = parameters.pop("database", "") or user
    parameters |= _command_line(parameters.pop("options", ""))
    principal = await _principal(connection, server, user)
    return None if principal is None else Opened(principal, user, database, parameters)


def _command_line(text: str) -> dict[str, str]:
    """Variables in the option `options`, as in `-c search_path=app`. Raises FatalError."""
    found: dict[str, str] = {}
    try:
        words = shlex.split(text)
    except ValueError:
        words = ["?"]
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if word == "-c" and at < len(words):
            word = words[at]
            at += 1
        elif word.startswith(("-c", "--")):
            word = word[2:]
        else:
            raise FatalError("42601", f"the options {text[:80]!r} can't be read: -c NAME=VALUE")
        name, equals, value = word.partition("=")
        if not equals:
            raise FatalError("42601", f"the option {word[:80]!r} has no value")
        found[name.replace("-", "_")] = value
    return found


# --------------------------------------------------------------------------------------------------- credentials


async def _principal(connection: Connection, server: "PostgresServer", user: str) -> Principal | None:
    """The caller, None if the client is gone. Raises FatalError for wrong credentials."""
    authorizer = server.authorizer
    if authorizer.open:
        return UNRESTRICTED
    known = authorizer.users.find(user)
    is_private = connection.is_tls or is_loopback(connection.peer[0])
    if known is None and authorizer.takes_keys and is_private:
        return await _by_password(connection, server, user)
    return await _by_scram(connection, server, user)


async def _by_password(connection: Connection, server: "PostgresServer", user: str) -> Principal | None:
    """Ask for a password in clear: an API key or a token."""
    connection.send(wire.PASSWORD_WANTED)
    given = await _answered(connection)
    if given is None:
        return None
    password = given.removesuffix(b"\0")
    address = network_of(_where(connection))
    failures = server.authorizer.passwords.failures
    _check_failures(server, address, user)
    try:
        principal = server.authorizer.find(user.encode(), password)
    except UnverifiedPasswordError:
        principal = None
    if principal is None:
        failures.add(address, user)
        raise FatalError(_WRONG, "wrong API key or token")
    return principal


async def _by_scram(connection: Connection, server: "PostgresServer", user: str) -> Principal | None:
    """Exchange the messages of SCRAM-SHA-256 for the password of a user."""
    users, failures = server.authorizer.users, server.authorizer.passwords.failures
    address = network_of(_where(connection))
    known = users.find(user)
    connection.send(wire.sasl([scram.SHA_256]))
    given = await _answered(connection)
    if given is None:
        return None
    mechanism, first = wire.sasl_initial(given)
    if mechanism != scram.SHA_256:
        raise FatalError(_REFUSED, f"the SASL mechanism is to be {scram.SHA_256}")
    exchange = scram.Exchange(scram.SHA_256, None if known is None else known[0].verifier, user, server.mock_key)
    connection.send(wire.sasl_continue(_checked(exchange.first, first)))
    given = await _answered(connection)
    if given is None:
        return None
    _check_failures(server, address, user)
    final = _checked(exchange.final, given)
    now = users.find(user)
    if final is None or known is None or now is None or now != known:
        failures.add(address, user)
        raise FatalError(_WRONG, f'password authentication failed for user "{user}"')
    connection.send(wire.sasl_final(final))
    return now[1]


def _checked(step: Callable[[bytes], _T], message: bytes) -> _T:
    """The answer of a step of SCRAM. Raises MalformedError."""
    try:
        return step(message)
    except scram.ScramError as error:
        raise MalformedError(str(error)) from None


def _check_failures(server: "PostgresServer", address: str, user: str) -> None:
    try:
        server.authorizer.passwords.failures.check(address, user)
    except TopicsError as error:
        raise FatalError(_TOO_MANY, error.message) from None


async def _answered(connection: Connection) -> bytes | None:
    connection.flush()
    message = await connection.receive()
    if message is None:
        return None
    if message.kind != _PASSWORD:
        raise MalformedError("a message other than a password came during authentication")
    return message.body


def _where(connection: Connection) -> str:
    host, port = connection.peer
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def take_connection(server: "PostgresServer", principal: Principal) -> bool:
    """Count the connection among those of its key; False without a key. Raises FatalError beyond the limit."""
    if not principal.key_id:
        return False
    try:
        server.authorizer.quotas.for_key(principal.key_id).take_connection()
    except TopicsError as error:
        count_refusal(server.refusals, "postgres", error)
        raise FatalError(_TOO_MANY, error.message) from None
    return True
