"""SIGTERM and SIGINT while workers run: the first stops them gracefully, the second ends them at once."""

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def _ending(signum: int) -> BaseException:
    """The exception that ends the process on the second signal."""
    return KeyboardInterrupt() if signum == signal.SIGINT else SystemExit(128 + signum)


@contextmanager
def stop_on_signals(stop: Callable[[], None], *, install: bool) -> Iterator[None]:
    """In the main thread, call `stop` on the first signal, and raise KeyboardInterrupt or SystemExit on the second. The
    previous handlers are restored afterwards. Does nothing in other threads, or unless `install`."""
    if not install or threading.current_thread() is not threading.main_thread():
        yield
        return
    is_stopping = False

    def handle(signum: int, _: object) -> None:
        nonlocal is_stopping
        if is_stopping:
            raise _ending(signum)
        is_stopping = True
        stop()

    before = {signum: signal.getsignal(signum) for signum in _SIGNALS}
    # A handler not installed from Python can't be restored.
    ours = {signum: handler for signum, handler in before.items() if handler is not None}
    try:
        for signum in ours:
            signal.signal(signum, handle)
        yield
    finally:
        for signum, handler in ours.items():
            signal.signal(signum, handler)


class _LoopSignals:
    """The signal handlers of the main thread's event loop, shared by all its workers, as a loop has one handler per
    signal. Exists while workers run."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.handlers: list[Callable[[int], None]] = []
        self._loop = loop
        before = {signum: signal.getsignal(signum) for signum in _SIGNALS}
        self._before = {signum: handler for signum, handler in before.items() if handler is not None}
        self._installed: list[signal.Signals] = []
        for signum in self._before:
            try:
                loop.add_signal_handler(signum, self._handle, signum)
            except NotImplementedError:  # not on all platforms
                break
            self._installed.append(signum)

    def _handle(self, signum: int) -> None:
        for handle in list(self.handlers):
            handle(signum)

    def close(self) -> None:
        """Restore the previous handlers."""
        for signum in self._installed:
            self._loop.remove_signal_handler(signum)
            signal.signal(signum, self._before[signum])  # the loop does not restore it


_listeners: Final[dict[asyncio.AbstractEventLoop, _LoopSignals]] = {}


@contextmanager
def stop_on_loop_signals(
    loop: asyncio.AbstractEventLoop,
    stop: Callable[[], None],
    end: Callable[[BaseException], None],
    *,
    install: bool,
) -> Iterator[None]:
    """The same for a coroutine in the main thread: `end` is called with the exception it is to raise."""
    if not install or threading.current_thread() is not threading.main_thread():
        yield
        return
    is_stopping = False

    def handle(signum: int) -> None:
        nonlocal is_stopping
        if is_stopping:
            end(_ending(signum))
        else:
            is_stopping = True
            stop()

    listener = _listeners.get(loop)
    if listener is None:
        listener = _listeners[loop] = _LoopSignals(loop)
    listener.handlers.append(handle)
    try:
        yield
    finally:
        listener.handlers.remove(handle)
        if not listener.handlers:
            del _listeners[loop]
            listener.close()
