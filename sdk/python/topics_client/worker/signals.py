"""SIGTERM and SIGINT while a worker runs: the first asks it to stop, the second ends it at once."""

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

    before = {signum: signal.getsignal(signum) for signum in _SIGNALS}
    ours = {signum: handler for signum, handler in before.items() if handler is not None}
    installed: list[signal.Signals] = []
    try:
        for signum in ours:
            try:
                loop.add_signal_handler(signum, told, signum)
            except NotImplementedError:  # not everywhere
                break
            installed.append(signum)
        yield
    finally:
        for signum in installed:
            loop.remove_signal_handler(signum)
            signal.signal(signum, ours[signum])  # which the loop does not remember
