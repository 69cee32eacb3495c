"""API keys: what TOPICS_API_KEYS says, and who a presented key belongs to. Pure.

Only SHA-256 digests of the keys are kept.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from hashlib import sha256
from hmac import compare_digest
from typing import Final


class Scope(Enum):
    """What a key may do."""

    READ = "read"
    WRITE = "write"
    DELETE = "delete"
    ADMIN = "admin"


ALL_SCOPES: Final = frozenset(Scope)
_TOKENS: Final = {
    **{alias: frozenset({scope}) for scope in Scope for alias in (scope.value, scope.value[0])},
    "del": frozenset({Scope.DELETE}),
    "rw": frozenset({Scope.READ, Scope.WRITE}),
}
_BLANKS: Final = " \t\r\n\v\f"  # what bytes.strip() takes off a presented key


class KeySyntaxError(Exception):
    """TOPICS_API_KEYS can't be read. The message names the entry by its place and quotes nothing of it."""


@dataclass(frozen=True, slots=True)
class Principal:
    """Who a call is made for, and what that allows.

    `key_id` attributes calls to a key: "key2" is the second entry of TOPICS_API_KEYS; empty means that no key was
    asked for. `prefixes` None allows every name.
    """

    key_id: str
    scopes: frozenset[Scope]
    prefixes: tuple[str, ...] | None

    def allows(self, scope: Scope) -> bool:
        """Whether the key has `scope`."""
        return scope in self.scopes

    def allows_name(self, name: str) -> bool:
        """Whether the key may touch the topic or router `name`, which need not exist."""
        return self.prefixes is None or name.startswith(self.prefixes)


ANYONE: Final = Principal("", ALL_SCOPES, None)
"""The caller of a server without keys."""
NOBODY: Final = Principal("", frozenset(), ())
"""The caller of a probe that needs no key on a server that has keys."""


class KeyRing:
    """The keys of one server. A ring without a usable key knows nobody."""

    def __init__(self, principals: Iterable[tuple[bytes, Principal]]) -> None:
        """`principals` are pairs of a key's SHA-256 digest and its owner; the last of equal digests counts."""
        self._principals = tuple(dict(principals).items())

    def __len__(self) -> int:
        return len(self._principals)

    def __repr__(self) -> str:
        return f"<KeyRing of {len(self)}>"

    def find(self, token: bytes) -> Principal | None:
        """The owner of the key `token`. The time it takes tells neither which key is near nor how near it is."""
        digest = sha256(token).digest()
        found = None
        for known, principal in self._principals:
            if compare_digest(known, digest):
                found = principal
        return found


def parse_keys(text: str) -> KeyRing | None:
    """The keys of TOPICS_API_KEYS; None if it has no entry, which turns authentication off.

    Entries are `key`, `key:scopes`, `key:scopes:prefixes` or `key::prefixes`, separated by commas. Scopes are joined
    by `+` and prefixes by `|`; a missing or empty field means all. An entry without a key is dropped, but
    authentication is on then. Raises KeySyntaxError for an unknown scope and for a field of nothing but separators:
    both could mean less than they would grant.
    """
    entries = [entry for entry in (part.strip(_BLANKS) for part in text.split(",")) if entry]
    if not entries:
        return None
    principals = []
    for place, entry in enumerate(entries, 1):
        secret, scopes, prefixes = (part.strip(_BLANKS) for part in (*entry.split(":", 2), "", "")[:3])
        principal = Principal(f"key{place}", _scopes(scopes, place), _prefixes(prefixes, place))
        if secret:
            # Bytes that are no UTF-8 come out of the environment as surrogates.
            principals.append((sha256(secret.encode(errors="surrogateescape")).digest(), principal))
    return KeyRing(principals)


def read_bearer(header: bytes | None) -> bytes | None:
    """The key in an Authorization header; None without one. The scheme is exactly `Bearer`, then one space."""
    if header is None or not header.startswith(b"Bearer "):
        return None
    return header[7:].strip()


def _scopes(field: str, place: int) -> frozenset[Scope]:
    if not field:
        return ALL_SCOPES
    scopes: set[Scope] = set()
    for token in _parts(field, "+"):
        if token.lower() not in _TOKENS:
            raise KeySyntaxError(f"entry {place} has a scope that is none of read, write, delete and admin")
        scopes |= _TOKENS[token.lower()]
    if not scopes:
        raise KeySyntaxError(f"entry {place} has a list of scopes without any scope")
    return frozenset(scopes)


def _prefixes(field: str, place: int) -> tuple[str, ...] | None:
    if not field:
        return None
    prefixes = _parts(field, "|")
    if not prefixes:
        raise KeySyntaxError(f"entry {place} has a list of prefixes without any prefix")
    return tuple(prefixes)


def _parts(field: str, separator: str) -> list[str]:
    return [part for part in (piece.strip(_BLANKS) for piece in field.split(separator)) if part]
