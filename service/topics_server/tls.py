"""TLS of the listeners: a certificate chain and its key from PEM files, reloaded on request."""

import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import grpc

from topics_kafka.listener import tls_context
from topics_server.settings import Settings

HTTP_PROTOCOLS: Final = ("h2", "http/1.1")
"""The protocols that ALPN offers on the HTTP port."""


_CLIENT_CA: Final = "TOPICS_TLS_CLIENT_CA_FILE"


class TlsError(Exception):
    """The files can't be served with; the message names the setting and the file, and quotes nothing of a key."""


class Source(NamedTuple):
    """Location of a certificate: its file, that of its key (empty: the same), and their settings.

    `client_ca_file` holds the authorities of clients, which must have a certificate then; empty: they need none.
    """

    cert_file: str
    key_file: str
    cert_setting: str
    key_setting: str
    client_ca_file: str = ""


class _Files(NamedTuple):
    """Contents of these files, as PEM."""

    key: bytes
    chain: bytes
    client_ca: bytes | None


class Certificate:
    """A certificate chain with its key, as the listeners need it.

    What `context` and `grpc_credentials` return follows `reload`: handshakes that begin after it are answered with the
    new certificate, connections that are open stay. TLS 1.2 is the least.
    """

    def __init__(self, source: Source) -> None:
        """Reads the files. Raises TlsError."""
        self._source = source
        self._files = _read(source)
        self._contexts: dict[tuple[str, ...], ssl.SSLContext] = {}

    def reload(self) -> bool:
        """Read the files again; whether they changed. Raises TlsError, and then everything stays as it was."""
        files = _read(self._source)
        contexts = {protocols: _context(self._source, protocols) for protocols in self._contexts}
        changed = files != self._files
        self._files = files
        self._contexts = contexts
        return changed

    def context(self, protocols: Sequence[str] = ()) -> ssl.SSLContext:
        """For a listening socket of this process, with ALPN where there are `protocols`, the first the best."""
        wanted = tuple(protocols)
        listening = _context(self._source, wanted)
        self._contexts[wanted] = listening

        def newest(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
            connection.context = self._contexts[wanted]

        # OpenSSL asks in every handshake, also when the client names no server.
        listening.sni_callback = newest
        return listening

    def grpc_credentials(self) -> grpc.ServerCredentials:
        """For the port of a gRPC server."""
        served = self._files

        def newest() -> Any:  # the stubs forget None
            """The certificate for a handshake of gRPC, which calls from its own thread; None if unchanged."""
            nonlocal served
            files = self._files
            if files == served:
                return None
            served = files
            return _configuration(files)

        return grpc.dynamic_ssl_server_credentials(
            _configuration(served), newest, require_client_authentication=bool(self._source.client_ca_file)
        )


class ServerCertificates(NamedTuple):
    """The certificate of HTTP and gRPC (`common`) and that of Kafka, which may have its own. None: no TLS."""

    common: Certificate | None
    kafka: Certificate | None

    def reload(self) -> bool:
        """Read the files of all again; whether any changed. Raises TlsError: the certificate at fault stays."""
        changed = [each.reload() for each in dict.fromkeys(self) if each is not None]
        return any(changed)


def certificates(settings: Settings) -> ServerCertificates:
    """The certificates that the settings name. Raises TlsError."""
    common = kafka = None
    if settings.tls_cert_file:
        common = kafka = Certificate(
            Source(
                settings.tls_cert_file,
                settings.tls_key_file,
                "TOPICS_TLS_CERT_FILE",
                "TOPICS_TLS_KEY_FILE",
                settings.tls_client_ca_file,
            )
        )
    if settings.kafka_tls_cert and settings.kafka_port:
        kafka = Certificate(
            Source(
                settings.kafka_tls_cert,
                settings.kafka_tls_key,
                "TOPICS_KAFKA_TLS_CERT",
                "TOPICS_KAFKA_TLS_KEY",
                settings.tls_client_ca_file,
            )
        )
    return ServerCertificates(common, kafka)


def _read(source: Source) -> _Files:
    """The files, once OpenSSL has found that key and chain belong together."""
    chain = _bytes(source.cert_file, source.cert_setting)
    key = _bytes(source.key_file, source.key_setting) if source.key_file else chain
    if b"ENCRYPTED" in key:  # OpenSSL would ask for its password on the terminal
        raise TlsError(f"{_key_path(source)}: the key is encrypted; store it without a password, readable by you only")
    _context(source, ())
    client_ca = _bytes(source.client_ca_file, _CLIENT_CA) if source.client_ca_file else None
    return _Files(key, chain, client_ca)


def _configuration(files: _Files) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(files.key, files.chain)], files.client_ca)


def _context(source: Source, protocols: tuple[str, ...]) -> ssl.SSLContext:
    try:
        context = tls_context(source.cert_file, source.key_file)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise TlsError(
                f"{_key_path(source)}: the key does not belong to the certificate in {source.cert_file}"
            ) from None
        raise TlsError(
            f"{source.cert_setting} {source.cert_file}, {_key_path(source)}: there must be a certificate chain and "
            f"its private key in PEM, the server's certificate first ({error.reason or error})"
        ) from None
    except OSError as error:
        raise TlsError(f"{source.cert_setting} {source.cert_file}: {error.strerror or error}") from None
    context.options |= ssl.OP_NO_RENEGOTIATION
    if source.client_ca_file:
        _ask_for_certificates(context, source.client_ca_file)
    if protocols:
        context.set_alpn_protocols(protocols)
    return context


def _ask_for_certificates(context: ssl.SSLContext, client_ca_file: str) -> None:
    """Let a handshake end unless the client shows a certificate of one of these authorities.

    A resumed session shows none, and might be of a removed authority: so there are no tickets, and no TLS 1.2, whose
    sessions the server would keep.
    """
    try:
        context.load_verify_locations(client_ca_file)
    except ssl.SSLError as error:
        raise TlsError(
            f"{_CLIENT_CA} {client_ca_file}: there must be certificates of authorities in PEM ({error.reason or error})"
        ) from None
    except OSError as error:
        raise TlsError(f"{_CLIENT_CA} {client_ca_file}: {error.strerror or error}") from None
    context.verify_mode = ssl.CERT_REQUIRED
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0


def _bytes(path: str, setting: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise TlsError(f"{setting} {path}: {error.strerror or error}") from None


def _key_path(source: Source) -> str:
    return f"{source.key_setting} {source.key_file}" if source.key_file else f"{source.cert_setting} {source.cert_file}"
