"""The guide to queues, run as it is printed, from top to bottom: console blocks and Python blocks."""

import re
import subprocess
import sys
from pathlib import Path

from support.server import ServerProcess

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "queues.md"


def test_the_guide_runs_as_it_is_printed(tmp_path: Path) -> None:
    blocks = re.findall(r"```(console|python)\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) >= 8
    with ServerProcess(tmp_path) as server:

        def here(text: str) -> str:
            return text.replace("127.0.0.1:4000", f"127.0.0.1:{server.http_port}").replace(
                "127.0.0.1:4001", server.grpc_target
            )

        for kind, block in blocks:
            if kind == "python":
                _run([sys.executable, "-c", here(block)], "")
                continue
            for step in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
                command, _, expected = step.partition("\n")
                _run(["bash", "-euc", here(command)], expected)


def _run(command: list[str], expected: str) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, (command, done.stderr)
    pattern = ".*".join(map(re.escape, expected.strip().split("...")))  # `...` stands for anything within a line
    assert re.fullmatch(pattern, done.stdout.strip()), (command, done.stdout)
