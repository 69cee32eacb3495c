"""The event loop's lag, on a clock that the test moves."""

import asyncio
import contextlib

import pytest

from topics_server.lag import LoopLag


async def measured(*late_seconds: float) -> LoopLag:
    """A LoopLag whose timers were late by so much, one after the other."""
    now, lates = 0.0, iter(late_seconds)

    async def sleep(seconds: float) -> None:
        nonlocal now
        late = next(lates, None)
        if late is None:
            raise asyncio.CancelledError
        now += seconds + late

    lag = LoopLag(now=lambda: now, sleep=sleep)
    with contextlib.suppress(asyncio.CancelledError):
        await lag.run()
    return lag


async def test_no_lag() -> None:
    lag = await measured(0, 0, 0)
    assert (lag.lag_ms, lag.last_ms, lag.histogram.count) == (pytest.approx(0), pytest.approx(0), 3)


async def test_a_short_stall_moves_the_average_little_and_is_forgotten() -> None:
    lag = await measured(0.1)
    assert lag.last_ms == pytest.approx(100)
    assert 10 < lag.lag_ms < 50
    lag = await measured(0.1, *[0] * 20)
    assert lag.last_ms == pytest.approx(0)
    assert lag.lag_ms < 1


async def test_a_lasting_stall_shows_at_once() -> None:
    assert (await measured(2)).lag_ms > 1900
    assert (await measured(*[0.6] * 3)).lag_ms > 500


async def test_overload_is_lag_that_stays() -> None:
    assert (await measured(0, 0, 5)).sustained_ms == pytest.approx(0), "one long stall is not overload"
    assert (await measured(0, 5, 5)).sustained_ms == pytest.approx(0)
    assert (await measured(0, 0.6, 0.7, 0.8)).sustained_ms == pytest.approx(600)
    assert (await measured(0.6, 0.7, 0.8, 0)).sustained_ms == pytest.approx(0), "and over at the first punctual timer"


async def test_an_early_timer_counts_as_punctual() -> None:
    lag = await measured(-0.01)
    assert (lag.lag_ms, lag.histogram.counts[0]) == (0, 1)


async def test_the_real_loop() -> None:
    lag = LoopLag()
    task = asyncio.create_task(lag.run())
    while not lag.histogram.count:
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert lag.lag_ms >= 0
