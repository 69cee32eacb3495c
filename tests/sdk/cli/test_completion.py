"""`topics completion`: what a shell gets when it asks."""

import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.http import Api
from support.server import TOPICS
from topics_client.installation import install_line

from .runner import Cli, environment


def completed(cli: Cli, line: str, tmp_path: Path) -> list[str]:
    """What argcomplete's script would be answered for the line, with the cursor at its end."""
    answer = tmp_path / "answer"
    asked = {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_SHELL": "bash",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(answer),
        "COMP_LINE": line,
        "COMP_POINT": str(len(line.encode())),
        "COMP_TYPE": "9",
    }
    done = subprocess.run(
        [TOPICS], env=environment(cli.url, asked), capture_output=True, timeout=30, check=True, stdin=subprocess.DEVNULL
    )
    assert (done.stdout, done.stderr) == (b"", b"")
    return [word.strip() for word in answer.read_text().split("\n") if word]


def test_commands_options_and_choices(tmp_path: Path) -> None:
    cli = Cli("127.0.0.1:1")
    assert completed(cli, "topics in", tmp_path) == ["info"]
    assert {"ls", "queue", "completion", "tail"} <= set(completed(cli, "topics ", tmp_path))
    assert completed(cli, "topics queue re", tmp_path) == ["redrive"]
    assert completed(cli, "topics --server x queue re", tmp_path) == ["redrive"]
    assert completed(cli, "topics create t --durab", tmp_path) == ["--durability"]
    assert completed(cli, "topics ls --color a", tmp_path) == ["auto", "always"]
    assert completed(cli, "topics set t idem", tmp_path) == ["idempotency_window_ms="]
    assert completed(cli, "topics completion z", tmp_path) == ["zsh"]


def test_names_that_the_server_has(topics: Cli, api: Api, tmp_path: Path) -> None:
    api.put("co-log")
    api.put("co-queue", type="queue")
    api.send("PUT", "/v0/routers/co-router", {"source": "co-log", "dest": "co-dest"}).raise_for_status()
    api.send("POST", "/v0/groups/co-group/commit", {"topic": "co-log", "from_seq": 0}).raise_for_status()
    assert completed(topics, "topics info co-l", tmp_path) == ["co-log"]
    assert completed(topics, "topics rm co-log co-", tmp_path) == ["co-dest", "co-log", "co-queue"]
    assert completed(topics, "topics queue claim co-", tmp_path) == ["co-queue"]
    assert completed(topics, "topics router info co-", tmp_path) == ["co-router"]
    assert completed(topics, "topics groups co-", tmp_path) == ["co-group"]
    elsewhere = Cli("127.0.0.1:1")
    assert completed(elsewhere, f"topics info --server {topics.url} co-l", tmp_path) == ["co-log"]


def test_a_server_that_is_absent_or_hangs_is_not_waited_for(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for url in ("127.0.0.1:1", f"127.0.0.1:{silent.getsockname()[1]}", "http://wrong"):
            began = time.monotonic()
            assert completed(Cli(url), "topics info co", tmp_path) == []
            assert time.monotonic() - began < 5, "half a second, and what a busy machine takes to start"


def test_bash_completes_with_the_script(topics: Cli, api: Api) -> None:
    api.put("bashful")
    script = (
        f'PATH="{TOPICS.parent}:$PATH"; eval "$(topics completion bash)"; complete -p topics >&2;'
        'COMP_WORDS=(topics info bash); COMP_CWORD=2; COMP_LINE="topics info bash"; COMP_POINT=${#COMP_LINE};'
        'COMP_TYPE=9; _python_argcomplete topics; echo "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", script], env=environment(topics.url, {}), capture_output=True, timeout=60, check=True
    )
    assert done.stdout.decode().split() == ["bashful"], done


def test_without_argcomplete_it_says_what_to_install() -> None:
    check = "import sys; sys.modules['argcomplete'] = None; from topics_cli import main; sys.exit(main({}))"
    done = subprocess.run(
        [sys.executable, "-c", check.format(["completion", "bash"])], capture_output=True, timeout=30, check=False
    )
    what = "the extra [cli] is not installed (argcomplete.shell_integration is missing)"
    message = f"topics completion: {what}: {install_line('cli')}\n"
    assert (done.stdout, done.stderr.decode(), done.returncode) == (b"", message, 1)
    asked = environment(None, {"_ARGCOMPLETE": "1", "COMP_LINE": "topics l", "COMP_POINT": "8"})
    done = subprocess.run(
        [sys.executable, "-c", check.format([])], capture_output=True, timeout=30, check=False, env=asked
    )
    assert (done.stdout, done.stderr) == (b"", b""), "silent in a shell"


def test_without_the_server_its_command_is_completed_all_the_same(tmp_path: Path) -> None:
    code = "import sys; sys.modules['msgspec'] = None; from topics_cli import main; main([])"
    for line, offered in (("topics serve --port-", "--port-file"), ("topics ser", "serve")):
        answer = tmp_path / "answer"
        asked = environment(None, {"_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line))})
        asked |= {"_ARGCOMPLETE_STDOUT_FILENAME": str(answer), "_ARGCOMPLETE_SUPPRESS_SPACE": "1"}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=30, check=False, env=asked)
        assert (answer.read_text(), done.stderr, done.returncode) == (offered, b"", 0)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script(shell: str) -> None:
    script = Cli()("completion", shell).out
    assert "topics" in script
    if shutil.which(shell):
        checked = subprocess.run([shell, "-n"], input=script.encode(), capture_output=True, timeout=30, check=False)
        assert checked.returncode == 0, checked.stderr
    else:
        assert {"zsh": "compdef", "fish": "complete --command topics"}[shell] in script
    assert "invalid choice: 'tcsh'" in Cli()("completion", "tcsh", code=2).err
    assert os.environ.get("_ARGCOMPLETE") is None
