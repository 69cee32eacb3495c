"""Diagnosis of connections that can never succeed as configured: TLS, trust, certificates, or another protocol.

gRPC reports all of them as unavailable, like a server that is not up yet. Its messages distinguish some; if it reports
only a closed socket, TLS handshakes probe the server.
"""

import re
import socket
import ssl
from typing import Final

from topics_client.address import Address

_SECONDS: Final = 0.5  # time limit for each response
_CLOSED: Final = "Socket closed"
_UNTRUSTED: Final = re.compile(r"CERTIFICATE_VERIFY_FAILED: ([^:]+)")
_WRONG_HOST: Final = "Hostname Verification Check failed"
_NO_TLS: Final = "WRONG_VERSION_NUMBER"
_NO_HTTP2: Final = "Failed parsing HTTP/2"
_GRPC_PORT: Final = "give the server's gRPC port, 4001 by default"
NOT_GRPC: Final = f"that is an HTTP port: {_GRPC_PORT}"
_RESOLVING: Final = re.compile(r"lookup failed for [^\]]*: ([^\]:]+)")
_CONNECTING: Final = re.compile(r"last error: [A-Z_]+: (?:ipv[46]:\S+: |unix:\S+: )?(.*)", re.DOTALL)
_REMOTE: Final = "Failed to connect to remote host: "
_UNTRUSTED_CA: Final = ("issuer", "self-signed", "self signed")


def final_failure(text: str, address: Address) -> str | None:
    """Explain a failed connection from gRPC's message, with the remedy; None if waiting may help.

    May make up to three handshakes with the server, with half a second for each response.
    """
    if found := _UNTRUSTED.search(text):
        what = (
            "name its CA with ?ca=FILE" if any(word in found[1] for word in _UNTRUSTED_CA) else "it needs another one"
        )
        return f"the server's certificate is not accepted ({found[1].strip()}): {what}"
    if _WRONG_HOST in text:
        return f"the server's certificate is not for {address.host}: connect by a name that it is for"
    if _NO_TLS in text:
        return "there is no TLS at that port: connect with topics://, or to the port that has it"
    if _NO_HTTP2 in text:
        return f"there is no gRPC at that port: {_GRPC_PORT}"
    if _CLOSED not in text:
        return None
    return _asked(address)


def passing_failure(text: str) -> str:
    """Explain from gRPC's message why there is no connection yet."""
    if found := _RESOLVING.search(text):
        return found[1]
    found = _CONNECTING.search(text)
    why = found[1].removeprefix(_REMOTE) if found else text
    if _CLOSED in why:
        return "no connection: the other end hung up; is it the server's gRPC port?"
    return f"no connection: {why}"


def _asked(address: Address) -> str | None:
    """Diagnose by TLS handshakes a server that closes the connection. A missing client certificate shows after the
    handshake with TLS 1.3, like any other reason to close, and during it with TLS 1.2."""
    if not _shakes_hands(address, ssl.TLSVersion.TLSv1_3) and not _shakes_hands(address, ssl.TLSVersion.TLSv1_2):
        return None
    if not address.tls:
        return "that port has TLS: connect with topics+tls://"
    if _shakes_hands(address, ssl.TLSVersion.TLSv1_2) is not False:
        return None
    if address.cert_file:
        return "the server does not accept the certificate of ?cert=FILE"
    return "the server wants a client's certificate: name one with ?cert=FILE"


def _shakes_hands(address: Address, version: ssl.TLSVersion) -> bool | None:
    """Try a handshake of this version, trusting any certificate. Returns True if it completes, False if the server
    aborts it, None if it does not get that far."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # no data is sent over it
    context.maximum_version = version
    context.set_alpn_protocols(["h2"])
    try:
        if address.cert_file:
            context.load_cert_chain(address.cert_file)
        with (
            socket.create_connection((address.host, address.port), _SECONDS) as plain,
            context.wrap_socket(plain, server_hostname=address.host),
        ):
            return True
    except (ssl.SSLEOFError, ConnectionResetError):
        return False
    except ssl.SSLError as error:
        return False if "ALERT" in str(error) and "VERSION" not in str(error) else None
    except (OSError, ValueError):
        return None
