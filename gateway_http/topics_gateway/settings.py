"""The settings of the HTTP gateway."""

from dataclasses import dataclass, field

from topics_service import __version__
from topics_service.api.access.hosts import Hosts
from topics_service.engine.limits import Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """Settings of the HTTP gateway; the defaults are those of the documented environment variables."""

    max_body_bytes: int = 64 << 20
    """TOPICS_MAX_BODY_BYTES: a larger body, also once inflated, answers 413. Zero takes only empty bodies."""
    render_cache_bytes: int = 64 << 20
    """Maximum memory for rendered pages, which all readers share."""
    body_timeout_seconds: float = 60.0
    """TOPICS_BODY_TIMEOUT_SECONDS: maximum pause of a request while it sends its body."""
    gzip_min_bytes: int = 1024
    """A smaller reply is never compressed."""
    version: str = __version__
    """The version that /v0/health reports."""
    limits: Limits = field(default_factory=Limits)
    """The limits of the engine; the gateway checks the number of keys in a record's meta."""
    hosts: Hosts = field(default_factory=Hosts)
    """Hosts that are served while there are no keys."""
    origins: frozenset[bytes] = frozenset()
    """Origins whose pages may send requests and read the answers, as in the header `Origin`."""
