"""Makes `engine_support` importable from the tests of this folder, and gives each test a fresh world."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from engine_support import World


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sealing, reclaiming and ceilings happen after a handful of records."""
    monkeypatch.setattr("topics_service.engine.maintenance.SEAL_BLOCKS", 3)
    monkeypatch.setattr("topics_service.engine.maintenance._RECLAIM_SEQS", 2)
    monkeypatch.setattr("topics_service.engine.log.CEILING_STEP", 8)
