"""Whole lives of the engine, over crashes between any two operations of its disk, against one oracle."""

import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from random import SystemRandom

import pytest

from simulation.coverage import CRASHES, REQUIRED, REQUIRED_OF_TABLES
from simulation.scenario import STEPS, run

_TESTS = Path(__file__).parents[1]
SEEDS = range(1, 601)
TABLE_SEEDS = range(1, 201)


@pytest.mark.timeout(600)
def test_whole_lives() -> None:
    """Nothing is wrong in any of them, and what they are about did happen in them."""
    met: Counter[str] = Counter()
    for seed in SEEDS:
        scenario, failure = run(seed)
        assert failure is None, str(failure)
        met.update(scenario.trace.met)
    rare = {kind: (met[kind], least) for kind, least in REQUIRED.items() if met[kind] < least}
    assert not rare, f"met too rarely (times, least): {rare}"


@pytest.mark.timeout(300)
def test_whole_lives_with_tables() -> None:
    """The same with statements, definitions and routes beside everything else."""
    met: Counter[str] = Counter()
    for seed in TABLE_SEEDS:
        scenario, failure = run(seed, tables=True)
        assert failure is None, str(failure)
        met.update(scenario.trace.met)
    rare = {kind: (met[kind], least) for kind, least in REQUIRED_OF_TABLES.items() if met[kind] < least}
    assert not rare, f"met too rarely (times, least): {rare}"


@pytest.mark.parametrize(("seed", "tables"), [(3, False), (5, False), (4, True)])
def test_a_seed_is_one_life(seed: int, tables: bool) -> None:
    """To the last word of its trace; also in another process, where sets and dicts of text have another order."""
    scenario, failure = run(seed, tables=tables)
    again, _ = run(seed, tables=tables)
    assert failure is None
    assert scenario.trace.digest == again.trace.digest
    environ = os.environ | {"PYTHONPATH": str(_TESTS), "PYTHONHASHSEED": str(seed)}
    command = [sys.executable, "-m", "simulation", str(seed), "--trace", *(["--tables"] if tables else [])]
    told = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=100, check=True).stdout
    assert f"trace {scenario.trace.digest}" in told
    assert f"{STEPS:5} " in told


def test_an_unknown_actor_is_refused() -> None:
    environ = os.environ | {"PYTHONPATH": str(_TESTS)}
    command = [sys.executable, "-m", "simulation", "1", "--without", "nobody"]
    told = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=100, check=False)
    assert told.returncode == 2
    assert "no such actors: nobody" in told.stderr


@pytest.mark.soak
@pytest.mark.skipif("TOPICS_SOAK_SECONDS" not in os.environ, reason="a soak: set TOPICS_SOAK_SECONDS")
@pytest.mark.timeout(0)
def test_whole_lives_for_long(capsys: pytest.CaptureFixture[str]) -> None:
    start, lives, dice = time.monotonic(), 0, SystemRandom()
    met: Counter[str] = Counter()
    while time.monotonic() < start + float(os.environ["TOPICS_SOAK_SECONDS"]):
        tables = dice.random() < 0.5
        scenario, failure = run(dice.getrandbits(40), dice.choice((100, STEPS, 3 * STEPS)), tables=tables)
        assert failure is None, str(failure)
        met.update(scenario.trace.met)
        met["a step"] += scenario.trace.step
        lives += 1
    crashes = sum(met[kind] for kind in CRASHES)
    with capsys.disabled():
        seconds = time.monotonic() - start
        print(f"\n{lives} lives of {met['a step']} steps with {crashes} crashes in {seconds:.0f} s")
