"""Whole lives of a cluster: everybody reads one log, nothing acknowledged is lost, and no read shows the past."""

import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from random import SystemRandom

import pytest
from cluster.simulation.coverage import REQUIRED, REQUIRED_OF_SHARDS, REQUIRED_OF_TOPICS
from cluster.simulation.life import STEPS, options, run

_TESTS = Path(__file__).parents[2]
SEEDS, TOPICS_SEEDS = range(1, 81), range(1, 61)
SHARDS_SEEDS, TWO_SHARDS_SEEDS = range(1, 31), range(31, 46)
TAKEOVERS = 10_000
OF_TOPICS = 0.3
"""The part of the lives with engines in a soak: they take three times as long."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("topics", "shards", "seeds", "required"),
    [
        (False, 1, SEEDS, REQUIRED),
        (True, 1, TOPICS_SEEDS, REQUIRED_OF_TOPICS),
        (False, 3, SHARDS_SEEDS, REQUIRED_OF_SHARDS),
        (False, 2, TWO_SHARDS_SEEDS, {}),
    ],
)
def test_whole_lives(topics: bool, shards: int, seeds: range, required: dict[str, int]) -> None:
    """Nothing is wrong in any of them, and what they are about did happen in them."""
    met: Counter[str] = Counter()
    for seed in seeds:
        trace, failure = run(seed, topics=topics, shards=shards)
        assert failure is None, str(failure)
        met.update(trace.met)
    rare = {kind: (met[kind], least) for kind, least in required.items() if met[kind] < least}
    assert not rare, f"met too rarely (times, least): {rare}"


@pytest.mark.parametrize(("topics", "shards"), [(False, 1), (True, 1), (False, 3)])
def test_a_seed_is_one_life(topics: bool, shards: int) -> None:
    """To the last word of its trace; also in another process, where sets and dicts of text have another order."""
    trace, failure = run(3, topics=topics, shards=shards)
    again, _ = run(3, topics=topics, shards=shards)
    assert failure is None
    assert trace.digest == again.digest
    environ = os.environ | {"PYTHONPATH": str(_TESTS), "PYTHONHASHSEED": "3"}
    command = [sys.executable, "-m", "cluster.simulation", "3", "--trace", *options(topics, shards).split()]
    told = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=100, check=True).stdout
    assert f"trace {trace.digest}" in told
    assert "faults end" in told


@pytest.mark.soak
@pytest.mark.skipif("TOPICS_SOAK_SECONDS" not in os.environ, reason="a soak: set TOPICS_SOAK_SECONDS")
@pytest.mark.timeout(0)
def test_whole_lives_for_long(capsys: pytest.CaptureFixture[str]) -> None:
    """For as long as it is told, and until there were 10,000 takeovers."""
    start, lives, dice = time.monotonic(), 0, SystemRandom()
    met: Counter[str] = Counter()
    while met["a takeover"] < TAKEOVERS or time.monotonic() < start + float(os.environ["TOPICS_SOAK_SECONDS"]):
        steps, topics = dice.choice((STEPS // 2, STEPS, 3 * STEPS)), dice.random() < OF_TOPICS
        shards = 1 if topics else dice.choice((1, 1, 2, 3))
        trace, failure = run(dice.getrandbits(40), steps, topics=topics, shards=shards)
        assert failure is None, str(failure)
        met.update(trace.met)
        lives += 1
    with capsys.disabled():
        counts = f"{met['a takeover']} takeovers and {met['an acknowledgement']} acknowledgements"
        print(f"\n{lives} lives of a cluster with {counts} in {time.monotonic() - start:.0f} s")
