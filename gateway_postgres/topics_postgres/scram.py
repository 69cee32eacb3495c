"""SCRAM-SHA-256 (RFC 5802, RFC 7677), the side of the server, on the stored verifiers. Pure."""

import base64
import hashlib
import hmac
import secrets
from typing import Final, NamedTuple

from topics_postgres.errors import MalformedError

MECHANISM: Final = "SCRAM-SHA-256"
_NONCE_BYTES: Final = 18
_MAX_MESSAGE: Final = 4096
_SALT_BYTES: Final = 16
_ITERATIONS: Final = 16_384


class _Verifier(NamedTuple):
    iterations: int
    salt: str
    stored_key: bytes
    server_key: bytes


class Exchange:
    """One authentication. For a user that is not there, `verifier` empty, it goes as for others and fails."""

    def __init__(self, verifier: str, name: str, mock_key: bytes, nonce: str = "") -> None:
        """`mock_key` is a secret of the server: a user that is not there has the same salt each time."""
        self._is_known = bool(verifier)
        self._verifier = _read(verifier) if verifier else _mock(name, mock_key)
        self._nonce = nonce or secrets.token_urlsafe(_NONCE_BYTES)
        self._header = ""
        self._first_bare = ""
        self._server_first = ""

    def first(self, message: bytes) -> bytes:
        """Answer the client's first message. Raises MalformedError."""
        text = _decoded(message)
        flag, comma, rest = text.partition(",")
        authorization, comma_too, bare = rest.partition(",")
        if not comma or not comma_too or flag not in ("n", "y") or (authorization and authorization[:2] != "a="):
            raise MalformedError("channel binding is not supported, or the message is malformed")
        fields = _fields(bare)
        nonce = fields.get("r", "")
        if "n" not in fields or not nonce or not nonce.isprintable():
            raise MalformedError("the first message of SCRAM has no user or no nonce")
        self._header = f"{flag},{authorization},"
        self._first_bare = bare
        self._nonce = nonce + self._nonce
        self._server_first = f"r={self._nonce},s={self._verifier.salt},i={self._verifier.iterations}"
        return self._server_first.encode()

    def final(self, message: bytes) -> bytes | None:
        """Answer the client's proof; None if it is wrong. Raises MalformedError."""
        text = _decoded(message)
        without_proof, found, proof_text = text.rpartition(",p=")
        fields = _fields(without_proof)
        if not found or fields.get("r") != self._nonce:
            raise MalformedError("the last message of SCRAM has another nonce")
        if _base64(fields.get("c", "")) != self._header.encode():
            raise MalformedError("the last message of SCRAM has another header")
        proof = _base64(proof_text)
        verifier = self._verifier
        signed = ",".join((self._first_bare, self._server_first, without_proof)).encode()
        signature = hmac.digest(verifier.stored_key, signed, "sha256")
        if len(proof) != len(signature):
            return None
        client_key = bytes(left ^ right for left, right in zip(proof, signature, strict=True))
        is_right = hmac.compare_digest(hashlib.sha256(client_key).digest(), verifier.stored_key)
        if not is_right or not self._is_known:
            return None
        return b"v=" + base64.b64encode(hmac.digest(verifier.server_key, signed, "sha256"))


def _read(verifier: str) -> _Verifier:
    """A verifier as it is stored: SCRAM-SHA-256$ITERATIONS:SALT$STORED_KEY:SERVER_KEY."""
    _, cost, stored = verifier.split("$")
    iterations, salt = cost.split(":")
    stored_key, server_key = stored.split(":")
    return _Verifier(int(iterations), salt, base64.b64decode(stored_key), base64.b64decode(server_key))


def _mock(name: str, key: bytes) -> _Verifier:
    salt = hmac.digest(key, name.encode(errors="replace"), "sha256")[:_SALT_BYTES]
    nothing = secrets.token_bytes(32)
    return _Verifier(_ITERATIONS, base64.b64encode(salt).decode(), nothing, nothing)


def _decoded(message: bytes) -> str:
    if len(message) > _MAX_MESSAGE:
        raise MalformedError("a message of SCRAM is too long")
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise MalformedError("a message of SCRAM is not UTF-8") from None


def _fields(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for each in text.split(","):
        name, equals, value = each.partition("=")
        if not equals or len(name) != 1 or name == "m":
            raise MalformedError("a message of SCRAM is malformed")
        found.setdefault(name, value)
    return found


def _base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise MalformedError("a message of SCRAM has no valid Base64") from None
