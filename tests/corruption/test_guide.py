"""The pages about checking and repairing a data directory, run as they are printed."""

import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from support.guide import ROOT, Page
from support.ports import free_ports
from support.server import ServerProcess


@pytest.mark.parametrize(
    ("name", "blocks", "left"),
    [("verify", 4, ["copy.log", "shop.log"]), ("repair", 3, ["again.log", "shop.log"])],
)
def test_the_page_runs_as_it_is_printed(name: str, blocks: int, left: list[str], tmp_path: Path) -> None:
    http, grpc = free_ports(2)
    work_dir = tmp_path / "reader"
    work_dir.mkdir()
    with ServerProcess(tmp_path / "server") as server:
        page = Page(work_dir, server, replace={"5000": str(http), "5001": str(grpc)})
        try:
            page.run(ROOT / "docs" / f"{name}.md", least_blocks=blocks)
        finally:
            with suppress(FileNotFoundError, ProcessLookupError):
                os.kill(int((work_dir / "shop.pid").read_text()), signal.SIGKILL)
    assert sorted(path.name for path in work_dir.iterdir()) == sorted([*left, "examples", "shop.pid"])
