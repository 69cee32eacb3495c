"""Checks of passwords: verifiers, the work for users that do not exist, what is remembered, and bounds on guessing."""

import asyncio
import hashlib
import hmac
import pickle
from base64 import b64decode, b64encode
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics_service.api.access.auth import Principal, Role, read_basic
from topics_service.api.access.authorizer import Authorizer
from topics_service.api.access.passwords import MAX_FAILURES, Failures, Passwords, UnverifiedPasswordError, network_of
from topics_service.api.access.users import UserRow, Users, check_name
from topics_service.api.access.verifiers import MAX_PASSWORD_BYTES, Verifier, matches, verifier
from topics_service.engine.errors import Reason, TopicsError

PEER = "10.0.0.7:5000"
DIFF = "topics.v1.TopicsService.Diff"


def fake(password: str) -> Verifier:
    """A verifier that costs nothing, for `Checks`."""
    return Verifier(password, "", "")


class Checks:
    """Compares passwords with verifiers of `fake`, and notes the work of each."""

    def __init__(self) -> None:
        self.seen: list[tuple[bytes, bool]] = []

    def __call__(self, password: bytes, kept: Verifier) -> bool:
        self.seen.append((password, kept.scrypt.startswith("SCRYPT$14,8,1:")))
        return password.decode(errors="replace") == kept.scrypt


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class World:
    def __init__(self) -> None:
        self.users = Users([UserRow("alice", Role.SERVICE, fake("pw"))])
        self.checks, self.clock = Checks(), Clock()
        self.passwords = Passwords(self.users, clock=self.clock, matches=self.checks)

    async def check(self, name: str, password: str, peer: str = PEER) -> Principal | None:
        try:
            return self.passwords.find(name.encode(), password.encode())
        except UnverifiedPasswordError as unverified:
            return await self.passwords.verify(unverified.name, unverified.password, peer)

    async def fails(self, name: str, password: str = "wrong", peer: str = PEER) -> bool:
        """Try a wrong password; True if it was not even tried."""
        try:
            found = await self.check(name, password, peer)
        except TopicsError as error:
            return error.reason is Reason.THROTTLED
        assert found is None
        return False


# ------------------------------------------------------------------ verifiers


@pytest.mark.parametrize(
    "password", ["pw", "with:colons:and, commas", "ü\u00a0\u2168", "\x07", b"\xff\xfe", "x" * 1024]
)
def test_a_verifier_knows_its_password(password: str | bytes) -> None:
    kept, raw = verifier(password), password.encode() if isinstance(password, str) else password
    assert matches(raw, kept)
    assert not matches(raw + b"x", kept)
    assert not matches(raw[:-1], kept)
    assert repr(kept) == "<Verifier>"
    assert len(raw) < 8 or raw not in pickle.dumps(kept)
    assert verifier(password) != kept, "each has salts of its own"


@pytest.mark.parametrize("password", ["", b"", "x" * (MAX_PASSWORD_BYTES + 1), "pw\0"])
def test_passwords_that_nobody_may_have(password: str | bytes) -> None:
    with pytest.raises(ValueError, match="the password must"):
        verifier(password)


@pytest.mark.parametrize(
    ("password", "prepared"),
    [
        ("pencil", b"pencil"),
        ("I\u00adX", b"IX"),
        ("\u2168\u00a0", b"IX "),
        ("ａ\x07", "ａ\x07".encode()),
        (b"\xff", b"\xff"),
    ],
)
@pytest.mark.parametrize("algorithm", ["sha256", "sha512"])
def test_a_client_of_scram_can_prove_that_it_knows_the_password(
    algorithm: str, password: str | bytes, prepared: bytes
) -> None:
    """The client's side of RFC 5802: a proof that the server checks with its stored key."""
    kept = verifier(password)
    text = kept.scram_sha_256 if algorithm == "sha256" else kept.scram_sha_512
    name, cost, keys = text.split("$")
    iterations, salt = cost.split(":")
    stored, server = (b64decode(key) for key in keys.split(":"))
    assert name == f"SCRAM-SHA-{algorithm[3:]}"
    salted = hashlib.pbkdf2_hmac(algorithm, prepared, b64decode(salt), int(iterations))
    client_key = hmac.new(salted, b"Client Key", algorithm).digest()
    proof = bytes(a ^ b for a, b in zip(client_key, hmac.new(stored, b"auth", algorithm).digest(), strict=True))
    recovered = bytes(a ^ b for a, b in zip(proof, hmac.new(stored, b"auth", algorithm).digest(), strict=True))
    assert hashlib.new(algorithm, recovered).digest() == stored
    assert hmac.new(salted, b"Server Key", algorithm).digest() == server


def test_a_row_can_be_stored() -> None:
    row = UserRow("alice", Role.DBA, verifier("pw"), ("a.", "b."))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(row), type=UserRow) == row
    assert "pw" not in repr(row)


# ----------------------------------------------------------------- Basic


@given(st.binary().filter(lambda name: b":" not in name), st.binary())
def test_basic_is_read_back(name: bytes, password: bytes) -> None:
    assert read_basic(b"Basic " + b64encode(name + b":" + password)) == (name, password)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"Basic",
        b"Basic ",
        b"basic YTpi",
        b"Basic YTpi*",
        b"Basic YQ==",
        b"Basic YTp",
        b"Bearer YTpi",
        b"Basic \xff",
    ],
)
def test_other_headers_are_not_basic(header: bytes) -> None:
    assert read_basic(header) is None


# ------------------------------------------------------------- the same work


async def test_a_user_that_does_not_exist_costs_the_same() -> None:
    """Each wrong password is one call of scrypt with the same cost, whether or not there is such a user."""
    users = Users([UserRow("alice", Role.USER, verifier("pw"))])
    costs: list[tuple[int, int, int]] = []

    def counted(password: bytes, kept: Verifier) -> bool:
        cost, salt, hashed = kept.scrypt.removeprefix("SCRYPT$").replace("$", ":").split(":")
        n, r, p = map(int, cost.split(","))
        costs.append((n, r, p))
        assert len(b64decode(salt)) == 16
        assert len(b64decode(hashed)) == 32
        return matches(password, kept)

    passwords = Passwords(users, matches=counted)
    for name in ("alice", "nobody", "", "ALICE", "a" * 128):
        assert await passwords.verify(name, b"wrong", PEER) is None
    assert costs == [(14, 8, 1)] * 5
    passwords.close()


async def test_what_nobody_can_have_is_refused_at_once() -> None:
    world = World()
    for name, password in (
        (b"alice", b""),
        (b"\xff", b"pw"),
        (b"a" * 129, b"pw"),
        (b"alice", b"x" * 1025),
        (b"alice", b"pw\0"),
    ):
        assert world.passwords.find(name, password) is None
    assert world.checks.seen == []
    nobody = Passwords(Users(), matches=world.checks)
    assert nobody.find(b"alice", b"pw") is None, "a server without users checks nothing"


# --------------------------------------------------------------- remembered


async def test_a_right_password_is_remembered_while_it_is_used() -> None:
    world = World()
    for _ in range(3):
        principal = await world.check("alice", "pw")
        assert principal is not None
        assert (principal.key_id, principal.role) == ("user:alice", Role.SERVICE)
    assert len(world.checks.seen) == 1
    for _ in range(5):
        world.clock.now += 200
        assert await world.check("alice", "pw") is not None
    assert len(world.checks.seen) == 1
    world.clock.now += 301
    assert await world.check("alice", "pw") is not None
    assert len(world.checks.seen) == 2


async def test_a_wrong_password_is_never_remembered() -> None:
    world = World()
    for _ in range(3):
        assert await world.check("alice", "wrong") is None
    assert len(world.checks.seen) == 3
    assert len(world.passwords) == 0


async def test_calls_at_the_same_time_share_a_check() -> None:
    world = World()
    found = await asyncio.gather(*(world.check("alice", "pw") for _ in range(50)))
    assert all(found)
    assert len(world.checks.seen) == 1
    assert len(world.passwords.failures) == 0


async def test_a_caller_that_leaves_does_not_end_the_check_of_others() -> None:
    world = World()
    first = asyncio.ensure_future(world.check("alice", "pw"))
    second = asyncio.ensure_future(world.check("alice", "pw"))
    await asyncio.sleep(0)
    first.cancel()
    assert await second is not None


async def test_a_new_password_counts_at_once_and_the_old_one_no_more() -> None:
    world = World()
    assert await world.check("alice", "pw") is not None
    world.users.replace_settings([UserRow("alice", Role.SERVICE, fake("new"))])
    assert await world.check("alice", "pw") is None
    assert await world.check("alice", "new") is not None
    world.users.replace_settings([UserRow("bob", Role.SERVICE, fake("pw"))])
    assert await world.check("alice", "new") is None


async def test_a_user_that_changes_during_the_check() -> None:
    world = World()
    running = asyncio.ensure_future(world.check("alice", "pw"))
    await asyncio.sleep(0)
    world.users.replace_settings([UserRow("alice", Role.SERVICE, fake("other"))])
    assert await running is None


async def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topics_service.api.access.passwords._MAX_ENTRIES", 3)
    world = World()
    world.users.replace_settings([UserRow(f"u{number}", Role.USER, fake("pw")) for number in range(5)])
    for number in range(5):
        assert await world.check(f"u{number}", "pw") is not None
    assert len(world.passwords) == 3


# ---------------------------------------------------------------- guessing


async def test_guesses_are_bounded_by_address_and_user() -> None:
    world = World()
    refused = [await world.fails("alice", f"guess {number}") for number in range(MAX_FAILURES + 5)]
    assert refused == [False] * MAX_FAILURES + [True] * 5
    with pytest.raises(TopicsError) as error:
        await world.check("alice", "pw")
    assert error.value.reason is Reason.THROTTLED
    assert error.value.detail == {
        "limit": "password_failures_per_minute", "max": MAX_FAILURES, "retry_after_ms": 60_001,
    }  # fmt: skip
    assert error.value.retry_after_ms == 60_001
    assert await world.check("alice", "pw", "10.0.0.8:1") is not None, "another address"
    with pytest.raises(TopicsError):  # also now that the right one is remembered: a guess must not find out
        await world.check("alice", "pw")
    assert not await world.fails("bob", "x"), "another user"
    world.clock.now += 60
    assert await world.check("alice", "pw") is not None


async def test_guesses_at_once_are_bounded_too() -> None:
    world = World()
    refused = await asyncio.gather(*(world.fails("alice", f"guess {number}") for number in range(30)))
    assert sum(refused) == 30 - MAX_FAILURES
    assert len(world.checks.seen) == MAX_FAILURES


async def test_right_passwords_are_no_failures_and_undo_none() -> None:
    world = World()
    for _ in range(MAX_FAILURES - 1):
        assert not await world.fails("alice")
    for _ in range(3):
        assert await world.check("alice", "pw") is not None
    assert not await world.fails("alice")
    assert await world.fails("alice")


async def test_checks_that_run_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topics_service.api.access.passwords._MAX_RUNNING", 4)
    monkeypatch.setattr("topics_service.api.access.passwords._MAX_RUNNING_PER_ADDRESS", 2)
    world = World()
    found: list[Any] = await asyncio.gather(
        *(world.check(f"user{number}", "x", f"10.0.0.{number // 3}:1") for number in range(9)), return_exceptions=True
    )
    limits = [each.detail["limit"] if isinstance(each, TopicsError) and each.detail else None for each in found]
    assert limits == [None, None, "password_checks", None, None, "password_checks", *["password_checks"] * 3]
    assert await world.check("alice", "pw") is not None, "later there is room again"


def test_failures_are_bounded_and_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topics_service.api.access.passwords._MAX_ENTRIES", 10)
    clock = Clock()
    failures = Failures(clock)
    for number in range(25):
        failures.add(f"10.0.0.{number}", "alice")
        failures.add("10.0.0.1", f"user{number}")
        assert len(failures) <= 10
    assert failures.concern("alice")
    clock.now += 61
    failures.check("10.0.0.1", "alice")
    assert len(failures) == 0
    assert not failures.concern("alice")


@given(st.lists(st.tuples(st.sampled_from(["add", "take_back", "wait"]), st.sampled_from("ab"), st.sampled_from("xy"))))
def test_failures_against_a_model(steps: list[tuple[str, str, str]]) -> None:
    """A pair's minute begins with its first failure; `add` is undone by `take_back`, which may end the minute."""
    clock = Clock()
    failures = Failures(clock)
    model: dict[tuple[str, str], tuple[int, float]] = {}
    for step, address, name in steps:
        failures.check("0.0.0.0", "")  # no pair of the model
        model = {pair: entry for pair, entry in model.items() if entry[1] > clock.now}
        count, end = model.get((address, name), (0, clock.now + 60))
        if step == "wait":
            clock.now += 25
        elif step == "add":
            failures.add(address, name)
            model[address, name] = count + 1, end
        elif count:
            failures.take_back(address, name)
            model[address, name] = count - 1, end
            if count == 1:
                del model[address, name]
    failures.check("0.0.0.0", "")
    model = {pair: entry for pair, entry in model.items() if entry[1] > clock.now}
    assert len(failures) == len(model)
    assert {name for name in "xy" if failures.concern(name)} == {name for _, name in model}


@pytest.mark.parametrize(
    ("peer", "network"),
    [
        ("10.0.0.7:5000", "10.0.0.7"),
        ("[2001:db8:1:2:3:4:5:6]:5000", "2001:db8:1:2::/64"),
        ("[::ffff:10.0.0.7]:1", "10.0.0.7"),
        ("?", ""),
        ("", ""),
        ("somewhere:1", "somewhere"),
    ],
)
def test_the_address_of_a_peer(peer: str, network: str) -> None:
    assert network_of(peer) == network


# -------------------------------------------------------------------- users


@pytest.mark.parametrize("name", ["", "a:b", "a\nb", "\x7f", "a" * 129, "ü" * 65, "\udcff"])
def test_names_that_no_user_can_have(name: str) -> None:
    with pytest.raises(ValueError, match="the name of a user"):
        check_name(name)


def test_users_of_the_settings_hide_rows_and_are_read_only() -> None:
    users = Users([UserRow("alice", Role.USER, fake("a"))])
    changes: list[None] = []
    users.on_change = lambda: changes.append(None)
    users.put_row(UserRow("alice", Role.SYSTEM, fake("row")))
    users.put_row(UserRow("bob", Role.DBA, fake("b"), ("x.",)))
    assert [(row.name, row.role) for row in users.rows()] == [("alice", Role.USER), ("bob", Role.DBA)]
    assert users.is_read_only("alice")
    assert not users.is_read_only("bob")
    bob = users.find("bob")
    assert bob is not None
    assert (bob[1].key_id, bob[1].prefixes, bob[1].role) == ("user:bob", ("x.",), Role.DBA)
    assert users.is_stored(bob[1])
    alice = users.find("alice")
    assert alice is not None
    assert not users.is_stored(alice[1])
    users.replace_settings([])
    assert [(row.name, row.role) for row in users.rows()] == [("alice", Role.SYSTEM), ("bob", Role.DBA)]
    users.remove_row("alice")
    users.remove_row("alice")
    assert [row.name for row in users.rows()] == ["bob"]
    assert len(changes) == 5


async def test_calls_of_a_user_end_when_it_changes() -> None:
    users = Users([UserRow("ops", Role.SYSTEM, verifier("pw"))])
    authorizer = Authorizer(users=users)
    row = UserRow("alice", Role.SERVICE, fake("a"))
    users.put_row(row)

    async def call(name: str) -> str:
        found = users.find(name)
        assert found is not None
        with authorizer.slot(DIFF, found[1]):
            await asyncio.Event().wait()
        raise AssertionError

    ops, alice = asyncio.ensure_future(call("ops")), asyncio.ensure_future(call("alice"))
    await asyncio.sleep(0)
    users.put_row(row)  # nothing new
    await asyncio.sleep(0)
    assert not alice.done()
    users.put_row(UserRow("alice", Role.SERVICE, fake("b")))  # another password
    with pytest.raises(TopicsError, match="the user was removed or changed"):
        await alice
    assert not ops.done()
    users.replace_settings([])
    with pytest.raises(TopicsError, match="the user was removed or changed") as error:
        await ops
    assert error.value.reason is Reason.UNAUTHORIZED


async def test_rows_alone_do_not_turn_authentication_on() -> None:
    authorizer = Authorizer()
    authorizer.users.put_row(UserRow("alice", Role.USER, fake("a")))
    assert authorizer.open
    assert (await authorizer.authenticate(DIFF, None)).key_id == ""
