"""Caps of streams, sessions, routers and jobs: their defaults, and where they end up."""

import pytest

from topics_server.settings import load
from topics_service.api.watch import WatchCaps
from topics_service.engine.limits import Limits


def test_the_defaults_are_the_contracts() -> None:
    settings = load({}, {})
    assert settings.watch_caps == WatchCaps(max_sessions=10_000, max_connections=10_000, max_connections_per_key=1000)
    assert settings.watch_caps == WatchCaps()
    assert (settings.limits.max_watch_topics, settings.limits.max_claim) == (256, 1000)
    assert (settings.limits.max_routers, settings.limits.max_topics) == (10_000, 100_000)
    assert settings.limits.max_routers == Limits().max_routers


@pytest.mark.parametrize("value", [0, 7])
def test_each_variable_sets_its_cap_and_zero_is_none(value: int) -> None:
    names = ("MAX_WATCH_SESSIONS", "MAX_SSE_CONNECTIONS", "MAX_SSE_CONNECTIONS_PER_KEY", "MAX_ROUTERS")
    settings = load({f"TOPICS_{name}": str(value) for name in names}, {})
    assert settings.watch_caps == WatchCaps(max_sessions=value, max_connections=value, max_connections_per_key=value)
    assert settings.limits.max_routers == value


@pytest.mark.parametrize(("value", "minimum"), [("0", 1), ("1", 1), ("50", 50), ("5000", 1000), ("0.1s", 100)])
def test_tests_may_lower_the_least_heartbeat(value: str, minimum: int) -> None:
    assert load({"TOPICS_TEST_MIN_HEARTBEAT_MS": value}, {}).watch_caps.min_heartbeat_ms == minimum


def test_what_bounds_a_request_is_at_least_one() -> None:
    settings = load({"TOPICS_MAX_WATCH_TOPICS": "0", "TOPICS_MAX_CLAIM": "0"}, {})
    assert (settings.limits.max_watch_topics, settings.limits.max_claim) == (1, 1)
