"""Addresses of this machine."""

import ipaddress


def is_loopback(host: str) -> bool:
    """Return whether an address, or the name `localhost`, is reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
