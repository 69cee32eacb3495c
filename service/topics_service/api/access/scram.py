"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677), the side of the server, on the stored verifiers. Pure."""

import base64
import hashlib
import hmac
import secrets
from typing import Final, NamedTuple

from topics_service.api.access.verifiers import Verifier

SHA_256: Final = "SCRAM-SHA-256"
SHA_512: Final = "SCRAM-SHA-512"
_HASHES: Final = {SHA_256: "sha256", SHA_512: "sha512"}
_NONCE_BYTES: Final = 18
_MAX_MESSAGE: Final = 4096
_SALT_BYTES: Final = 16
_ITERATIONS: Final = 16_384


class ScramError(ValueError):
    """A message of the client is malformed."""


class _Stored(NamedTuple):
    iterations: int
    salt: str
    stored_key: bytes
    server_key: bytes


class Exchange:
    """One authentication. For a user that is not there, `verifier` None, it goes as for others and fails."""

    def __init__(self, mechanism: str, verifier: Verifier | None, name: str, mock_key: bytes, nonce: str = "") -> None:
        """`mechanism` is SHA_256 or SHA_512. `mock_key` is a secret of the server: a user that is not there has the
        same salt each time."""
        self._hash = _HASHES[mechanism]
        self._is_known = verifier is not None
        self._stored = _mock(name, mock_key, self._hash) if verifier is None else _read(mechanism, verifier)
        self._nonce = nonce or secrets.token_urlsafe(_NONCE_BYTES)
        self._header = ""
        self._first_bare = ""
        self._server_first = ""

    def first(self, message: bytes) -> bytes:
        """Answer the client's first message. Raises ScramError."""
        text = _decoded(message)
        flag, comma, rest = text.partition(",")
        authorization, comma_too, bare = rest.partition(",")
        if not comma or not comma_too or flag not in ("n", "y") or (authorization and authorization[:2] != "a="):
            raise ScramError("channel binding is not supported, or the message is malformed")
        fields = _fields(bare)
        nonce = fields.get("r", "")
        if "n" not in fields or not nonce or not nonce.isprintable():
            raise ScramError("the first message of SCRAM has no user or no nonce")
        self._header = f"{flag},{authorization},"
        self._first_bare = bare
        self._nonce = nonce + self._nonce
        self._server_first = f"r={self._nonce},s={self._stored.salt},i={self._stored.iterations}"
        return self._server_first.encode()

    def final(self, message: bytes) -> bytes | None:
        """Answer the client's proof; None if it is wrong. Raises ScramError."""
        text = _decoded(message)
        without_proof, found, proof_text = text.rpartition(",p=")
        fields = _fields(without_proof)
        if not found or fields.get("r") != self._nonce:
            raise ScramError("the last message of SCRAM has another nonce")
        if _base64(fields.get("c", "")) != self._header.encode():
            raise ScramError("the last message of SCRAM has another header")
        proof = _base64(proof_text)
        stored = self._stored
        signed = ",".join((self._first_bare, self._server_first, without_proof)).encode()
        signature = hmac.digest(stored.stored_key, signed, self._hash)
        if len(proof) != len(signature):
            return None
        client_key = bytes(left ^ right for left, right in zip(proof, signature, strict=True))
        is_right = hmac.compare_digest(hashlib.new(self._hash, client_key).digest(), stored.stored_key)
        if not is_right or not self._is_known:
            return None
        return b"v=" + base64.b64encode(hmac.digest(stored.server_key, signed, self._hash))


def user_of(message: bytes) -> str:
    """The user that a client's first message names, with its escapes resolved (RFC 5802, 5.1). Raises ScramError."""
    name = _fields(_decoded(message).partition(",")[2].partition(",")[2]).get("n", "")
    if not name or "=" in name.replace("=2C", "").replace("=3D", ""):
        raise ScramError("the first message of SCRAM has no user")
    return name.replace("=2C", ",").replace("=3D", "=")


def iterations(verifier: str) -> int:
    """The iterations of a verifier as it is stored."""
    return int(verifier.split("$")[1].partition(":")[0])


def _read(mechanism: str, verifier: Verifier) -> _Stored:
    """A verifier as it is stored: MECHANISM$ITERATIONS:SALT$STORED_KEY:SERVER_KEY."""
    text = verifier.scram_sha_256 if mechanism == SHA_256 else verifier.scram_sha_512
    _, cost, keys = text.split("$")
    stored_key, server_key = keys.split(":")
    return _Stored(iterations(text), cost.partition(":")[2], base64.b64decode(stored_key), base64.b64decode(server_key))


def _mock(name: str, key: bytes, algorithm: str) -> _Stored:
    salt = hmac.digest(key, name.encode(errors="replace"), "sha256")[:_SALT_BYTES]
    nothing = secrets.token_bytes(hashlib.new(algorithm).digest_size)
    return _Stored(_ITERATIONS, base64.b64encode(salt).decode(), nothing, nothing)


def _decoded(message: bytes) -> str:
    if len(message) > _MAX_MESSAGE:
        raise ScramError("a message of SCRAM is too long")
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise ScramError("a message of SCRAM is not UTF-8") from None


def _fields(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for each in text.split(","):
        name, equals, value = each.partition("=")
        if not equals or len(name) != 1 or name == "m":
            raise ScramError("a message of SCRAM is malformed")
        found.setdefault(name, value)
    return found


def _base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise ScramError("a message of SCRAM has no valid Base64") from None
