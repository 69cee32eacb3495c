"""The `$dead_letter_*` members of a dead letter's meta (docs/contract.md, 10.7).

Meta is kept byte for byte as it was sent: members are cut out of its text and put in, the rest is never re-encoded.
"""

import msgspec
from msgspec import Struct

_FROM = "$dead_letter_from"
_OURS = frozenset((_FROM, "$dead_letter_deliveries", "$dead_letter_src_seq", "$dead_letter_attempts"))
_HINT = b"dead_letter_"
_SPACE = b" \t\r\n"
_decode_text = msgspec.json.Decoder(str).decode


class _Member(Struct):
    """A member of an object: its key, where its text stands, and where that of the value begins."""

    key: str
    start: int
    value: int
    end: int


def stamp(meta: bytes | None, queue: str, deliveries: int, seq: int, attempts: bytes | None = None) -> bytes:
    """Return the meta of a dead letter: that of the job, its origin, and the reasons of its workers (a JSON array)."""
    ours = (
        f'"$dead_letter_from":"{queue}","$dead_letter_deliveries":"{deliveries}","$dead_letter_src_seq":"{seq}"'
    ).encode()  # a topic's name needs no escapes
    ours += b"}" if attempts is None else b',"$dead_letter_attempts":%b}' % attempts
    kept = strip(meta)
    if kept is None:
        return b"{" + ours
    return kept[: kept.rindex(b"}")] + b"," + ours


def strip(meta: bytes | None) -> bytes | None:
    """Return the meta without those members; None if nothing is left."""
    if meta is None:
        return None
    members = _members(meta)
    if not any(member.key in _OURS for member in members):
        return meta if meta.strip(b"{}" + _SPACE) else None
    kept: list[bytes] = []
    at, any_kept = 0, False
    for i, member in enumerate(members):
        if member.key not in _OURS:
            any_kept = True
        elif any_kept:
            kept.append(meta[at : meta.index(b",", members[i - 1].end)])
            at = member.end
        else:
            kept.append(meta[at : member.start])
            at = members[i + 1].start if i + 1 < len(members) else member.end
    return b"".join((*kept, meta[at:])) if any_kept else None


def origin(meta: bytes | None) -> str | None:
    """Return the queue that a dead letter came from; None if it is not a dead letter."""
    if meta is None:
        return None
    found = [member for member in _members(meta) if member.key == _FROM]
    return _text(meta[found[-1].value : found[-1].end]) if found else None


def _members(meta: bytes) -> list[_Member]:
    """The members of a JSON object; none for most that have none of ours, which is cheap to see.

    None either if the text is not a JSON object: it is not ours to judge.
    """
    if _HINT not in meta and b"\\" not in meta:  # a key may be spelt with escapes
        return []
    members: list[_Member] = []
    try:
        at = _past_space(meta, meta.index(b"{") + 1)
        while meta[at] != 0x7D:
            if members:
                at = _past_space(meta, at + 1)  # behind the comma
            start = at
            at = _past_string(meta, at)
            key = _text(meta[start:at]) or ""
            value = _past_space(meta, _past_space(meta, at) + 1)  # behind the colon
            end = _past_value(meta, value)
            members.append(_Member(key, start, value, end))
            at = _past_space(meta, end)
    except (IndexError, ValueError):
        return []
    return members


def _text(json: bytes) -> str | None:
    try:
        return _decode_text(json)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _past_space(text: bytes, at: int) -> int:
    while text[at] in _SPACE:
        at += 1
    return at


def _past_string(text: bytes, at: int) -> int:
    """Behind the closing quote of the string that begins at `at`."""
    at += 1
    while True:
        quote = text.index(b'"', at)
        escapes = quote - len(text[at:quote].rstrip(b"\\")) - at
        at = quote + 1
        if escapes % 2 == 0:
            return at


def _past_value(text: bytes, at: int) -> int:
    """Behind the value that begins at `at`."""
    depth = 0
    while True:
        char = text[at]
        if char == 0x22:
            at = _past_string(text, at)
        elif char in b"[{":
            depth += 1
            at += 1
        elif char in b"]}":
            if not depth:
                return len(text[:at].rstrip(_SPACE))
            depth -= 1
            at += 1
        elif char == 0x2C and not depth:
            return len(text[:at].rstrip(_SPACE))
        else:
            at += 1
        if not depth and char in b'"]}':
            return at
