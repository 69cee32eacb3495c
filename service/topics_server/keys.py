"""API keys from the environment or from a file."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from hashlib import sha256
from typing import Final

from topics_server.secret_files import BLANKS, SecretsError, entries_of, lines_of, read_file
from topics_service.api.access.auth import KeyRing, KeySyntaxError, Principal, parse_keys
from topics_service.api.access.quota import OWN_LIMITS

_FINGERPRINT_DIGITS: Final = 12
_LIMIT: Final = re.compile(rf"[{BLANKS}](max_\w*)=([^{BLANKS}]*)$", re.ASCII)
_MEANT: Final = re.compile(rf"[{BLANKS}]max_")
_NUMBER: Final = re.compile(r"[0-9]{1,15}", re.ASCII)


class Keys(KeyRing):
    """Keys and their `principals`; `limits`, by `key_id`, are those that their entries give them.

    The `key_id` of each is the start of its key's SHA-256. It is the same wherever the key stands in a list, so that it
    says across changes of the list whose a session, a call or a line of the audit log is.
    """

    def __init__(self, owners: Mapping[bytes, Principal], limits: Mapping[str, Mapping[str, int]]) -> None:
        super().__init__(owners.items())
        self.principals = frozenset(owners.values())
        self.limits = limits


def from_text(text: str) -> Keys | None:
    """The keys of TOPICS_API_KEYS; None for a text without entries. Raises SecretsError."""
    try:
        entries = [_split(part, number) for number, part in enumerate(entries_of(text), 1)]
        if parse_keys(",".join(entry for entry, _ in entries)) is None:
            return None
    except KeySyntaxError as error:
        raise SecretsError(f"TOPICS_API_KEYS: {error}") from None
    return _keys(entries)


def from_file(path: str) -> Keys:
    """The keys of TOPICS_API_KEYS_FILE: an entry a line; blank lines and those that begin with `#` do not count.

    Raises SecretsError, also for a file without any entry: an empty one must not open the server to everyone.
    """
    data = read_file("TOPICS_API_KEYS_FILE", path)
    entries: list[tuple[str, dict[str, int]]] = []
    for number, text in lines_of(data):
        try:
            on_line = [_split(part, number) for number, part in enumerate(entries_of(text), 1)]
            parse_keys(",".join(entry for entry, _ in on_line))
        except KeySyntaxError as error:
            raise SecretsError(f"TOPICS_API_KEYS_FILE {path}, line {number}: {error}") from None
        entries += on_line
    if not entries:
        raise SecretsError(f"TOPICS_API_KEYS_FILE {path}: there is no key in it; each line is KEY[:SCOPES[:PREFIXES]]")
    return _keys(entries)


def fingerprint(key: bytes) -> str:
    """The fingerprint of a key, for logs: `printf %s KEY | sha256sum | cut -c1-12`."""
    return sha256(key).hexdigest()[:_FINGERPRINT_DIGITS]


def _split(entry: str, number: int) -> tuple[str, dict[str, int]]:
    """An entry without the limits that stand behind it, and those. Raises KeySyntaxError."""
    limits: dict[str, int] = {}
    while (match := _LIMIT.search(entry)) is not None:
        name, value = match.groups()
        if name not in OWN_LIMITS:
            raise KeySyntaxError(f"entry {number} has a limit that is none of {', '.join(OWN_LIMITS)}")
        if _NUMBER.fullmatch(value) is None or OWN_LIMITS[name] in limits:
            raise KeySyntaxError(f"entry {number}: {name} must be there once, with a number of at least 0 (no limit)")
        limits[OWN_LIMITS[name]] = int(value)
        entry = entry[: match.start()].rstrip(BLANKS)
    if _MEANT.search(entry) is not None:
        raise KeySyntaxError(f"entry {number} has a limit that can't be read: NAME=NUMBER, without blanks in it")
    return entry, limits


def _keys(entries: Iterable[tuple[str, dict[str, int]]]) -> Keys:
    """The keys of entries that parse."""
    owners: dict[bytes, Principal] = {}
    own: dict[str, dict[str, int]] = {}
    for entry, limits in entries:
        key = entry.partition(":")[0].strip(BLANKS).encode(errors="surrogateescape")
        ring = parse_keys(entry)
        principal = ring.find(key) if ring is not None else None
        if principal is not None:
            key_id = fingerprint(key)
            owners[sha256(key).digest()] = replace(principal, key_id=key_id)
            own[key_id] = limits
    return Keys(owners, {key_id: limits for key_id, limits in own.items() if limits})
