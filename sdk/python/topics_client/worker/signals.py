"""SIGTERM and SIGINT while workers run: the first asks them to stop, the second ends them at once."""

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def _ending(signum: int) -> BaseException:
    """What a process ends with that has been told twice."""
    return KeyboardInterrupt() if signum == signal.SIGINT else SystemExit(128 + signum)


@contextmanager
def heeded(stop: Callable[[], None], *, install: bool) -> Iterator[None]:
    """In the main thread: `stop` with the first signal; the second raises KeyboardInterrupt or SystemExit in here. The
    handlers of before are back afterwards. In other threads, or unless `install`: nothing."""
    if not install or threading.current_thread() is not threading.main_thread():
        yield
        return
    was_told = False

    def told(signum: int, _: object) -> None:
        nonlocal was_told
        if was_told:
            raise _ending(signum)
        was_told = True
        stop()

    before = {signum: signal.getsignal(signum) for signum in _SIGNALS}
    # One that was not installed from Python can't be restored.
    ours = {signum: handler for signum, handler in before.items() if handler is not None}
    try:
        for signum in ours:
            signal.signal(signum, told)
        yield
    finally:
        for signum, handler in ours.items():
            signal.signal(signum, handler)


class _Ear:
    """What hears the signals of the loop that runs in the main thread, for all the workers there: it has one handler
    for each. There from the first of them to the last."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.heeding: list[Callable[[int], None]] = []
        self._loop = loop
        before = {signum: signal.getsignal(signum) for signum in _SIGNALS}
        self._before = {signum: handler for signum, handler in before.items() if handler is not None}
        self._installed: list[signal.Signals] = []
        for signum in self._before:
            try:
                loop.add_signal_handler(signum, self._told, signum)
            except NotImplementedError:  # not everywhere
                break
            self._installed.append(signum)

    def _told(self, signum: int) -> None:
        for told in list(self.heeding):
            told(signum)

    def close(self) -> None:
        """The handlers of before are back."""
        for signum in self._installed:
            self._loop.remove_signal_handler(signum)
            signal.signal(signum, self._before[signum])  # which the loop does not remember


_ears: Final[dict[asyncio.AbstractEventLoop, _Ear]] = {}


@contextmanager
def heeded_by_loop(
    loop: asyncio.AbstractEventLoop,
    stop: Callable[[], None],
    end: Callable[[BaseException], None],
    *,
    install: bool,
) -> Iterator[None]:
    """The same for a coroutine that runs in the main thread: `end` is called with what it is to raise."""
    if not install or threading.current_thread() is not threading.main_thread():
        yield
        return
    was_told = False

    def told(signum: int) -> None:
        nonlocal was_told
        if was_told:
            end(_ending(signum))
        else:
            was_told = True
            stop()

    ear = _ears.get(loop)
    if ear is None:
        ear = _ears[loop] = _Ear(loop)
    ear.heeding.append(told)
    try:
        yield
    finally:
        ear.heeding.remove(told)
        if not ear.heeding:
            del _ears[loop]
            ear.close()
