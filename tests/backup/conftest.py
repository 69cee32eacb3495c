"""Servers, the command, and a target in a folder."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sdk.cli.runner import Cli

from support.server import ServerProcess


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A running server on a directory of its own; its log must hold no traceback."""
    with ServerProcess(tmp_path / "server") as server:
        yield server
    assert "Traceback" not in server.log, server.log[-3000:]


@pytest.fixture
def cli(server: ServerProcess) -> Cli:
    """The command, which finds that server."""
    return Cli(server.grpc_target)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """A folder for backups, which does not exist yet."""
    return tmp_path / "backups"


@pytest.fixture
def restored(tmp_path: Path) -> Iterator[Callable[[Path], ServerProcess]]:
    """Starts a server on a restored directory."""
    running: list[ServerProcess] = []

    def start(directory: Path) -> ServerProcess:
        made = ServerProcess(tmp_path / f"restored-{len(running)}", data_dir=directory)
        running.append(made)
        return made.start()

    yield start
    for each in running:
        each.kill()
        assert "Traceback" not in each.log, each.log[-3000:]
