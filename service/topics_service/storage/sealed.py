"""Small files of JSON, each with a checksum, so that a changed byte is told and never taken for content.

The content is one line, and its CRC32C the next. Files of older versions have the content alone: they are read as long
as they are JSON, and written anew with a checksum.
"""

import json
from pathlib import Path
from typing import Any, Final

import google_crc32c

from topics_service.storage import durable

_MARK: Final = b"\ncrc32c "


class DamagedFileError(ValueError):
    """The file is not what was written; the message names it."""


def encode(content: bytes) -> bytes:
    """JSON without line breaks, sealed."""
    return content + _MARK + b"%08x\n" % google_crc32c.value(content)


def decode(data: bytes, what: str) -> bytes:
    """The JSON that `encode` sealed, or data of an older version as it is. Raises DamagedFileError, naming `what`."""
    content = data.rpartition(_MARK)[0]
    if content and encode(content) == data:
        return content
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        raise DamagedFileError(f"the file {what} is damaged: its checksum does not match") from None
    return data


def is_sealed(path: Path) -> bool:
    """Return whether the file has its checksum: those of older versions have none. Raises OSError."""
    data = path.read_bytes()
    return encode(data.rpartition(_MARK)[0]) == data


def read(path: Path) -> Any:
    """The value in a file. Raises FileNotFoundError, DamagedFileError and OSError."""
    return json.loads(decode(path.read_bytes(), str(path)))


def write(path: Path, value: object) -> None:
    """Put a value in place of what the file had; durable on return. Raises OSError."""
    durable.replace(path, encode(json.dumps(value).encode()))
