"""What becomes of producers when their process ends, or forks."""

import os
import threading
import time
from collections.abc import Callable
from typing import Final, Protocol


class Endable(Protocol):
    """A producer, as this module sees it."""

    def when_settled(self, then: Callable[[], None]) -> int:
        """Let nothing linger."""

    def end_with_process(self, seconds: float) -> None:
        """Deliver what is there within so many seconds, and tell what is not."""

    def abandon(self) -> None:
        """This is the child of a fork: refuse everything."""


SECONDS = 10.0  # that what is left is given

_open: Final[set[Endable]] = set()
_lock = threading.Lock()
_watching = False


def register(producer: Endable) -> None:
    """Look after a producer until it is closed."""
    global _watching
    with _lock:
        _open.add(producer)
        if not _watching:
            _watching = True
            # Not a daemon: the interpreter waits for it, before its own parts begin to end. It does not hold anything
            # up but by what it is there for.
            threading.Thread(target=_watch, name="topics-producers-exit", daemon=False).start()


def unregister(producer: Endable) -> None:
    """A producer has nothing left."""
    with _lock:
        _open.discard(producer)


def _watch() -> None:
    """Wait until the program has ended, which is when all its threads have but for daemons."""
    me = threading.current_thread()
    while alive := [each for each in threading.enumerate() if each is not me and not each.daemon and each.is_alive()]:
        alive[0].join()
    with _lock:
        left = list(_open)
    ends = time.monotonic() + SECONDS
    for producer in left:
        producer.when_settled(lambda: None)
    for producer in left:
        producer.end_with_process(max(0.0, ends - time.monotonic()))


def _in_child() -> None:
    global _lock, _watching
    _lock = threading.Lock()  # somebody may hold it for ever
    _watching = False
    for producer in list(_open):
        producer.abandon()
    _open.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
