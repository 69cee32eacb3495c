"""docs/queues.md: its commands print what the page says."""

from pathlib import Path

from support.guide import run_guide
from support.server import ServerProcess

PAGE = Path(__file__).parents[2] / "docs" / "queues.md"


def test_the_guide_runs_as_it_is_printed(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server:
        run_guide(PAGE, server, least_blocks=8)
