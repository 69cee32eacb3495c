"""The page about the PostgreSQL protocol: its tour, run as it is printed."""

import shutil
from pathlib import Path

from support.guide import ROOT, run_guide
from support.missing import without
from support.server import ServerProcess


def test_the_tour_runs_as_it_is_printed(tmp_path: Path) -> None:
    if shutil.which("psql") is None:
        without("psql is not installed")
    with ServerProcess(tmp_path, postgres=True) as server:
        run_guide(ROOT / "docs" / "postgres.md", server, least_blocks=4)
