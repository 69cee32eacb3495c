"""Runs the blocks of a documentation page as they are printed, from top to bottom, against a server."""

import re
import subprocess
import sys
from pathlib import Path

from support.server import ServerProcess

ROOT = Path(__file__).parents[2]


def run_guide(page: Path, server: ServerProcess, *, least_blocks: int) -> None:
    """Every `console` and `python` block, with the server's addresses in place of the default ones.

    In a console block `...` in the output stands for anything within a line.
    """
    blocks = re.findall(r"```(console|python)\n(.*?)```", page.read_text(), re.DOTALL)
    assert len(blocks) >= least_blocks
    for kind, block in blocks:
        block = block.replace("127.0.0.1:4000", f"127.0.0.1:{server.http_port}")
        block = block.replace("127.0.0.1:4001", server.grpc_target)
        block = block.replace("127.0.0.1:9092", f"127.0.0.1:{server.kafka_port}")
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
