"""What subcommands share that call a server: its address, the key, and how errors are told."""

import argparse
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread
from typing import TYPE_CHECKING, Any, Final

from topics_client.address import DEFAULT_URL, Address
from topics_client.cli.types import seconds

if TYPE_CHECKING:
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

_SERVER_HELP = f"topics://HOST:PORT or HOST:PORT of its gRPC port (default: TOPICS_URL, or {DEFAULT_URL})"
_KEY_HELP = "environment variable that holds the API key, if the server wants one (default: TOPICS_API_KEY)"

# What to do about an error, by its reason (docs/errors.md). Those that are not here say it themselves.
_NEXT: Final = {
    "unavailable": "is the server running? set --server or TOPICS_URL",
    "deadline_exceeded": "try again, or give it longer with --timeout",
    "throttled": "try again later",
    "not_ready": "topics wait-ready waits for it",
    "shutting_down": "topics wait-ready waits until it is back",
    "unauthorized": "give a key: TOPICS_API_KEY, or topics://KEY@HOST:PORT",
    "forbidden": "give a key that may: TOPICS_API_KEY, or --key-env NAME",
    "topic_not_found": "topics ls lists those that are there, topics create makes one",
    "partition_not_found": "topics info tells how many a topic has, topics create --partitions adds some",
    "router_not_found": "topics router ls lists those that are there",
    "group_not_found": "topics groups lists those that are there",
    "group_not_empty": "end its Kafka consumers first",
    "not_a_queue": "topics create --type queue makes one",
    "topic_not_empty": "without --if-empty it goes with its records",
    "topic_full": "delete or ack records, or raise its caps with topics set",
    "topic_exists_incompatible": "topics info tells what it is",
}
_NOT_GRPC: Final = "that is an HTTP port: give the server's gRPC port, 4001 by default"
_RESOLVING: Final = re.compile(r"(topics\S*): .*address lookup failed for [^\]]*: ([^\]:]+)\]?", re.DOTALL)
_CONNECTING: Final = re.compile(r"(topics\S*): .*last error: [A-Z_]+: (?:\S+: )?(.*)", re.DOTALL)


class UsageError(ValueError):
    """Arguments that don't fit together, or make no sense: exit code 2."""


def add_arguments(parser: argparse.ArgumentParser, *, timeout: str = "seconds for each call") -> None:
    """The arguments that say which server is called, and how; `timeout` is the help of `--timeout`."""
    group = parser.add_argument_group("server")
    group.add_argument("--server", metavar="URL", help=_SERVER_HELP)
    group.add_argument("--key-env", default="TOPICS_API_KEY", metavar="NAME", help=_KEY_HELP)
    group.add_argument("--timeout", type=seconds, default=30.0, metavar="S", help=f"{timeout} (default: 30)")


def add_name(parser: argparse.ArgumentParser, name: str, *, kind: str = "topics", **options: Any) -> None:
    """A positional argument that shells complete with what the server has: `topics`, `queues`, `routers` or `groups`.

    `options` are those of `add_argument`; `nargs` and `help` for example.
    """

    def names(prefix: str, parsed_args: argparse.Namespace, **_: object) -> list[str]:
        from topics_client.cli.completion import known_names

        return known_names(kind, prefix, parsed_args)

    action = parser.add_argument(name, **{"metavar": name.upper(), **options})
    setattr(action, "completer", names)  # noqa: B010  argcomplete's way, which argparse's types don't know


def address(arguments: argparse.Namespace) -> Address:
    """Where the server is. Raises UsageError for a URL that is none."""
    try:
        return Address.parse(arguments.server, key=os.environ.get(arguments.key_env))
    except ValueError as error:
        raise UsageError(f"--server, TOPICS_URL or key: {error}") from None


@contextmanager
def connected(arguments: argparse.Namespace) -> "Iterator[Connection]":
    """A connection to the server. A call on it is made once. Raises UsageError for a URL that is none."""
    from topics_client.connection import Connection
    from topics_client.retry import Retry

    connection = Connection(address(arguments), timeout=arguments.timeout, retry=Retry(seconds=0))
    with _ended(connection):
        yield connection


@contextmanager
def client(arguments: argparse.Namespace, *, retry: "Retry | None" = None) -> "Iterator[TopicsClient]":
    """A client of the server. Without `retry` a call is made once. Raises UsageError for a URL that is none."""
    from topics_client import TopicsClient
    from topics_client.retry import Retry

    found = address(arguments)
    made = TopicsClient(str(found), key=found.key, timeout=arguments.timeout, retry=retry or Retry(seconds=0))
    with _ended(made):
        yield made


@contextmanager
def _ended(what: "Connection | TopicsClient") -> Iterator[None]:
    """Closes it at the end. An interrupt can come while gRPC begins a call, and then nobody reads the events of that
    call: the end of its channel waits for them for ever. So it isn't waited for, and `main` ends the process."""
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException:
        _close(what)
        raise
    else:
        _close(what)


def _close(what: "Connection | TopicsClient") -> None:
    closing = Thread(target=what.close, daemon=True)
    closing.start()
    closing.join(_CLOSE_SECONDS)


def told(name: str, work: Callable[[], int]) -> int:
    """The exit code of `work`; 1 to 5 (docs/cli.md) with one line on stderr for what the server, a file or a value has
    against it."""
    try:
        return work()
    except BrokenPipeError:
        raise  # the reader of the output is gone: main ends in silence
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
        # grpc takes a while to load, and what fails before that needs none of it.
        from topics_client.errors import TopicsError

        if not isinstance(error, TopicsError):
            raise
        return complain(name, explained(error), exit_code(error))


def complain(name: str, text: str, code: int = FAILED) -> int:
    """One line on stderr, whatever the text; gives the code back."""
    from topics_client.cli.output import clean

    print(f"topics {name}: {clean(' '.join(text.split()))}", file=sys.stderr)
    return code


def exit_code(error: "TopicsError") -> int:
    """What a failed call ends a command with."""
    from topics_client.errors import AuthError, ConnectError, NotFoundError, UnavailableError

    codes = {UnavailableError: UNAVAILABLE, ConnectError: UNAVAILABLE, AuthError: AUTH, NotFoundError: NOT_FOUND}
    return next((code for kind, code in codes.items() if isinstance(error, kind)), FAILED)


def explained(error: "TopicsError") -> str:
    """An error with what to do about it."""
    from topics_client.errors import ConnectError

    if isinstance(error, ConnectError):
        return str(error)
    text, what = str(error), _NEXT.get(error.reason)
    if found := _CONNECTING.fullmatch(error.message) or _RESOLVING.fullmatch(error.message):
        text = f"{error.reason}: {found[1]}: {found[2]}"
    if "http2 header with status" in text:
        what = _NOT_GRPC
    elif "limit" in error.detail:
        what = f"the server's limit {error.detail['limit']} is {error.detail.get('max', 'reached')}"
    elif error.reason == "topic_not_found" and "@" in error.detail.get("topic", ""):
        what = "--partition N names a partition here"
    elif error.reason == "topic_not_found" and "*" in error.detail.get("topic", ""):
        what = "whole names are wanted here; topics ls -q PREFIX lists those that begin so"
    elif error.retry_after_ms:
        what = f"try again in {error.retry_after_ms} ms"
    return f"{text} ({what})" if what else text
