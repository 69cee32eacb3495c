"""Calls at the home of a name whose topic lies in the shard of its placement group."""

from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from topics_service.engine.checks import placed_otherwise
from topics_service.engine.engine import Engine
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.redirects import Redirect

_UNCERTAIN: Final = (Reason.TOPIC_EXISTS_INCOMPATIBLE, Reason.ALREADY_EXISTS, Reason.INTERNAL)


def is_unmade(token: int, error: TopicsError) -> bool:
    """Return whether there certainly is no topic after this error of the one that reserved its name with this token:
    the first one did, and the topic was refused."""
    return token == 1 and error.reason not in _UNCERTAIN and not error.reason.value.retryable


class Placements(Protocol):
    """The homes of topics that SQL makes in its own shard."""

    async def reserve(self, name: str) -> int:
        """Let the name lead to the shard of SQL; return the token to release it with. Raises `already_exists` for a
        topic that is elsewhere, and returns 0 where the name needs no reservation."""
        ...

    async def release(self, name: str, token: int | None = None) -> None:
        """Take a reservation back, of a topic that was not made; without a token, of one that was deleted."""
        ...

    async def exists(self, name: str) -> bool:
        """Return whether there is a topic of that name in any shard."""
        ...


class PlacementsApi:
    """Reserves names at their home, durably. Every method raises TopicsError."""

    def __init__(self, admit: Callable[[], Engine], settle: Callable[[int], Awaitable[None]]) -> None:
        """`admit` gives the engine or refuses every call; `settle` waits until a ticket is durable."""
        self._admit = admit
        self._settle = settle

    async def reserve(self, name: str, shard: int, placement: str) -> Redirect:
        """Let the name lead to a shard, before the topic is made there. Raises `topic_exists_incompatible` if the topic
        exists here, or is in another shard."""
        engine = self._admit()
        redirect, ticket = None, 0
        topic = engine.catalog.find(name)
        if topic is None or topic.is_part:
            redirect, ticket = engine.catalog.redirects.reserve(name, shard, placement)
        if redirect is None or redirect.shard != shard:
            known = redirect.placement if redirect is not None else topic.placement if topic is not None else ""
            raise placed_otherwise(name, known)
        await self._settle(ticket)
        return redirect

    async def release(self, name: str, token: int) -> None:
        """Take a reservation back that no later one has followed, since its topic was not made, or was deleted."""
        await self._settle(self._admit().catalog.redirects.release(name, token))

    async def find(self, name: str) -> Redirect | None:
        """The redirect of a name, if it has one."""
        return self._admit().catalog.redirects.find(name)
