"""Pages in browsers: which of their requests a server without keys serves.

A browser lets any page send requests to whatever it reaches, and a name whose owner lets it point to this machine makes
the page and the server one site. With keys neither is of use: no page has one.
"""

import re
from collections.abc import Mapping
from typing import Final

from topics_service.api.access.hosts import Hosts, is_local_name, parse_authority
from topics_service.engine.errors import Reason, TopicsError

_ORIGIN: Final = re.compile(rb"(https?)://([^/?#\\]+)", re.IGNORECASE)
_PORTS: Final = {b"http": 80, b"https": 443}
_LOOPBACK: Final = frozenset({"127.0.0.1", "[::1]"})


class OriginPolicy:
    """Checks of the heads of requests, plain ones and upgrades alike."""

    def __init__(self, hosts: Hosts, pages: frozenset[bytes] = frozenset()) -> None:
        """`pages` are origins that are let in besides, as in the header `Origin`."""
        self._hosts = hosts
        self._pages = pages

    def check(self, headers: Mapping[bytes, bytes], http_version: str, *, any_host: bool = False) -> None:
        """Raise `forbidden` for a host that is not served, unless `any_host`, and for a page of another site.

        `headers` has lower-case names, and the host of the request in `host`. Before HTTP/1.1 there need be none.
        """
        host = headers.get(b"host")
        if not any_host and not (self._hosts.serves(host) if host is not None else http_version == "1.0"):
            raise TopicsError(
                Reason.FORBIDDEN,
                "without API keys the server is reached by IP address, as localhost or by a name in "
                "TOPICS_ALLOWED_HOSTS, and the host of this request is none of these",
            )
        origin = headers.get(b"origin")
        if origin is not None:
            if not self.allows(origin, host or b""):
                raise TopicsError(
                    Reason.FORBIDDEN, "a page of another origin may not send requests to a server without API keys"
                )
        elif headers.get(b"sec-fetch-site", b"").strip().lower() == b"cross-site":
            raise TopicsError(
                Reason.FORBIDDEN, "a page of another site may not send requests to a server without API keys"
            )

    def allows(self, origin: bytes, host: bytes) -> bool:
        """Return whether pages of `origin` may send requests to `host`.

        They may if the origin is that of the host, of the local machine, or a listed one. `null` (a file, a frame in a
        sandbox) has no host.
        """
        if origin in self._pages:
            return True
        match = _ORIGIN.fullmatch(origin)
        page = parse_authority(match[2]) if match is not None else None
        if match is None or page is None:
            return False
        if page.host in _LOOPBACK or is_local_name(page.host):
            return True
        own, default = parse_authority(host), _PORTS[match[1].lower()]
        return own is not None and own.host == page.host and (own.port or default) == (page.port or default)
