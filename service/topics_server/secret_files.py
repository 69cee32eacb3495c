"""Files with secrets, which a running server reads again: entries of keys and users, and keys of tokens."""

import os
from collections.abc import Iterator
from stat import S_ISREG
from typing import Final

BLANKS: Final = " \t\r\n\v\f"  # as in auth
_FILE_BYTES: Final = 1 << 20


class SecretsError(Exception):
    """Secrets that can't be read. The message says where, and quotes nothing of them."""


def read_file(setting: str, path: str) -> bytes:
    """The content of the file that a setting names. Raises SecretsError, also for one of more than 1 MiB."""
    try:
        with open(path, "rb", opener=_opener) as file:
            if not S_ISREG(os.fstat(file.fileno()).st_mode):
                raise SecretsError(f"{setting} {path}: it is no regular file")
            data = file.read(_FILE_BYTES + 1)
    except OSError as error:
        raise SecretsError(f"{setting} {path}: {error.strerror or error}") from None
    if len(data) > _FILE_BYTES:
        raise SecretsError(f"{setting} {path}: the file is larger than {_FILE_BYTES} bytes")
    return data


def lines_of(data: bytes) -> Iterator[tuple[int, str]]:
    """The numbers and texts of the lines that are neither blank nor begin with `#`."""
    for number, line in enumerate(data.decode("utf-8-sig", "surrogateescape").split("\n"), 1):
        text = line.strip(BLANKS)
        if text and not text.startswith("#"):
            yield number, text


def entries_of(text: str) -> list[str]:
    """The entries of a text, which commas separate."""
    return [part for part in (piece.strip(BLANKS) for piece in text.split(",")) if part]


def _opener(path: str, flags: int) -> int:
    """Does not wait, as opening a pipe would: a server that reads its keys again has requests to serve."""
    return os.open(path, flags | os.O_NONBLOCK)
