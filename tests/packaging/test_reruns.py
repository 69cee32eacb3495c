"""A test that CI runs again can pass whatever its first run left: on the servers that tests share, or open."""

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

OPEN = """
import socket

import pytest

runs = []

@pytest.fixture
def of_fixture():
    left, right = socket.socketpair()
    if len(runs) == 0:
        runs.append("setup")
        pytest.fail("in the setup")
    left.close()
    right.close()

def test_whose_setup_fails_once(of_fixture):
    pass

def test_that_fails_once():
    left, right = socket.socketpair()
    if len(runs) == 1:
        runs.append("call")
        pytest.fail("in the test")
    left.close()
    right.close()
"""
LEAK = """
import socket

def test_that_leaves_a_socket_open():
    sockets = list(socket.socketpair())
    sockets.append(sockets)
"""


def test_a_rerun_has_fixtures_of_its_own(tmp_path: Path) -> None:
    assert "3 passed, 1 rerun" in outcome(tmp_path, LEFTOVERS, code=0)


def test_what_the_first_run_leaves_open_fails_nothing(tmp_path: Path) -> None:
    assert "2 passed, 2 rerun" in outcome(tmp_path, OPEN, code=0)


def test_what_a_passed_test_leaves_open_fails(tmp_path: Path) -> None:
    assert "unclosed <socket.socket" in outcome(tmp_path, LEAK, code=1)


def outcome(folder: Path, test: str, *, code: int) -> str:
    """The output of a session with this file that exits with `code`. Warnings are errors; a failed test runs again."""
    (folder / "conftest.py").write_text(PLUGIN)
    (folder / "test_it.py").write_text(test)
    options = ["-q", "-p", "no:asyncio", "-p", "no:cacheprovider", "-W", "error", "--reruns", "1"]
    env = {"PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, "-m", "pytest", *options, "test_it.py"]
    run = subprocess.run(
        command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=100
    )
    assert run.returncode == code, run.stdout
    return run.stdout
