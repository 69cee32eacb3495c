"""The engine against a small model, over a store that crashes: SIGKILL, power cuts and clean restarts at any moment."""

import os
import time
from unittest.mock import patch

import pytest
from engine_machine import STEP, EngineMachine
from engine_support import run_machine


def run(examples: int, steps: int, *, derandomize: bool) -> None:
    with (
        patch("topics_service.engine.maintenance.SEAL_BLOCKS", 3),
        patch("topics_service.engine.maintenance._RECLAIM_SEQS", 2),
        patch("topics_service.engine.log.CEILING_STEP", STEP),
    ):
        run_machine(EngineMachine, examples, steps, derandomize=derandomize)


@pytest.mark.timeout(180)
def test_the_engine_is_the_model() -> None:
    run(examples=500, steps=60, derandomize=True)


@pytest.mark.soak
@pytest.mark.skipif("TOPICS_SOAK_SECONDS" not in os.environ, reason="a soak: set TOPICS_SOAK_SECONDS")
@pytest.mark.timeout(0)
def test_the_engine_is_the_model_for_long() -> None:
    end = time.monotonic() + float(os.environ["TOPICS_SOAK_SECONDS"])
    while time.monotonic() < end:
        run(examples=200, steps=80, derandomize=False)
