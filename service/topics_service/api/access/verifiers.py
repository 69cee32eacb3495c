"""Verifiers, which are kept of a password: scrypt for Basic and PLAIN, and those of SCRAM. Pure, but slow.

A verifier is text in the form of PostgreSQL: `SCRAM-SHA-256$16384:SALT$STORED_KEY:SERVER_KEY`, and likewise
`SCRYPT$14,8,1:SALT$HASH`.
"""

import hashlib
import hmac
import os
import stringprep
import unicodedata
from base64 import b64decode, b64encode
from typing import Final

from msgspec import Struct

MAX_PASSWORD_BYTES: Final = 1024

_LOG_N: Final = 14  # 16 MiB and some 40 ms
_R: Final = 8
_P: Final = 1
_MAX_MEMORY: Final = 64 << 20
_SALT_BYTES: Final = 16
_HASH_BYTES: Final = 32
_SCRAM_ITERATIONS: Final = 16_384


class Verifier(Struct, frozen=True):
    """The verifiers of one password. None of them tells the password, and none is ever shown."""

    scrypt: str
    scram_sha_256: str
    scram_sha_512: str

    def __repr__(self) -> str:
        return "<Verifier>"


def may_be_password(secret: bytes) -> bool:
    """True unless it is empty or too long, or has a NUL: to scrypt a text is the same with NULs behind it."""
    return 0 < len(secret) <= MAX_PASSWORD_BYTES and b"\0" not in secret


def verifier(password: str | bytes) -> Verifier:
    """Make the verifiers of a password; takes some 50 ms. Raises ValueError for one that `may_be_password` refuses."""
    secret = password.encode(errors="surrogateescape") if isinstance(password, str) else password
    if not may_be_password(secret):
        raise ValueError(f"the password must have 1 to {MAX_PASSWORD_BYTES} bytes, none of them NUL")
    salt = os.urandom(_SALT_BYTES)
    hashed = _scrypt(secret, salt, _LOG_N, _R, _P)
    return Verifier(
        f"SCRYPT${_LOG_N},{_R},{_P}:{_text(salt)}${_text(hashed)}", _scram(secret, "sha256"), _scram(secret, "sha512")
    )


def matches(password: bytes, kept: Verifier) -> bool:
    """True if this is the password; takes some 40 ms either way, in which other threads can run."""
    cost, salt, hashed = kept.scrypt.removeprefix("SCRYPT$").replace("$", ":").split(":")
    log_n, r, p = map(int, cost.split(","))
    return hmac.compare_digest(_scrypt(password, b64decode(salt), log_n, r, p), b64decode(hashed))


def _scrypt(password: bytes, salt: bytes, log_n: int, r: int, p: int) -> bytes:
    return hashlib.scrypt(password, salt=salt, n=1 << log_n, r=r, p=p, maxmem=_MAX_MEMORY, dklen=_HASH_BYTES)


def _scram(password: bytes, algorithm: str) -> str:
    """The verifier of RFC 5802."""
    salt = os.urandom(_SALT_BYTES)
    salted = hashlib.pbkdf2_hmac(algorithm, _prepared(password), salt, _SCRAM_ITERATIONS)
    stored = hashlib.new(algorithm, hmac.digest(salted, b"Client Key", algorithm)).digest()
    server = hmac.digest(salted, b"Server Key", algorithm)
    name = f"SCRAM-SHA-{algorithm[3:]}"
    return f"{name}${_SCRAM_ITERATIONS}:{_text(salt)}${_text(stored)}:{_text(server)}"


def _prepared(password: bytes) -> bytes:
    """The password as clients of SCRAM prepare it (SASLprep, RFC 4013), or as it is where that has no result."""
    try:
        text = password.decode()
    except UnicodeDecodeError:
        return password
    if text.isascii():
        return password
    spaced = (" " if stringprep.in_table_c12(each) else each for each in text)
    normal = unicodedata.normalize("NFKC", "".join(each for each in spaced if not stringprep.in_table_b1(each)))
    return password if not normal or any(map(_is_prohibited, normal)) else normal.encode()


def _is_prohibited(character: str) -> bool:
    return any(
        is_in(character)
        for is_in in (
            stringprep.in_table_c21_c22,
            stringprep.in_table_c3,
            stringprep.in_table_c4,
            stringprep.in_table_c5,
            stringprep.in_table_c6,
            stringprep.in_table_c7,
            stringprep.in_table_c8,
            stringprep.in_table_c9,
        )
    )


def _text(data: bytes) -> str:
    return b64encode(data).decode()
