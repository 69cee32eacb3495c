"""A pytest plugin: no test and no exit holds a run up, however it ends.

pytest-timeout raises once, and not at all once a test has failed. The clean-up of that test may then wait forever for
one of its threads (the default executor of an event loop does), and so may the exit of the interpreter.
"""

import faulthandler
import os
import signal
import threading
from typing import Final

import pytest
import pytest_timeout

_AGAIN_SECONDS: Final = 30.0
_EXIT_SECONDS: Final = 60.0


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: pytest_timeout.Settings) -> bool:
    """Set the timer of a test, which goes off again and again until the test and its clean-up are over."""

    def interrupt(_signum: int, _frame: object) -> None:
        pytest_timeout.timeout_sigalrm(item, settings)

    def cancel() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)

    item.cancel_timeout = cancel  # type: ignore[attr-defined]  # called by pytest-timeout
    signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, settings.timeout, _AGAIN_SECONDS)
    return True


@pytest.hookimpl(trylast=True)
def pytest_exception_interact(node: pytest.Item | pytest.Collector) -> None:
    """Set the timer of a failed test again, which pytest-timeout has just cancelled for the sake of debuggers."""
    if isinstance(node, pytest.Item):
        settings = pytest_timeout._get_item_settings(node)
        if settings.timeout is not None and settings.timeout > 0:
            pytest_timeout_set_timer(node, settings)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(exitstatus: int) -> None:
    """End a process that hangs at exit, with its own status, and print the threads that it waits for."""

    def leave() -> None:
        faulthandler.dump_traceback(all_threads=True)
        os._exit(exitstatus)

    timer = threading.Timer(_EXIT_SECONDS, leave)
    timer.daemon = True
    timer.start()
