"""`topics wait-ready`: wait until a server is ready, for health checks and scripts."""

import argparse
import os
import time
from typing import TYPE_CHECKING, Final

from topics_cli import output, server

if TYPE_CHECKING:
    from topics_cli.probe import Probe
    from topics_cli.types import Commands

_POLL_SECONDS: Final = 0.1


def add_parser(commands: "Commands") -> None:
    """Register the subcommand."""
    parser = commands.add_parser(
        "wait-ready",
        help="wait until a server is ready",
        description="Wait until the server accepts calls. Exit status: 0 ready, 3 timed out. With --server, "
        "--profile or TOPICS_URL its gRPC port is asked, otherwise GET /v0/ready of an HTTP port: that of --url, else "
        "of the server on this machine that has the same environment (TOPICS_HOST, TOPICS_PORT, and with TLS "
        "TOPICS_TLS_CERT_FILE: it must show that certificate, whatever name it is for). One that wants certificates of "
        "clients (TOPICS_TLS_CLIENT_CA_FILE) counts as ready once it has shown its own, unless there is a --cert.",
    )
    parser.add_argument("--url", help="check this HTTP port, http://HOST:PORT or https://HOST:PORT")
    parser.add_argument("--ca", metavar="FILE", help="with https: trusted CA certificates (default: the system's)")
    parser.add_argument("--cert", metavar="FILE", help="client certificate for the HTTP port, if required")
    parser.add_argument("--key", metavar="FILE", help="key of --cert, if it is not in the same file")
    output.add_arguments(parser, table=False)
    server.add_arguments(parser, timeout="time to wait")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Wait; 0 when the server is ready, 3 when the time is up, 4 at once if it wants another key."""
    return server.run_command("wait-ready", lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    began = time.monotonic()
    if arguments.url is None and server.named(arguments):
        if arguments.ca or arguments.cert or arguments.key:
            raise server.UsageError(
                "--ca, --cert and --key are for the HTTP port; use topics+tls://HOST:PORT?ca=FILE&cert=FILE"
            )
        where = str(server.address(arguments))
        problem, refused = _wait_grpc(arguments, began + arguments.timeout)
    else:
        probe = _probe(arguments)
        problem, refused = _wait_http(probe, began + arguments.timeout), probe.refused
        where = probe.url
    if arguments.json:
        output.line({"ready": problem is None, "server": where, "seconds": round(time.monotonic() - began, 3)})
    if problem is None:
        if refused:
            output.note(f"topics wait-ready: ready, but writes are refused: {refused}")
        return 0
    text = problem if problem.startswith(where) else f"{where}: {problem}"
    return server.complain("wait-ready", f"not ready after {arguments.timeout:g} s: {text}", server.UNAVAILABLE)


def _wait_grpc(arguments: argparse.Namespace, deadline: float) -> tuple[str | None, str]:
    """Return None if the server is ready, otherwise its last problem, and the reason if it refuses writes. Raises
    AuthError."""
    from topics_cli.probe import shortage
    from topics_client.errors import UnavailableError
    from topics_proto.v1 import admin_service_pb2 as pb

    with server.connected(arguments) as connection:
        while True:
            left = max(_POLL_SECONDS, deadline - time.monotonic())
            try:
                reply = connection.unary(connection.admin.GetReady, pb.GetReadyRequest(), timeout=left)
                if not reply.HasField("writes_refused"):
                    return None, ""
                refused = reply.writes_refused
                return None, shortage(refused.limit, refused.max, refused.free_bytes)
            except UnavailableError as error:
                problem = server.explained(error) if error.reason == "unavailable" else f"{connection.address}: {error}"
            if time.monotonic() + _POLL_SECONDS > deadline:
                return problem, ""
            time.sleep(_POLL_SECONDS)


def _probe(arguments: argparse.Namespace) -> "Probe":
    """Return the probe of the selected HTTP port. Raises UsageError."""
    from topics_cli.probe import Probe, own_server

    key = os.environ.get(arguments.key_env)
    try:
        if arguments.url is None:
            return own_server(os.environ, key=key, cert_file=arguments.cert, key_file=arguments.key)
        return Probe(arguments.url, key=key, ca_file=arguments.ca, cert_file=arguments.cert, key_file=arguments.key)
    except ValueError as error:
        raise server.UsageError(str(error)) from None


def _wait_http(probe: "Probe", deadline: float) -> str | None:
    """Return None if the HTTP port is ready, otherwise its last problem. Raises AuthError."""
    while True:
        problem = probe.ask(max(_POLL_SECONDS, deadline - time.monotonic()))
        if problem is None or time.monotonic() + _POLL_SECONDS > deadline:
            return problem
        time.sleep(_POLL_SECONDS)
