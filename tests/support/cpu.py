"""A pytest plugin that prints the test files which took most CPU time.

Two cores run the tests, so CPU time, not waiting, is what a run costs. Processes that a test starts count once they
have ended and their parent has waited for them, forked servers (`support/preloaded.py`) among them.
"""

import os
from collections import Counter
from collections.abc import Generator
from typing import Final

import pytest

from support.commands import COMMANDS
from support.server import PRELOADED

_SHOWN: Final = 15


class CpuSeconds:
    """Counts the CPU seconds of each test file, fixtures included."""

    def __init__(self) -> None:
        self._by_file: Counter[str] = Counter()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        before = _used()
        try:
            return (yield)
        finally:
            self._by_file[item.nodeid.partition("::")[0]] += _used() - before

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        total = sum(self._by_file.values())
        terminalreporter.section(f"CPU seconds: {total:.0f}, of which")
        for file, seconds in self._by_file.most_common(_SHOWN):
            terminalreporter.line(f"{seconds:7.1f} {file}")


def _used() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system + _forked()


def _forked() -> float:
    return PRELOADED.cpu_seconds() + COMMANDS.cpu_seconds()
