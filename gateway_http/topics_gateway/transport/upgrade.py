"""Faults of a request for a WebSocket, without the optional package `websockets`."""

from typing import Final

VERSION: Final = b"13"  # of RFC 6455, the only one


class BadUpgradeError(ValueError):
    """The request asks for a WebSocket in a way that RFC 6455 does not allow; the message names the fault."""


class UnsupportedVersionError(BadUpgradeError):
    """The request names no version, or another one than `VERSION` (RFC 6455, 4.4)."""
