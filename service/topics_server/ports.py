"""Listening sockets, the addresses that clients connect to, and the files that tell them."""

import contextlib
import os
import socket
from errno import EADDRINUSE, EADDRNOTAVAIL
from pathlib import Path

from topics_server.errors import StartError
from topics_server.settings import Settings, split_host


def bind(host: str, port: int, setting: str, *, is_shared: bool = False) -> socket.socket:
    """Bind a socket, which does not listen yet. Raises StartError that names `setting`, the variable of the port.

    Where it `is_shared`, other processes of this user can bind the same, and the system spreads the connections.
    """
    with contextlib.ExitStack() as stack:
        try:
            family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            sock = stack.enter_context(socket.socket(family, kind, proto))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if is_shared:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            sock.bind(address)
        except OSError as error:
            raise StartError(f"can't listen on {host}:{port}: {explain(error, setting)}") from error
        sock.setblocking(False)
        stack.pop_all()
        return sock


def explain(error: OSError, setting: str) -> str:
    """Return the cause of a failed bind, with its remedy. `setting` is the variable of the port."""
    cause = error.strerror or str(error)
    if error.errno == EADDRINUSE:
        return f"{cause}; is another server running? {setting} sets another port"
    return f"{cause}; TOPICS_HOST must be an address of this machine" if error.errno == EADDRNOTAVAIL else cause


def bracketed(host: str) -> str:
    """Return the host as it stands in a URL: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host


def advertised_address(settings: Settings, port: int) -> tuple[str, int]:
    """Return host and port that Kafka clients are to connect to; `port` is the one that the server listens on.

    If unset it is that of a node of a cluster, else the address. If the server listens on all addresses, the host is
    the name of the machine.
    """
    host, advertised_port = split_host(settings.kafka_advertised)
    if not host:
        host = settings.cluster_advertised
    if not host:
        host = socket.gethostname() if settings.host in ("0.0.0.0", "::", "") else settings.host
    return host, int(advertised_port or port)


def write_port_file(setting: str, file: str, address: str) -> None:
    """Write `host:port` atomically; nothing if `file` is empty. Raises StartError that names `setting`."""
    if not file:
        return
    path = Path(file)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        part.write_text(address)
        part.replace(path)
    except OSError as error:
        raise StartError(f"{setting} {file}: {error.strerror or error}") from None
