"""Dispatch of due watch streams in order of priority, a few in each iteration of the event loop.

A write to a log with a thousand watchers makes a thousand streams due at once. Waking all of them in one step would
delay every request until the last of them was served. At most `_TURNS` streams get a turn per step; requests, and
topics of higher priority that become due, are served in between.

Topics are served by effective priority (docs/contract.md, 3.7) plus age: 100 for every second that a topic's first
stream has waited. Within a topic the order is first come, first served. The age has no bound, so that no topic starves:
25 seconds outweigh any priority.

While the loop is overloaded, streams left over by a step are paced, from the lowest priority upwards: each gets one
advisory frame and then waits for `retry_after_ms` before it queues again, with its age. Pacing of the topic lasts until
a turn without overload. Records written during the pause reach the stream in fewer, larger frames.
"""

import asyncio
import math
from collections import OrderedDict
from collections.abc import Callable
from itertools import islice, takewhile
from operator import itemgetter
from typing import Final

from sortedcontainers import SortedList

from topics_net import background
from topics_service.engine.watch.priority import AGE_RATE

# With 1000 SSE watchers of one topic, a concurrent request took 2 ms (p50) at 16 turns a step, 7 at 64 and 26 at 256;
# delivery took the same 45 ms.
_TURNS: Final = 16
_HELD_BACK: Final = 48
_NEXT: Final = 1e-6  # seconds: no two begin to wait at the same time


class Waiter:
    """A stream that takes turns. `due` are the topics it waits for, `paced` those in which it is paced."""

    __slots__ = ("due", "paced", "turned_at")

    def __init__(self) -> None:
        self.due: set[str] = set()
        self.paced: set[str] = set()
        self.turned_at = -math.inf

    def turn(self) -> None:
        """Take the turn, for all due topics. Called between other steps; must be cheap."""
        raise NotImplementedError

    def pace(self, topic: str, retry_after_ms: int) -> None:
        """Note that turns for `topic`, and possibly others, come at most every `retry_after_ms` from now on."""
        raise NotImplementedError


class _Queue(OrderedDict[Waiter, float]):
    """Waiters of one topic in order of arrival, with their start times. `sort_key` is the queue's key in the order."""

    sort_key = 0.0


class Dispatcher:
    """Grants turns on the event loop. Keeps nothing, not even a timer, for waiters that have left."""

    def __init__(self, priority: Callable[[str], int], overload_ms: Callable[[], int]) -> None:
        """`priority` is a topic's effective priority now; `overload_ms` how long to hold back, 0 without overload."""
        self._priority = priority
        self._overload_ms = overload_ms
        self._loop = asyncio.get_running_loop()
        self._queues: dict[str, _Queue] = {}
        self._order: SortedList[tuple[float, str]] = SortedList()  # the sort key of each queue, smallest first
        self._held: dict[tuple[str, Waiter], tuple[float, float]] = {}  # until, and waiting since
        self._timer: asyncio.TimerHandle | None = None  # for the first of those
        self._step_is_planned = False  # always true while there are queues
        self._turns_left = 0
        self._retry_after_ms = 0
        self._since = 0.0  # when the newest in a queue began to wait

    def ask(self, topic: str, waiter: Waiter, *, again: bool = False) -> None:
        """Request a turn for the due records of `topic`.

        The turn is granted immediately if no other waiter is queued and turns are left in this step. With `again`, for
        a waiter that has just used up a turn, it always queues behind everything else.
        """
        if topic in waiter.due:
            return
        if not self._step_is_planned:
            self._plan_step()
        if self._turns_left and not self._queues and not self._retry_after_ms and not again:
            self._turns_left -= 1
            self._give(waiter)
            return
        waiter.due.add(topic)
        since = self._since = max(self._loop.time(), self._since + _NEXT)
        if topic in waiter.paced and self._retry_after_ms and since < waiter.turned_at + self._retry_after_ms / 1e3:
            self._hold(topic, waiter, since)
            self._set_timer()
        elif topic in self._queues:
            self._queues[topic][waiter] = since
        else:
            self._open(topic)[waiter] = since
            self._sort(topic, since)

    def leave(self, waiter: Waiter) -> None:
        """Withdraw all requests of the waiter."""
        for topic in waiter.due:
            self._remove(topic, waiter)
        waiter.due.clear()

    def drop(self, topic: str, waiter: Waiter) -> None:
        """Withdraw the waiter's request for `topic`."""
        if topic in waiter.due:
            waiter.due.remove(topic)
            self._remove(topic, waiter)

    @property
    def is_idle(self) -> bool:
        """True if no waiter is queued or held back."""
        return not self._held and self._timer is None and not any(self._queues.values())

    # --------------------------------------------------------------- internals

    def _remove(self, topic: str, waiter: Waiter) -> None:
        queue = self._queues.get(topic)
        if queue is not None and queue.pop(waiter, None) is not None:
            return  # an empty queue goes in the next step
        del self._held[topic, waiter]
        self._stop_timer_if_unused()

    def _plan_step(self) -> None:
        self._step_is_planned = True
        self._retry_after_ms = self._overload_ms()
        self._turns_left = _TURNS
        background.call_soon(self._step)
        if self._held and not self._retry_after_ms:
            self._release(list(self._held.items()))

    def _step(self) -> None:
        self._step_is_planned = False
        if not self._queues:
            return
        self._plan_step()
        self._serve()
        if self._retry_after_ms:
            self._hold_back()

    def _serve(self) -> None:
        """Grant the turns of this step in order."""
        known: set[str] = set()
        while self._turns_left and self._order:
            _, topic = self._order[0]
            queue = self._queues[topic]
            if not queue:
                self._close(topic)
            elif topic not in known:  # its first waiter may have changed since it was sorted
                known.add(topic)
                self._sort(topic, next(iter(queue.values())))
            else:
                first = list(islice(queue, self._turns_left))
                self._turns_left -= len(first)
                for waiter in first:
                    self._give(waiter)

    def _give(self, waiter: Waiter) -> None:
        if waiter.due:
            self.leave(waiter)
        if waiter.paced and not self._retry_after_ms:
            waiter.paced.clear()
        waiter.turned_at = self._loop.time()
        waiter.turn()

    def _open(self, topic: str) -> _Queue:
        queue = self._queues[topic] = _Queue()
        self._order.add((queue.sort_key, topic))
        return queue

    def _close(self, topic: str) -> None:
        self._order.remove((self._queues.pop(topic).sort_key, topic))

    def _sort(self, topic: str, since: float) -> None:
        """Sort the queue by the topic's priority and the time at which its first waiter began to wait.

        All queues age at the same rate, so their order does not change while they wait.
        """
        queue, sort_key = self._queues[topic], AGE_RATE * since - self._priority(topic)
        if sort_key != queue.sort_key:
            self._order.remove((queue.sort_key, topic))
            queue.sort_key = sort_key
            self._order.add((sort_key, topic))

    def _hold_back(self) -> None:
        """Hold back the last waiters, a bounded number per step."""
        left = _HELD_BACK
        while left and self._order:
            _, topic = self._order[-1]
            queue = self._queues[topic]
            while left and queue:
                left -= 1
                waiter, since = queue.popitem()
                self._hold(topic, waiter, since)
                if not waiter.paced:
                    waiter.pace(topic, self._retry_after_ms)
                waiter.paced.add(topic)
            if not queue:
                self._close(topic)
        self._set_timer()

    def _hold(self, topic: str, waiter: Waiter, since: float) -> None:
        self._held[topic, waiter] = (self._loop.time() + self._retry_after_ms / 1e3, since)

    def _set_timer(self) -> None:
        if self._timer is None and self._held:
            until, _ = next(iter(self._held.values()))
            self._timer = background.call_at(until, self._time_is_up)

    def _time_is_up(self) -> None:
        self._timer = None
        now = self._loop.time()
        self._release(list(takewhile(lambda pair: pair[1][0] <= now, self._held.items())))
        self._set_timer()
        if self._queues and not self._step_is_planned:
            self._plan_step()

    def _release(self, pairs: "list[tuple[tuple[str, Waiter], tuple[float, float]]]") -> None:
        """Return held waiters to their queues, at their former positions."""
        back: dict[str, list[tuple[Waiter, float]]] = {}
        for (topic, waiter), (_, since) in pairs:
            del self._held[topic, waiter]
            back.setdefault(topic, []).append((waiter, since))
        for topic, waiters in back.items():
            queue = self._queues.get(topic)
            if queue is None:
                queue = self._open(topic)
            in_order = sorted([*queue.items(), *waiters], key=itemgetter(1))
            queue.clear()
            queue.update(in_order)
            self._sort(topic, in_order[0][1])
        self._stop_timer_if_unused()

    def _stop_timer_if_unused(self) -> None:
        if self._timer is not None and not self._held:
            self._timer.cancel()
            self._timer = None
