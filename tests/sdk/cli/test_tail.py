"""`topics tail`: the newest records of many topics, and new ones, whatever happens."""

import json
import os
import pty
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.http import Api, fresh
from support.server import ServerProcess
from support.waiting import poll

from .runner import Cli
from .terminal import remainder

_SECONDS = 60.0


class Following:
    """A command that runs, and what it has printed so far."""

    def __init__(self, command: "subprocess.Popen[bytes]", out: Path, err: Path) -> None:
        self.command = command
        self._out = out
        self._err = err

    @property
    def out(self) -> list[str]:
        return self._out.read_text().splitlines()

    @property
    def err(self) -> list[str]:
        return self._err.read_text().splitlines()

    def sees(self, *lines: str) -> None:
        """Wait until the last lines of stdout are these."""
        poll(lambda: self.out[-len(lines) :] == list(lines), _SECONDS, f"{lines}, not {self.out} {self.err}")

    def hears(self, text: str) -> None:
        """Wait until stderr has a line with this text."""
        poll(lambda: any(text in line for line in self.err), _SECONDS, f"{text}, not {self.err}")


@contextmanager
def following(topics: Cli, tmp_path: Path, *arguments: object) -> Iterator[Following]:
    """`topics tail ARGUMENTS`, ended by Ctrl-C unless it has ended."""
    out, err = tmp_path / "out", tmp_path / "err"
    with out.open("wb") as stdout, err.open("wb") as stderr:
        command = topics.start("tail", *arguments, stdout=stdout, stderr=stderr)
    try:
        yield Following(command, out, err)
        if command.poll() is None:
            command.send_signal(signal.SIGINT)
            assert command.wait(_SECONDS) == 130
            assert "Traceback" not in err.read_text()
    finally:
        command.kill()
        command.wait(_SECONDS)


def test_an_interrupt_ends_it_wherever_it_comes(topics: Cli, tmp_path: Path) -> None:
    """Also while gRPC begins the call of the watch: without more than this, one in ten of these hung."""
    name = fresh()
    topics("append", name, "1")
    for number in range(25):
        out = tmp_path / str(number)
        with out.open("wb") as file, topics.start("tail", "-f", name, stdout=file, stderr=file) as command:
            try:
                poll(lambda out=out: bool(out.read_bytes()), 20)
                command.send_signal(signal.SIGINT)
                assert command.wait(20) == 130
            finally:
                command.kill()


def test_other_partitions_than_the_first_are_told_of(topics: Cli) -> None:
    wide = fresh()
    topics("create", wide, "--partitions", 2)
    topics("append", wide, "0")
    topics("append", wide, "1", "--partition", 1)
    note = f"topics tail: only partition 0 of {wide} (2); use NAME@N for another\n"
    for name in (wide, f"{wide}*"):
        ran = topics("tail", name, "--format", "value")
        assert (ran.out, ran.err) == ("0\n", note)
    ran = topics("tail", f"{wide}@1", "--format", "value")
    assert (ran.out, ran.err) == ("1\n", "")


def test_a_prefix_that_nothing_has_yet_is_told(topics: Cli) -> None:
    ran = topics("tail", "nobody:*")
    assert (ran.out, ran.err) == ("", "topics tail: no topics match yet: nobody:*\n")


def test_the_newest_records_of_one(topics: Cli, api: Api) -> None:
    topic = api.make()
    topics("append", topic, *range(1, 21), "--tag", "a\tb")
    lines = topics("tail", topic).out.splitlines()
    assert len(lines) == 10
    assert lines[-1].split(" ", 1)[1] == "20 [a\\tb] 20"
    assert lines[-1].startswith("20")
    assert topics("tail", topic, "-n", 2, "--format", "value").out == "19\n20\n"
    assert topics("tail", topic, "--lines", 0).out == ""
    (row,) = topics("tail", topic, "-n", 1, "--json").rows
    assert (row["topic"], row["$seq"], row["data"], "$partition" in row) == (topic, 20, 20, False)
    assert topics("tail", topic, "--tag", "nope").out == ""


def test_several_are_printed_in_order_of_time(topics: Cli, api: Api) -> None:
    stem = fresh("several")
    names = [f"{stem}-{letter}" for letter in "abc"]
    for number in range(4):
        for name in names:
            topics("append", name, number)
    printed = [line.split()[1:] for line in topics("tail", f"{stem}*", "-n", 2).out.splitlines()]
    expected = [[name, str(number + 1), str(number)] for number in (2, 3) for name in names]
    assert printed == expected
    again = [line.split()[1:] for line in topics("tail", *names, names[0], "-n", 2).out.splitlines()]
    assert again == expected
    topics("create", names[0], "--partitions", 2)
    topics("append", names[0], "--partition", 1, "7")
    assert topics("tail", f"{names[0]}@1", "-n", 1, names[1]).out.splitlines()[-1].split()[1:] == [
        f"{names[0]}@1",
        "1",
        "7",
    ]
    assert [row["$partition"] for row in topics("tail", f"{names[0]}@1", "--json").rows] == [1]


def test_it_follows_what_comes_also_to_topics_that_are_new(topics: Cli, api: Api, tmp_path: Path) -> None:
    stem = fresh("follow")
    topics("append", f"{stem}-a", "1", "2")
    with following(topics, tmp_path, "-f", f"{stem}*", "-n", 1, "--json") as tail:
        poll(lambda: len(tail.out) == 1, _SECONDS)
        topics("append", f"{stem}-a", "3")
        poll(lambda: len(tail.out) == 2, _SECONDS)
        topics("append", f"{stem}-b", "4", "5")
        poll(lambda: len(tail.out) == 4, _SECONDS)
        rows = [json.loads(line) for line in tail.out]
        assert [(row["topic"][-1], row["data"]) for row in rows] == [("a", 2), ("a", 3), ("b", 4), ("b", 5)]
        assert tail.err == []


def test_it_survives_restarts_of_the_server(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "server", same_ports=True) as server:
        topics = Cli(server.grpc_target)
        topics("append", "t", "1")
        with following(topics, tmp_path, "-f", "t", "--format", "value") as tail:
            tail.sees("1")
            topics("append", "t", "2")
            tail.sees("1", "2")
            server.kill()
            tail.hears("the server is unavailable; waiting for it")
            server.start()
            topics("append", "t", "3")
            tail.sees("1", "2", "3")
            tail.hears("reconnected to the server")
            server.stop()
            server.start()
            topics("append", "t", "4")
            tail.sees("1", "2", "3", "4")
            assert len(tail.err) == 4, tail.err


def test_what_retention_takes_from_a_follower_is_told(topics: Cli, api: Api, tmp_path: Path) -> None:
    topic, other = api.make(cap_records=2), api.make()
    api.append(topic, *range(1, 6))
    with following(topics, tmp_path, "-f", topic, other, "--color", "always", "--format", "value", "-n", 1) as tail:
        tail.sees("5")
        api.append(topic, 6)
        tail.sees("6")  # so that it follows
        tail.command.send_signal(signal.SIGSTOP)
        large = "x" * 300_000
        for _ in range(100):  # more than what lies between the server and a client that does not read
            api.append(topic, large)
        tail.command.send_signal(signal.SIGCONT)
        poll(lambda: any(f"{topic}: seq " in line and "are gone (cap)" in line for line in tail.err), _SECONDS)
        api.append(topic, "last")
        tail.sees('"last"')
        assert all(line.startswith("\x1b[31m") for line in tail.err)
        api.drop(other)
        tail.hears(f"{other} was deleted")
        assert 3 < len(tail.out) < 103


def test_what_is_gone_before_it_begins_is_no_news(topics: Cli, api: Api) -> None:
    topic = api.make(cap_records=2)
    api.append(topic, *range(1, 6))
    ran = topics("tail", topic, "--format", "value")
    assert (ran.out, ran.err) == ("4\n5\n", "")


def test_without_an_interrupt_it_does_not_end_and_a_deleted_topic_ends_it(
    topics: Cli, api: Api, tmp_path: Path
) -> None:
    topic = api.make()
    with following(topics, tmp_path, "-f", topic) as tail:
        for number in (1, 2):  # the second comes by the watch
            api.append(topic, number)
            poll(lambda: len(tail.out) == number, _SECONDS)  # noqa: B023  used here only
        api.drop(topic)
        tail.hears(f"{topic} was deleted")
        assert tail.command.wait(_SECONDS) == 0


def test_colours_are_for_terminals(topics: Cli, api: Api) -> None:
    topic = api.make()
    topics("append", topic, '"x"', "--tag", "t")
    ours, theirs = pty.openpty()
    with topics.start("tail", topic, stdout=theirs, env={"TERM": "xterm"}) as command:
        os.close(theirs)
        assert command.wait(_SECONDS) == 0
    shown = remainder(ours)
    os.close(ours)
    assert b"\x1b[1m1\x1b[0m" in shown
    assert b"\x1b" not in topics("tail", topic).out.encode()


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("nope",), 5, "topic_not_found"),
        (("-f", "nope"), 5, "topic_not_found"),
        (("-f", "nope", "-n", 0), 5, "topic_not_found"),
        (("a", "-n", 100_000), 2, "topics read --last"),
        (("a", "--json", "--format", "value"), 2, "mutually exclusive"),
        ((), 2, "TOPIC"),
    ],
)
def test_what_makes_no_sense(topics: Cli, arguments: tuple[object, ...], code: int, text: str) -> None:
    assert text in topics("tail", *arguments, code=code).err


def test_without_a_server(tmp_path: Path) -> None:
    assert "is the server running?" in Cli("127.0.0.1:1")("tail", "-f", "t", code=3).err
