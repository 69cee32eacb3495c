"""Trust between nodes: a secret that all of them have signs what one tells another about a request that it forwards."""

import hmac
import itertools
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

HEADER: Final = "x-topics-forwarded"
"""The header, or metadata, of a forwarded request: its value is that of `Signer.sign`."""
HEADER_BYTES: Final = HEADER.encode()

MIN_SECRET_BYTES: Final = 32

_VERSION: Final = "1"
_FIELDS: Final = 7  # version, deadline, signer, number, client, request id, signature
_MAX_VALUE: Final = 1024  # characters
_VALID_MS: Final = 60_000
_SKEW_MS: Final = 60_000  # by which the clock of a signer may be ahead; behind it may be as much, while nothing waits
_WINDOW: Final = 1 << 16
_MAX_SIGNERS: Final = 256


class ForgedError(Exception):
    """A signature does not hold; the message says why, and quotes nothing of a secret."""


class Origin(NamedTuple):
    """The origin of a forwarded request: the client as `host:port`, `?` if unknown, and the id of the request."""

    client: str
    request_id: str


class Secret:
    """The secret of a cluster's nodes. While it is changed there are several: the first signs, all are accepted."""

    def __init__(self, values: Sequence[bytes]) -> None:
        """Raises ValueError unless there is one, and each has 32 bytes at least."""
        self._values = _checked(values)

    def replace(self, values: Sequence[bytes]) -> None:
        """Sign and verify with `values` from now on. Raises as the constructor, and then nothing changes."""
        self._values = _checked(values)

    def sign(self, text: bytes) -> str:
        """The signature of a text, in hexadecimal digits."""
        return hmac.digest(self._values[0], text, "sha256").hex()

    def verifies(self, text: bytes, signature: str) -> bool:
        """Return whether the signature is that of the text, in a time that does not depend on where it differs."""
        given = signature.encode("ascii", "replace")
        found = [
            hmac.compare_digest(hmac.digest(value, text, "sha256").hex().encode(), given) for value in self._values
        ]
        return any(found)


class Signer:
    """Signs for one life of a node. A signature holds for a minute, once, at one node and for one request."""

    def __init__(self, secret: Secret, *, clock: Callable[[], float] = time.time) -> None:
        """`clock` gives seconds since 1970."""
        self._secret = secret
        self._clock = clock
        self._id = secrets.token_hex(8)
        self._numbers = itertools.count(1)

    def sign(self, origin: Origin, audience: str, subject: str) -> str:
        """Return the value of the header.

        `audience` is the address, host:port, of the node that it is for, and `subject` what is asked of it: method and
        target of HTTP (`GET /v0/topics`), or the full method of gRPC. Sign right before the request is sent: requests
        may arrive in another order than they were signed in, but not by more than 65,536.
        """
        deadline = int(self._clock() * 1e3) + _VALID_MS
        client = origin.client if _is_plain(origin.client) else "?"
        request_id = origin.request_id if _is_plain(origin.request_id) else ""
        head = ";".join((_VERSION, str(deadline), self._id, str(next(self._numbers)), client, request_id))
        return f"{head};{self._secret.sign(_signed(head, audience, subject))}"


class Verifier:
    """Verifies for one life of a node, and remembers what it has accepted."""

    def __init__(self, secret: Secret, audience: str, *, clock: Callable[[], float] = time.time) -> None:
        """`audience` is the node's own address as others have it: only what is signed for it is accepted."""
        self.audience = audience
        self._secret = secret
        self._clock = clock
        self._signers: dict[str, _Accepted] = {}  # the one that was heard of last is last

    def verify(self, value: str, subject: str) -> Origin:
        """Return what the signer says. Raises ForgedError for a value that is malformed, expired, replayed, or signed
        with another secret, for another node or for another request."""
        fields = value.split(";") if len(value) <= _MAX_VALUE and value.isascii() else []
        if len(fields) != _FIELDS or fields[0] != _VERSION or not (fields[1] + fields[3]).isdecimal():
            raise ForgedError("it is malformed")
        head, _, signature = value.rpartition(";")
        if not self._secret.verifies(_signed(head, self.audience, subject), signature):
            raise ForgedError("its signature is not one of this cluster for this request")
        _, deadline, signer, number, client, request_id, _ = fields
        left = int(deadline) - self._clock() * 1e3
        if left <= 0:
            raise ForgedError("it has expired, or the clocks of the nodes differ")
        if left > _VALID_MS + _SKEW_MS:
            raise ForgedError("it holds for too long, or the clocks of the nodes differ")
        self._accept(signer, int(number), int(deadline))
        return Origin(client, request_id)

    def _accept(self, signer: str, number: int, deadline: int) -> None:
        accepted = self._signers.pop(signer, None)
        if accepted is None:
            self._make_room()
            accepted = _Accepted()
        self._signers[signer] = accepted
        accepted.deadline = max(accepted.deadline, deadline)
        if not accepted.take(number):
            raise ForgedError("it was used before")

    def _make_room(self) -> None:
        """Forget signers of which nothing can be replayed, once there are many."""
        if len(self._signers) < _MAX_SIGNERS:
            return
        now = self._clock() * 1e3
        self._signers = {name: each for name, each in self._signers.items() if each.deadline > now}
        if len(self._signers) >= _MAX_SIGNERS:
            raise ForgedError("too many nodes sign")


class _Accepted:
    """The numbers of a signer that were accepted: the highest and, as bits, those up to 65,536 below it.

    This is the window of RFC 4303, 3.4.3, so memory is bounded whatever the rate.
    """

    __slots__ = ("_bits", "_highest", "deadline")

    def __init__(self) -> None:
        self.deadline = 0
        self._highest = 0
        self._bits = 0

    def take(self, number: int) -> bool:
        """Accept a number; return False if it was, or may have been, accepted before."""
        ahead = number - self._highest
        if ahead > 0:
            self._bits = ((self._bits << ahead) | 1) & _MASK if ahead < _WINDOW else 1
            self._highest = number
            return True
        bit = 1 << -ahead if -ahead < _WINDOW else 0
        if not bit or self._bits & bit:
            return False
        self._bits |= bit
        return True


_MASK: Final = (1 << _WINDOW) - 1


def _checked(values: Sequence[bytes]) -> tuple[bytes, ...]:
    if not values or any(len(value) < MIN_SECRET_BYTES for value in values):
        raise ValueError(f"a secret of at least {MIN_SECRET_BYTES} bytes is needed")
    return tuple(values)


def _signed(head: str, audience: str, subject: str) -> bytes:
    return "\n".join((head, audience, subject)).encode("latin-1", "replace")


def _is_plain(text: str) -> bool:
    return len(text) <= 256 and text.isascii() and text.isprintable() and ";" not in text
