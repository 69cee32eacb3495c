"""`topics append` while its server dies, its input hangs, and its user loses patience."""

import json
import os
import pty
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.http import Api, fresh
from support.server import ServerProcess
from support.waiting import poll

from .runner import Cli

_SECONDS = 60.0


@pytest.fixture
def restarting(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server that comes back at the same port."""
    with ServerProcess(tmp_path / "server", same_ports=True) as server:
        yield server


def _count(server: ServerProcess, topic: str) -> int:
    with Api(server.base) as api:
        found = api.get(topic, touch="false")
        return int(found.json()["count"]) if found.status_code == 200 else 0


def test_a_server_that_is_killed_and_comes_back_has_every_line_once(restarting: ServerProcess) -> None:
    topics = Cli(restarting.grpc_target)
    lines = [b'{"n":%d}' % number for number in range(60_000)]
    pipe = subprocess.PIPE
    with topics.start("append", "t", "--json", "--batch", 100, stdin=pipe, stdout=pipe, stderr=pipe) as command:
        assert command.stdin is not None
        for part in range(3):
            before = part * 20_000
            for start in range(before, before + 20_000, 1000):
                command.stdin.write(b"\n".join(lines[start : start + 1000]) + b"\n")
                command.stdin.flush()
                if start == before + 10_000 and part < 2:
                    poll(lambda: _count(restarting, "t") > before, _SECONDS)  # noqa: B023  used here only
                    restarting.kill()  # with a write under way or right before one
            if part < 2:
                restarting.start()
        out, err = command.communicate(timeout=_SECONDS)
    assert command.returncode == 0, err
    row = json.loads(out)
    assert (row["count"], row["last_seq"]) == (60_000, 60_000)
    assert topics("read", "t").out.encode() == b"\n".join(lines) + b"\n"


def test_a_server_that_stays_away_is_given_up_with_a_place_to_go_on(restarting: ServerProcess) -> None:
    topics = Cli(restarting.grpc_target)
    with Api(restarting.base) as api:
        api.put("t", idempotency_window_ms=1500).raise_for_status()
    pipe = subprocess.PIPE
    with topics.start("append", "t", stdin=pipe, stdout=pipe, stderr=pipe) as command:
        assert command.stdin is not None
        command.stdin.write(b"1\n2\n")
        command.stdin.flush()
        poll(lambda: _count(restarting, "t") == 2, _SECONDS)
        restarting.signal(signal.SIGSTOP)  # it takes the write, and answers too late
        command.stdin.write(b"3\n4\n")
        command.stdin.flush()
        command.stdin.close()
        with pytest.raises(subprocess.TimeoutExpired):
            command.wait(2.5)
        restarting.kill()
        restarting.start()
        command.stdin = None
        out, err = command.communicate(timeout=_SECONDS)
    # A repeat after the window might be taken for another write: it is not made.
    assert command.returncode == 1, (out, err)
    assert b"without a response: they may or may not be stored" in err
    assert b"lines 3 to 4" in err
    assert b"2 records before it were appended (seq 1 to 2), resume with --start-line 3" in err
    assert topics("read", "t").out.startswith("1\n2\n")


def test_lines_are_appended_while_more_are_waited_for(topics: Cli, api: Api) -> None:
    topic = api.make()
    pipe = subprocess.PIPE
    with topics.start("append", topic, stdin=pipe, stdout=pipe) as command:
        assert command.stdin is not None
        for number in range(3):
            command.stdin.write(b"%d\n" % number)
            command.stdin.flush()
            expected = "".join(f"{each}\n" for each in range(number + 1))
            poll(lambda: topics("read", topic).out == expected, _SECONDS)  # noqa: B023  used here only
        out, _ = command.communicate(b"3", timeout=_SECONDS)
    assert b"4 records appended" in out


def test_an_interrupt_says_how_far_it_came(topics: Cli, api: Api) -> None:
    topic = api.make()
    pipe = subprocess.PIPE
    with topics.start("append", topic, "--json", stdin=pipe, stdout=pipe, stderr=pipe) as command:
        assert command.stdin is not None
        command.stdin.write(b"1\n\n2\n3")
        command.stdin.flush()
        poll(lambda: topics("read", topic).out == "1\n2\n", _SECONDS)
        command.send_signal(signal.SIGINT)
        assert command.wait(_SECONDS) == 130
        assert command.stdout is not None
        assert command.stderr is not None
        row, err = json.loads(command.stdout.read()), command.stderr.read()
    assert err == (
        b"topics append: interrupted; 2 records before it were appended (seq 1 to 2), resume with --start-line 4\n"
    )
    assert (row["count"], row["next_line"]) == (2, 4)


def test_progress_is_for_terminals(topics: Cli) -> None:
    topic = fresh()
    ours, theirs = pty.openpty()
    pipe = subprocess.PIPE
    with topics.start("append", topic, stdin=pipe, stdout=pipe, stderr=theirs, env={"TERM": "xterm"}) as command:
        os.close(theirs)
        assert command.stdin is not None
        shown = b""

        def drawn() -> bool:
            nonlocal shown
            assert command.stdin is not None
            command.stdin.write(b"12345678\n")
            command.stdin.flush()
            if command.poll() is None and topics("ls").code == 0:  # takes its time
                os.set_blocking(ours, False)
                try:
                    shown += os.read(ours, 1 << 16)
                except BlockingIOError:
                    return False
            return b"append" in shown

        poll(drawn, _SECONDS)
        out, _ = command.communicate(timeout=_SECONDS)
    os.close(ours)
    assert command.returncode == 0
    assert b"\x1b" not in out
    assert b"records appended" in out
