"""Producers at the end of their process, and after a fork."""

import os
import threading
import time
from collections.abc import Callable
from typing import Final, Protocol


class Closable(Protocol):
    """The part of a producer that this module uses."""

    def when_settled(self, then: Callable[[], None]) -> int:
        """Stop all lingering, and call `then` once everything is settled."""

    def end_with_process(self, seconds: float) -> None:
        """Deliver the remaining records within the time limit, and log any failure."""

    def abandon(self) -> None:
        """Reject everything, as this process is the child of a fork."""


SECONDS = 10.0  # for the delivery of remaining records

_open: Final[set[Closable]] = set()
_lock = threading.Lock()
_watching = False


def register(producer: Closable) -> None:
    """Track a producer until it is closed."""
    global _watching
    with _lock:
        _open.add(producer)
        if not _watching:
            _watching = True
            # Not a daemon: the interpreter waits for it before it begins to shut down. It does not delay the end
            # except to deliver records.
            threading.Thread(target=_watch, name="topics-producers-exit", daemon=False).start()


def unregister(producer: Closable) -> None:
    """Stop tracking a producer, which has no records left."""
    with _lock:
        _open.discard(producer)


def _watch() -> None:
    """Wait for the end of the program, when all its non-daemon threads have ended."""
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
    _lock = threading.Lock()  # another thread may hold it forever
    _watching = False
    for producer in list(_open):
        producer.abandon()
    _open.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
