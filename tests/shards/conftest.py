"""Tests that open shards run twice: with calls from object to object, and through a socket. They can import the clocks
and stores of the engine's tests."""

import sys
from pathlib import Path

import pytest
from shards import world

sys.path.append(str(Path(__file__).parents[1] / "engine"))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if hasattr(metafunc.module, "open_shards"):
        metafunc.parametrize("wired", [False, True], ids=["direct", "wired"], indirect=True)


@pytest.fixture(autouse=True)
def wired(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world, "always_wired", getattr(request, "param", False))
