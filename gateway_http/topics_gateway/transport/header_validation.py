"""Request heads that two readers might take for two requests: refused by both versions of HTTP."""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

# Fields that decide something and hold one value: a proxy in front may go by the other one.
SINGLE: Final = frozenset(
    (
        b"authorization",
        b"content-length",
        b"content-type",
        b"host",
        b"idempotency-key",
        b"last-event-id",
        b"origin",
        b"sec-fetch-site",
    )
)
TOKEN: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
# RFC 3986, 3.2, without user information, and without commas, by which some join two fields.
_AUTHORITY: Final = re.compile(rb"(\[[0-9A-Za-z:.%_~-]+\]|[0-9A-Za-z._~!$&'()*+;=%-]+)(?::([0-9]*))?")
_PORTS: Final = {b"http": b"80", b"https": b"443"}
_NO_NAME: Final = re.compile(b'[\x00-\x1f\x7f()<>@,;:\\[\\]={} \t\\\\"]')
_NO_VALUE: Final = re.compile(b"[\x00-\x08\x0a-\x1f\x7f]")


class BadHeadError(ValueError):
    """A request head that is ambiguous or malformed; the message says in what."""


def single_fields(headers: Sequence[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Return the fields by their lower-case names. Raises BadHeadError if one that holds one value is repeated."""
    found = dict(headers)
    if len(found) != len(headers):
        seen = set()
        for name, _ in headers:
            if name in seen and name in SINGLE:
                raise BadHeadError(f"more than one {name.decode()} header")
            seen.add(name)
    return found


def check_host(value: bytes) -> None:
    """Raise BadHeadError unless `value` is a host with or without a port."""
    if _AUTHORITY.fullmatch(value) is None:
        raise BadHeadError("invalid host")


def check_same_host(authority: bytes, host: bytes, scheme: bytes) -> None:
    """Raise BadHeadError if the target's `authority` is none, or another than that of the Host header."""
    if authority != host and _split(authority, scheme) != _split(host, scheme):
        raise BadHeadError("the Host header differs from the authority of the target")
    check_host(authority)


def _split(authority: bytes, scheme: bytes) -> tuple[bytes, bytes]:
    match = _AUTHORITY.fullmatch(authority)
    if match is None:
        raise BadHeadError("invalid host")
    return match[1].lower(), match[2] or _PORTS.get(scheme, b"")


def response_field(name: bytes, value: bytes) -> bytes:
    """Return the lower-case name of a response's header. Raises RuntimeError for a name or value that is none."""
    if _NO_VALUE.search(value):
        raise RuntimeError(f"invalid response header {name!r}")
    return _lowered(name)


@lru_cache(256)
def _lowered(name: bytes) -> bytes:
    if _NO_NAME.search(name):
        raise RuntimeError(f"invalid response header {name!r}")
    return name.lower()
