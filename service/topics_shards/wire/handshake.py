"""Handshake of two nodes over TCP: each proves that it has the secret of the cluster, and is who the other means.

    caller                                      server
    HELLO: its name, whom it expects, a nonce
                                                HELLO: its name, its methods, a nonce
                                                PROOF
    PROOF, and calls right behind it
                                                REFUSED in place of any of these, with the cause

A proof is a signature of the side that it is of, the id of the cluster and both hellos as they were sent. So it holds
on one connection, in one direction, between two nodes, and for all that either has said of itself.
"""

import secrets
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

from topics_shards.wire.framing import HELLO, PROOF, Hello, agreed_version
from topics_shards.wire.methods import DECODE_ERRORS

UNPROVEN_FRAME: Final = 4 << 10
"""Most bytes of a body from a caller that has not proven itself."""
UNPROVEN_SERVER_FRAME: Final = 64 << 10
"""Most bytes of a body from a server that has not: its hello names its methods."""
UNPROVEN_SECONDS: Final = 5.0
"""Time for a caller to prove itself, after the handshake of TLS if there is one."""

_NONCE_BYTES: Final = 16
_MAX_NAME: Final = 256  # characters
_MAX_CAUSE: Final = 200
_encode: Final = msgspec.msgpack.Encoder().encode
_decode_hello: Final = msgspec.msgpack.Decoder(Hello).decode
_decode_text: Final = msgspec.msgpack.Decoder(str).decode


class HandshakeError(Exception):
    """The peer can't be trusted, or spoken to; the message says why, to either side, and quotes nothing of a secret."""


class ClusterSecret(Protocol):
    """A secret that all nodes of a cluster have. While it is changed there are several: one signs, all are accepted."""

    def sign(self, text: bytes) -> str:
        """The signature of a text."""

    def verifies(self, text: bytes, signature: str) -> bool:
        """Return whether the signature is that of the text, in a time that does not depend on where it differs."""


@dataclass(frozen=True)
class Identity:
    """A node: its name, the id of its cluster, and what it proves both with."""

    node: str
    cluster: str
    secret: ClusterSecret


class CallerHandshake:
    """The caller's side; expects the node `expected` at the other end."""

    def __init__(self, identity: Identity, expected: str) -> None:
        self._identity = identity
        self._expected = expected
        self._theirs = b""
        self.hello = _encode(
            Hello(agreed_version(), identity.node, cluster=identity.cluster, expected=expected, nonce=_nonce())
        )
        """The body of the first frame."""
        self.methods: list[str] = []
        """Those of the server, once it has proven itself."""

    def take(self, kind: int, body: memoryview) -> bytes | None:
        """Take a frame of the server; the body of this side's own proof once the server's holds.

        Raises HandshakeError.
        """
        if kind == HELLO and not self._theirs:
            hello = _hello(body)
            if agreed_version(hello.version) != hello.version:
                raise HandshakeError(f"version {hello.version} of the protocol is not spoken here")
            if hello.name != self._expected:
                raise HandshakeError("another node is there")
            self._theirs = bytes(body)
            return None
        if kind != PROOF or not self._theirs:
            raise HandshakeError("a frame is not one of the handshake")
        _verify(self._identity, "server", self.hello, self._theirs, body)
        self.methods = _hello(memoryview(self._theirs)).methods
        return _proof(self._identity, "caller", self.hello, self._theirs)


class ServerHandshake:
    """The server's side, which offers `methods`."""

    def __init__(self, identity: Identity, methods: list[str]) -> None:
        self._identity = identity
        self._methods = methods
        self._theirs = self._ours = b""
        self._caller = ""
        self.caller = ""
        """Name of the caller, once it has proven itself."""

    def take(self, kind: int, body: memoryview) -> list[tuple[int, bytes]]:
        """Take a frame of the caller; the frames to send now. Raises HandshakeError."""
        if kind == HELLO and not self._theirs:
            hello = _hello(body)
            version = agreed_version(hello.version)
            if not version:
                raise HandshakeError(f"version {hello.version} of the protocol is not spoken here")
            if hello.cluster != self._identity.cluster:
                raise HandshakeError("the clusters differ")
            if hello.expected != self._identity.node:
                raise HandshakeError("another node is expected here")
            self._caller, self._theirs = hello.name, bytes(body)
            self._ours = _encode(Hello(version, self._identity.node, self._methods, nonce=_nonce()))
            return [(HELLO, self._ours), (PROOF, _proof(self._identity, "server", self._theirs, self._ours))]
        if kind != PROOF or not self._theirs:
            raise HandshakeError("a frame is not one of the handshake")
        _verify(self._identity, "caller", self._theirs, self._ours, body)
        self.caller = self._caller
        return []


def encode_refusal(cause: str) -> bytes:
    """The body of REFUSED."""
    return _encode(cause[:_MAX_CAUSE])


def decode_refusal(body: memoryview) -> str:
    """The cause in REFUSED, fit for a log line though anybody may have sent it."""
    try:
        text = _decode_text(body)
    except DECODE_ERRORS:
        text = "no cause"
    return "".join(each if each.isprintable() else "?" for each in text[:_MAX_CAUSE])


def _hello(body: memoryview) -> Hello:
    try:
        hello = _decode_hello(body)
    except DECODE_ERRORS:
        raise HandshakeError("the hello is malformed") from None
    if len(hello.nonce) != _NONCE_BYTES or not 0 < len(hello.name) <= _MAX_NAME or not hello.name.isprintable():
        raise HandshakeError("the hello is malformed")
    return hello


def _nonce() -> bytes:
    return secrets.token_bytes(_NONCE_BYTES)


def _signed(identity: Identity, side: str, caller_hello: bytes, server_hello: bytes) -> bytes:
    return _encode((f"topics-shards {side}", identity.cluster, caller_hello, server_hello))


def _proof(identity: Identity, side: str, caller_hello: bytes, server_hello: bytes) -> bytes:
    return _encode(identity.secret.sign(_signed(identity, side, caller_hello, server_hello)))


def _verify(identity: Identity, side: str, caller_hello: bytes, server_hello: bytes, body: memoryview) -> None:
    try:
        signature = _decode_text(body)
    except DECODE_ERRORS:
        raise HandshakeError("the proof is malformed") from None
    if not identity.secret.verifies(_signed(identity, side, caller_hello, server_hello), signature):
        raise HandshakeError("the proof does not hold: the secrets of the nodes differ")
