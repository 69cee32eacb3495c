"""How much of the event loop forwarding takes, on a clock that the test moves."""

import asyncio
import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from topics_server import forwarder
from topics_server.forwarder import Forwarder

SLICE = 100e-6


class Loop:
    """Stands in for clock and sleep: a turn of the loop takes what `turn` says, and so much of each millisecond that
    forwarding sleeps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, turn: Callable[[], float]) -> None:
        self.now = self.used = 0.0
        self.others = 0.0
        self.sleeps: list[float] = []
        self._turn = turn
        self._sleep = asyncio.sleep
        clock = SimpleNamespace(perf_counter=lambda: self.now, thread_time=lambda: self.used)
        monkeypatch.setattr(forwarder, "time", clock)
        monkeypatch.setattr(forwarder.asyncio, "sleep", self.sleep)

    async def sleep(self, seconds: float) -> None:
        given = seconds or self._turn()
        if seconds:
            self.sleeps.append(seconds)
        self.now += given
        self.used += self._turn() * given / 1e-3 if seconds else given
        self.others += given
        await self._sleep(0)


class Routers:
    """Has the given number of slices to do; each takes `SLICE`."""

    def __init__(self) -> None:
        self.on_due: Callable[[], None] = lambda: None
        self.left = 0
        self.done = 0
        self.loop: Loop | None = None
        self.broken = False

    def forward(self) -> bool:
        assert self.loop is not None
        self.loop.now += SLICE
        self.done += 1
        self.left -= 1
        if self.broken:
            self.broken = False
            raise ZeroDivisionError("a bug")
        return self.left > 0


async def run(
    monkeypatch: pytest.MonkeyPatch, slices: int, turn: Callable[[], float], *, broken: bool = False, others: int = 0
) -> Any:
    """Let a Forwarder do the given number of slices of an engine, beside those of `others`."""
    routers, *rest = engines = [Routers() for _ in range(1 + others)]
    mine = Forwarder(*engines)  # type: ignore[arg-type]
    sleep = asyncio.sleep
    loop = Loop(monkeypatch, turn)
    for each in engines:
        each.loop, each.left = loop, slices
    routers.broken = broken
    task = asyncio.create_task(mine.run())
    await sleep(0)
    assert routers.done == 0, "nothing is due"
    routers.on_due()
    async with asyncio.timeout(10):
        while routers.done < slices:
            await sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert all(abs(each.done - slices) <= 1 for each in rest), "they take turns"
    return loop


async def test_an_idle_loop_is_all_for_forwarding(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = await run(monkeypatch, 1000, lambda: 10e-6)
    assert loop.sleeps == []
    assert loop.others < 0.15 * 1000 * SLICE


@pytest.mark.parametrize(("turn", "minimum"), [(60e-6, 0.13), (300e-6, 0.13), (5e-3, 0.06)])
async def test_a_busy_loop_gets_six_sevenths(monkeypatch: pytest.MonkeyPatch, turn: float, minimum: float) -> None:
    loop = await run(monkeypatch, 1000, lambda: turn)
    share = 1000 * SLICE / (1000 * SLICE + loop.others)
    assert minimum < share < 0.15


async def test_engines_on_one_loop_share_its_seventh(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = await run(monkeypatch, 250, lambda: 300e-6, others=3)
    share = 1000 * SLICE / (1000 * SLICE + loop.others)
    assert 0.12 < share < 0.16


async def test_a_client_that_asks_one_by_one_is_no_idle_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has its answer and has not asked again yet in most turns."""
    turns = iter([10e-6, 10e-6, 10e-6, 150e-6] * 100_000)
    loop = await run(monkeypatch, 1000, lambda: next(turns))
    assert 1000 * SLICE / (1000 * SLICE + loop.others) < 0.16
    assert min(loop.sleeps) >= 1e-3


async def test_a_bug_is_logged_and_the_rest_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        await run(monkeypatch, 5, lambda: 10e-6, broken=True)
    assert [record.message for record in caplog.records] == ["forwarding failed"]
