"""Common parts of subcommands that call a server: its address, the API key, and error reporting."""

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from topics_cli.types import seconds
from topics_client.address import DEFAULT_URL, Address

if TYPE_CHECKING:
    from topics_cli.profiles import Profile, Profiles
    from topics_client import TopicsClient
    from topics_client.connection import Connection
    from topics_client.errors import TopicsError
    from topics_client.retry import Retry

FAILED: Final = 1
USAGE: Final = 2
UNAVAILABLE: Final = 3
AUTH: Final = 4
NOT_FOUND: Final = 5

_CLOSE_SECONDS: Final = 2.0
_KEY_ENV: Final = "TOPICS_API_KEY"

_SERVER_HELP = (
    f"gRPC address, topics://HOST:PORT or HOST:PORT (default: TOPICS_URL, the active profile, or {DEFAULT_URL})"
)
_KEY_HELP = "environment variable with the API key, if required (default: TOPICS_API_KEY)"

# The remedy for an error, by reason (docs/errors.md). Other errors are self-explanatory.
_NEXT: Final = {
    "unavailable": "is the server running? set --server or TOPICS_URL",
    "deadline_exceeded": "try again, or raise --timeout",
    "throttled": "try again later",
    "not_ready": "wait with topics wait-ready",
    "shutting_down": "wait for its restart with topics wait-ready",
    "unauthorized": "set an API key: TOPICS_API_KEY, or topics://KEY@HOST:PORT",
    "forbidden": "use an API key with this permission: TOPICS_API_KEY, or --key-env NAME",
    "topic_not_found": "topics ls lists topics, topics create creates one",
    "partition_not_found": "topics info shows the partitions, topics create --partitions adds some",
    "router_not_found": "topics router ls lists routers",
    "group_not_found": "topics groups lists groups",
    "group_not_empty": "stop its Kafka consumers first",
    "not_a_queue": "topics create --type queue creates a queue",
    "topic_not_empty": "without --if-empty its records are deleted too",
    "topic_full": "delete or ack records, or raise its caps with topics set",
    "topic_exists_incompatible": "topics info shows its type",
}


class UsageError(ValueError):
    """Invalid or incompatible arguments: exit code 2."""


def add_arguments(parser: argparse.ArgumentParser, *, timeout: str = "timeout of each call in seconds") -> None:
    """Add the arguments of the connection; `timeout` is the help of `--timeout`."""
    group = parser.add_argument_group("server")
    group.add_argument("--server", metavar="URL", help=_SERVER_HELP)
    group.add_argument("--profile", metavar="NAME", help="profile of the server, from topics profile add")
    group.add_argument("--key-env", default=_KEY_ENV, metavar="NAME", help=_KEY_HELP)
    group.add_argument("--timeout", type=seconds, default=_shell.timeout, metavar="S", help=f"{timeout} (default: 30)")


def add_name(parser: argparse.ArgumentParser, name: str, *, kind: str = "topics", **options: Any) -> None:
    """Add a positional argument that shells complete with names on the server: `topics`, `queues`, `routers` or
    `groups`.

    `options` are those of `add_argument`; `nargs` and `help` for example.
    """

    def names(prefix: str, parsed_args: argparse.Namespace, **_: object) -> list[str]:
        from topics_cli.completion import known_names

        return known_names(kind, prefix, parsed_args)

    action = parser.add_argument(name, **{"metavar": name.upper(), **options})
    setattr(action, "completer", names)  # noqa: B010  argcomplete's way, which argparse's types don't know


class Endpoint(NamedTuple):
    """A server as somebody named it; `url` is None for the default."""

    url: str | None
    key: str | None
    origin: str


def endpoint(arguments: argparse.Namespace) -> Endpoint:
    """Return the selected server and key. Flags take precedence over the environment, that over the active profile.

    The key of a profile is used only with its own URL. Raises UsageError for an unknown profile, OSError and ValueError
    for an unreadable file of profiles.
    """
    named: str | None = getattr(arguments, "profile", None)
    key = os.environ.get(arguments.key_env)
    if arguments.server:
        if named is not None:
            raise UsageError("--server and --profile are mutually exclusive")
        return Endpoint(arguments.server, key, "--server")
    if named is not None:
        found = profile(named)
        own = found.current_key()
        return Endpoint(found.server, (own or key) if arguments.key_env == _KEY_ENV else (key or own), "--profile")
    if _shell.endpoint is not None:
        return _shell.endpoint
    if url := os.environ.get("TOPICS_URL"):
        return Endpoint(url, key, "TOPICS_URL")
    from topics_cli import profiles

    known = profiles.load()
    if known.used is not None:
        found = known.found[known.used]
        return Endpoint(found.server, key or found.current_key(), f"profile {known.used}")
    return Endpoint(None, key, "default")


def profile(name: str, known: "Profiles | None" = None) -> "Profile":
    """A profile. Raises UsageError for one that is not there."""
    from topics_cli import profiles

    known = known or profiles.load()
    if name not in known.found:
        raise UsageError(f"unknown profile {name!r}; topics profile list shows all")
    return known.found[name]


def named(arguments: argparse.Namespace) -> bool:
    """Return True if a server was specified."""
    return endpoint(arguments).url is not None


def address(arguments: argparse.Namespace) -> Address:
    """The address of the server. Raises UsageError for an invalid URL."""
    return parsed(endpoint(arguments))


def parsed(found: Endpoint) -> Address:
    """The address of an endpoint. Raises UsageError for an invalid URL."""
    url = found.url or DEFAULT_URL
    _check_scheme(found.origin, url)
    try:
        return Address.parse(url, key=found.key)
    except ValueError as error:
        raise UsageError(f"{found.origin}: {error}") from None


def _check_scheme(origin: str, url: str) -> None:
    """Raises UsageError for the URL of another port or product, with the right form."""
    scheme, sign, _ = url.partition("://")
    if sign and scheme not in ("topics", "topics+tls"):
        wanted = "topics+tls" if scheme.endswith("s") and scheme != "redis" else "topics"
        what = "the URL of an HTTP port" if scheme in ("http", "https") else f"a URL of {scheme}"
        raise UsageError(f"{origin}: this is {what}: give the gRPC port, {wanted}://HOST:4001")


def without_key(url: str) -> tuple[str, str | None]:
    """A URL without the key in it, and that key. Raises UsageError for a URL that is none."""
    from urllib.parse import unquote, urlsplit

    try:
        _check_scheme("URL", url)
        found = Address.parse(url, key="none")  # a key of its own, so that none is looked for elsewhere
        user = urlsplit(url if "://" in url else f"topics://{url}").netloc.rpartition("@")[0]
        Address.parse(url, key=unquote(user) or "none")
    except UsageError:
        raise
    except ValueError as error:
        raise UsageError(str(error)) from None
    return str(found), unquote(user) or None


@dataclass(slots=True)
class _Shell:
    """State shared by the commands of one shell process."""

    endpoint: Endpoint | None = None
    timeout: float = 30.0
    kept: "dict[tuple[object, ...], Any] | None" = None  # connections, by how they were made


_shell: Final = _Shell()


@contextmanager
def one_process(where: Endpoint | None, timeout: float) -> Iterator[None]:
    """Keep connections open from one command to the next, and call the server at `where` unless another is said."""
    _shell.endpoint, _shell.timeout, _shell.kept = where, timeout, {}
    try:
        yield
    finally:
        kept = _shell.kept
        _shell.endpoint, _shell.timeout, _shell.kept = None, 30.0, None
        for each in kept.values():
            _close(each)


@contextmanager
def connected(arguments: argparse.Namespace) -> "Iterator[Connection]":
    """A connection to the server. A call on it is made once. Raises UsageError for a URL that is none."""
    from topics_client.connection import Connection
    from topics_client.retry import Retry

    found = address(arguments)
    made = partial(Connection, found, timeout=arguments.timeout, retry=Retry(seconds=0))
    with _ended(made, ("connection", found, found.key, arguments.timeout)) as connection:
        yield connection


@contextmanager
def client(arguments: argparse.Namespace, *, retry: "Retry | None" = None) -> "Iterator[TopicsClient]":
    """A client of the server. Without `retry` a call is made once. Raises UsageError for a URL that is none."""
    from topics_client import TopicsClient
    from topics_client.retry import Retry

    found, retry = address(arguments), retry or Retry(seconds=0)
    made = partial(TopicsClient, str(found), key=found.key, timeout=arguments.timeout, retry=retry)
    with _ended(made, ("client", found, found.key, arguments.timeout, retry)) as client:
        yield client


@contextmanager
def _ended(make: "Callable[[], Any]", how: tuple[object, ...]) -> Iterator[Any]:
    """Makes it, and closes it at the end; between the commands of a shell it stays open, unless the server was lost.

    An interrupt while gRPC starts a call leaves events of the call unread, and closing the channel would wait for them
    without end. So it isn't waited for, and `main` ends the process.
    """
    kept = _shell.kept
    what = make() if kept is None or how not in kept else kept.pop(how)
    try:
        yield what
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        if kept is None or not _still_good(error):
            _close(what)
            raise
        kept[how] = what
        raise
    else:
        if kept is None:
            _close(what)
        else:
            kept[how] = what


def _still_good(error: BaseException) -> bool:
    """Return True if a connection is still usable after this error."""
    from topics_client.errors import ConnectError, TopicsError, UnavailableError

    return isinstance(error, ValueError) or (
        isinstance(error, TopicsError) and not isinstance(error, ConnectError | UnavailableError)
    )


def _close(what: "Connection | TopicsClient") -> None:
    closing = Thread(target=what.close, daemon=True)
    closing.start()
    closing.join(_CLOSE_SECONDS)


def run_command(name: str, work: Callable[[], int]) -> int:
    """Run a command and return its exit code: 1 to 5 (docs/cli.md) with one line on stderr for an error of the server,
    a file or a value."""
    try:
        return work()
    except BrokenPipeError:
        raise  # the output was closed: main exits silently
    except UsageError as error:
        return complain(name, f"{error}; usage: topics {name} --help", USAGE)
    except UnicodeEncodeError:
        return complain(name, f"an argument is not UTF-8 text; usage: topics {name} --help", USAGE)
    except OSError as error:
        what = error.strerror or str(error)
        return complain(name, f"{error.filename}: {what}" if error.filename is not None else what)
    except ValueError as error:
        return complain(name, str(error))
    except Exception as error:
        # grpc loads slowly: errors before that must not wait for it.
        from topics_client.errors import TopicsError

        if not isinstance(error, TopicsError):
            raise
        return complain(name, explained(error), exit_code(error))


def complain(name: str, text: str, code: int = FAILED) -> int:
    """One line on stderr, whatever the text; gives the code back."""
    from topics_cli.output import clean

    print(f"topics {name}: {clean(' '.join(text.split()))}", file=sys.stderr)
    return code


def exit_code(error: "TopicsError") -> int:
    """The exit code for a failed call."""
    from topics_client.errors import AuthError, ConnectError, NotFoundError, UnavailableError

    codes = {UnavailableError: UNAVAILABLE, ConnectError: UNAVAILABLE, AuthError: AUTH, NotFoundError: NOT_FOUND}
    return next((code for kind, code in codes.items() if isinstance(error, kind)), FAILED)


def explained(error: "TopicsError") -> str:
    """Format an error with its remedy."""
    from topics_client.errors import ConnectError

    if isinstance(error, ConnectError):
        return str(error)
    text, what = str(error), _NEXT.get(error.reason)
    if "limit" in error.detail:
        what = f"the server's limit {error.detail['limit']} is {error.detail.get('max', 'reached')}"
    elif error.reason == "topic_not_found" and "@" in error.detail.get("topic", ""):
        what = "use --partition N to select a partition"
    elif error.reason == "topic_not_found" and "*" in error.detail.get("topic", ""):
        what = "patterns are not supported here; topics ls -q PREFIX lists matching topics"
    elif error.retry_after_ms:
        what = f"try again in {error.retry_after_ms} ms"
    return f"{text} ({what})" if what else text
