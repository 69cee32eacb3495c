"""A real server for clients over HTTP."""

from collections.abc import Iterator

import pytest

from support.http import Api
from support.server import ServerProcess


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("fuzz"), env={"TOPICS_MAX_CONSUME_TIMEOUT": "1"}) as running:
        yield running


@pytest.fixture
def api(server: ServerProcess) -> Iterator[Api]:
    with Api(server.base) as client:
        yield client
