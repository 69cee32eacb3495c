"""Every decoder is given noise, mutations of what it takes, and what it takes: see `target.py` for what it may do then.

The same inputs in each run; the soak (`make soak`) continues with others for TOPICS_SOAK_SECONDS. What was found once
is in `corpus/`, a folder for each target, and is tried in every run.
"""

import os
import random
import resource
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, time_ns

import pytest
from fuzz.target import Target, inputs
from fuzz.targets import TARGETS

CORPUS = Path(__file__).parent / "corpus"
INPUTS = 1000
ROOM = 1 << 30
"""Address space that all decoders together may ask for; what C code takes is not traced."""


@pytest.fixture(autouse=True)
def bounded() -> Iterator[None]:
    """Memory is counted, and bounded."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + ROOM, hard))
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_any_bytes(target: Target) -> None:
    for data in inputs(target, random.Random(f"{target.name} 1"), INPUTS // target.cost):
        target.feed(data)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_every_truncation(target: Target) -> None:
    for sample in target.samples:
        step = max(1, len(sample) * target.cost // 200)
        for size in range(0, len(sample), step):
            target.feed(sample[:size])


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_what_is_valid(target: Target) -> None:
    for sample in target.samples:
        made = target.feed(sample)
        if target.again is not None:
            assert target.again(made) == sample


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*/*")), ids=lambda path: f"{path.parent.name}-{path.name}")
def test_what_was_found_once(path: Path) -> None:
    target = next(target for target in TARGETS if target.name.replace(" ", "_") == path.parent.name)
    target.feed(path.read_bytes())


@pytest.mark.soak
def test_soak() -> None:
    first = int(os.environ.get("TOPICS_SOAK_SEED", time_ns()))
    print(f"TOPICS_SOAK_SEED={first}")
    deadline = monotonic() + float(os.environ.get("TOPICS_SOAK_SECONDS", "0"))
    rounds = 0
    while monotonic() < deadline:
        for target in TARGETS:
            for data in inputs(target, random.Random(f"{target.name} {first + rounds}"), 500 // target.cost):
                target.feed(data)
        rounds += 1
    print(f"{rounds} rounds of up to 500 inputs for each of {len(TARGETS)} decoders")
