"""A pytest plugin: a test that runs again has servers of its own, and its first run fails nothing else.

pytest-rerunfailures keeps the fixtures of the module and the session for the second run, which would meet what the
first one left there: topics, leases, a server that is down. The frames of a failure stay in a cycle with its traceback;
what they hold open, such as a socket, would be reported as unclosed in whatever runs when it is collected, be it the
end of the session.
"""

import gc
import sys
from collections.abc import Generator
from contextlib import suppress
from typing import Final

import pytest
from _pytest.unraisableexception import unraisable_exceptions

_FAILED: Final = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note that a test has failed, before its teardown."""
    report = yield
    item.stash[_FAILED] = report.failed or (report.when != "setup" and item.stash[_FAILED])
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """End every fixture that a failed test may have used, those of the session included."""
    if item.stash[_FAILED] and item.config.getoption("reruns", 0):
        item.session._setupstate.teardown_exact(None)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before a second run, collect what the first one held open, and forget what is said of it."""
    if item.stash.get(_FAILED, False):
        for name in ("last_type", "last_value", "last_traceback", "last_exc"):
            with suppress(AttributeError):
                delattr(sys, name)
        gc.collect()
        item.config.stash[unraisable_exceptions].clear()
