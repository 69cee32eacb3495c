"""The page about the Kafka listener: its tour, run as it is printed, and its lists."""

from pathlib import Path

import pytest

from support.guide import run_guide
from support.server import ServerProcess

PAGE = Path(__file__).parents[2] / "docs" / "kafka.md"


@pytest.mark.timeout(120)
def test_the_tour_runs_as_it_is_printed(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, kafka=True) as server:
        run_guide(PAGE, server, least_blocks=5)
