"""The search of one request for the owner of its shard."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Final

from topics_cluster.coordinator import Addresses
from topics_service.engine.errors import Reason, TopicsError

OwnerSource = Callable[[], Addresses | Awaitable[Addresses]]
"""Returns where the owner is, or an awaitable of that if there is none at present, which may wait without end."""

HOLD_SECONDS: Final = 10.0
"""The time for which a request is held that reaches no owner."""

NOT_OWNER: Final = "x-topics-not-owner"
"""The header, or trailing metadata, by which a node says that it did nothing of a forwarded request."""
NOT_OWNER_BYTES: Final = NOT_OWNER.encode()

DISTRUSTED: Final = "x-topics-distrusted"
"""The header, or trailing metadata, by which a node says that it did nothing since the signature of the node that
forwards does not hold; its value is the cause."""

_FIRST_PAUSE: Final = 0.01
_LONGEST_PAUSE: Final = 0.1


class DistrustedError(TopicsError):
    """The owner refuses what this node forwards: nothing was done, and another node may have more luck."""

    def __init__(self, cause: str) -> None:
        super().__init__(
            Reason.NOT_READY, f"ask another node: the owner of the shard refuses what this one passes on: {cause}"
        )
        self.cause = cause


class OwnerSearch:
    """Finds the owner, again after each attempt that failed before the owner did anything, for a bounded time."""

    def __init__(self, owner: OwnerSource, seconds: float = HOLD_SECONDS) -> None:
        """The time, in seconds, counts from now."""
        self._owner = owner
        self._ends = asyncio.get_running_loop().time() + seconds
        self._pause = _FIRST_PAUSE
        self._tried: Addresses | None = None

    @property
    def is_over(self) -> bool:
        """True once the time is over."""
        return asyncio.get_running_loop().time() >= self._ends

    async def next(self) -> Addresses:
        """The address to try next: another owner than before at once, the same one after a pause that grows to a
        tenth of a second.

        Raises `not_ready` when the time is over.
        """
        try:
            async with asyncio.timeout_at(self._ends):
                found = await self._find()
                if found == self._tried:
                    await asyncio.sleep(self._pause)
                    self._pause = min(2 * self._pause, _LONGEST_PAUSE)
                    found = await self._find()
                self._tried = found
                return found
        except TimeoutError:
            raise no_owner() from None

    async def _find(self) -> Addresses:
        found = self._owner()
        return await found if inspect.isawaitable(found) else found


def no_owner() -> TopicsError:
    """The error of a request that reaches no owner: nothing was done."""
    return TopicsError(Reason.NOT_READY, "no node that can be reached owns the shard at present")


def not_owner() -> TopicsError:
    """The error of a forwarded request at a node that does not own the shard: nothing was done."""
    return TopicsError(Reason.NOT_READY, "the node does not own the shard any more")
