"""`topics wait-ready`: wait until a server is ready, for health checks and scripts."""

import argparse
import os
import sys
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from topics_client.cli.types import Commands

_POLL_SECONDS = 0.1


def add_parser(commands: "Commands") -> None:
    """Register the subcommand."""
    parser = commands.add_parser(
        "wait-ready",
        help="wait until a server is ready",
        description="Ask GET /v0/ready until it answers 200. Exit code 0 when it did, 1 when the time is up.",
    )
    parser.add_argument(
        "--url",
        default=f"http://127.0.0.1:{os.environ.get('TOPICS_PORT', '4000')}",
        help="the server (default: http://127.0.0.1 with the port of TOPICS_PORT, or 4000)",
    )
    parser.add_argument("--timeout", type=float, default=30.0, metavar="S", help="seconds to wait (default: 30)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Wait; 0 when the server is ready, 1 when the time is up."""
    deadline = time.monotonic() + arguments.timeout
    request = urllib.request.Request(f"{arguments.url.rstrip('/')}/v0/ready")
    key = os.environ.get("TOPICS_API_KEY")
    if key:  # needed where the probes ask for one
        request.add_header("Authorization", f"Bearer {key}")
    while True:
        try:
            with urllib.request.urlopen(request, timeout=max(0.1, deadline - time.monotonic())):
                return 0
        except urllib.error.HTTPError as error:
            problem = f"{error.code} {error.reason}"
        except OSError as error:
            problem = str(error)
        if time.monotonic() + _POLL_SECONDS > deadline:
            print(f"topics wait-ready: {arguments.url} is not ready: {problem}", file=sys.stderr)
            return 1
        time.sleep(_POLL_SECONDS)
