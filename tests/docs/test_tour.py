"""Tours of the pages, run as they are printed: each `$` line is a command, what follows is what it must print."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.guide import with_addresses
from support.server import ServerProcess

ROOT = Path(__file__).parents[2]


def _steps(text: str) -> Iterator[tuple[str, str]]:
    """(command, expected output) of every console block."""
    for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
        for step in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, expected = step.partition("\n")
            yield command, expected.strip()


def _pattern(expected: str) -> str:
    """`...` stands for anything within a line."""
    return ".*".join(map(re.escape, expected.split("...")))


@pytest.mark.parametrize(("page", "minimum"), [("README.md", 8), ("docs/watch.md", 4)])
def test_the_tour_prints_what_the_page_says(tmp_path: Path, page: str, minimum: int) -> None:
    steps = list(_steps((ROOT / page).read_text()))
    assert len(steps) >= minimum
    with ServerProcess(tmp_path) as server:
        for command, expected in steps:
            here = with_addresses(command, server)
            if here.startswith(".venv/bin/topics import"):
                here += f" --server {server.grpc_target}"
            done = subprocess.run(
                ["bash", "-euc", here], cwd=ROOT, capture_output=True, text=True, timeout=30, check=False
            )
            assert done.returncode == 0, (command, done.stderr)
            assert re.fullmatch(_pattern(expected), done.stdout.strip()), (command, done.stdout)
