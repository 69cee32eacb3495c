"""Settings of users and tokens: what is refused before anything is touched, and what never shows."""

import json
import pickle
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.server import PRELOADED
from support.tokens import SECRET, public_pem, rsa_key
from topics_server import users as module
from topics_server.secret_files import SecretsError
from topics_server.settings import SettingsError, load
from topics_server.users import from_file, from_text
from topics_service.api.access.auth import Role
from topics_service.api.access.verifiers import Verifier, matches


@pytest.fixture
def cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Verifiers that are the passwords."""
    monkeypatch.setattr(module, "verifier", lambda secret: Verifier(secret.decode(errors="replace"), "", ""))
    monkeypatch.setattr(module, "matches", lambda secret, kept: secret.decode(errors="replace") == kept.scrypt)


@pytest.mark.usefixtures("cheap")
def test_entries() -> None:
    users = from_text(" alice:s3cret:user ,bob: p w :DBA:a.|tenant42:, carol:ü:service:x,\tdave:\udcff:system")
    assert users is not None
    assert [(user.name, user.verifier.scrypt, user.role, user.prefixes) for user in users] == [
        ("alice", "s3cret", Role.USER, None),
        ("bob", "p w", Role.DBA, ("a.", "tenant42:")),
        ("carol", "ü", Role.SERVICE, ("x",)),
        ("dave", "�", Role.SYSTEM, None),
    ]
    assert from_text(" , ") is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("s3cret", "entry 1 is not NAME:PASSWORD:ROLE"),
        ("alice:s3cret", "entry 1 is not NAME:PASSWORD:ROLE"),
        ("a:b:user,alice:s3cret:emperor", "entry 2 has a role that is none of user, service, dba, system"),
        ("alice:s3cret:", "entry 1 has a role"),
        ("alice:s3cret:s3cret:user", "entry 1 has a role"),
        ("alice::user", "entry 1 has no password"),
        ("alice: :user", "entry 1 has no password"),
        (f"alice:{'x' * 1025}:user", "entry 1 has no password"),
        (":s3cret:user", "the name of a user is empty"),
        ("a\x07:s3cret:user", "does not print"),
        ("alice:s3cret:user:", "prefixes without any prefix"),
        ("alice:s3cret:user:|", "prefixes without any prefix"),
        ("alice:s3cret:user,bob:x:user,alice:s3cret:dba", "the name of user 3 is there twice"),
    ],
)
def test_entries_that_are_refused(text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=says) as error:
        load({"TOPICS_SQL_USERS": text}, {})
    assert "s3cret" not in str(error.value)
    file = tmp_path / "users"
    file.write_text("# users\n\n" + text.replace(",", "\n"))
    with pytest.raises(SettingsError, match=r"TOPICS_SQL_USERS_FILE \S+(, line \d)?: ") as error:
        load({"TOPICS_SQL_USERS_FILE": str(file)}, {})
    assert "s3cret" not in str(error.value)


@given(st.text(max_size=60))
@settings(max_examples=200)
def test_any_text_is_users_or_refused(text: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "verifier", lambda secret: Verifier("", "", ""))
        try:
            users = from_text(text)
        except SecretsError:
            return
    assert users is None or all(user.name and user.prefixes != () for user in users)


def test_too_many_users() -> None:
    with pytest.raises(SettingsError, match="more than 1000 users"):
        load({"TOPICS_SQL_USERS": ",".join(f"u{number}:x:user" for number in range(1001))}, {})


def test_users_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "users"
    file.write_bytes(b"\xef\xbb\xbf# people\r\n alice:s3cret:user\r\n\nbob:s3cret:dba:a. , carol:\xff:service\n")
    settings = load({"TOPICS_SQL_USERS_FILE": str(file), "TOPICS_HOST": "0.0.0.0"}, {})
    assert settings.sql_users is not None
    alice, bob, carol = settings.sql_users
    assert (alice.name, bob.prefixes, carol.role) == ("alice", ("a.",), Role.SERVICE)
    assert matches(b"s3cret", alice.verifier)
    assert matches(b"\xff", carol.verifier)
    assert "s3cret" not in repr(settings)
    assert pickle.loads(pickle.dumps(settings)) == settings
    with pytest.raises(SettingsError, match="both set"):
        load({"TOPICS_SQL_USERS_FILE": str(file), "TOPICS_SQL_USERS": "a:b:user"}, {})
    for text in ("", "# nobody\n", " , \n"):
        file.write_text(text)
        with pytest.raises(SettingsError, match="there is no user in it"):
            load({"TOPICS_SQL_USERS_FILE": str(file)}, {})
    with pytest.raises(SettingsError, match="No such file"):
        load({"TOPICS_SQL_USERS_FILE": str(tmp_path / "no")}, {})
    with pytest.raises(SettingsError, match=r"regular file|Is a directory"):
        load({"TOPICS_SQL_USERS_FILE": str(tmp_path)}, {})


def test_a_password_that_stays_keeps_its_verifier(tmp_path: Path) -> None:
    """So that calls of its user go on."""
    file = tmp_path / "users"
    file.write_text("alice:one:user\nbob:two:user\n")
    before = from_file(str(file))
    file.write_text("bob:other:user\nalice:one:dba\n")
    bob, alice = from_file(str(file), before)
    assert (alice.verifier, alice.role) == (before[0].verifier, Role.DBA)
    assert matches(b"other", bob.verifier)
    assert not matches(b"two", bob.verifier)


def test_a_public_address_needs_a_credential() -> None:
    for name, value in (("TOPICS_SQL_USERS", "a:b:user"), ("TOPICS_JWT_SECRET", SECRET)):
        assert load({"TOPICS_HOST": "0.0.0.0", name: value}, {}).has_authentication
    assert not load({}, {}).has_authentication
    with pytest.raises(SettingsError, match="no API keys, users or tokens"):
        load({"TOPICS_HOST": "0.0.0.0", "TOPICS_SQL_USERS": " , ", "TOPICS_ALLOW_USER_ROLE_CONSUME": "1"}, {})


def test_the_key_of_tokens(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="TOPICS_JWT_SECRET can't be used: it is shorter than 32 bytes") as error:
        load({"TOPICS_JWT_SECRET": "s3cret" * 5}, {})
    assert "s3cret" not in str(error.value)
    secret = load({"TOPICS_JWT_SECRET": "s3cret" * 6}, {})
    assert secret.jwt_secret is not None
    assert secret.jwt_secret.algorithm == "HS256"
    assert "s3cret" not in repr(secret)
    file = tmp_path / "public.pem"
    file.write_bytes(public_pem(rsa_key()))
    public = load({"TOPICS_JWT_PUBLIC_KEY_FILE": str(file)}, {})
    assert public.jwt_secret is not None
    assert public.jwt_secret.algorithm == "RS256"
    assert pickle.loads(pickle.dumps(public)) == public
    with pytest.raises(SettingsError, match="TOPICS_JWT_SECRET and TOPICS_JWT_PUBLIC_KEY_FILE are both set"):
        load({"TOPICS_JWT_PUBLIC_KEY_FILE": str(file), "TOPICS_JWT_SECRET": SECRET}, {})
    file.write_text("rubbish")
    with pytest.raises(SettingsError, match="it holds no public key"):
        load({"TOPICS_JWT_PUBLIC_KEY_FILE": str(file)}, {})


@pytest.mark.parametrize(("text", "seconds"), [("", 30), ("45", 45), ("45s", 45), ("2m", 120), ("0", 0)])
def test_timeouts_of_consume(text: str, seconds: int) -> None:
    found = load({"TOPICS_DEFAULT_CONSUME_TIMEOUT": text}, {})
    assert (found.default_consume_timeout, found.max_consume_timeout) == (seconds, 300)


@pytest.mark.parametrize("text", ["-1", "250ms", "1.5", "soon", "30 parsecs"])
def test_timeouts_that_are_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="TOPICS_MAX_CONSUME_TIMEOUT="):
        load({"TOPICS_MAX_CONSUME_TIMEOUT": text}, {})


def test_print_config_shows_no_secret(tmp_path: Path) -> None:
    file = tmp_path / "users"
    file.write_text("alice:s3cret:user\n")
    env = {"TOPICS_SQL_USERS_FILE": str(file), "TOPICS_JWT_SECRET": "s3cret" * 6}
    for how in ("text", "json"):
        out = PRELOADED.run(["serve", "--print-config", how], env | {"PATH": "/usr/bin"}, timeout=30).stdout.decode()
        assert "s3cret" not in out
        assert "SCRYPT" not in out
    shown = json.loads(out)
    assert shown["TOPICS_SQL_USERS"] == {"value": "set, and not shown", "from": "TOPICS_SQL_USERS_FILE"}
    assert shown["TOPICS_JWT_SECRET"] == {"value": "set, and not shown", "from": "environment"}
    assert shown["TOPICS_MAX_CONSUME_TIMEOUT"]["value"] == 300
