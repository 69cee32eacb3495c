"""`topics shell`: commands one after the other, at a terminal and from a file."""

import argparse
import signal
import stat
from pathlib import Path

import pytest

from support.http import Api, fresh
from support.server import ServerProcess
from topics_cli import server
from topics_cli.shell import completions

from .runner import Cli
from .terminal import terminal

_SECONDS = 60.0


def test_a_script_goes_on_behind_errors(topics: Cli) -> None:
    topic = fresh()
    script = f"""\
# a comment, and a blank line

topics append {topic} '{{"n": 1}}'
info nope
append {topic}
read {topic} --limit "1
read {topic} | head
serve
nope
read {topic}
exit
ls
"""
    ran = topics("shell", stdin=script)
    out = ran.out.splitlines()
    assert len(out) == 3, out
    assert out[0].startswith(f"1 record appended to {topic}: seq 1")
    assert out[1].startswith(f"0 records appended to {topic}"), "the lines behind it are not its input"
    assert out[2] == '{"n": 1}'
    errors = ran.err.splitlines()
    assert errors[0].startswith('topics info: topic_not_found: topic "nope" does not exist (')
    assert [line.partition(";")[0] for line in errors] == [
        errors[0],
        "topics shell: unclosed quotation mark",
        "topics shell: a line is a single command: pipes and redirections are not supported",
        "topics shell: topics serve is not available in the shell: run it outside",
        "topics: unknown command 'nope'",
    ]
    topics("shell", stdin="info nope\n", code=5)


def test_one_connection_serves_them_all(server_process: ServerProcess) -> None:
    def given(**others: object) -> argparse.Namespace:
        members = {"server": server_process.grpc_target, "profile": None, "key_env": "NONE", "timeout": 10.0}
        return argparse.Namespace(**members | others)

    with server.one_process(None, 30.0):
        with server.client(given()) as first:
            first.ready()
        with server.client(given()) as second:
            assert second is first
        with server.client(given(timeout=5.0)) as third:
            assert third is not first
        with pytest.raises(KeyboardInterrupt), server.client(given()):
            raise KeyboardInterrupt
        with server.client(given()) as fourth:
            assert fourth is not first, "a call may hang on it"


@pytest.fixture
def server_process(server: ServerProcess) -> ServerProcess:
    return server


@pytest.mark.parametrize(
    ("words", "text", "found"),
    [
        ([], "gr", ["groups"]),
        ([], "ex", ["export", "exit"]),
        (["queue"], "cl", ["claim"]),
        (["queue", "claim"], "--le", ["--lease", "--lease-ms"]),
        (["read", "orders"], "--ti", ["--timeout"]),
        (["ls", "--color"], "a", ["auto", "always"]),
        (["profile"], "", ["list", "add", "use", "show", "remove"]),
        (["nope"], "", []),
        (["help"], "impo", ["import"]),
        (["version"], "", []),
    ],
)
def test_what_tab_offers(words: list[str], text: str, found: list[str]) -> None:
    assert completions(words, text) == found


def test_an_interrupt_ends_a_command_wherever_it_comes(topics: Cli, tmp_path: Path) -> None:
    """Also while gRPC begins the call of the watch: without more than this, the shell hung at one of the first few."""
    name = fresh()
    topics("append", name, "1")
    with terminal(topics.url, "shell", env={"TERM": "dumb", "XDG_STATE_HOME": str(tmp_path)}) as shell:
        shell.until("> ")
        for _ in range(20):
            shell.type(f"tail -f {name} --format '({{value}})\\n'\n")
            shell.until(r"\(1\)\r\n")
            shell.running.send_signal(signal.SIGINT)
            shell.until("> ")
        shell.type("version\n")
        shell.until("topics .*> ")
        shell.type("exit\n")
        assert shell.end() == 0


def test_at_a_terminal(topics: Cli, api: Api, tmp_path: Path) -> None:
    """Completion of a topic's name, an interrupt that ends a command only, history."""
    stem = fresh("shell-of-")
    topic = api.make(f"{stem}-topic")
    api.append(topic, 1)
    history = tmp_path / "topics" / "history"
    env = {"TERM": "dumb", "XDG_STATE_HOME": str(tmp_path)}
    with terminal(topics.url, "shell", env=env) as shell:
        shell.until("> ")
        shell.type(f"read {stem}")
        # Tab offers nothing if the server takes more than half a second.
        for _ in range(10):
            shell.type("\t")
            if shell.shows(r"-topic\S* ", 3):
                break
        shell.type("-f '{seq}<{value}>'\n")
        shell.until("1<1>.*> ")
        shell.type(f"tail -f {topic} --format '({{value}})\\n'\n")
        shell.until(r"\(1\)")
        shell.running.send_signal(signal.SIGINT)
        shell.until("> ")
        shell.type("ls --server topics://k3y@127.0.0.1:1\n")
        shell.until("refused.*> ")
        shell.type("version\n")
        shell.until("topics .*> ")
        shell.type("exit\n")
        assert shell.end() == 0
    lines = history.read_text().splitlines()
    assert [line.split()[0] for line in lines if not line.startswith("_")] == ["read", "tail", "version", "exit"]
    assert "k3y" not in history.read_text()
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
