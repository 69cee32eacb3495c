"""`topics wait-ready`: wait until a server is ready, for health checks and scripts."""

import argparse
import os
import time
from typing import TYPE_CHECKING, Final

from topics_client.cli import output, server

if TYPE_CHECKING:
    from topics_client.cli.types import Commands

_POLL_SECONDS: Final = 0.1
_REFUSED: Final = {401: "unauthorized", 403: "forbidden"}


def add_parser(commands: "Commands") -> None:
    """Register the subcommand."""
    parser = commands.add_parser(
        "wait-ready",
        help="wait until a server is ready",
        description="Wait until the server takes calls: exit status 0, or 3 when the time is up. With --server, "
        "--profile or TOPICS_URL its gRPC port is asked, otherwise GET /v0/ready of its HTTP port.",
    )
    parser.add_argument(
        "--url",
        help="ask this HTTP port instead (default without --server and TOPICS_URL: http://127.0.0.1 with the port of "
        "TOPICS_PORT, or 4000)",
    )
    output.add_arguments(parser, table=False)
    server.add_arguments(parser, timeout="seconds to wait")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Wait; 0 when the server is ready, 3 when the time is up, 4 at once if it wants another key."""
    return server.told("wait-ready", lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    began = time.monotonic()
    if arguments.url is None and server.named(arguments):
        where = str(server.address(arguments))
        problem = _wait_grpc(arguments, began + arguments.timeout)
    else:
        where = arguments.url or f"http://127.0.0.1:{os.environ.get('TOPICS_PORT') or 4000}"
        problem = _wait_http(where, os.environ.get(arguments.key_env), began + arguments.timeout)
    if arguments.json:
        output.line({"ready": problem is None, "server": where, "seconds": round(time.monotonic() - began, 3)})
    if problem is None:
        return 0
    return server.complain("wait-ready", f"not ready after {arguments.timeout:g} s: {problem}", server.UNAVAILABLE)


def _wait_grpc(arguments: argparse.Namespace, deadline: float) -> str | None:
    """None when the server is ready, or what it lacked when the time was up. Raises AuthError."""
    from topics.v1 import admin_service_pb2 as pb
    from topics_client.errors import UnavailableError

    with server.connected(arguments) as connection:
        while True:
            left = max(_POLL_SECONDS, deadline - time.monotonic())
            try:
                connection.unary(connection.admin.GetReady, pb.GetReadyRequest(), timeout=left)
                return None
            except UnavailableError as error:
                problem = server.explained(error) if error.reason == "unavailable" else f"{connection.address}: {error}"
            if time.monotonic() + _POLL_SECONDS > deadline:
                return problem
            time.sleep(_POLL_SECONDS)


def _wait_http(url: str, key: str | None, deadline: float) -> str | None:
    """The same of the HTTP port. Raises UsageError for a URL that is none, AuthError for a key that won't do."""
    import urllib.error
    import urllib.request

    if not url.startswith(("http://", "https://")):
        raise server.UsageError(f"--url is the HTTP port, as http://HOST:PORT, not {url!r}; --server is the gRPC port")
    request = urllib.request.Request(f"{url.rstrip('/')}/v0/ready")
    if key:  # needed where the probes ask for one
        request.add_header("Authorization", f"Bearer {key}")
    while True:
        try:
            with urllib.request.urlopen(request, timeout=max(_POLL_SECONDS, deadline - time.monotonic())):
                return None
        except urllib.error.HTTPError as error:
            if error.code in _REFUSED:
                from topics_client.errors import AuthError

                raise AuthError(_REFUSED[error.code], f"{url} wants another key") from None
            problem = f"{url}: {error.code} {error.reason}"
        except urllib.error.URLError as error:
            problem = f"{url}: {getattr(error.reason, 'strerror', None) or error.reason}"
        except OSError as error:
            problem = f"{url}: {error.strerror or error}"
        if time.monotonic() + _POLL_SECONDS > deadline:
            return problem
        time.sleep(_POLL_SECONDS)
