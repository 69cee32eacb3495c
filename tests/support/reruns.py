"""A pytest plugin: a test that runs again has servers of its own.

pytest-rerunfailures keeps the fixtures of the module and the session for the second run, which would meet what the
first one left there: topics, leases, a server that is down.
"""

from collections.abc import Generator
from typing import Final

import pytest

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
