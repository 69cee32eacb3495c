"""Environment variables whose names begin with `TOPICS_`: those that clients read, and those that others set.

The server's own are `topics_service.app.settings`. It warns of what is neither.
"""

import re
from collections.abc import Mapping
from typing import Final

VARIABLES: Final[Mapping[str, str]] = {
    "TOPICS_URL": "the server that the SDKs, the command line and Spark call, as topics://KEY@HOST:PORT",
    "TOPICS_API_KEY": "the key that they show",
}
"""What the SDKs, the command line and the Spark connector read, with its meaning."""

_BY_KUBERNETES: Final = re.compile(
    r"TOPICS_(?:[A-Z0-9_]+_)?(?:SERVICE_HOST|SERVICE_PORT(?:_[A-Z0-9_]+)?|PORT_\d+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?)"
)
_LINK: Final = re.compile(r"(?:tcp|udp|sctp)://", re.IGNORECASE)


def is_service_link(name: str, value: str) -> bool:
    """Return whether Kubernetes sets such a variable in the pods beside a service named topics, or topics-something:
    TOPICS_SERVICE_HOST, TOPICS_PORT_4000_TCP, or TOPICS_PORT with the value tcp://10.0.0.1:4000."""
    return bool(_BY_KUBERNETES.fullmatch(name) or (name.endswith("_PORT") and _LINK.match(value)))
