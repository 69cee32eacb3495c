"""JWT bearer tokens: HS256 by a secret, or RS256 by a public key. Imported only where tokens are configured."""

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final

import jwt
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from topics_service.api.access.auth import Principal, Role
from topics_service.api.access.roles import scopes_of

MAX_TOKEN_BYTES: Final = 8192
MIN_SECRET_BYTES: Final = 32
MIN_RSA_BITS: Final = 2048

_MAX_SUBJECT_CHARACTERS: Final = 128
_MAX_PREFIXES: Final = 100
_MAX_REMEMBERED: Final = 1000
_ROLES: Final[dict[Any, Role]] = {role.value: role for role in Role}


@dataclass(frozen=True, slots=True)
class TokenKey:
    """The key that verifies tokens: a secret (HS256) or a public key as PEM (RS256)."""

    algorithm: str
    key: bytes = field(repr=False)

    @classmethod
    def secret(cls, secret: bytes) -> "TokenKey":
        """A secret. Raises ValueError, which does not quote it, for a short one and for a PEM file."""
        if len(secret) < MIN_SECRET_BYTES:
            raise ValueError(f"it is shorter than {MIN_SECRET_BYTES} bytes")
        if secret.lstrip().startswith((b"-----BEGIN", b"ssh-")):
            raise ValueError("it is a key of another kind; TOPICS_JWT_PUBLIC_KEY_FILE takes a public key")
        return cls("HS256", secret)

    @classmethod
    def public(cls, pem: bytes) -> "TokenKey":
        """A public RSA key. Raises ValueError for anything else, private keys and short ones among them."""
        try:
            key = load_pem_public_key(pem)
        except Exception:  # the library has many kinds of them
            raise ValueError("it holds no public key in PEM (BEGIN PUBLIC KEY)") from None
        if not isinstance(key, RSAPublicKey):
            raise ValueError("it holds a public key that is not RSA")
        if key.key_size < MIN_RSA_BITS:
            raise ValueError(f"its key has {key.key_size} bits; at least {MIN_RSA_BITS} are needed")
        return cls("RS256", pem)


class Tokens:
    """Verifies tokens with one key and its one algorithm, whatever their header says.

    A token must have `exp`, `sub` and `role`; `prefixes`, a list, is optional. `aud` and `iss` must be the given ones.
    The last 1000 valid tokens are remembered, by their digest.
    """

    def __init__(
        self,
        key: TokenKey,
        *,
        issuer: str = "",
        audience: str = "",
        user_consumes: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Without an `audience`, tokens for any audience are refused; without an `issuer`, any issuer will do.

        `user_consumes` lets the role `user` read and consume topics. `clock` gives seconds since 1970.
        """
        self._algorithm = key.algorithm
        self._key: Any = key.key if key.algorithm == "HS256" else load_pem_public_key(key.key)
        self._issuer = issuer or None
        self._audience = audience or None
        self._user_consumes = user_consumes
        self._clock = clock
        self._credential = sha256(b"%b:%b" % (key.algorithm.encode(), key.key)).hexdigest()[:16]
        self._remembered: OrderedDict[bytes, Principal] = OrderedDict()

    def find(self, token: bytes) -> Principal | None:
        """Find the caller that a token stands for; None if it is not valid."""
        if len(token) > MAX_TOKEN_BYTES:
            return None
        digest = sha256(token).digest()
        found = self._remembered.get(digest)
        if found is not None and self.is_valid(found):
            return found
        found = self._read(token)
        if found is None:
            self._remembered.pop(digest, None)
            return None
        if len(self._remembered) >= _MAX_REMEMBERED:
            self._remembered.popitem(last=False)
        self._remembered[digest] = found
        return found

    def is_valid(self, principal: Principal) -> bool:
        """True while the token of the caller has not expired, and its key is this one."""
        expires = principal.expires
        return principal.credential == self._credential and expires is not None and self._clock() < expires

    def _read(self, token: bytes) -> Principal | None:
        try:
            claims = jwt.decode(
                token,
                self._key,
                algorithms=[self._algorithm],
                options={"require": ["exp", "sub"]},
                issuer=self._issuer,
                audience=self._audience,
            )
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError):
            return None
        try:
            expires = float(int(claims["exp"]))
            subject, role = claims["sub"], _ROLES.get(claims.get("role"))
            prefixes = _prefixes(claims["prefixes"]) if "prefixes" in claims else None
        except (ValueError, TypeError, OverflowError):
            return None
        if role is None or not 0 < len(subject) <= _MAX_SUBJECT_CHARACTERS or not subject.isprintable():
            return None
        scopes = scopes_of(role, user_consumes=self._user_consumes)
        return Principal(f"jwt:{subject}", scopes, prefixes, role, self._credential, expires)


def _prefixes(claim: Any) -> tuple[str, ...]:
    """The claim `prefixes`. Raises ValueError unless it is a list of texts, none of them empty."""
    if not isinstance(claim, list) or not 0 < len(claim) <= _MAX_PREFIXES:
        raise ValueError
    if not all(isinstance(each, str) and each for each in claim):
        raise ValueError
    return tuple(claim)
