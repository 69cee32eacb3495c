"""A test that CI runs again can pass whatever its first run left on the servers that tests share."""

import subprocess
import sys
from pathlib import Path

PLUGIN = """
from support import reruns

def pytest_configure(config):
    config.pluginmanager.register(reruns)
"""
LEFTOVERS = """
import pytest

of_session, of_module = [], []

@pytest.fixture(scope="session")
def session():
    of_session.append(set())
    yield of_session[-1]
    of_session[-1].add("ended")

@pytest.fixture(scope="module")
def module(session):
    of_module.append(set())
    yield of_module[-1]
    of_module[-1].add("ended")
    assert session == {"topic"}, "the module's fixtures end first"

def test_before(session, module):
    pass

def test_that_fails_once(session, module):
    assert not session and not module
    session.add("topic")
    module.add("topic")
    assert len(of_session) == 2

def test_after(session, module):
    assert session == module == {"topic"}, "those of the second run"
    assert of_session[0] == of_module[0] == {"topic", "ended"}
    assert len(of_session) == len(of_module) == 2
"""


def test_a_rerun_has_fixtures_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(PLUGIN)
    (tmp_path / "test_leftovers.py").write_text(LEFTOVERS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--reruns", "1", "test_leftovers.py"]
    tests = Path(__file__).parents[1]
    run = subprocess.run(
        command, cwd=tmp_path, env={"PYTHONPATH": str(tests)}, capture_output=True, text=True, timeout=100
    )
    assert run.returncode == 0, run.stdout
    assert "3 passed, 1 rerun" in run.stdout
