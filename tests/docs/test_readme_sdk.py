"""The first steps of the README, in Python and with the command line, run as they are printed."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.guide import ROOT
from support.server import TOPICS, ServerProcess
from support.waiting import poll
from topics_client.errors import error_of

PART = (ROOT / "README.md").read_text().partition("## Ten lines\n")[2].partition("\n## ")[0]


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A fresh server, by TOPICS_URL."""
    with ServerProcess(tmp_path_factory.mktemp("server")) as server:
        others = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
        yield others | {"TOPICS_URL": f"topics://{server.grpc_target}", "PYTHONWARNINGS": "error"}


def test_the_example_of_tables(env: dict[str, str]) -> None:
    part = (ROOT / "README.md").read_text().partition("## Tables\n")[2].partition("\n## ")[0]
    (block,) = re.findall(r"^```python\n(.*?)^```", part, re.DOTALL | re.MULTILINE)
    done = subprocess.run(
        [sys.executable, "-c", block], env=env, capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stdout) == (0, "Insert hello\n"), done.stderr


def test_ten_lines_of_python_and_the_commands_behind_them(env: dict[str, str], tmp_path: Path) -> None:
    (block,) = re.findall(r"^```python\n(.*?)^```", PART, re.DOTALL | re.MULTILINE)
    assert len([line for line in block.splitlines() if line]) <= 10
    done = subprocess.run(
        [sys.executable, "-c", block], env=env, capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr
    *read, first, second, third = done.stdout.splitlines()
    assert read == [
        "1 greeting {'text': 'hi'}",
        "2 None {'text': 'a whole batch'}",
        "3 None b'bytes as well'",
    ]
    assert [re.sub(r"[\d:]{8}$", "TIME", line) for line in (first, second, third)] == [
        "hello 1 TIME",
        "hello 2 TIME",
        "hello 3 TIME",
    ]

    (commands,) = re.findall(r"^```sh\n(.*?)^```", PART, re.DOTALL | re.MULTILINE)
    printed = {}
    for line in commands.splitlines():
        command = line.partition(" #")[0].strip()
        out = tmp_path / f"{len(printed)}.txt"
        printed[command] = _run(command.replace(".venv/bin/topics", str(TOPICS)), out, env)
    append, read_, tail, listing, top = printed.values()
    assert "hello" in append
    assert '{"text": "from the shell"}' in read_
    assert '{"text":"hi"}' in read_
    assert '{"text": "from the shell"}' in tail
    assert re.search(r"^hello\s.*\b4\b", listing, re.MULTILINE)
    assert "hello" in top


def _run(command: str, out: Path, env: dict[str, str]) -> str:
    """Output of a command; an endless one is interrupted after it has printed the topic's name."""
    endless = re.search(r" (tail -f|top\b)", command)
    with (
        out.open("wb") as file,
        subprocess.Popen(
            ["bash", "-c", f"exec {command}"], env=env, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT
        ) as process,
    ):
        try:
            if endless:
                poll(lambda: "hello" in out.read_text() or process.poll() is not None, 20)
                process.send_signal(signal.SIGINT)
            assert process.wait(20) in ((0, 130) if endless else (0,)), (command, out.read_text())
        finally:
            process.kill()
    return out.read_text()


def test_every_class_of_the_page_about_errors_is_the_one_that_is_raised() -> None:
    rows = [
        [cell.strip(" `") for cell in line.strip("|").split("|")]
        for line in (ROOT / "docs" / "errors.md").read_text().splitlines()
        if line.startswith("| `")
    ]
    assert len(rows) > 20
    for code, *_, kind in rows:
        assert kind == type(error_of(code, "")).__name__, code
