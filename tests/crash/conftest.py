"""Real servers of a test's own, killed in every way."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[1]))
from support.server import ServerProcess


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A running server on a directory of its own."""
    with ServerProcess(tmp_path / "server") as server:
        yield server


@pytest.fixture
def make_server(tmp_path: Path) -> Iterator[Callable[..., ServerProcess]]:
    """Make servers that are not started yet; each is killed at the end, and its log must hold no traceback."""
    made: list[ServerProcess] = []

    def make(**kw: Any) -> ServerProcess:
        made.append(ServerProcess(tmp_path / f"server-{len(made)}", **kw))
        return made[-1]

    yield make
    for server in made:
        server.kill()
        assert "Traceback" not in server.log, server.log[-3000:]
