"""What all commands share: help, start-up time, exit codes, one-line errors, output."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.http import Api, fresh
from support.ports import free_port
from support.server import TOPICS, ServerProcess
from support.waiting import poll
from topics_cli import _ELSEWHERE, COMMANDS, GROUPS, overview, parser

from .runner import Cli, environment

DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with keys, and room for one topic."""
    settings = {"TOPICS_API_KEYS": "full,reader:read,orders:rw:orders", "TOPICS_MAX_TOPICS": "1"}
    with ServerProcess(tmp_path_factory.mktemp("locked"), env=settings) as running:
        yield running


# Help and speed


def test_help_lists_every_command_under_a_heading() -> None:
    text = Cli()("--help").out
    assert text == Cli()("help").out == overview()
    assert max(map(len, text.splitlines())) <= 80
    for heading, names in GROUPS.items():
        block = text.partition(f"\n{heading}:\n")[2].partition("\n\n")[0]
        assert [line.split()[0] for line in block.splitlines()] == list(names)
        assert all(COMMANDS[name] in block for name in names)
    assert [name for names in GROUPS.values() for name in names] == list(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_that_is_wide_enough_for_a_terminal(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    found = parser(name)
    assert found.prog == f"topics {name}"
    text = found.format_help()
    assert text.startswith(f"usage: topics {name}")
    assert max(map(len, text.splitlines())) <= 80
    assert callable(found.get_default("run")) or "ACTION" in text


def test_commands_that_call_a_server_take_the_same_arguments_before_and_behind(topics: Cli) -> None:
    own = (
        "serve",
        "lakehouse",
        "completion",
        "profile",
        "version",
        "backup archive",
        "backup list",
        "backup verify",
        "backup restore",
        "backup prune",
        "verify",
        "repair",
        "split",
        "cluster init",
        "cluster check",
        "cluster finalize",
        "cluster restore",
        "cluster backup",
        "cluster moments",
    )
    for name in COMMANDS:
        nested = [each for each in parser(name)._actions if each.dest == "action"]
        for each in nested[0].choices.values() if nested else [parser(name)]:
            calls = not each.prog.removeprefix("topics ").startswith(own)
            text = each.format_help()
            assert ("--server URL" in text) == (calls or name == "lakehouse"), text  # its key is in its settings
            assert ("--key-env " in text) == (calls or each.prog == "topics profile add"), text
    assert topics.url is not None
    absent = Cli("127.0.0.1:1")
    assert absent("--server", topics.url, "--json", "ls").rows == absent("ls", f"--server={topics.url}", "--json").rows
    assert absent("--json", "--server", topics.url, "queue", "stats", "--no-headers").out == ""
    assert "unrecognized arguments: --json" in topics("--json", "serve", code=2).err


def test_version() -> None:
    assert re.fullmatch(r"topics \d+\.\d+\.\d+\S*\n", text := Cli()("version").out)
    assert Cli()("--version").out == text
    for arguments in (["version", "--json"], ["--version", "--json"], ["--json", "version"]):
        assert Cli()(*arguments).row == {"version": text.split()[1]}


def test_help_starts_fast_and_without_grpc() -> None:
    def used() -> float:
        times = os.times()
        return times.children_user + times.children_system

    def timed() -> float:
        before = used()
        Cli()("--help")
        return used() - before

    assert min(timed() for _ in range(5)) < 0.3  # seconds of CPU, however busy the machine is
    check = (
        "import sys; from topics_cli import main; code = main({arguments!r});"
        "loaded = sorted({{'grpc', 'google', 'pyarrow', 'rich'}} & set(sys.modules));"
        "sys.exit(f'loads {{loaded}}' if loaded or code else 0)"
    )
    for arguments in (["--help"], ["ls", "--help"], ["queue", "claim", "--help"], ["version"], ["completion", "bash"]):
        done = subprocess.run(
            [sys.executable, "-c", check.format(arguments=arguments)], capture_output=True, timeout=30, check=False
        )
        assert done.returncode == 0, (arguments, done.stderr)


def test_words_of_other_tools_lead_to_commands() -> None:
    assert set(_ELSEWHERE.values()) <= set(COMMANDS)
    assert not set(_ELSEWHERE) & set(COMMANDS)


# Usage


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["lss"], "did you mean ls?"),
        (["describe", "t"], "did you mean info?"),
        (["XADD"], "did you mean append?"),
        (["--nonsense"], "unknown command '--nonsense'"),
        (["ls", "--nonsense"], "topics ls: unrecognized arguments: --nonsense; usage: topics ls --help"),
        (["ls", "--jso"], "topics ls: unrecognized arguments: --jso; did you mean --json?"),
        (["append", "t", "1", "--tg=x", "2"], "topics append: unrecognized arguments: --tg=x 2; did you mean --tag?"),
        (
            ["queue", "ack", "q", "1", "-x"],
            "topics queue ack: unrecognized arguments: -x; usage: topics queue ack --help",
        ),
        (["version", "1"], "topics version: unrecognized arguments: 1"),
        (["wait-ready", "--url", "x:1"], "--url is the HTTP port, as http://HOST:PORT, not 'x:1'"),
        (["info"], "required: TOPIC"),
        (["queue"], "required: ACTION"),
        (["queue", "nonsense", "q"], "invalid choice: 'nonsense'"),
        (["ls", "--timeout", "0"], "'0' is not a time above 0"),
        (["ls", "--timeout", "nan"], "'nan' is not a time above 0"),
        (
            ["ls", "--server", "http://x"],
            "this is the URL of an HTTP port: give the gRPC port, topics://HOST:4001",
        ),
        (["create", "t", "--ttl", "7 days"], "'7 days' is not a time such as"),
        (["create", "t", "--cap-bytes", "1.5"], "'1.5' is not a size such as"),
        (["create", "t", "--cap-records", "-1"], "not a number of at least 0"),
        (["create", "t", "--durability", "best"], "'best' is not one of ephemeral, memory, disk, fsync"),
        (["create", b"\xff".decode(errors="surrogateescape")], "an argument is not UTF-8 text"),
    ],
)
def test_wrong_usage_is_told_in_one_line(topics: Cli, arguments: list[str], message: str) -> None:
    error = topics(*arguments, code=2).err
    assert message in error
    assert "usage: topics" in error


def test_no_command_at_all_shows_the_help_and_is_wrong_usage() -> None:
    ran = Cli()(code=2)
    assert (ran.out, ran.err) == ("", overview())


# Waiting for a server


def test_wait_ready_asks_either_port(server: ServerProcess, topics: Cli) -> None:
    assert topics("wait-ready").out == ""
    for arguments, told in (
        (["--server", server.grpc_target], f"topics://{server.grpc_target}"),
        (["--url", server.base], server.base),
    ):
        row = Cli()("wait-ready", *arguments, "--json").row
        assert (row["ready"], row["server"]) == (True, told)
        assert 0 <= row["seconds"] < 30


def test_wait_ready_says_what_it_has_waited_for() -> None:
    port = free_port()
    for flag, place in (("--server", f"topics://127.0.0.1:{port}"), ("--url", f"http://127.0.0.1:{port}")):
        ran = Cli()("wait-ready", flag, place, "--timeout", "2", "--json", code=3)
        assert (ran.row["ready"], ran.row["server"]) == (False, place)
        assert ran.err.startswith("topics wait-ready: not ready after 2 s: ")
        assert f"{place}: " in ran.err
        assert "Connection refused" in ran.err


def test_wait_ready_does_not_wait_for_another_key(tmp_path: Path) -> None:
    settings = {"TOPICS_API_KEYS": "probe:read", "TOPICS_PROBE_AUTH": "1"}
    with ServerProcess(tmp_path, env=settings) as server:
        for place in (["--server", server.grpc_target], ["--url", server.base]):
            assert "unauthorized" in Cli()("wait-ready", *place, code=4).err
            assert Cli()("wait-ready", *place, "--key-env", "K", env={"K": "probe"}).err == ""


# Faults


def test_a_server_that_is_absent_is_named_with_what_to_do() -> None:
    port = free_port()
    error = Cli(f"127.0.0.1:{port}")("ls", code=3).err
    assert error.startswith(f"topics ls: unavailable: topics://127.0.0.1:{port}: ")
    assert error.endswith("Connection refused (is the server running? set --server or TOPICS_URL)\n")
    error = Cli("nowhere.invalid")("info", "t", code=3).err
    assert re.fullmatch(
        r"topics info: unavailable: topics://nowhere\.invalid:4001: [\w ]+ \(is the server .*\)\n", error
    )


def test_names_that_are_none_here_are_told_what_is(topics: Cli) -> None:
    assert "(use --partition N to select a partition)" in topics("read", "wide@1", code=5).err
    assert "(patterns are not supported here; topics ls -q PREFIX" in topics("info", "wide*", code=5).err
    topics("append", "starred", "1")
    assert topics("ls", "-q", "starr*").out == topics("ls", "-q", "starr").out == "starred\n"


def test_a_server_that_does_not_answer_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        error = Cli(f"127.0.0.1:{silent.getsockname()[1]}")("ls", "--timeout", 0.5, code=3).err
        assert time.monotonic() - began < 10
    assert "deadline_exceeded" in error
    assert "--timeout" in error


def test_the_wrong_port_and_tls_that_is_not_there_are_told_apart(server: ServerProcess) -> None:
    assert "that is an HTTP port" in Cli(f"127.0.0.1:{server.http_port}")("ls", code=3).err
    assert "there is no TLS at that port" in Cli(f"topics+tls://{server.grpc_target}")("ls", code=3).err
    assert "No such file" in Cli(f"topics+tls://{server.grpc_target}?ca=/no/such/file")("ls", code=1).err


def test_keys(locked: ServerProcess) -> None:
    cli, name = Cli(locked.grpc_target), fresh("orders")
    error = cli("ls", code=4).err
    assert error.startswith("topics ls: unauthorized: ")
    assert "TOPICS_API_KEY" in error
    assert "unauthorized" in cli("ls", env={"TOPICS_API_KEY": "wrong"}, code=4).err
    assert cli("create", name, env={"TOPICS_API_KEY": "full"}).out == f"{name}: created, 1 partition\n"
    assert cli("ls", "-q", "--key-env", "MINE", env={"TOPICS_API_KEY": "wrong", "MINE": "full"}).out == f"{name}\n"
    assert Cli(f"topics://reader@{locked.grpc_target}")("ls", "-q").out == f"{name}\n"
    error = cli("create", name, env={"TOPICS_API_KEY": "reader"}, code=4).err
    assert "forbidden: the API key lacks admin scope (" in error
    assert "outside the prefixes" in cli("info", "secret", env={"TOPICS_API_KEY": "orders"}, code=4).err
    error = cli("create", "another", env={"TOPICS_API_KEY": "full"}, code=3).err
    assert error.startswith("topics create: throttled: ")
    assert error.endswith("(the server's limit max_topics is 1)\n")
    error = cli("ls", env={"TOPICS_API_KEY": "secret\nkey"}, code=2).err
    assert "a key is printable ASCII" in error
    assert "secret" not in error


def test_not_found_and_refused(topics: Cli) -> None:
    error = topics("info", "nope", code=5).err
    assert error.startswith('topics info: topic_not_found: topic "nope" does not exist (topics ls lists')
    assert topics("create", "a b", code=1).err.startswith("topics create: invalid_request: a topic name is ")
    assert topics("groups", "\x1b[31mnobody\n", code=5).err.isprintable() is False  # the end of the line
    assert "\x1b" not in topics("groups", "\x1b[31mnobody\n", code=5).err


# Output


def test_tables_and_json_and_colours(topics: Cli, api: Api) -> None:
    name = api.make("shown")
    plain = topics("ls", name).out
    assert plain.splitlines()[0].split() == ["TOPIC", "TYPE", "PARTITIONS", "RECORDS", "SIZE"]
    assert topics("ls", name, "--no-headers").out == f"{name}  log  1  0  0B\n"
    assert topics("ls", name, "--color", "always").out.startswith("\x1b[1mTOPIC")
    assert topics("ls", name, "--color", "never").out == plain
    assert topics("ls", name, "--json").out.startswith('{"topic":"shown')


def test_output_is_utf8_whatever_the_locale(topics: Cli, api: Api) -> None:
    topic = api.make("utf8")
    api.send("POST", "/v0/groups/gr%C3%BC%C3%9Fe/commit", {"topic": topic, "from_seq": 0})
    latin = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "latin-1"}
    assert "grüße" in [row["group"] for row in topics("groups", "--json", env=latin).rows]
    assert "grüße" in topics("groups", env=latin).out


def test_what_strangers_named_does_nothing_to_a_terminal(topics: Cli, api: Api) -> None:
    topic = api.make("evil")
    path = "/v0/groups/a%1B%5B2J%0Aevil/commit"
    assert api.send("POST", path, {"topic": topic, "from_seq": 0}).status_code == 200
    shown = topics("groups").out
    assert "a\\x1b[2J\\nevil" in shown
    assert "\x1b" not in shown
    assert "a\x1b[2J\nevil" in [row["group"] for row in topics("groups", "--json").rows]


def test_a_pipe_that_is_closed_early_is_silent(topics: Cli, api: Api) -> None:
    api.make("piped")
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as closed:
        for arguments in (["ls"], ["ls", "--json"], ["--help"], ["top", "--once", "--interval", "0.01"]):
            running = topics.start(*arguments, stdout=closed, stderr=subprocess.PIPE)
            assert (running.communicate(timeout=30)[1], running.returncode) == (b"", 141), arguments


def test_output_that_has_no_room_or_no_place(topics: Cli) -> None:
    with open("/dev/full", "wb") as full:
        running = topics.start("version", stdout=full, stderr=subprocess.PIPE)
        error = running.communicate(timeout=30)[1].decode()
    assert (error, running.returncode) == ("topics: can't write the output: No space left on device\n", 1)
    shell = ["sh", "-c", f"'{TOPICS}' ls >&- 2>&-"]
    assert subprocess.run(shell, env=environment(topics.url, {}), timeout=30, check=False).returncode == 0


def test_an_interrupt_ends_with_130(topics: Cli) -> None:
    with topics.start("top", "--json", "--interval", "30", stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        # It is in its own code, past what Python does before, once it has a connection.
        def connected() -> bool:
            return any(file.startswith("socket:") for file in _open_files(running.pid))

        poll(connected, 20, "a connection")
        running.send_signal(signal.SIGINT)
        assert running.communicate(timeout=30) == (b"", b"")
        assert running.returncode == 130


def _open_files(pid: int) -> list[str]:
    found, folder = [], f"/proc/{pid}/fd"
    for name in os.listdir(folder):
        with contextlib.suppress(FileNotFoundError):  # closed since
            found.append(os.readlink(f"{folder}/{name}"))
    return found


def test_json_of_every_listing_is_one_object_a_line(topics: Cli, api: Api) -> None:
    api.make("queues", type="queue")
    for arguments in (["ls"], ["ls", "-l"], ["queue", "stats"], ["router", "ls"], ["groups"]):
        for line in topics(*arguments, "--json").out.splitlines():
            assert isinstance(json.loads(line), dict), arguments


def test_the_page_names_every_command() -> None:
    page = (DOCS / "cli.md").read_text()
    for name in COMMANDS:
        assert f"topics {name}" in page, name
