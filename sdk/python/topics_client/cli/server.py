"""What subcommands share that call a server: its address, the key, and how errors are told."""

import argparse
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from topics_client.address import DEFAULT_URL, Address

if TYPE_CHECKING:
    from topics_client.connection import Connection

_SERVER_HELP = f"topics://HOST:PORT or HOST:PORT of its gRPC port (default: TOPICS_URL, or {DEFAULT_URL})"
_KEY_HELP = "environment variable that holds the API key, if the server wants one (default: TOPICS_API_KEY)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments that say which server is called, and how."""
    parser.add_argument("--server", metavar="URL", help=_SERVER_HELP)
    parser.add_argument("--key-env", default="TOPICS_API_KEY", metavar="NAME", help=_KEY_HELP)
    parser.add_argument("--timeout", type=float, default=30.0, metavar="S", help="seconds for each call (default: 30)")


def connected(arguments: argparse.Namespace) -> "Connection":
    """A connection to the server; a context. A call on it is made once. Raises ValueError for a URL that is none."""
    from topics_client.connection import Connection
    from topics_client.retry import Retry

    address = Address.parse(arguments.server, key=os.environ.get(arguments.key_env))
    return Connection(address, timeout=arguments.timeout, retry=Retry(seconds=0))


def told(name: str, work: Callable[[], int]) -> int:
    """The exit code of `work`; 1 with one line on stderr for what the server, a file or a value has against it."""
    from topics_client.errors import TopicsError

    try:
        return work()
    except (TopicsError, OSError, ValueError) as error:
        print(f"topics {name}: {error}", file=sys.stderr)
    return 1
