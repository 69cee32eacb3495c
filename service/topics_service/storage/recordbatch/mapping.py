"""The mapping of Kafka records to those of the other protocols, and back.

A key is the tag if it is UTF-8 of at most 256 bytes, else the meta member `$key`. A value is the data: JSON if it is
one JSON text, kept byte for byte, else binary; a null value is the JSON `null`. Headers are the members of the meta,
in order: UTF-8 as a string, null as null, other bytes as `{"$base64": "..."}`; what has one name becomes an array.

Header names are member names. One that is not UTF-8 becomes `$base64:` and its base64. A name that would be taken for
one of these or for the key (`$key`, `$base64:...`, and both with more `$` before) gets a `$` more, and loses it on
the way back.

The way back: `$key` (a string or base64) is the key where there is no tag, else a header as any other. A member of
another type, or an array with an element of another type or with none, is a header of its JSON text. `null` as JSON is
a null value. Not kept: the order of headers with different names around repeated ones, and a value of the four bytes
`null`, which comes back as null.
"""

from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Sequence
from typing import Any, Final

import msgspec

KEY: Final = "$key"
NODE_HEADER: Final = "topics_node"
MAX_TAG_BYTES: Final = 256

_BASE64: Final = "$base64"
_BASE64_NAME: Final = "$base64:"
_BROKEN_META: Final = "$meta"
_ENCODER: Final = msgspec.json.Encoder()  # leaves less unused memory behind each text than orjson
_TEXTS: Final = msgspec.json.Decoder(dict[str, str])
_MEMBERS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


class _Bytes(msgspec.Struct, rename={"base64": _BASE64}, forbid_unknown_fields=True):
    base64: str


_VALUE: Final = msgspec.json.Decoder(str | _Bytes | None)
_VALUES: Final = msgspec.json.Decoder(list[str | _Bytes | None])


def tag_of(key: bytes) -> bytes | None:
    """The tag that says the key; None if it has to go to the meta."""
    if len(key) > MAX_TAG_BYTES or not (key.isascii() or _text(key) is not None):
        return None
    return key


def meta_of(key: bytes | None, headers: list[tuple[str, bytes | None]]) -> bytes | None:
    """The meta of a record with these headers and, if it is not None, this key that does not fit into a tag."""
    if key is None:
        if not headers:
            return None
        try:  # the usual: names that come once, values that are text
            usual = {name: content.decode() for name, content in headers}  # type: ignore[union-attr]
        except (AttributeError, UnicodeDecodeError):
            pass
        else:
            meta = _ENCODER.encode(usual)
            if b'"$' not in meta and len(usual) == len(headers):
                return meta
    return meta_of_any(key, headers)


def meta_of_any(key: bytes | None, headers: Sequence[tuple[str | bytes, bytes | None]]) -> bytes | None:
    """Return the same as `meta_of`, for header names that may be bytes."""
    if key is None and not headers:
        return None
    members: dict[str, Any] = {} if key is None else {KEY: _encoded(key)}
    repeated: set[str] = set()
    for raw, content in headers:
        name = _member_name(raw)
        value = None if content is None else _value(content)
        if name not in members:
            members[name] = value
        elif name in repeated:
            members[name].append(value)
        else:
            repeated.add(name)
            members[name] = [members[name], value]
    return _ENCODER.encode(members)


def key_and_headers(tag: bytes | None, meta: bytes) -> tuple[bytes | None, list[tuple[str | bytes, bytes | None]]]:
    """The key and the headers of a record with this tag and meta."""
    try:
        if b'"$' not in meta and b'"\\u0024' not in meta:
            try:  # the usual: values that are text
                return tag, [(name, value.encode()) for name, value in _TEXTS.decode(meta).items()]
            except msgspec.ValidationError:
                pass
        texts = _MEMBERS.decode(meta)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return tag, [(_BROKEN_META, meta)]
    key = tag
    headers: list[tuple[str | bytes, bytes | None]] = []
    for member, text in texts.items():
        value = bytes(text)
        contents = _contents(value)
        if member == KEY and key is None and value[:1] in (b'"', b"{") and contents != [value]:
            key = contents[0]
        else:
            name = _header_name(member)
            headers += [(name, content) for content in contents]
    return key, headers


def _text(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _encoded(data: bytes) -> dict[str, str]:
    return {_BASE64: b64encode(data).decode()}


def _value(content: bytes) -> str | dict[str, str]:
    text = _text(content)
    return _encoded(content) if text is None else text


def _is_special(name: str) -> bool:
    """Return whether `name` without the `$` before it is one that this mapping makes."""
    rest = "$" + name.lstrip("$")
    return rest == KEY or rest.startswith(_BASE64_NAME)


def _member_name(name: str | bytes) -> str:
    if isinstance(name, bytes):
        text = _text(name)
        if text is None:
            return _BASE64_NAME + b64encode(name).decode()
        name = text
    return "$" + name if name.startswith("$") and _is_special(name) else name


def _header_name(member: str) -> str | bytes:
    if member.startswith("$") and _is_special(member):
        if member.startswith("$$"):
            return member[1:]
        if member.startswith(_BASE64_NAME):
            name = _decoded(member[len(_BASE64_NAME) :])
            # A name that is UTF-8 would not have been written like this.
            if name is not None and _text(name) is None:
                return name
    return member


def _decoded(text: str) -> bytes | None:
    try:
        return b64decode(text, validate=True)
    except (Base64Error, ValueError):
        return None


def _contents(text: bytes) -> list[bytes | None]:
    """The header values of a member's JSON text: one, or those of an array."""
    try:
        values = _VALUES.decode(text) if text.startswith(b"[") else [_VALUE.decode(text)]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return [text]
    contents: list[bytes | None] = []
    for value in values:
        content = _decoded(value.base64) if isinstance(value, _Bytes) else None if value is None else value.encode()
        if content is None and value is not None:
            return [text]
        contents.append(content)
    return contents or [text]
