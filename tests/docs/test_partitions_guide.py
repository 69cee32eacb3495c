"""The page about partitions is run as it is printed."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.guide import ROOT, run_guide
from support.server import ServerProcess


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path) as server:
        yield server


def test_the_page(server: ServerProcess) -> None:
    run_guide(ROOT / "docs" / "partitions.md", server, least_blocks=5)
