"""Runs the blocks of a documentation page as they are printed, from top to bottom, against a server."""

import json
import os
import re
import select
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from support.server import ServerProcess

ROOT = Path(__file__).parents[2]


def with_addresses(text: str, server: ServerProcess) -> str:
    """Return the text with the server's addresses in place of the default ones.

    In one pass: a free port may begin with 4000 or 4001.
    """
    ports = {
        "4000": server.http_port,
        "4001": server.grpc_target.rpartition(":")[2],
        "9092": server.kafka_port,
        "5432": server.pg_port,
    }
    return re.sub(
        r"127\.0\.0\.1(:| -p )(4000|4001|5432|9092)\b", lambda found: f"127.0.0.1{found[1]}{ports[found[2]]}", text
    )


def run_guide(page: Path, server: ServerProcess, *, least_blocks: int) -> None:
    """Every `console` and `python` block, with the server's addresses in place of the default ones.

    In a console block `...` in the output stands for anything within a line.
    """
    blocks = re.findall(r"```(console|python)\n(.*?)```", page.read_text(), re.DOTALL)
    assert len(blocks) >= least_blocks
    for kind, block in blocks:
        block = with_addresses(block, server)
        if kind == "python":
            _run([sys.executable, "-c", block], "")
            continue
        for step in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, expected = step.partition("\n")
            _run(["bash", "-euc", command], expected)


def _run(command: list[str], expected: str) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, (command, done.stderr)
    pattern = ".*".join(map(re.escape, expected.strip().split("...")))
    assert re.fullmatch(pattern, done.stdout.strip()), (command, done.stdout)


class Page:
    """Runs the blocks of a page, as a reader would from top to bottom in two terminals.

    `console` blocks are commands and what they print. `python` blocks are typed into one interpreter; what they print
    stands in a `text` block right behind, or they print nothing. Other blocks are not run. Commands and blocks
    find the server by TOPICS_URL and the scripts of the virtual environment on the PATH; their directory is `work_dir`,
    where `examples` leads to the examples. In outputs `...` stands for anything within a line.
    """

    def __init__(self, work_dir: Path, server: ServerProcess, *, replace: Mapping[str, str] = {}) -> None:
        """`replace` is made in blocks and in what they print, besides the server's addresses."""
        (work_dir / "examples").symlink_to(ROOT / "examples")
        self._work_dir = work_dir
        self._env = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")} | {
            "TOPICS_URL": f"topics://{server.grpc_target}",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONWARNINGS": "error",
            "NO_COLOR": "1",
        }
        self._replace = {
            "127.0.0.1:4000": f"127.0.0.1:{server.http_port}",
            "127.0.0.1:4001": server.grpc_target,
            **replace,
        }

    def run(self, page: Path, *, least_blocks: int) -> None:
        """Run all blocks of a page. AssertionError for the first that fails or prints something else."""
        blocks = list(_BLOCK.finditer(page.read_text()))
        assert len(blocks) >= least_blocks
        with subprocess.Popen(
            [sys.executable, "-c", _INTERPRETER],
            cwd=self._work_dir,
            env=self._env,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        ) as interpreter:
            try:
                for block in blocks:
                    self._run(interpreter, block)
                assert interpreter.stdin is not None
                interpreter.stdin.close()
                assert interpreter.wait(20) == 0, "the interpreter does not end well: " + _rest(interpreter)
            finally:
                interpreter.kill()

    def _run(self, interpreter: "subprocess.Popen[str]", block: re.Match[str]) -> None:
        kind, text, expected = block["kind"], self._here(block["text"]), self._here(block["printed"] or "")
        if kind == "console":
            for step in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
                command, _, printed = step.partition("\n")
                self._command(command, printed)
            return
        assert interpreter.stdin is not None
        assert interpreter.stdout is not None
        interpreter.stdin.write(json.dumps(text) + "\n")
        interpreter.stdin.flush()
        ready, _, _ = select.select([interpreter.stdout], [], [], 30)
        assert ready, f"it takes too long:\n{text}"
        answer = interpreter.stdout.readline()
        assert answer.startswith('{"printed"'), f"{text}\n{answer}{_rest(interpreter)}"
        _assert_printed(text, expected, json.loads(answer)["printed"])

    def _command(self, command: str, expected: str) -> None:
        try:
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", command],
                cwd=self._work_dir,
                env=self._env,
                capture_output=True,
                text=True,
                timeout=30,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise AssertionError((command, error.stdout, error.stderr, self._logs())) from error
        assert done.returncode == 0, (command, done.stdout, done.stderr, self._logs())
        _assert_printed(command, expected, done.stdout)

    def _logs(self) -> dict[str, str]:
        return {file.name: file.read_text(errors="replace")[-2000:] for file in self._work_dir.glob("*.log")}

    def _here(self, text: str) -> str:
        """Replace all in one pass: a port that was put in may contain another's number."""
        return re.sub("|".join(map(re.escape, self._replace)), lambda found: self._replace[found[0]], text)


_BLOCK: Final = re.compile(
    r"^```(?P<kind>console|python)\n(?P<text>.*?)^```\n(?:\n*```text\n(?P<printed>.*?)^```\n)?",
    re.DOTALL | re.MULTILINE,
)

# Reads blocks, each as a JSON text in a line, and answers each with what it printed.
_INTERPRETER: Final = """
import io, json, sys, traceback
from contextlib import redirect_stdout
names = {"__name__": "__main__"}
for number, line in enumerate(sys.stdin, 1):
    printed = io.StringIO()
    with redirect_stdout(printed):
        exec(compile(json.loads(line), f"block {number}", "exec"), names)
    print(json.dumps({"printed": printed.getvalue()}), flush=True)
"""


def _rest(interpreter: "subprocess.Popen[str]") -> str:
    """What it says when it fails."""
    interpreter.kill()
    assert interpreter.stdout is not None
    return interpreter.stdout.read()


def _assert_printed(what: str, expected: str, printed: str) -> None:
    pattern = ".*".join(map(re.escape, expected.strip().split("...")))
    assert re.fullmatch(pattern, printed.strip()), f"{what}\nprinted:\n{printed}\nexpected:\n{expected}"
