"""The page about live queries, run as it is printed."""

from pathlib import Path

from support.guide import ROOT, run_guide
from support.server import ServerProcess


def test_the_page_runs_as_it_is_printed(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server:
        run_guide(ROOT / "docs" / "live-queries.md", server, least_blocks=2)
