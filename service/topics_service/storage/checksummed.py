"""Small JSON files with a checksum, so that a changed byte is detected and never taken for content.

The first line is the content, the second its CRC32C. Files of older versions lack the checksum: they are read as long
as they are JSON, and get one when they are next written.
"""

import json
from pathlib import Path
from typing import Any, Final

import google_crc32c

from topics_service.storage import durable

_MARK: Final = b"\ncrc32c "


class DamagedFileError(ValueError):
    """The file has changed; the message names it."""


def encode(content: bytes) -> bytes:
    """Return JSON without line breaks, followed by its checksum."""
    return content + _MARK + b"%08x\n" % google_crc32c.value(content)


def decode(data: bytes, what: str) -> bytes:
    """Return the JSON given to `encode`; data of an older version unchanged. Raises DamagedFileError for `what`."""
    content = data.rpartition(_MARK)[0]
    if content and encode(content) == data:
        return content
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        raise DamagedFileError(f"the file {what} is damaged: its checksum does not match") from None
    return data


def has_checksum(path: Path) -> bool:
    """Return whether the file has a valid checksum; files of older versions have none. Raises OSError."""
    data = path.read_bytes()
    return encode(data.rpartition(_MARK)[0]) == data


def read(path: Path) -> Any:
    """Return the value in a file. Raises FileNotFoundError, DamagedFileError and OSError."""
    return json.loads(decode(path.read_bytes(), str(path)))


def write(path: Path, value: object) -> None:
    """Replace the content of the file; durable on return. Raises OSError."""
    durable.replace(path, encode(json.dumps(value).encode()))
