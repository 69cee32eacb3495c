"""A run of the tests ends, whatever a test leaves behind: a hanging one reports nothing until CI kills it."""

import subprocess
import sys
from pathlib import Path

SHORT = """
from support import timeouts

timeouts._AGAIN_SECONDS, timeouts._EXIT_SECONDS = 4, 8

def pytest_configure(config):
    config.pluginmanager.register(timeouts)
"""
STUCK = """
import asyncio, threading

def test_whose_threads_outlive_it():
    async def wait():
        await asyncio.to_thread(threading.Event().wait)

    asyncio.run(wait())

def test_whose_clean_up_waits():
    try:
        assert False
    finally:
        threading.Event().wait()

def test_that_comes_after():
    pass
"""


def test_a_test_whose_thread_never_ends_fails_and_the_run_goes_on(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(SHORT)
    (tmp_path / "test_stuck.py").write_text(STUCK)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout", "3", "test_stuck.py"]
    tests = Path(__file__).parents[1]
    run = subprocess.run(
        command, cwd=tmp_path, env={"PYTHONPATH": str(tests)}, capture_output=True, text=True, timeout=100
    )
    assert run.returncode == 1
    assert "2 failed, 1 passed" in run.stdout
    assert "most recent call first" in run.stderr  # the stack of the thread that the process waited for
