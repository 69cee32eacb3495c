"""Whole-life scenarios of the engine on a fake disk and clock, from a seed, against one oracle: docs/simulation.md."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "engine"))  # its fake clock and its store that crashes
