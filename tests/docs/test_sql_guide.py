"""The page about SQL, run as it is printed, from top to bottom."""

from pathlib import Path

from support.guide import ROOT, run_guide
from support.server import ServerProcess


def test_the_page_runs_as_it_is_printed(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server:
        run_guide(ROOT / "docs" / "sql.md", server, least_blocks=4)
