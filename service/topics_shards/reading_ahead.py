"""Lists of topics whose pages are read one right after the other: several pages are read from the shards at once."""

import asyncio
from collections import OrderedDict
from typing import Final, NamedTuple

from topics_net import background
from topics_service.api.access.auth import Principal
from topics_service.engine.model import ListTopicsRequest, TopicSummary

FRESH_SECONDS: Final = 0.25
"""The age of what is read ahead at which it is of no use any more."""
MOST_LINES: Final = 1000
"""The topics that are read at once, if a page has no more."""
_MOST_LISTS: Final = 16
_FASTER: Final = 2  # times as many pages are read with each time

Key = tuple[str, tuple[str, ...] | None, str | None]


class Rest(NamedTuple):
    """The topics behind a page, in name order, as they were at that moment."""

    lines: list[TopicSummary]
    has_more: bool
    """True if there may be others behind them."""
    read_at: float
    pages: int
    """The number of pages that were read at once."""


class ReadAhead:
    """The topics behind the last page of each list that is under way: one page takes them, and leaves the rest to the
    next one. Belongs to the event loop."""

    def __init__(self) -> None:
        self._rests: OrderedDict[Key, Rest] = OrderedDict()
        self._state = 0
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._rests)

    def take(self, request: ListTopicsRequest, principal: Principal) -> Rest | None:
        """Return what was read for this page, or a part of it. It is kept no longer."""
        self._expire()
        return self._rests.pop(_key(request, request.after, principal), None)

    @property
    def state(self) -> int:
        """The number of changes of which this process knows."""
        return self._state

    def keep(self, request: ListTopicsRequest, principal: Principal, after: str, rest: Rest, state: int) -> None:
        """Keep what is left for the page behind `after`, unless a topic of this process has changed since `state`."""
        if state != self._state:
            return
        self._rests[_key(request, after, principal)] = rest
        while len(self._rests) > _MOST_LISTS:
            self._rests.popitem(last=False)
        if self._timer is None:
            self._timer = background.call_later(FRESH_SECONDS, self._look)

    def changed(self) -> None:
        """Forget everything: a topic was made or deleted here, and the next page has to show that."""
        self._state += 1
        self._rests.clear()

    def _look(self) -> None:
        self._timer = None
        self._expire()
        if self._rests:
            self._timer = background.call_later(FRESH_SECONDS, self._look)

    def _expire(self) -> None:
        oldest = asyncio.get_running_loop().time() - FRESH_SECONDS
        for key in [key for key, rest in self._rests.items() if rest.read_at <= oldest]:
            del self._rests[key]


def pages_at_once(request: ListTopicsRequest, before: Rest | None) -> int:
    """The number of pages to read: more each time that a list has come to the end of what was read before."""
    return 1 if before is None else min(before.pages * _FASTER, max(1, MOST_LINES // request.page_size))


def _key(request: ListTopicsRequest, after: str | None, principal: Principal) -> Key:
    return request.prefix, principal.prefixes, after
