"""What holds for every test."""

import os
import signal

import pytest
from hypothesis import settings

from support import reruns, timeouts
from support.cpu import CpuSeconds

# Whoever runs the tests may ignore these (nohup does, and a shell for what it puts in the background), which every
# process that a test starts would inherit.
for signum, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(signum) is signal.SIG_IGN:
        signal.signal(signum, handler)

# What Hypothesis makes up is the same each time: a run tells of the change that it is about, and of nothing that comes
# up once in a thousand runs. The soaks look for that, with random seeds. Its deadline of 200 ms for each example is
# off: it fails whatever test happens to run while others have the processor.
settings.register_profile("fixed", derandomize=True, deadline=None)
settings.register_profile("soak", deadline=None)
settings.load_profile("soak" if os.environ.get("TOPICS_SOAK_SECONDS") else "fixed")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(timeouts)
    config.pluginmanager.register(reruns)
    if os.environ.get("CI") or os.environ.get("TOPICS_ALL_CLIENTS"):
        config.pluginmanager.register(CpuSeconds())
