"""The oracle finds bugs: each that is planted into the engine, within a few lives."""

import pytest

from simulation.mutations import MUTATIONS
from simulation.scenario import STEPS, run
from simulation.shrink import shrink
from simulation.table_mutations import TABLE_MUTATIONS

MOST = 40


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_planted_bug_is_found(name: str) -> None:
    planted, seed = MUTATIONS[name]
    for tried in (seed, *range(1, MOST)):
        with planted():
            _, failure = run(tried)
        if failure is not None:
            return
    pytest.fail(f"nothing is wrong in {MOST} lives with {name}")


@pytest.mark.parametrize("name", TABLE_MUTATIONS)
def test_a_planted_bug_of_tables_is_found(name: str) -> None:
    planted, seed = TABLE_MUTATIONS[name]
    for tried in (seed, *range(1, MOST)):
        with planted():
            _, failure = run(tried, tables=True)
        if failure is not None:
            return
    pytest.fail(f"nothing is wrong in {MOST} lives with {name}")


def test_a_failure_shrinks_to_fewer_actors() -> None:
    planted, seed = MUTATIONS["a ceiling not written"]
    with planted():
        command = shrink(seed, STEPS).splitlines()[-1].split()
        steps, without = (command[command.index(name) + 1] for name in ("--steps", "--without"))
        _, failure = run(seed, int(steps), without=without.split(","))
    assert int(steps) < STEPS
    assert len(without.split(",")) > 5
    assert failure is not None
    assert shrink(seed, 5) == f"seed {seed} does not fail in 5 steps"
