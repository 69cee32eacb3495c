"""The elastic throttle: what is refused, what waits, and what a refusal says."""

import pytest

from topics_service.api.scheduling import pressure as module
from topics_service.api.scheduling.pressure import Pressure
from topics_service.engine.errors import Reason, TopicsError


class Gauge:
    """A measurement that a test sets; each reading of `falling` lowers it."""

    def __init__(self, value: float, falling: float = 0.0) -> None:
        self.value = value
        self.falling = falling

    def __call__(self) -> float:
        self.value -= self.falling
        return self.value


def test_a_lagging_loop_throttles_and_says_when_to_come_back() -> None:
    pressure = Pressure(lag_ms=Gauge(2345.6), max_lag_ms=500)
    with pytest.raises(TopicsError) as caught:
        pressure.check()
    assert caught.value.reason is Reason.THROTTLED
    assert caught.value.detail == {"retry_after_ms": 2346}
    assert caught.value.retry_after_ms == 2346


@pytest.mark.parametrize(("lag", "maximum"), [(500.0, 500), (9999.0, 0)])
def test_no_throttle_at_the_limit_or_when_it_is_off(lag: float, maximum: int) -> None:
    Pressure(lag_ms=Gauge(lag), max_lag_ms=maximum).check()


@pytest.mark.parametrize(
    ("lag", "maximum", "wait"), [(500.0, 500, 0), (501.0, 500, 1000), (2345.6, 500, 2346), (9e9, 0, 0)]
)
def test_watchers_are_told_how_long_to_hold_back(lag: float, maximum: int, wait: int) -> None:
    assert Pressure(lag_ms=lambda: lag, max_lag_ms=maximum).overload_ms() == wait


def test_a_full_disk_does_not_hold_watchers_back() -> None:
    assert not Pressure(free_bytes=lambda: 0, min_free_bytes=1, max_lag_ms=1).overload_ms()


def test_a_nearly_full_disk_names_its_limit() -> None:
    pressure = Pressure(free_bytes=lambda: 99, min_free_bytes=100)
    with pytest.raises(TopicsError) as caught:
        pressure.check()
    assert caught.value.detail == {"limit": "min_free_bytes", "max": 100}


async def test_a_loader_that_opted_out_waits_and_the_wait_is_measured() -> None:
    lag = Gauge(700, falling=100)
    reply, waited = await Pressure(lag_ms=lag, max_lag_ms=500).push_through(lambda: "written")
    assert reply == "written"
    assert waited >= 15
    assert lag.value == 500


async def test_nothing_in_the_way_means_no_wait() -> None:
    assert await Pressure().push_through(lambda: 1) == (1, 0.0)


async def test_a_stalled_store_is_tried_again() -> None:
    attempts = []

    def write() -> int:
        attempts.append(1)
        if len(attempts) < 3:
            raise TopicsError(Reason.THROTTLED, "stalled", {"retry_after_ms": 1})
        return len(attempts)

    reply, waited = await Pressure().push_through(write)
    assert reply == 3
    assert waited > 0


async def test_a_resource_limit_is_not_waited_for() -> None:
    with pytest.raises(TopicsError, match="nearly full"):
        await Pressure(free_bytes=lambda: 0, min_free_bytes=1).push_through(lambda: 1)


async def test_patience_ends_and_the_write_is_tried_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_HOLD_SECONDS", 0.05)
    reply, waited = await Pressure(lag_ms=Gauge(9999), max_lag_ms=500).push_through(lambda: "written")
    assert reply == "written"
    assert waited >= 50


async def test_a_large_write_waits_until_the_buffers_of_those_before_are_in_tables() -> None:
    flushing = Gauge(4, falling=1)
    pressure = Pressure(flushing=lambda: int(flushing()))
    assert not await pressure.flushed(4 << 20), "only a large one asks"
    assert flushing.value == 4
    assert await pressure.flushed(5 << 20)
    assert flushing.value == 0


async def test_a_large_write_is_throttled_when_the_buffers_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_HOLD_SECONDS", 0.05)
    with pytest.raises(TopicsError) as caught:
        await Pressure(flushing=lambda: 1).flushed(5 << 20)
    assert (caught.value.reason, caught.value.retry_after_ms) == (Reason.THROTTLED, 1000)
