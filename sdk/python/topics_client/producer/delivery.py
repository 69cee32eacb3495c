"""What becomes of records on their way through a producer."""

import asyncio
import threading
from collections.abc import Callable, Generator
from contextlib import suppress
from copy import copy
from typing import Final

from topics_client.errors import TopicsError

# The seq of the first record of a run, or what all of them failed with.
Outcome = int | TopicsError
_Waiting = dict[tuple[int, Callable[[], None]], None]  # in the order in which they came

_thread: Final = threading.local()


def on_delivering_thread() -> bool:
    """Whether this thread delivers, and runs callbacks. Whoever waits for a delivery here waits for ever."""
    return getattr(_thread, "delivers", False)


def enter_delivering_thread() -> None:
    """From now on this thread is one."""
    _thread.delivers = True


class Receipt:
    """What became of the records that one batch was made of: shared by their deliveries, which are only indexes in it.

    Settled by one thread, asked by any.
    """

    __slots__ = ("_each", "_lock", "_outcome", "_waiting", "seen")

    def __init__(self) -> None:
        self.seen = False  # whether a failure has come to somebody
        self._lock = threading.Lock()
        self._outcome: Outcome | None = None  # of all
        self._each: list[Outcome | None] | None = None  # or of each, once the batch was split
        self._waiting: _Waiting = {}

    def outcome(self, index: int) -> Outcome | None:
        """The seq of a record or what it failed with; None as long as neither is known."""
        if self._each is not None:
            return self._each[index]
        outcome = self._outcome
        return outcome + index if isinstance(outcome, int) else outcome

    def when_settled(self, index: int, then: Callable[[], None]) -> bool:
        """Have `then` called, once, by the thread that settles the record; False, and no call, if it is settled."""
        with self._lock:
            if self.outcome(index) is not None:
                return False
            self._waiting[index, then] = None
            return True

    def forget(self, index: int, then: Callable[[], None]) -> None:
        """Whoever gave `then` waits no more."""
        with self._lock:
            self._waiting.pop((index, then), None)

    def settle(self, outcome: Outcome) -> list[Callable[[], None]]:
        """All records have this outcome. Returns what is to be called now."""
        with self._lock:
            self._outcome = outcome
            now, self._waiting = self._waiting, {}
        return self._told(now, outcome)

    def settle_part(self, start: int, count: int, of: int, outcome: Outcome) -> list[Callable[[], None]]:
        """As `settle`, for `count` of its `of` records, from index `start` on."""
        with self._lock:
            if self._each is None:
                self._each = [None] * of
            each = range(outcome, outcome + count) if isinstance(outcome, int) else [outcome] * count
            self._each[start : start + count] = each
            now = {entry: None for entry in self._waiting if start <= entry[0] < start + count}
            self._waiting = {entry: None for entry in self._waiting if entry not in now}
        return self._told(now, outcome)

    def _told(self, waiting: _Waiting, outcome: Outcome) -> list[Callable[[], None]]:
        if waiting and not isinstance(outcome, int):
            self.seen = True
        return [then for _, then in waiting]

    def abandon(self, error: TopicsError) -> None:
        """In the child of a fork, where nobody settles anything and the lock may be held for ever."""
        self._lock = threading.Lock()
        self._waiting = {}
        if self._each is not None:
            self._each = [error if each is None else each for each in self._each]
        elif self._outcome is None:
            self._outcome = error


class Delivery:
    """A record that was given to a producer: stored at a seq in the end, or failed.

    Wait for it in a thread (`result`, `exception`), in any event loop (`seq = await delivery`), or by a callback.
    Every error is a TopicsError; its `detail["outcome"]` is `not_stored`, or `unknown` where an answer was lost.
    """

    __slots__ = ("_index", "_receipt")

    def __init__(self, receipt: Receipt, index: int) -> None:
        self._receipt = receipt
        self._index = index

    def done(self) -> bool:
        """Whether it is known what became of it. Never blocks."""
        return self._receipt.outcome(self._index) is not None

    def result(self, timeout: float | None = None) -> int:
        """The seq of the record, once it is stored: durable for the class of the topic, and visible to readers.

        Blocks, at most `timeout` seconds. Raises TopicsError for a record that failed, TimeoutError, and RuntimeError
        in a callback, which would wait for itself.
        """
        return self._told(self._wait(timeout))

    def exception(self, timeout: float | None = None) -> TopicsError | None:
        """What the record failed with, None if it is stored. Blocks and raises as `result`."""
        outcome = self._wait(timeout)
        if isinstance(outcome, int):
            return None
        self._receipt.seen = True
        return outcome

    def add_done_callback(self, then: "Callable[[Delivery], object]") -> None:
        """Have `then(delivery)` called once it is done, by the producer's thread, or now, by this one, if it is.

        For each topic partition, callbacks that were given in the order of the appends come in that order. They must be
        short, as nothing is sent meanwhile, and must not wait for deliveries; what they raise is logged.
        """
        if not self._receipt.when_settled(self._index, lambda: self._call(then)):
            self._call(then)

    def __await__(self) -> Generator[object, None, int]:
        outcome = self._receipt.outcome(self._index)
        if outcome is None:
            yield from self._settled().__await__()
            outcome = self._receipt.outcome(self._index)
            assert outcome is not None
        return self._told(outcome)

    def _told(self, outcome: Outcome) -> int:
        if isinstance(outcome, int):
            return outcome
        self._receipt.seen = True
        raise copy(outcome)  # its own traceback: many records share the error

    def _call(self, then: "Callable[[Delivery], object]") -> None:
        if not isinstance(self._receipt.outcome(self._index), int):
            self._receipt.seen = True  # also where it was settled before
        then(self)

    def _wait(self, timeout: float | None) -> Outcome:
        receipt, index = self._receipt, self._index
        outcome = receipt.outcome(index)
        if outcome is not None:
            return outcome
        if on_delivering_thread():
            raise RuntimeError("a callback of a delivery must not wait for a delivery")
        settled = threading.Event()
        then = settled.set
        try:
            if receipt.when_settled(index, then) and not settled.wait(timeout):
                raise TimeoutError(f"the record was not delivered within {timeout:g} s")
        finally:
            receipt.forget(index, then)
        outcome = receipt.outcome(index)
        assert outcome is not None
        return outcome

    async def _settled(self) -> None:
        loop = asyncio.get_running_loop()
        future = loop.create_future()

        def wake() -> None:
            if not future.done():
                future.set_result(None)

        def settled() -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits
                loop.call_soon_threadsafe(wake)

        try:
            if self._receipt.when_settled(self._index, settled):
                await future
        finally:
            self._receipt.forget(self._index, settled)

    def __repr__(self) -> str:
        outcome = self._receipt.outcome(self._index)
        state = "pending" if outcome is None else f"seq {outcome}" if isinstance(outcome, int) else f"failed: {outcome}"
        return f"<Delivery {state}>"
