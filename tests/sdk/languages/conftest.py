"""Servers for the scenario and the snippets, and how a program in another language is run.

The scenario is the same in every language: its steps, and what each must see, are in `facts.json`.
"""

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from support.guide import with_addresses
from support.server import ServerProcess

ROOT = Path(__file__).parents[3]
HERE = Path(__file__).parent
SECONDS = 100  # a first build of the Go programs takes most of it

Run = Callable[..., str]


@pytest.fixture
def steps() -> list[str]:
    """The names of the steps of the scenario."""
    return list(json.loads((HERE / "facts.json").read_text()))


@pytest.fixture
def scenario(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A fresh server that takes two topics, as the environment of a scenario."""
    limits = {"TOPICS_API_KEYS": "the-key,reader-key:read", "TOPICS_MAX_TOPICS": 2}
    with ServerProcess(tmp_path / "server", env=limits) as server:
        yield {
            "TOPICS_ADDRESS": server.grpc_target,
            "TOPICS_KEY": "the-key",
            "TOPICS_READER_KEY": "reader-key",
            "TOPICS_FACTS": str(HERE / "facts.json"),
        }


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A fresh server with the key that the pages use."""
    with ServerProcess(tmp_path / "server", env={"TOPICS_API_KEYS": "my-key"}) as server:
        yield server


@pytest.fixture
def run() -> Run:
    """Runs a command to its end, which must be a good one, and gives what it printed, errors included."""

    def run(*command: str | Path, cwd: Path = ROOT, env: Mapping[str, str] | None = None) -> str:
        done = subprocess.run(
            command, cwd=cwd, env=os.environ | dict(env or {}), stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=SECONDS, check=False,
        )  # fmt: skip
        assert done.returncode == 0, (command, done.stdout)
        return done.stdout

    return run


@pytest.fixture
def snippets(server: ServerProcess) -> Callable[[str, str], list[str]]:
    """The blocks of one kind in a README below sdk/generated, with the server's address in place of the default."""

    def snippets(language: str, kind: str) -> list[str]:
        text = (ROOT / "sdk" / "generated" / language / "README.md").read_text()
        blocks = re.findall(rf"```{kind}\n(.*?)```", text, re.DOTALL)
        return [with_addresses(block, server) for block in blocks]

    return snippets
