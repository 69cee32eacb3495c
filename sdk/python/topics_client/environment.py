"""Environment variables that begin with `TOPICS_`: those read by clients, and those set by other programs.

The server's own are in `topics_server.settings`. It warns about all others.
"""

import re
from collections.abc import Mapping
from typing import Final

DEFAULT_HTTP_PORT: Final = 4000

VARIABLES: Final[Mapping[str, str]] = {
    "TOPICS_URL": "the server that the SDKs, the command line and Spark call, as topics://KEY@HOST:PORT",
    "TOPICS_API_KEY": "the key that they show",
    "TOPICS_ZONE": "the availability zone of a Spark executor, which prefers nodes of the cluster in it",
}
"""The variables read by the SDKs, the command line and the Spark connector, with their meanings."""

_BY_KUBERNETES: Final = re.compile(
    r"TOPICS_(?:[A-Z0-9_]+_)?(?:SERVICE_HOST|SERVICE_PORT(?:_[A-Z0-9_]+)?|PORT_\d+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?)"
)
_LOOPBACK: Final = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}
_LINK: Final = re.compile(r"(?:tcp|udp|sctp)://", re.IGNORECASE)


def is_service_link(name: str, value: str) -> bool:
    """Return True for a variable that Kubernetes sets in pods beside a service named topics or topics-something:
    TOPICS_SERVICE_HOST, TOPICS_PORT_4000_TCP, or TOPICS_PORT with the value tcp://10.0.0.1:4000."""
    return bool(_BY_KUBERNETES.fullmatch(name) or (name.endswith("_PORT") and _LINK.match(value)))


def split_host(text: str) -> tuple[str, str]:
    """Split `host`, `host:port` or `[v6 address]:port` into host and port; the port is empty if there is none."""
    if text.count(":") == 1 or (text.startswith("[") and not text.endswith("]")):
        host, _, port = text.rpartition(":")
        return host.strip("[]"), port
    return text.strip("[]"), ""


def own_http(environ: Mapping[str, str]) -> tuple[str, int]:
    """The host and HTTP port at which a local process reaches the server with this environment.

    The host is loopback if the server listens on all addresses. A port chosen by the system is read from the server's
    TOPICS_PORT_FILE. Raises ValueError for an invalid port.
    """
    host, port = split_host(environ.get("TOPICS_HOST") or "127.0.0.1")
    port = port or environ.get("TOPICS_PORT") or ""
    port = str(DEFAULT_HTTP_PORT) if not port or is_service_link("TOPICS_PORT", port) else port.strip()
    if port == "0" and (file := environ.get("TOPICS_PORT_FILE")):
        try:
            with open(file) as opened:
                port = split_host(opened.read().strip())[1]
        except OSError:  # not yet
            pass
    if not (port.isascii() and port.isdigit() and len(port) <= 5):
        raise ValueError(f"TOPICS_PORT={port[:80]!r} is not a port, a number from 0 to 65535")
    return _LOOPBACK.get(host, host), int(port)
