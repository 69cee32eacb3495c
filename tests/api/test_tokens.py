"""JWT bearer tokens: which are valid, what they stand for, and how calls end with them."""

import asyncio
import pickle
import time
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from hypothesis import given
from hypothesis import strategies as st

from support.tokens import SECRET, claims, hs256, public_pem, rs256, rsa_key, unsigned
from topics_service.api.access import tokens as module
from topics_service.api.access.auth import ALL_SCOPES, Principal, Role, Scope, parse_keys
from topics_service.api.access.authorizer import Authorizer
from topics_service.api.access.quota import KeyLimits, Quotas
from topics_service.api.access.tokens import MAX_TOKEN_BYTES, TokenKey, Tokens
from topics_service.engine.errors import Reason, TopicsError

DIFF = "topics.v1.TopicsService.Diff"


def verifier(**options: Any) -> Tokens:
    return Tokens(TokenKey.secret(SECRET.encode()), **options)


def find(token: str | bytes, **options: Any) -> Principal | None:
    return verifier(**options).find(token.encode() if isinstance(token, str) else token)


@pytest.mark.parametrize(
    ("role", "scopes"),
    [
        ("user", frozenset()),
        ("service", {Scope.READ, Scope.WRITE}),
        ("dba", ALL_SCOPES),
        ("system", ALL_SCOPES),
    ],
)
def test_what_a_token_stands_for(role: str, scopes: frozenset[Scope]) -> None:
    found = find(hs256(claims(role, sub="agent 7", prefixes=["a.", "b."])))
    assert found is not None
    assert (found.key_id, found.role, found.scopes, found.prefixes) == ("jwt:agent 7", Role(role), scopes, ("a.", "b."))
    whole = find(hs256(claims(role)))
    assert whole is not None
    assert whole.prefixes is None


def test_users_who_consume() -> None:
    found = find(hs256(claims("user")), user_consumes=True)
    assert found is not None
    assert found.scopes == {Scope.READ}


@pytest.mark.parametrize(
    "given",
    [
        claims(exp=1),
        claims(exp=int(time.time()) - 1),
        claims(exp=None),
        claims(exp="soon"),
        claims(exp=True),
        claims(exp=[]),
        claims(exp=10**400),
        claims(nbf=int(time.time()) + 1000),
        claims(iat=int(time.time()) + 1000),
        claims(sub=None),
        claims(sub=""),
        claims(sub=7),
        claims(sub="a\nb"),
        claims(sub="x" * 129),
        claims(None),
        claims("emperor"),
        claims("System"),
        claims(""),
        claims(7),
        claims(["system"]),
        claims({"system": 1}),
        claims(prefixes=[]),
        claims(prefixes=""),
        claims(prefixes="a."),
        claims(prefixes=[""]),
        claims(prefixes=["a.", 7]),
        claims(prefixes={"a.": 1}),
        claims(prefixes=["a."] * 101),
        {**claims(), "prefixes": None},
        claims(aud="somebody else"),
        [],
        "text",
        b"{",
        b'{"exp":1e999,"sub":"a","role":"system"}',
        b'{"exp":Infinity,"sub":"a","role":"system"}',
        b'{"exp":NaN,"sub":"a","role":"system"}',
        b"\xff\xfe",
        b"[" * 3000,
    ],
)
def test_claims_that_are_refused(given: Any) -> None:
    """They have a valid signature, so the issuer has made them."""
    assert find(hs256(given)) is None


def test_claims_of_forgers() -> None:
    good = claims("system")
    header, payload, signature = hs256(good).split(".")
    other = hs256(claims("dba")).split(".")[1]
    pem = public_pem(rsa_key()).decode()
    for token in (
        hs256(good, "x" * 40),
        hs256(good, b""),
        f"{header}.{other}.{signature}",
        f"{header}.{payload}.",
        f"{header}.{payload}.{signature[:-4]}",
        f"{header}.{payload}",
        f"{header}.{payload}.{signature}.",
        f"{header}..{signature}",
        "..",
        "a.b.c",
        "\u00fc.\u00fc.\u00fc",
        unsigned(good, {"alg": "none"}),
        unsigned(good, {"alg": "None", "typ": "JWT"}),
        unsigned(good, {}),
        hs256(good, header={"alg": "none"}),
        hs256(good, header={"alg": "HS512"}),
        hs256(good, header={"alg": "RS256"}),
        hs256(good, header={"alg": ["HS256"]}),
        hs256(good, header={"alg": "HS256", "crit": ["exp"]}),
        hs256(good, header={"alg": "HS256", "b64": False, "crit": ["b64"]}),
        hs256(good, header=b"[" * 3000),
        hs256(good, header=[]),
        rs256(good, rsa_key()),
        rs256(good, rsa_key(), {"alg": "HS256"}),
        hs256(good, pem),
        f"{header}.{payload}.{'A' * 100_000}",
        hs256(claims(filler="x" * MAX_TOKEN_BYTES)),
    ):
        assert find(token) is None, token[:200]
    assert find(b"\xff.\xff.\xff") is None
    assert find(hs256(good)) is not None


@given(st.binary(max_size=200))
def test_any_bytes_are_no_token(data: bytes) -> None:
    assert find(data) is None
    header, payload, _ = hs256(claims()).encode().split(b".")
    assert find(b"%b.%b.%b" % (header, payload, data)) is None


def test_a_key_of_rs256_takes_no_other_algorithm() -> None:
    """Key confusion: the public key, which everyone may have, is no secret of HS256."""
    pem = public_pem(rsa_key())
    verifier = Tokens(TokenKey.public(pem))
    good = claims("system")
    found = verifier.find(rs256(good, rsa_key()).encode())
    assert found is not None
    assert found.role is Role.SYSTEM
    for token in (
        hs256(good, pem),
        hs256(good, pem, {"alg": "RS256"}),
        hs256(good, pem.strip()),
        rs256(good, rsa_key(number=1)),
        rs256(good, rsa_key(), {"alg": "RS512"}),
        unsigned(good, {"alg": "none"}),
        unsigned(good, {"alg": "RS256"}),
    ):
        assert verifier.find(token.encode()) is None


def test_issuer_and_audience() -> None:
    for token, valid in (
        (claims(iss="us", aud="topics"), True),
        (claims(iss="us", aud=["x", "topics"]), True),
        (claims(iss="us", aud="others"), False),
        (claims(iss="us"), False),
        (claims(iss="them", aud="topics"), False),
        (claims(aud="topics"), False),
    ):
        assert (find(hs256(token), issuer="us", audience="topics") is not None) == valid, token


@pytest.mark.parametrize("secret", [b"", b"x" * 31, b"-----BEGIN PUBLIC KEY-----\n" + b"x" * 40])
def test_secrets_that_are_refused(secret: bytes) -> None:
    with pytest.raises(ValueError, match="it is") as error:
        TokenKey.secret(secret)
    assert "xx" not in str(error.value)


def test_public_keys_that_are_refused() -> None:
    private = rsa_key().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    for pem, says in (
        (private, "no public key"),
        (b"", "no public key"),
        (b"rubbish", "no public key"),
        (public_pem(ec.generate_private_key(ec.SECP256R1())), "not RSA"),
        (public_pem(rsa_key(1024)), "1024 bits"),
    ):
        with pytest.raises(ValueError, match=says):
            TokenKey.public(pem)


def test_a_key_does_not_show_and_can_be_sent_to_a_process() -> None:
    key = TokenKey.secret(SECRET.encode())
    assert SECRET not in repr(key)
    assert pickle.loads(pickle.dumps(key)) == key


def test_what_is_remembered_is_bounded_and_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_REMEMBERED", 3)
    now = time.time()
    verifier = Tokens(TokenKey.secret(SECRET.encode()), clock=lambda: now)
    read: list[bytes] = []
    real = verifier._read
    monkeypatch.setattr(verifier, "_read", lambda token: read.append(token) or real(token))
    tokens = [hs256(claims(sub=f"s{number}", exp=int(now) + 100)).encode() for number in range(5)]
    for token in (*tokens, tokens[4], tokens[0]):
        assert verifier.find(token) is not None
    assert len(read) == 6, "one of the seven was remembered"
    assert len(verifier._remembered) == 3
    found = verifier.find(tokens[0])
    assert found is not None
    now += 101
    assert not verifier.is_valid(found)


# -------------------------------------------------------------- in an authorizer


async def test_a_text_with_two_dots_is_a_token_else_a_key() -> None:
    authorizer = Authorizer(parse_keys("key-1,a.b.c:read"), tokens=verifier())
    for bearer, key_id in ((hs256(claims()), "jwt:agent"), ("key-1", "key1"), ("a.b.c", "key2")):
        assert (await authorizer.authenticate(DIFF, b"Bearer " + bearer.encode())).key_id == key_id
    for bearer in ("key-2", "a.b", "a.b.d", hs256(claims(exp=1))):
        with pytest.raises(TopicsError, match="missing or wrong credentials") as error:
            await authorizer.authenticate(DIFF, b"Bearer " + bearer.encode())
        assert error.value.reason is Reason.UNAUTHORIZED


async def test_a_call_ends_with_its_token() -> None:
    authorizer = Authorizer(tokens=verifier())
    principal = await authorizer.authenticate(DIFF, b"Bearer " + hs256(claims(exp=int(time.time()) + 2)).encode())
    with pytest.raises(TopicsError, match="the token has expired"), authorizer.slot(DIFF, principal):
        await asyncio.wait_for(asyncio.Event().wait(), 30)
    assert principal.expires is not None
    assert time.time() >= principal.expires
    assert authorizer.quotas.for_key(principal.key_id).in_flight == 0
    with pytest.raises(TopicsError, match="the token has expired"), authorizer.slot(DIFF, principal):
        raise AssertionError


async def test_a_task_ends_with_its_token() -> None:
    authorizer = Authorizer(tokens=verifier()).cancelling()

    async def serve() -> None:
        await authorizer.authenticate(DIFF, b"Bearer " + hs256(claims(exp=int(time.time()) + 2)).encode())
        await asyncio.wait_for(asyncio.Event().wait(), 30)

    with pytest.raises(asyncio.CancelledError):
        await asyncio.ensure_future(serve())


async def test_another_key_ends_the_calls_of_the_old_one() -> None:
    authorizer = Authorizer(parse_keys("key-1"), tokens=verifier())

    async def call(bearer: str) -> None:
        principal = await authorizer.authenticate(DIFF, b"Bearer " + bearer.encode())
        with authorizer.slot(DIFF, principal):
            await asyncio.Event().wait()

    token = hs256(claims())
    mine, key = asyncio.ensure_future(call(token)), asyncio.ensure_future(call("key-1"))
    await asyncio.sleep(0)
    authorizer.replace_tokens(verifier())
    await asyncio.sleep(0)
    assert not mine.done(), "the same key"
    authorizer.replace_tokens(Tokens(TokenKey.secret(b"y" * 32)))
    with pytest.raises(TopicsError, match="its key was replaced"):
        await mine
    assert not key.done()
    key.cancel()


def test_usage_of_subjects_is_forgotten() -> None:
    """There may be any number of them."""
    quotas = Quotas(KeyLimits(in_flight=1))
    usage = quotas.for_key("jwt:a")
    usage.take_request()
    assert quotas.for_key("jwt:a") is usage
    with pytest.raises(TopicsError):
        quotas.for_key("jwt:a").take_request()
    assert quotas.for_key("0123456789ab") is quotas.for_key("0123456789ab")
    del usage
    for number in range(1000):
        quotas.for_key(f"jwt:{number}")
    assert len(quotas._passing) == 0
