"""The page about backups, run as it is printed."""

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from support.guide import ROOT, Page
from support.ports import free_ports
from support.server import ServerProcess


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server as the page wants it."""
    with ServerProcess(tmp_path / "server", env={"TOPICS_WAL_ARCHIVE_SECONDS": 86400}) as server:
        yield server


def test_the_drill_runs_as_it_is_printed(server: ServerProcess, tmp_path: Path) -> None:
    http, grpc = free_ports(2)
    work_dir = tmp_path / "reader"
    work_dir.mkdir()
    page = Page(work_dir, server, replace={"5000": str(http), "5001": str(grpc), "topics-data": str(server.data_dir)})
    drill = work_dir / "drill.pid"
    try:
        page.run(ROOT / "docs" / "backup.md", least_blocks=7)
    finally:
        with suppress(FileNotFoundError, ProcessLookupError):
            os.kill(int(drill.read_text()), signal.SIGKILL)
    assert sorted(path.name for path in work_dir.iterdir()) == ["backups", "drill.log", "examples"]
