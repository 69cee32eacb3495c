"""The console blocks of docs/grpc.md that call grpcurl, run as they are printed: reflection, a call, an error."""

import re
import subprocess
from pathlib import Path

import pytest

from support.guide import with_addresses
from support.missing import without
from support.server import ServerProcess

ROOT = Path(__file__).parents[3]
GRPCURL = ROOT / "build" / "sdk-clients" / "grpcurl"


@pytest.fixture(autouse=True)
def toolchain() -> None:
    if not GRPCURL.exists():
        without("grpcurl is not built: make test-sdk does it, with Go")


def test_page(server: ServerProcess) -> None:
    """One shell for all commands; `...` in the output stands for anything, within that command's output."""
    page = (ROOT / "docs" / "grpc.md").read_text().partition("## By hand: grpcurl\n")[2].partition("\n## ")[0]
    blocks = with_addresses("".join(re.findall(r"```console\n(.*?)```", page, re.DOTALL)), server)
    steps = [step.partition("\n") for step in re.split(r"^\$ ", blocks, flags=re.MULTILINE)[1:]]
    assert len(steps) >= 7
    done = subprocess.run(
        ["bash", "-c", "".join(f"{command}\necho ==\n" for command, *_ in steps)],
        env={"PATH": f"{GRPCURL.parent}:/usr/bin:/bin"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=30, check=True,
    )  # fmt: skip
    for (command, _, expected), printed in zip(steps, done.stdout.split("==\n")[:-1], strict=True):
        pattern = ".*".join(map(re.escape, expected.split("...")))
        assert re.fullmatch(pattern, printed, re.DOTALL), (command, printed)


def test_the_page_names_the_version_that_is_tested() -> None:
    [named] = re.findall(r"cmd/grpcurl@(v[\d.]+)", (ROOT / "docs" / "grpc.md").read_text())
    assert f"github.com/fullstorydev/grpcurl {named} " in (Path(__file__).parent / "go" / "go.mod").read_text()


def test_reflection_needs_no_key_and_a_call_does(server: ServerProcess) -> None:
    call = [str(GRPCURL), "-plaintext", "-d", '{"topic":"numbers"}', server.grpc_target, "topics.v1.TopicsService/Diff"]
    done = subprocess.run(call, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 64 + 16
    assert '"reason": "UNAUTHORIZED"' in done.stderr
