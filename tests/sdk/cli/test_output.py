"""What people see: tables as wide as the terminal, times in words, the settings of a server."""

import os
import pty
import time
from fractions import Fraction
from pathlib import Path

import pytest

import topics_cli as cli
from support.http import Api, fresh
from topics_cli import output
from topics_cli.output import Measure, table_lines
from topics_cli.types import Parser

from .runner import Cli
from .terminal import remainder

_ROWS = [("a" * 60, "é" * 40, 12345678901234, Measure("1.5KiB")), ("b", None, 1, Measure("9B"))]
_NAMES = ("topic", "tag", "records", "size")


def test_a_table_fits_the_terminal_and_numbers_stay_whole() -> None:
    lines = list(table_lines(_NAMES, _ROWS, width=80))
    assert max(map(len, lines)) == 80
    assert len({len(line) for line in lines}) == 1
    assert lines[1].endswith("…  12345678901234  1.5KiB")
    narrow = list(table_lines(_NAMES, _ROWS, width=20))
    assert narrow[1] == f"{'a' * 9}…  {'é' * 9}…  12345678901234  1.5KiB"
    whole = list(table_lines(_NAMES, _ROWS))
    assert "a" * 60 in whole[1]
    assert whole == list(table_lines(_NAMES, _ROWS, width=500))


def test_a_terminal_gets_lines_as_wide_as_it_is_and_a_pipe_all(topics: Cli, api: Api) -> None:
    name = api.make(fresh("long-" + "x" * 90))
    ours, theirs = pty.openpty()
    with topics.start("ls", name, stdout=theirs, env={"TERM": "dumb", "COLUMNS": "70"}) as command:
        os.close(theirs)
        assert command.wait(60) == 0
    lines = remainder(ours).decode().splitlines()
    os.close(ours)
    assert max(map(len, lines)) == 70
    assert "…" in lines[1]
    assert name in topics("ls", name, env={"COLUMNS": "70"}).out


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.5, "just now"), (7.3, "7 s ago"), (330, "5 min ago"), (7300, "2 hours ago"), (200_000, "2 days ago")],
)
def test_times_in_words(seconds: float, words: str) -> None:
    assert output.ago(round((time.time() - seconds) * 1000)) == words
    assert output.ago(None) == "never"


def test_the_settings_of_a_server_are_printed_without_its_keys(tmp_path: Path) -> None:
    env = {"TOPICS_API_KEYS": "s3cret:rw", "TOPICS_GRPC_PORT": "4711"}
    ran = Cli()("serve", "--port", 4712, "--data-dir", tmp_path / "no", "--print-config", env=env)
    rows = {row[0]: row[1:] for row in ran.cells}
    assert rows["SETTING"] == ["VALUE", "FROM"]
    assert rows["TOPICS_PORT"] == ["4712", "--port"]
    assert rows["TOPICS_GRPC_PORT"] == ["4711", "environment"]
    assert rows["TOPICS_HOST"] == ["127.0.0.1", "default"]
    assert rows["TOPICS_API_KEYS"] == ["set,", "and", "not", "shown", "environment"]
    row = Cli()("serve", "--print-config", "json", env=env).out
    assert '"TOPICS_GRPC_PORT": {\n    "value": 4711,\n    "from": "environment"\n  }' in row
    assert "s3cret" not in ran.out + row
    assert not (tmp_path / "no").exists(), "nothing is started"


@pytest.mark.parametrize("scheme", ["http", "https", "grpc", "kafka"])
def test_the_url_of_another_port_is_told_with_what_to_give(scheme: str) -> None:
    ran = Cli()("ls", "--server", f"{scheme}://k3y@127.0.0.1:4000", code=2)
    wanted = "topics+tls" if scheme == "https" else "topics"
    assert f"give the gRPC port, {wanted}://HOST:4001; usage: topics ls --help" in ran.err
    assert "k3y" not in ran.err


def test_a_bad_value_is_told_without_names_of_python(capsys: pytest.CaptureFixture[str]) -> None:
    parser = Parser(prog="topics x")
    parser.add_argument("--pages", type=int, metavar="N")
    parser.add_argument("--place", type=Fraction, metavar="PLACE")
    for name, told in (("--pages", "'x' is not a number"), ("--place", "'x' is not a value for PLACE")):
        with pytest.raises(SystemExit):
            parser.parse_args([name, "x"])
        assert capsys.readouterr().err == f"topics x: argument {name}: {told}; usage: topics x --help\n"


def test_what_nobody_thought_of_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(_: object) -> int:
        raise KeyError("seq\nnext")

    monkeypatch.setattr(cli, "_main", broken)
    assert cli.main(["ls"]) == 1
    text = "topics: internal error, please report it: KeyError: 'seq\\nnext' (PYTHONDEVMODE=1 shows where)\n"
    assert capsys.readouterr().err == text


def test_one_of_a_kind_is_singular() -> None:
    assert output.listed(topic=1, record=2000) == "1 topic, 2,000 records"
