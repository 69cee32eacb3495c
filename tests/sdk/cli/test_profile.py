"""`topics profile`: servers under names of their own, and what wins over what."""

import argparse
import json
import stat
from pathlib import Path

import pytest

from support.http import fresh
from support.server import ServerProcess
from topics_cli import profiles, server

from .runner import Cli


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The environment of a user without profiles."""
    for name in ("TOPICS_URL", "TOPICS_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return {"XDG_CONFIG_HOME": str(tmp_path)}


def test_a_profile_is_made_used_shown_and_removed(home: dict[str, str], tmp_path: Path) -> None:
    topics = Cli()
    assert topics("profile", "list", env=home).err.startswith("no profiles; create one with topics profile add")
    ran = topics("profile", "add", "prod", "topics+tls://k3y@db:4002?ca=/ca.pem", "--use", env=home)
    assert ran.out == "prod: in use\n"
    topics("profile", "add", "local", "127.0.0.1:9", "--key-env", "LOCAL_KEY", env=home)
    file = tmp_path / "topics" / "profiles.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in file.parent.iterdir()] == ["profiles.json"]
    listed = topics("profile", "list", env=home)
    assert listed.cells == [
        ["USED", "PROFILE", "SERVER", "KEY"],
        ["local", "topics://127.0.0.1:9", "$LOCAL_KEY"],
        ["*", "prod", "topics+tls://db:4002?ca=/ca.pem", "stored"],
    ]
    shown = topics("profile", "show", env=home)
    assert shown.cells == [
        ["server", "topics+tls://db:4002?ca=/ca.pem"],
        ["from", "profile", "prod"],
        ["key", "set,", "and", "not", "shown"],
    ]
    for ran in (listed, shown, topics("profile", "show", "prod", "--json", env=home)):
        assert "k3y" not in ran.out
    assert "already exists; use --replace" in topics("profile", "add", "prod", "db", env=home, code=1).err
    assert "127.0.0.1:9" in topics("ls", "--profile", "local", env=home, code=3).err
    assert "unknown profile 'loca'" in topics("--profile", "loca", "ls", env=home, code=2).err
    assert "mutually exclusive" in topics("ls", "--profile", "local", "--server", "x", env=home, code=2).err
    assert topics("profile", "remove", "prod", env=home).out == "prod: removed\n"
    assert "k3y" not in file.read_text()
    assert topics("profile", "show", "--json", env=home).row["from"] == "default"


def test_a_key_is_read_from_standard_input_and_opens_the_server(home: dict[str, str], tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "server", env={"TOPICS_API_KEYS": "s3cret:rw"}) as running:
        topics = Cli()
        topics("profile", "add", "mine", running.grpc_target, "--ask-key", "--use", stdin="s3cret\n", env=home)
        topic = fresh()
        topics("append", topic, "1", env=home)
        assert topics("read", topic, env=home).out == "1\n"
        assert "unauthorized" in topics("ls", "--server", running.grpc_target, env=home, code=4).err
        assert topics("wait-ready", "--json", env=home).row["server"] == f"topics://{running.grpc_target}"
    assert "a key is one line" in topics("profile", "add", "no", "x", "--ask-key", env=home, code=1).err


def _endpoint(**given: str | None) -> server.Endpoint:
    return server.endpoint(
        argparse.Namespace(**{"server": None, "profile": None, "key_env": "TOPICS_API_KEY", **given})
    )


def test_flags_win_over_the_environment_and_that_over_the_profile_in_use(
    home: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _endpoint() == (None, None, "default")
    one, two = profiles.Profile("one:1", "key-one"), profiles.Profile("two:2", key_env="KEY_TWO")
    profiles.save(profiles.Profiles({"one": one, "two": two}, "one"))
    assert _endpoint() == ("one:1", "key-one", "profile one")
    assert _endpoint(server="three:3") == ("three:3", None, "--server"), "the key of a profile is for its own server"
    assert _endpoint(profile="two") == ("two:2", None, "--profile")
    monkeypatch.setenv("KEY_TWO", "key-two")
    assert _endpoint(profile="two").key == "key-two"
    monkeypatch.setenv("TOPICS_API_KEY", "key-env")
    assert _endpoint().key == "key-env"
    assert _endpoint(profile="one").key == "key-one"
    assert _endpoint(profile="one", key_env="KEY_TWO").key == "key-two"
    monkeypatch.setenv("TOPICS_URL", "four:4")
    assert _endpoint() == ("four:4", "key-env", "TOPICS_URL")
    assert _endpoint(profile="one") == ("one:1", "key-one", "--profile")


def test_a_file_that_is_damaged_or_open_to_others_is_told(
    home: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profiles.save(profiles.Profiles({"a": profiles.Profile("x", "key")}))
    file = tmp_path / "topics" / "profiles.json"
    file.chmod(0o644)
    profiles.load()
    assert f"chmod 600 {file}" in capsys.readouterr().err
    for text in ("{", "[]", json.dumps({"profiles": {"a": {"server": 1}}}), json.dumps({"profiles": {"a": {}}})):
        file.write_text(text)
        with pytest.raises(ValueError, match="is damaged: fix or remove it"):
            profiles.load()
    assert "is damaged" in Cli()("ls", env=home, code=1).err


def test_what_makes_no_sense(home: dict[str, str]) -> None:
    for arguments, text in (
        (
            ("add", "x", "http://k3y@h"),
            "URL: this is the URL of an HTTP port: give the gRPC port, topics://HOST:4001",
        ),
        (("add", "", "h"), "not a name for a profile"),
        (("use",), "either NAME or --none"),
        (("use", "nope"), "unknown profile 'nope'"),
    ):
        assert text in Cli()("profile", *arguments, env=home, code=2).err
