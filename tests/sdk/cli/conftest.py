"""One server for the tests of a module, and the command line that calls it."""

from collections.abc import Iterator

import pytest

from support.http import Api
from support.server import ServerProcess

from .runner import Cli


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server without keys."""
    with ServerProcess(tmp_path_factory.mktemp("cli")) as running:
        yield running


@pytest.fixture(scope="module")
def topics(server: ServerProcess) -> Cli:
    """`topics(*arguments, stdin=..., code=0)` runs the real command."""
    return Cli(server.grpc_target)


@pytest.fixture(scope="module")
def api(server: ServerProcess) -> Iterator[Api]:
    """The HTTP API of the server, to see what became of it."""
    with Api(server.base) as running:
        yield running
