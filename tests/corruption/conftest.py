"""Makes helpers of other folders importable: states and commands by their folders, the engine's machines by name. And
the directories that are damaged."""

import sys
from pathlib import Path

import pytest

_TESTS = Path(__file__).parents[1]
sys.path.append(str(_TESTS))
sys.path.append(str(_TESTS / "engine"))

from corruption.data import Originals, make_originals  # noqa: E402  found by that path


@pytest.fixture(scope="session")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Originals:
    """To be copied before something is done to them."""
    return make_originals(tmp_path_factory.mktemp("originals"))


@pytest.fixture(scope="session")
def stopped(originals: Originals) -> Path:
    """The data of a stopped server, to be copied, too."""
    return originals.stopped
