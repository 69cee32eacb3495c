"""JWTs as an issuer makes them, and as an attacker does: by hand, with any header and claims."""

import hashlib
import hmac
import json
import time
from base64 import urlsafe_b64encode
from functools import cache
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

SECRET = "the secret of tokens, of 40 characters.."


def claims(role: Any = "service", **more: Any) -> dict[str, Any]:
    """Claims that are valid for an hour, longer than a run of tests; those that are None are left out."""
    made = {"sub": "agent", "role": role, "exp": int(time.time()) + 3600, **more}
    return {name: value for name, value in made.items() if value is not None}


def hs256(claims: Any, secret: str | bytes = SECRET, header: Any = None) -> str:
    """A token signed by HMAC-SHA256, whatever the header says."""
    key = secret.encode() if isinstance(secret, str) else secret
    text = _unsigned(claims, {"alg": "HS256", "typ": "JWT"} if header is None else header)
    return f"{text}.{_part(hmac.digest(key, text.encode(), hashlib.sha256))}"


def unsigned(claims: Any, header: Any) -> str:
    """A token with an empty signature."""
    return f"{_unsigned(claims, header)}."


def rs256(claims: Any, key: rsa.RSAPrivateKey, header: Any = None) -> str:
    """A token signed by RSA."""
    text = _unsigned(claims, {"alg": "RS256", "typ": "JWT"} if header is None else header)
    return f"{text}.{_part(key.sign(text.encode(), padding.PKCS1v15(), hashes.SHA256()))}"


def rsa_key(bits: int = 2048, number: int = 0) -> rsa.RSAPrivateKey:
    """A private key; others for other numbers."""
    return _rsa_key(bits, number)


@cache
def _rsa_key(bits: int, _number: int) -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, bits)


def public_pem(key: Any) -> bytes:
    """The public key of a private one, as a file holds it."""
    pem: bytes = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return pem


def _unsigned(claims: Any, header: Any) -> str:
    parts = (each if isinstance(each, bytes) else json.dumps(each).encode() for each in (header, claims))
    return ".".join(map(_part, parts))


def _part(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()
