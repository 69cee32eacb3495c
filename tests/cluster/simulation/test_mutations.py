"""The simulation finds bugs: each that is planted into the cluster, within a bounded number of lives."""

import pytest
from cluster.simulation.life import run
from cluster.simulation.mutations import MUTATIONS

MOST = 60
RARE = {"only a checkpoint above the fence counts"}
"""Met once in thousands of lives: `test_misplaced_fence` goes through it step by step."""


@pytest.mark.parametrize("name", [name for name in MUTATIONS if name not in RARE])
def test_a_planted_bug_is_found(name: str) -> None:
    planted, seed, topics = MUTATIONS[name]
    for tried in (seed, *range(1, MOST)):
        with planted():
            _, failure = run(tried, topics=topics)
        if failure is not None:
            assert not isinstance(failure.error, TypeError | AttributeError | NameError), "the bug is not as planted"
            return
    pytest.fail(f"nothing is wrong in {MOST} lives with {name}")
