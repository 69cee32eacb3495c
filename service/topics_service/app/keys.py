"""API keys from the environment or from a file."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from hashlib import sha256
from stat import S_ISREG
from typing import Final

from topics_service.api.auth import KeyRing, KeySyntaxError, Principal, parse_keys

_BLANKS: Final = " \t\r\n\v\f"  # as in auth
_FILE_BYTES: Final = 1 << 20
_FINGERPRINT_DIGITS: Final = 12


class KeysError(Exception):
    """Keys that can't be read. The message says where, and quotes nothing of them."""


class Keys(KeyRing):
    """Keys, and who has them: `principals`.

    The `key_id` of each is the start of its key's SHA-256. It is the same wherever the key stands in a list, so that it
    says across changes of the list whose a session, a call or a line of the audit log is.
    """

    def __init__(self, owners: Mapping[bytes, Principal]) -> None:
        super().__init__(owners.items())
        self.principals = frozenset(owners.values())


def from_text(text: str) -> Keys | None:
    """The keys of TOPICS_API_KEYS; None for a text without entries. Raises KeysError."""
    try:
        if parse_keys(text) is None:
            return None
    except KeySyntaxError as error:
        raise KeysError(f"TOPICS_API_KEYS: {error}") from None
    return _keys(text.split(","))


def from_file(path: str) -> Keys:
    """The keys of TOPICS_API_KEYS_FILE: an entry a line; blank lines and those that begin with `#` do not count.

    Raises KeysError, also for a file without any entry: an empty one must not open the server to everyone.
    """
    try:
        with open(path, "rb", opener=_opener) as file:
            if not S_ISREG(os.fstat(file.fileno()).st_mode):
                raise KeysError(f"TOPICS_API_KEYS_FILE {path}: it is no regular file")
            data = file.read(_FILE_BYTES + 1)
    except OSError as error:
        raise KeysError(f"TOPICS_API_KEYS_FILE {path}: {error.strerror or error}") from None
    if len(data) > _FILE_BYTES:
        raise KeysError(f"TOPICS_API_KEYS_FILE {path}: the file is larger than {_FILE_BYTES} bytes")
    entries: list[str] = []
    for number, line in enumerate(data.decode("utf-8-sig", "surrogateescape").split("\n"), 1):
        text = line.strip(_BLANKS)
        if not text or text.startswith("#"):
            continue
        try:
            parse_keys(text)
        except KeySyntaxError as error:
            raise KeysError(f"TOPICS_API_KEYS_FILE {path}, line {number}: {error}") from None
        entries += filter(None, (entry.strip(_BLANKS) for entry in text.split(",")))
    if not entries:
        raise KeysError(f"TOPICS_API_KEYS_FILE {path}: there is no key in it; each line is KEY[:SCOPES[:PREFIXES]]")
    return _keys(entries)


def _opener(path: str, flags: int) -> int:
    """Does not wait, as opening a pipe would: a server that reads its keys again has requests to serve."""
    return os.open(path, flags | os.O_NONBLOCK)


def fingerprint(key: bytes) -> str:
    """What stands for a key where the key itself must not: `printf %s KEY | sha256sum | cut -c1-12`."""
    return sha256(key).hexdigest()[:_FINGERPRINT_DIGITS]


def _keys(entries: Iterable[str]) -> Keys:
    """The keys of entries that parse."""
    owners: dict[bytes, Principal] = {}
    for entry in entries:
        key = entry.partition(":")[0].strip(_BLANKS).encode(errors="surrogateescape")
        ring = parse_keys(entry)
        principal = ring.find(key) if ring is not None else None
        if principal is not None:
            owners[sha256(key).digest()] = replace(principal, key_id=fingerprint(key))
    return Keys(owners)
