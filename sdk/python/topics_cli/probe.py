"""GET /v0/ready of an HTTP port, with or without TLS, and the diagnosis of its response or failure.

Connects directly, ignoring proxies in the environment.
"""

import http.client
import json
import ssl
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from topics_client.address import authorization
from topics_client.environment import own_http
from topics_client.units import human_size

_REFUSED: Final = {401: "unauthorized", 403: "forbidden"}
_MAX_BYTES: Final = 1 << 16  # of an answer
_WANTED: Final = "give an accepted one with --cert FILE"
_NO_HTTP: Final = "that port does not speak HTTP: give the server's HTTP port, 4000 by default"


class Probe:
    """Asks whether the server at one HTTP port is ready.

    `pinned_file`, a PEM file, holds the one certificate that the server may show, whatever its name and its dates;
    without it the certificate must be good for the name by `ca_file`, or by the authorities of the system. With
    `is_handshake_enough` a server that wants a client's certificate, and gets none, is ready once it has shown its own.
    """

    def __init__(
        self,
        url: str,
        *,
        key: str | None = None,
        pinned_file: str | None = None,
        ca_file: str | None = None,
        cert_file: str | None = None,
        key_file: str | None = None,
        is_handshake_enough: bool = False,
    ) -> None:
        """Reads the files. Raises ValueError for a URL that is none or a file that can't be used."""
        self.url = url
        self.refused = ""
        """The reason if the server is ready but refuses writes."""
        self._headers = {"Authorization": authorization(key)} if key else {}
        self._is_handshake_enough = is_handshake_enough
        self._remedy = "if that port uses TLS, give https://"
        self._pinned: tuple[str, bytes] | None = None
        self._context: ssl.SSLContext | None = None
        try:
            parts = urlsplit(url)
            self._host, port = parts.hostname or "", parts.port
        except ValueError:
            self._host, port, parts = "", None, urlsplit("")
        if parts.scheme not in ("http", "https") or not self._host:
            raise ValueError(f"--url is the HTTP port, as http://HOST:PORT, not {url!r}; --server is the gRPC port")
        self._path = f"{parts.path.rstrip('/')}/v0/ready"
        self._port = port if port is not None else (443 if parts.scheme == "https" else 80)
        if key_file and not cert_file:
            raise ValueError("--key is the key of --cert")
        if parts.scheme == "https":
            self._context = _context(ca_file, cert_file, key_file)
            self._remedy = (
                "it may not accept the certificate of --cert"
                if cert_file
                else f"if it requires a client certificate, {_WANTED}"
            )
            if pinned_file is not None:
                self._pinned = pinned_file, _certificate(pinned_file)
                self._context.check_hostname, self._context.verify_mode = False, ssl.CERT_NONE
        elif ca_file or cert_file:
            raise ValueError("--ca and --cert are for a port with TLS: https://HOST:PORT")

    def ask(self, seconds: float) -> str | None:
        """Return None if the server is ready, otherwise the problem, within about `seconds`. Raises AuthError."""
        try:
            return self._asked(seconds)
        except ssl.SSLCertVerificationError as error:
            return f"the server's certificate is not trusted ({error.verify_message}): give its CA with --ca FILE"
        except ssl.SSLError as error:
            if error.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"):
                return "that port does not use TLS: give http://"
            if "CERTIFICATE_REQUIRED" in str(error) or "HANDSHAKE_FAILURE" in str(error):
                return f"the server requires a client certificate: {_WANTED}"
            return f"the TLS handshake failed ({error.reason or error})"
        except http.client.RemoteDisconnected:
            return f"the server closed the connection without a response: {self._remedy}"
        except http.client.HTTPException:
            return _NO_HTTP
        except TimeoutError:
            return "timed out"
        except OSError as error:
            return error.strerror or str(error)

    def _asked(self, seconds: float) -> str | None:
        connection = (
            http.client.HTTPConnection(self._host, self._port, timeout=seconds)
            if self._context is None
            else http.client.HTTPSConnection(self._host, self._port, timeout=seconds, context=self._context)
        )
        try:
            connection.connect()
            if (problem := self._is_other(connection.sock)) is not None:
                return problem
            if self._is_handshake_enough:
                return None
            connection.request("GET", self._path, headers=self._headers)
            reply = connection.getresponse()
            return self._meaning(reply.status, reply.read(_MAX_BYTES))
        finally:
            connection.close()

    def _is_other(self, sock: object) -> str | None:
        """Return a problem if the server presents another certificate than the pinned one."""
        if self._pinned is None or not isinstance(sock, ssl.SSLSocket):
            return None
        file, certificate = self._pinned
        if sock.getpeercert(binary_form=True) == certificate:
            return None
        return f"the server presents a different certificate than {file}: send it SIGHUP to reload"

    def _meaning(self, status: int, body: bytes) -> str | None:
        if status == 200:
            with suppress(ValueError, TypeError, KeyError):
                self.refused = shortage(**json.loads(body)["writes_refused"])
            return None
        if status in _REFUSED:
            from topics_client.errors import AuthError  # loads gRPC, which takes a while

            raise AuthError(_REFUSED[status], f"{self.url} requires another API key")
        try:
            error = json.loads(body)["error"]
            return f"{error['code']}: {error['message']}"
        except (ValueError, TypeError, KeyError):
            return f"status {status}"


def shortage(limit: str, max: int, free_bytes: int) -> str:  # noqa: A002  # the names that the server has
    """The reason why writes are refused, for people."""
    return f"the disk has {human_size(free_bytes)} free, TOPICS_{limit.upper()} is {human_size(max)}"


def own_server(
    environ: Mapping[str, str], *, key: str | None = None, cert_file: str | None = None, key_file: str | None = None
) -> Probe:
    """A probe of the server on this machine that has this environment. Raises ValueError."""
    host, port = own_http(environ)
    authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    pinned_file = environ.get("TOPICS_TLS_CERT_FILE")
    if not pinned_file:
        return Probe(f"http://{authority}", key=key, cert_file=cert_file, key_file=key_file)
    wants_certificates = bool(environ.get("TOPICS_TLS_CLIENT_CA_FILE"))
    return Probe(
        f"https://{authority}",
        key=key,
        pinned_file=pinned_file,
        cert_file=cert_file,
        key_file=key_file,
        is_handshake_enough=wants_certificates and not cert_file,
    )


def _context(ca_file: str | None, cert_file: str | None, key_file: str | None) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        raise ValueError(f"--ca {ca_file}: {_why(error)}") from None
    if cert_file:
        try:
            context.load_cert_chain(cert_file, key_file, password="")  # else OpenSSL asks the terminal for one
        except (OSError, ssl.SSLError) as error:
            raise ValueError(f"--cert {cert_file}: {_why(error)}") from None
    return context


def _certificate(file: str) -> bytes:
    """The first certificate of a PEM file, which is the server's own, in DER."""
    end = "-----END CERTIFICATE-----"
    try:
        text = Path(file).read_text(encoding="ascii", errors="replace")
        begin = text.index("-----BEGIN CERTIFICATE-----")
        return ssl.PEM_cert_to_DER_cert(text[begin : text.index(end, begin) + len(end)])
    except OSError as error:
        raise ValueError(f"TOPICS_TLS_CERT_FILE {file}: {error.strerror or error}") from None
    except ValueError:
        raise ValueError(f"TOPICS_TLS_CERT_FILE {file}: no certificate found") from None


def _why(error: OSError) -> str:
    reason = getattr(error, "reason", None)
    return f"it can't be read as PEM ({reason})" if reason else str(error.strerror or error)
