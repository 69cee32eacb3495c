"""Outcomes of the records of a producer."""

import asyncio
import threading
from collections.abc import Callable, Generator
from contextlib import suppress
from copy import copy
from typing import Final

from topics_client.errors import TopicsError

# The seq of the first of consecutive records, or the error of all of them.
Outcome = int | TopicsError
_Waiting = dict[tuple[int, Callable[[], None]], None]  # in order of arrival

_thread: Final = threading.local()


def on_delivering_thread() -> bool:
    """Return True if this is a producer's thread, which runs callbacks. Waiting for a delivery in it would deadlock."""
    return getattr(_thread, "delivers", False)


def enter_delivering_thread() -> None:
    """Mark this thread as a producer's thread."""
    _thread.delivers = True


class Receipt:
    """The outcomes of the records of one batch, shared by their deliveries, which are indexes into it.

    Settled by one thread, read by any.
    """

    __slots__ = ("_each", "_lock", "_outcome", "_waiting", "seen")

    def __init__(self) -> None:
        self.seen = False  # True once a failure was reported
        self._lock = threading.Lock()
        self._outcome: Outcome | None = None  # of all
        self._each: list[Outcome | None] | None = None  # of each, once the batch was split
        self._waiting: _Waiting = {}

    def outcome(self, index: int) -> Outcome | None:
        """The seq of a record or its error; None while neither is known."""
        if self._each is not None:
            return self._each[index]
        outcome = self._outcome
        return outcome + index if isinstance(outcome, int) else outcome

    def when_settled(self, index: int, then: Callable[[], None]) -> bool:
        """Call `then` once from the thread that settles the record. Returns False, without a call, if it is already
        settled."""
        with self._lock:
            if self.outcome(index) is not None:
                return False
            self._waiting[index, then] = None
            return True

    def forget(self, index: int, then: Callable[[], None]) -> None:
        """Unregister `then`."""
        with self._lock:
            self._waiting.pop((index, then), None)

    def settle(self, outcome: Outcome) -> list[Callable[[], None]]:
        """Set the outcome of all records. Returns the callbacks to call now."""
        with self._lock:
            self._outcome = outcome
            now, self._waiting = self._waiting, {}
        return self._callbacks(now, outcome)

    def settle_part(self, start: int, count: int, of: int, outcome: Outcome) -> list[Callable[[], None]]:
        """As `settle`, for `count` of its `of` records, from index `start` on."""
        with self._lock:
            if self._each is None:
                self._each = [None] * of
            each = range(outcome, outcome + count) if isinstance(outcome, int) else [outcome] * count
            self._each[start : start + count] = each
            now = {entry: None for entry in self._waiting if start <= entry[0] < start + count}
            self._waiting = {entry: None for entry in self._waiting if entry not in now}
        return self._callbacks(now, outcome)

    def _callbacks(self, waiting: _Waiting, outcome: Outcome) -> list[Callable[[], None]]:
        if waiting and not isinstance(outcome, int):
            self.seen = True
        return [then for _, then in waiting]

    def abandon(self, error: TopicsError) -> None:
        """Fail the records in the child of a fork, where nothing settles them and the lock may be held forever."""
        self._lock = threading.Lock()
        self._waiting = {}
        if self._each is not None:
            self._each = [error if each is None else each for each in self._each]
        elif self._outcome is None:
            self._outcome = error


class Delivery:
    """The pending or final outcome of a record given to a producer: its seq, or a failure.

    Wait for it in a thread (`result`, `exception`), in an event loop (`seq = await delivery`), or with a callback.
    Every failure is a TopicsError; its `detail["outcome"]` is `not_stored`, or `unknown` if a response was lost.
    """

    __slots__ = ("_index", "_receipt")

    def __init__(self, receipt: Receipt, index: int) -> None:
        self._receipt = receipt
        self._index = index

    def done(self) -> bool:
        """Return True once the outcome is known. Never blocks."""
        return self._receipt.outcome(self._index) is not None

    def result(self, timeout: float | None = None) -> int:
        """Return the seq of the record once it is stored: durable at the topic's durability class, and visible to
        readers.

        Blocks for up to `timeout` seconds. Raises TopicsError for a failed record, TimeoutError, and RuntimeError in a
        callback, which would deadlock.
        """
        return self._seq(self._wait(timeout))

    def exception(self, timeout: float | None = None) -> TopicsError | None:
        """Return the error of a failed record, None if it is stored. Blocks and raises as `result`."""
        outcome = self._wait(timeout)
        if isinstance(outcome, int):
            return None
        self._receipt.seen = True
        return outcome

    def add_done_callback(self, then: "Callable[[Delivery], object]") -> None:
        """Call `then(delivery)` once the outcome is known: from the producer's thread, or immediately if it is known
        already.

        Callbacks of a topic partition that were added in the order of the appends are called in that order. They must
        be short, as nothing is sent meanwhile, and must not wait for deliveries; exceptions are logged.
        """
        if not self._receipt.when_settled(self._index, lambda: self._call(then)):
            self._call(then)

    def __await__(self) -> Generator[object, None, int]:
        outcome = self._receipt.outcome(self._index)
        if outcome is None:
            yield from self._settled().__await__()
            outcome = self._receipt.outcome(self._index)
            assert outcome is not None
        return self._seq(outcome)

    def _seq(self, outcome: Outcome) -> int:
        if isinstance(outcome, int):
            return outcome
        self._receipt.seen = True
        raise copy(outcome)  # a copy with its own traceback: many records share the error

    def _call(self, then: "Callable[[Delivery], object]") -> None:
        if not isinstance(self._receipt.outcome(self._index), int):
            self._receipt.seen = True  # also if it was settled before
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
            with suppress(RuntimeError):  # the loop is closed
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
