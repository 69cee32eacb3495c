"""The simulation finds bugs: each that is planted into the cluster, within a bounded number of lives."""

import pytest
from cluster.simulation.life import run
from cluster.simulation.mutations import MUTATIONS, MUTATIONS_OF_SHARDS

MOST, MOST_OF_SHARDS = 60, 12
RARE = {"only a checkpoint above the fence counts"}
"""Met once in thousands of lives: `test_misplaced_fence` goes through it step by step."""
OF_SHARDS = [
    name
    for name, each in MUTATIONS.items()
    if not each.topics and name not in RARE | {"no second look at the checkpoints"}
]
SLOW = {"no shard moves"}
"""Its lives last until the end of patience."""


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


@pytest.mark.parametrize(
    "name",
    [
        *OF_SHARDS,
        *(pytest.param(name, marks=[pytest.mark.soak] if name in SLOW else []) for name in MUTATIONS_OF_SHARDS),
    ],
)
def test_a_planted_bug_is_found_in_lives_of_two_and_three_shards(name: str) -> None:
    planted = MUTATIONS_OF_SHARDS.get(name) or MUTATIONS[name].planted
    for seed in range(1, MOST_OF_SHARDS):
        with planted():
            _, failure = run(seed, shards=2 + seed % 2)
        if failure is not None:
            assert not isinstance(failure.error, TypeError | AttributeError | NameError), "the bug is not as planted"
            return
    pytest.fail(f"nothing is wrong in {MOST_OF_SHARDS} lives with {name}")
