"""Connections between nodes: their shared secret, and TLS."""

import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import grpc

from topics_cluster.trust import MIN_SECRET_BYTES
from topics_server.secret_files import SecretsError, lines_of, read_file
from topics_server.settings import Settings
from topics_service.api.audit import AuditLog
from topics_service.engine.errors import Reason

_SETTING: Final = "TOPICS_CLUSTER_SECRET_FILE"
_CONNECT_ACTION: Final = "node.connect"


def read_secrets(path: str) -> Sequence[bytes]:
    """The secrets in a file, one a line, the first of which signs. Raises SecretsError."""
    values = [text.encode("utf-8", "surrogateescape") for _, text in lines_of(read_file(_SETTING, path))]
    if not values or any(len(value) < MIN_SECRET_BYTES for value in values):
        raise SecretsError(f"{_SETTING} {path}: there must be a secret of at least {MIN_SECRET_BYTES} bytes")
    return values


def note_refused(audit: AuditLog | None, peer: str, cause: str) -> None:
    """Log that a connection to the port of nodes was refused."""
    if audit is not None:
        facts = {"peer": peer, "cause": cause}
        audit.write(_CONNECT_ACTION, facts, outcome="refused", reason=Reason.UNAUTHORIZED.code)


class PeerTls:
    """TLS towards the ports of other nodes, as new as the files are.

    A node is trusted if its certificate is for the host of its address, and is the one that this node has itself, of an
    authority whose certificate is in the same file (TOPICS_TLS_CERT_FILE), or of one in TOPICS_TLS_CLIENT_CA_FILE. This
    node shows its own, which therefore must be good for clients too where the ports ask for one.
    """

    def __init__(self, settings: Settings) -> None:
        self._cert = settings.tls_cert_file
        self._key = settings.tls_key_file or settings.tls_cert_file
        self._client_ca = settings.tls_client_ca_file

    def context(self, protocol: str = "http/1.1") -> ssl.SSLContext | None:
        """For a connection of this protocol, by the name that ALPN has for it; None if the ports have no TLS.

        Raises OSError.
        """
        if not self._cert:
            return None
        context = ssl.create_default_context(cafile=self._cert)
        if self._client_ca:
            context.load_verify_locations(self._client_ca)
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.load_cert_chain(self._cert, self._key)
        context.set_alpn_protocols([protocol])
        return context

    def credentials(self) -> grpc.ChannelCredentials | None:
        """For a channel of gRPC; None if the ports have no TLS. Raises OSError."""
        if not self._cert:
            return None
        key, chain = Path(self._key).read_bytes(), Path(self._cert).read_bytes()
        roots = chain + b"\n" + Path(self._client_ca).read_bytes() if self._client_ca else chain
        return grpc.ssl_channel_credentials(roots, key, chain)
