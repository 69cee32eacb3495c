"""The address of a server, with a credential: `topics://key@host:port` or `topics://user:password@host:port`.

Of a cluster it can name several nodes: `topics://key@host1:port,host2:port`.
"""

import os
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Self
from urllib.parse import parse_qsl, quote, unquote, urlsplit

DEFAULT_URL: Final = "topics://127.0.0.1:4001"
_DEFAULT_PORT: Final = 4001
_MAX_NODES: Final = 32
_SCHEMES: Final = {"topics": False, "topics+tls": True}
_OTHERS: Final = {
    "grpc": "topics://",
    "grpcs": "topics+tls://",
    "http": "topics:// and the gRPC port, 4001 by default",
    "https": "topics+tls:// and the gRPC port, 4001 by default",
    "kafka": "topics:// and the gRPC port, 4001 by default",
    "tcp": "topics://",
    "tls": "topics+tls://",
}
"""Replacements for wrong schemes. Only these schemes are quoted in errors, as any other text may be a key."""


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a server. Its string form, used in errors and logs, never contains the key.

    `key` is an API key, a JWT, or a user and its password with a colon between them. `others` are host and port of
    further nodes of the same cluster, to be tried when the first one can't be reached.
    """

    host: str
    port: int = _DEFAULT_PORT
    key: str | None = field(default=None, repr=False)
    tls: bool = False
    ca_file: str | None = None
    cert_file: str | None = None
    others: tuple[tuple[str, int], ...] = ()

    @classmethod
    def parse(cls, url: str | Sequence[str] | None = None, *, key: str | None = None) -> Self:
        """Parse `topics://[KEY@]HOST[:PORT]`, `topics+tls://…[?ca=FILE&cert=FILE]` or plain `HOST[:PORT]`.

        `USER:PASSWORD` may stand for `KEY`, in a URL with `%40` for an `@` and so on. `HOST[:PORT],HOST[:PORT]` names
        up to 32 nodes of a cluster; so does a sequence of URLs that agree in everything else.

        If omitted, `url` is TOPICS_URL, then `topics://127.0.0.1:4001`. `key` takes precedence over the key in the URL,
        which takes precedence over TOPICS_API_KEY. Without `ca`, a TLS server is verified against the system's root
        certificates. `cert` is a file with the client certificate and its key, for a server that requires one. Raises
        ValueError.
        """
        given = url or os.environ.get("TOPICS_URL") or DEFAULT_URL
        texts = [each for text in ([given] if isinstance(given, str) else given) for each in _each(text)]
        found = list(dict.fromkeys(cls._parse_one(text, key) for text in texts))
        first = found[0]
        if any(replace(each, host=first.host, port=first.port) != first for each in found):
            raise ValueError("the URLs of a cluster's nodes have the same scheme, key and parameters")
        if len(found) > _MAX_NODES:
            raise ValueError(f"a server's URL has at most {_MAX_NODES} hosts")
        return replace(first, others=tuple((each.host, each.port) for each in found[1:]))

    @classmethod
    def _parse_one(cls, text: str, key: str | None) -> Self:
        """Parse a URL with one host. Raises ValueError."""
        text = text if "://" in text else f"topics://{text}"
        shown = "topics://…"
        # Python's message for a bad URL may contain the key, so it is not passed on.
        try:
            parts = urlsplit(text)
            host, port = parts.hostname, parts.port
        except ValueError:
            raise ValueError(f"{shown}: a server's URL is topics://KEY@HOST:PORT, its port in 0-65535") from None
        if parts.scheme not in _SCHEMES:
            instead = _OTHERS.get(parts.scheme)
            shown, hint = (f"{parts.scheme}://…", f": write {instead}") if instead else ("…://…", "")
            raise ValueError(f"{shown}: the scheme of a server's URL is {' or, with TLS, '.join(_SCHEMES)}{hint}")
        user, _, host_and_port = parts.netloc.rpartition("@")
        if not host or parts.path not in ("", "/") or parts.fragment or host_and_port.endswith(":"):
            raise ValueError(f"{shown}: a server's URL is topics://KEY@HOST:PORT")
        tls = _SCHEMES[parts.scheme]
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        ca_file = query.pop("ca", None) if tls else None
        cert_file = query.pop("cert", None) if tls else None
        if query:
            raise ValueError(f"{shown}: a server's URL has no parameter but ca and cert, and those with topics+tls")
        found = key or unquote(user) or os.environ.get("TOPICS_API_KEY") or None
        if found and not is_credential(found):
            raise ValueError(f"{shown}: a key is printable ASCII, and this one has other characters (an end of line?)")
        return cls(host, _DEFAULT_PORT if port is None else port, found, tls, ca_file, cert_file)

    @property
    def nodes(self) -> "list[Address]":
        """The address of each node, this one's first."""
        return [replace(self, host=host, port=port, others=()) for host, port in ((self.host, self.port), *self.others)]

    @property
    def authorization(self) -> str | None:
        """The value of the header or metadata `authorization`, None without a key."""
        return authorization(self.key) if self.key else None

    @property
    def target(self) -> str:
        """`host:port`, as gRPC expects it; of several nodes the first one's."""
        return _target(self.host, self.port)

    def __str__(self) -> str:
        scheme = "topics+tls" if self.tls else "topics"
        files = (("ca", self.ca_file), ("cert", self.cert_file))
        query = "&".join(f"{name}={quote(file)}" for name, file in files if file)
        targets = ",".join(_target(host, port) for host, port in ((self.host, self.port), *self.others))
        return f"{scheme}://{targets}" + (f"?{query}" if query else "")


def _each(text: str) -> list[str]:
    """The URLs with one host that a URL with several stands for."""
    scheme, sign, rest = text.partition("://") if "://" in text else ("", "", text)
    end = min((at for at in map(rest.find, "/?#") if at >= 0), default=len(rest))
    user, at, hosts = rest[:end].rpartition("@")
    return [f"{scheme}{sign}{user}{at}{host.strip()}{rest[end:]}" for host in hosts.split(",")]


def _target(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def authorization(key: str) -> str:
    """The value of `authorization` for an API key or token, or for `user:password`: keys have no colons."""
    return f"Basic {b64encode(key.encode()).decode()}" if ":" in key else f"Bearer {key}"


def is_credential(text: str) -> bool:
    """True for a key of printable ASCII, and for a user and password without control characters."""
    return text.isprintable() and (text.isascii() or ":" in text)
