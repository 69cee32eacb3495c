"""What subcommands share that call a server over gRPC: its address, the key, and how errors are told."""

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import grpc

_CHANNEL_OPTIONS = [("grpc.max_receive_message_length", 80 << 20), ("grpc.max_send_message_length", 80 << 20)]
_KEY_HELP = "environment variable that holds the API key, if the server wants one (default: TOPICS_API_KEY)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments that say which server is called, and how."""
    parser.add_argument(
        "--server", default="127.0.0.1:4001", metavar="HOST:PORT", help="gRPC address (default: 127.0.0.1:4001)"
    )
    parser.add_argument("--key-env", default="TOPICS_API_KEY", metavar="NAME", help=_KEY_HELP)
    parser.add_argument("--timeout", type=float, default=30.0, metavar="S", help="seconds for each call (default: 30)")


@contextmanager
def connected(arguments: argparse.Namespace) -> Iterator[tuple["grpc.Channel", dict[str, Any]]]:
    """A channel to the server, and the keyword arguments of every call on it."""
    import grpc

    key = os.environ.get(arguments.key_env)
    call = {"timeout": arguments.timeout, "metadata": (("authorization", f"Bearer {key}"),) if key else ()}
    with grpc.insecure_channel(arguments.server, options=_CHANNEL_OPTIONS) as channel:
        yield channel, call


def told(name: str, work: Callable[[], int]) -> int:
    """The exit code of `work`; 1 with one line on stderr for what the server, a file or a value has against it."""
    import grpc

    try:
        return work()
    except grpc.RpcError as error:
        print(f"topics {name}: {error.code().name}: {error.details()}", file=sys.stderr)
    except (OSError, ValueError) as error:
        print(f"topics {name}: {error}", file=sys.stderr)
    return 1
