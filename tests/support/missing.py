"""What a test needs and the machine does not have."""

import os
from typing import NoReturn

import pytest


def without(reason: str) -> NoReturn:
    """End the test: skipped, with the reason; failed with TOPICS_ALL_CLIENTS (CI), which skips nothing."""
    if os.environ.get("TOPICS_ALL_CLIENTS"):
        pytest.fail(reason)
    pytest.skip(reason)
