"""The collector of cyclic garbage in a server's process."""

import asyncio
import gc
from typing import Final

from topics_net import background

# A full collection walks every cached block. Against Python's (700, 10, 10) this took the loop's cost of a single
# append from 122 to 115 us, and the p99 of 64 writers from 27 to 12 ms.
_COLLECT_AFTER: Final = (20_000, 20, 100)

QUIET_SECONDS: Final = 5.0
"""The time without a moving shard after which a node frees what shards have left."""
_LATEST_SECONDS: Final = 60.0


def pause() -> None:
    """Stop it for a recovery, which makes much that stays: looking through that takes a sixth of the time."""
    gc.disable()


def resume() -> None:
    """Exempt recovered topics and cached blocks: they stay, and hold no cycles.

    A search for garbage first would look at each of them, and find next to nothing.
    """
    gc.freeze()
    gc.set_threshold(*_COLLECT_AFTER)
    gc.enable()


def collect() -> None:
    """Free what has ended in the middle of the process's life, exempt or not. Blocks, the longer the more topics there
    are."""
    is_tuned = gc.get_freeze_count() > 0
    gc.unfreeze()
    gc.collect()
    if is_tuned:
        gc.freeze()


class Leftovers:
    """Frees what shards have left at a node once none has moved for a while.

    To collect stops the loop, and all shards of the node with it: 0.1 s for a few topics. A shard that moves at that
    moment would be without an owner for as long. Belongs to the event loop.
    """

    def __init__(self) -> None:
        self._since: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def left(self) -> None:
        """Note that an engine has ended, which has cycles."""
        if self._since is None:
            self._since = asyncio.get_running_loop().time()
        self.postpone()

    def postpone(self) -> None:
        """Note that a shard moves: what is left waits, but not for longer than a minute."""
        if self._since is None:
            return
        if self._timer is not None:
            self._timer.cancel()
        now = asyncio.get_running_loop().time()
        self._timer = background.call_at(min(now + QUIET_SECONDS, self._since + _LATEST_SECONDS), self._collect)

    def _collect(self) -> None:
        self._since = self._timer = None
        collect()
