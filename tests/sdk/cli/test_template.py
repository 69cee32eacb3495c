"""Format strings, times to begin and end at, and reading as a consumer group."""

import argparse
import signal
import subprocess
import time
from pathlib import Path

import pytest

from support.http import Api, fresh
from support.waiting import poll
from topics_cli.read import GroupPosition
from topics_cli.template import FIELDS, Template
from topics_client.errors import NotFoundError, UnavailableError
from topics_client.models import Record

from .runner import Cli

_RECORD = Record("orders", 2, 17, 1700000000123, b'{"a":\n1}', False, "t\x1b", None, b'{"m":1}')
_BYTES = Record("orders", 0, 18, 1700000000123, b"\x00\xff", True, None, "n", b"")


@pytest.mark.parametrize(
    ("text", "record", "printed"),
    [
        ("{topic}@{partition} {seq}\\n", _RECORD, b"orders@2 17\n"),
        ("{time} {ts}|{tag}|{node}|{meta}", _RECORD, b'2023-11-14T22:13:20.123Z 1700000000123|t\x1b||{"m":1}'),
        ("{value}\\t{size}\\0", _RECORD, b'{"a": 1}\t8\0'),
        ("{raw}{{}}\\\\", _BYTES, b"\x00\xff{}\\"),
        ("{value}{node:>3}{seq:04}\\xff\\x41", _BYTES, b'{"$base64":"AP8="}  n0018\xffA'),
        ("é☃ {tag:-<4}", _BYTES, "é☃ ----".encode()),
    ],
)
def test_fields_and_escapes(text: str, record: Record, printed: bytes) -> None:
    assert Template(text)(record) == printed


def test_what_moves_a_terminals_cursor_is_cleaned_for_one() -> None:
    assert Template("{tag}\\n")(_RECORD, clean=True) == b"t\\x1b\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{sqe}", "unknown field {sqe}; did you mean {seq}? known: {topic} {partition} {seq} "),
        ("{offset}", "did you mean {seq}?"),
        ("{}", "unknown field {}; known:"),
        ("{seq", "doubled"),
        ("{seq} }", "doubled"),
        ("{seq:zz}", "{seq:zz}: 'zz' is not a width for {seq}"),
        ("{raw:4}", "is not a width for {raw}"),
        ("{seq!r}", "no conversion"),
        ("{seq}\\q", "unknown escape \\q; known: \\n"),
        ("{seq}\\", "unknown escape \\;"),
    ],
)
def test_what_is_wrong_with_a_format_is_told(text: str, told: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011  its text is what matters
        Template(text)
    assert told in str(error.value)


def test_the_help_names_every_field(topics: Cli) -> None:
    text = topics("read", "--help").out
    for name in FIELDS:
        assert f"{{{name}}}" in text, name


def test_read_and_tail_print_in_a_format(topics: Cli, api: Api) -> None:
    topic = api.make()
    topics("append", topic, "1", "2", "--tag", "a")
    assert topics("read", topic, "-f", "{seq}:{tag}={value};").out == "1:a=1;2:a=2;"
    assert topics("tail", topic, "--format", "{topic} {raw}\\n", "-n", 1).out == f"{topic} 2\n"
    ran = topics("read", topic, "-f", "{sqe}", code=2)
    assert "argument -f/--format: unknown field {sqe}; did you mean {seq}?" in ran.err
    assert "is neither value, json, raw, record nor a format" in topics("read", topic, "-f", "vlaue", code=2).err


def test_times_to_begin_and_to_end_at(topics: Cli, api: Api, tmp_path: Path) -> None:
    topic, other = api.make(), api.make()
    api.append(topic, 1)
    api.append(other, "old")
    poll(lambda: time.time() * 1000 > 2 + api.read_all(topic)[0]["$ts"], 20)
    api.append(topic, 2, 3)
    at = api.read_all(topic)[1]["$ts"]
    assert topics("read", topic, "--since", at).out == "2\n3\n"
    assert topics("read", topic, "--until", at).out == "1\n"
    assert topics("read", topic, "--since", "1h", "--to-time", at, "--to-seq", 5).out == "1\n"
    assert topics("tail", topic, other, "--since", at, "--format", "{value} ").out == "2 3 "
    out = tmp_path / "out"
    with out.open("wb") as file:
        following = topics.start("tail", "-f", topic, other, "--since", at, "--format", "{value} ", stdout=file)
    try:
        poll(lambda: out.read_text() == "2 3 ", 30)
        api.append(other, "new")
        poll(lambda: out.read_text() == '2 3 "new" ', 30)  # and not the old one
    finally:
        following.send_signal(signal.SIGINT)
        assert following.wait(30) == 130


def test_a_group_goes_on_where_it_has_come(topics: Cli, api: Api) -> None:
    topic, group = api.make(), fresh("readers")
    api.append(topic, *range(1, 7))
    assert topics("read", topic, "--group", group, "--from-seq", 1, "--limit", 2).out == "2\n3\n"
    (position,) = topics("groups", group, "--json").rows
    assert (position["topic"], position["from_seq"], position["lag"]) == (topic, 3, 3)
    ran = topics("read", topic, "--group", group, "--from-start")
    assert ran.out == "4\n5\n6\n"
    assert ran.err == f"topics read: {group} continues after seq 3; to move it: topics groups {group} --reset TO\n"
    assert topics("read", topic, "--group", group).out == ""
    assert topics("groups", group, "--reset", "1h", "--json").row["from_seq"] == 0
    assert topics("read", topic, "--group", group, "--tag", "none").out == ""
    assert topics("groups", group, "--json").row["lag"] == 0, "what it passed over is dealt with"
    assert "or a time such as" in topics("groups", group, "--reset", "soon", code=2).err


def test_a_group_that_follows_commits_what_was_printed(topics: Cli, api: Api, tmp_path: Path) -> None:
    topic, group, out = api.make(), fresh("readers"), tmp_path / "out"
    api.append(topic, 1)
    with out.open("wb") as file:
        following = topics.start("read", topic, "--group", group, "--follow", stdout=file, stderr=subprocess.PIPE)
    try:
        poll(lambda: out.read_text() == "1\n", 30)
        api.append(topic, 2)
        poll(lambda: out.read_text() == "1\n2\n", 30)
    finally:
        following.send_signal(signal.SIGINT)
        assert following.communicate(timeout=30)[1] == b""
    assert following.returncode == 130
    assert topics("read", topic, "--group", group).out == ""


def test_what_can_not_be_committed_is_told_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    class Gone:
        calls = 0

        def fetch_positions(self, group: str, topic: str) -> list[object]:
            raise NotFoundError("group_not_found", "none")

        def commit_positions(self, group: str, positions: dict[str, int]) -> None:
            self.calls += 1
            raise UnavailableError("unavailable", "the server is gone")

    client = Gone()
    arguments = argparse.Namespace(topic="t", group="g", partition=None, from_seq=None, from_time=None, last=None)
    place = GroupPosition(client, arguments)  # type: ignore[arg-type]
    place.printed(7)
    place.printed(9)
    assert capsys.readouterr().err == "", "it may come back"
    with pytest.raises(UnavailableError):
        place.leave()
    place.abandon()
    assert "printed up to seq 9 but could not commit, g will see some records again" in capsys.readouterr().err
    assert client.calls == 4


def test_a_group_does_not_commit_what_nobody_could_read(topics: Cli, api: Api) -> None:
    topic, group = api.make(), fresh("readers")
    api.append(topic, 1)
    with open("/dev/full", "wb") as full:
        running = topics.start("read", topic, "--group", group, stdout=full, stderr=subprocess.PIPE)
        assert b"No space left" in running.communicate(timeout=30)[1]
    assert running.returncode == 1
    assert topics("read", topic, "--group", group).out == "1\n"
