"""The page about checking a data directory, run as it is printed."""

import os
import signal
import socket
from contextlib import suppress
from pathlib import Path

from support.guide import ROOT, Page
from support.server import ServerProcess


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def test_the_page_runs_as_it_is_printed(tmp_path: Path) -> None:
    http, grpc = free_ports(2)
    work_dir = tmp_path / "reader"
    work_dir.mkdir()
    with ServerProcess(tmp_path / "server") as server:
        page = Page(work_dir, server, replace={"5000": str(http), "5001": str(grpc)})
        try:
            page.run(ROOT / "docs" / "verify.md", least_blocks=4)
        finally:
            with suppress(FileNotFoundError, ProcessLookupError):
                os.kill(int((work_dir / "shop.pid").read_text()), signal.SIGKILL)
    assert sorted(path.name for path in work_dir.iterdir()) == ["copy.log", "examples", "shop.log", "shop.pid"]
