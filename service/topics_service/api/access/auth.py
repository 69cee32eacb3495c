"""API keys: parsing of TOPICS_API_KEYS, and lookup of the owner of a key. Pure.

Only SHA-256 digests of the keys are kept.
"""

from base64 import b64decode
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from hashlib import sha256
from hmac import compare_digest
from typing import Final


class Scope(Enum):
    """A permission of a key."""

    READ = "read"
    WRITE = "write"
    DELETE = "delete"
    ADMIN = "admin"


class Role(Enum):
    """The rights of a user or of the subject of a token. API keys have scopes instead."""

    USER = "user"
    SERVICE = "service"
    DBA = "dba"
    SYSTEM = "system"


ALL_SCOPES: Final = frozenset(Scope)
_TOKENS: Final = {
    **{alias: frozenset({scope}) for scope in Scope for alias in (scope.value, scope.value[0])},
    "del": frozenset({Scope.DELETE}),
    "rw": frozenset({Scope.READ, Scope.WRITE}),
}
_BLANKS: Final = " \t\r\n\v\f"  # as bytes.strip() removes from a presented key


class KeySyntaxError(Exception):
    """An invalid entry of keys or users. The message names it by its position and quotes nothing of it."""


@dataclass(frozen=True, slots=True)
class Principal:
    """The caller of a request and its permissions.

    `key_id` attributes calls to a key ("key2" is the second entry of TOPICS_API_KEYS), a user ("user:alice") or the
    subject of a token ("jwt:alice"); empty means that no credential was required. `prefixes` None allows every name.
    `role` is that of a user or token, None for a key. `credential` changes with the password of a user and with the key
    that tokens are verified by. `expires` is in seconds since 1970, None without an end.
    """

    key_id: str
    scopes: frozenset[Scope]
    prefixes: tuple[str, ...] | None
    role: Role | None = None
    credential: str = ""
    expires: float | None = field(default=None, compare=False)

    def allows(self, scope: Scope) -> bool:
        """True if the key has `scope`."""
        return scope in self.scopes

    def allows_name(self, name: str) -> bool:
        """True if the key may access the topic or router `name`, which need not exist."""
        return self.prefixes is None or name.startswith(self.prefixes)


def kind_of(principal: Principal) -> str:
    """The kind of a caller's credential, for messages: `API key`, `user` or `token`."""
    if principal.role is None:
        return "API key"
    return "user" if principal.expires is None else "token"


UNRESTRICTED: Final = Principal("", ALL_SCOPES, None)
"""The caller of a server without authentication."""
ANONYMOUS: Final = Principal("", frozenset(), ())
"""The caller of a probe that requires no key, on a server with authentication."""


class KeyRing:
    """The keys of one server. A ring without usable keys rejects every caller."""

    def __init__(self, principals: Iterable[tuple[bytes, Principal]]) -> None:
        """`principals` are pairs of a key's SHA-256 digest and its owner; of equal digests, the last one counts."""
        self._principals = tuple(dict(principals).items())

    def __len__(self) -> int:
        return len(self._principals)

    def __repr__(self) -> str:
        return f"<KeyRing of {len(self)}>"

    def owners(self) -> list[Principal]:
        """The owners of the keys."""
        return [principal for _, principal in self._principals]

    def find(self, token: bytes) -> Principal | None:
        """Find the owner of the key `token`, in time independent of how closely it resembles a known key."""
        digest = sha256(token).digest()
        found = None
        for known, principal in self._principals:
            if compare_digest(known, digest):
                found = principal
        return found


def parse_keys(text: str) -> KeyRing | None:
    """Parse TOPICS_API_KEYS; returns None, which disables authentication, if it has no entry.

    Entries are `key`, `key:scopes`, `key:scopes:prefixes` or `key::prefixes`, separated by commas. Scopes are joined
    by `+` and prefixes by `|`; a missing or empty field means all. An entry without a key is dropped, but
    still enables authentication. Raises KeySyntaxError for an unknown scope and for a field that has only separators,
    either of which could otherwise grant more than was intended.
    """
    entries = [entry for entry in (part.strip(_BLANKS) for part in text.split(",")) if entry]
    if not entries:
        return None
    principals = []
    for number, entry in enumerate(entries, 1):
        secret, scopes, prefixes = (part.strip(_BLANKS) for part in (*entry.split(":", 2), "", "")[:3])
        principal = Principal(f"key{number}", _scopes(scopes, number), parse_prefixes(prefixes, number))
        if secret:
            # Bytes of the environment that are not valid UTF-8 appear as surrogates.
            principals.append((sha256(secret.encode(errors="surrogateescape")).digest(), principal))
    return KeyRing(principals)


def read_basic(header: bytes) -> tuple[bytes, bytes] | None:
    """Read user name and password of an Authorization header, None if it is not exactly `Basic`, a space and those two
    in Base64. The name ends at the first colon.
    """
    if not header.startswith(b"Basic "):
        return None
    try:
        name, colon, password = b64decode(header[6:].strip(), validate=True).partition(b":")
    except ValueError:
        return None
    return (name, password) if colon else None


def read_bearer(header: bytes | None) -> bytes | None:
    """Read the key of an Authorization header, None if absent. The scheme is exactly `Bearer`, then one space."""
    if header is None or not header.startswith(b"Bearer "):
        return None
    return header[7:].strip()


def _scopes(field: str, number: int) -> frozenset[Scope]:
    if not field:
        return ALL_SCOPES
    scopes: set[Scope] = set()
    for token in _parts(field, "+"):
        if token.lower() not in _TOKENS:
            raise KeySyntaxError(f"entry {number} has a scope that is none of read, write, delete and admin")
        scopes |= _TOKENS[token.lower()]
    if not scopes:
        raise KeySyntaxError(f"entry {number} has a list of scopes without any scope")
    return frozenset(scopes)


def parse_prefixes(text: str, number: int) -> tuple[str, ...] | None:
    """Parse the prefixes of the entry with this number; None, which allows every name, if there are none.

    Raises KeySyntaxError for separators alone.
    """
    if not text:
        return None
    prefixes = _parts(text, "|")
    if not prefixes:
        raise KeySyntaxError(f"entry {number} has a list of prefixes without any prefix")
    return tuple(prefixes)


def _parts(field: str, separator: str) -> list[str]:
    return [part for part in (piece.strip(_BLANKS) for piece in field.split(separator)) if part]
