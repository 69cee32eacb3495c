"""Hosts as URLs and the `Host` header name them, and which of them a server without keys serves; origins of pages."""

import ipaddress
import re
from collections.abc import Iterable
from typing import Final, NamedTuple

ANY: Final = "*"

_MAX_BYTES: Final = 300  # a name has at most 253 characters
_MAX_PORT: Final = 65535
_AUTHORITY: Final = re.compile(r"(\[[^\[\]]+\]|[^\[\]:]+)(?::([0-9]{0,5}))?")
_LABEL: Final = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME: Final = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_ORIGIN: Final = re.compile(r"(https?)://([^/?#\\]+)")
_PORTS: Final = {"http": 80, "https": 443}


class Authority(NamedTuple):
    """Host and port. A name is in lower case and without the dot at its end, an IPv6 address in brackets."""

    host: str
    port: int | None

    @property
    def is_address(self) -> bool:
        """True for an IP address, which unlike a name can't be pointed elsewhere."""
        return self.host.startswith("[") or _is_ipv4(self.host)


def parse_authority(text: bytes) -> Authority | None:
    """Read `host` or `host:port`; None for anything else, such as user names and odd spellings of IPv4 addresses.

    `127.1`, `0x7f.1` and `2130706433` are names here, for a resolver may be asked for them.
    """
    if len(text) > _MAX_BYTES or not text.isascii():
        return None
    match = _AUTHORITY.fullmatch(text.decode().lower())
    if match is None:
        return None
    host, port = match[1], int(match[2]) if match[2] else None
    if port is not None and port > _MAX_PORT:
        return None
    if host.startswith("["):
        try:
            return Authority(f"[{ipaddress.IPv6Address(host[1:-1])}]", port)
        except ValueError:
            return None
    if _is_ipv4(host):
        return Authority(host, port)
    host = host.removesuffix(".")
    return Authority(host, port) if _NAME.fullmatch(host) and not _is_ipv4(host) else None


def is_local_name(host: str) -> bool:
    """Return whether a name means this machine wherever it is looked up (RFC 6761, 6.3)."""
    return host == "localhost" or host.endswith(".localhost")


class Hosts:
    """The hosts of a server without keys: IP addresses, `localhost` and names below it, and `names`, on any port."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        """`names` are names as in Authority, or ANY."""
        self._names = frozenset(names)
        self._served: set[bytes] = set()

    @property
    def any(self) -> bool:
        """True if every host is served."""
        return ANY in self._names

    def serves(self, header: bytes) -> bool:
        """Return whether this value of `Host` or `:authority` names one of them."""
        if self.any or header in self._served:
            return True
        authority = parse_authority(header)
        if authority is None:
            return False
        host = authority.host
        if not (authority.is_address or is_local_name(host) or host in self._names):
            return False
        if len(self._served) >= 64:  # ports and names below localhost have no end
            self._served.clear()
        self._served.add(header)
        return True


def read_names(text: str) -> frozenset[str]:
    """The names of TOPICS_ALLOWED_HOSTS, a list with commas. Raises ValueError with the entry that is none."""
    return frozenset(_read_name(entry) for each in text.split(",") if (entry := each.strip()))


def _read_name(entry: str) -> str:
    if entry == ANY:
        return ANY
    bare = entry.encode(errors="replace")
    authority = parse_authority(b"[%b]" % bare if entry.count(":") > 1 and not entry.startswith("[") else bare)
    if authority is None or authority.port is not None or entry.endswith(":"):
        raise ValueError(entry)
    return authority.host


def read_origins(text: str) -> frozenset[bytes]:
    """The origins of TOPICS_CORS_ORIGINS, a list with commas, as browsers write them in `Origin`.

    Raises ValueError with the entry that is none: ANY, `null`, and whatever has a path or a scheme other than http and
    https.
    """
    return frozenset(_read_origin(entry).encode() for each in text.split(",") if (entry := each.strip()))


def _read_origin(entry: str) -> str:
    match = _ORIGIN.fullmatch(entry.lower())
    authority = parse_authority(match[2].encode(errors="replace")) if match is not None else None
    # The name with a dot at its end is another origin to a browser, and seldom what is meant.
    if match is None or authority is None or match[2].endswith(":") or f"{authority.host}." in match[2]:
        raise ValueError(entry)
    scheme, port = match[1], authority.port
    own_port = "" if port is None or port == _PORTS[scheme] else f":{port}"
    return f"{scheme}://{authority.host}{own_port}"


def _is_ipv4(host: str) -> bool:
    try:
        ipaddress.IPv4Address(host)
    except ValueError:
        return False
    return True
