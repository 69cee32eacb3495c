"""The place of a shard, as the doors of a node see it."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from topics_cluster.coordinator import Addresses
from topics_cluster.owner_search import HOLD_SECONDS
from topics_server.node.term import Term


class Place:
    """Here (`term`), at another node, or nowhere at present. Belongs to the event loop."""

    def __init__(self) -> None:
        self.term: Term | None = None
        """The ownership of this node; doors serve requests from it."""
        self.is_refused = False
        """True while the owner refuses what this node passes on."""
        self.on_change: Callable[[], None] = lambda: None
        """Called when the shard is somewhere else than before, or is coming here."""
        self._owner: Addresses | None = None
        self._coming: asyncio.Future[Term | None] | None = None
        self._found: asyncio.Future[Addresses] = asyncio.get_running_loop().create_future()

    def owner(self) -> Addresses | Awaitable[Addresses]:
        """The addresses of the owner, which may be this node; an awaitable of them while there is none. See
        `OwnerSource`."""
        return asyncio.shield(self._found) if self._owner is None else self._owner

    @property
    def addresses(self) -> Addresses | None:
        """The addresses of the owner, which may be this node; None while there is none."""
        return self._owner

    @property
    def is_known(self) -> bool:
        """True while there is an owner, as far as this node knows."""
        return self._owner is not None

    def coming(self) -> None:
        """Hold requests here, those of other nodes too, which may know of this owner already."""
        if self._coming is None:
            self._coming = asyncio.get_running_loop().create_future()
            self.on_change()

    @property
    def is_coming(self) -> bool:
        """True while requests are held for an ownership that is on its way."""
        return self._coming is not None

    async def arrived(self) -> Term | None:
        """The ownership that is coming, once it is here; None if there is none, or it takes too long."""
        if self.term is None and self._coming is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HOLD_SECONDS):
                    return await asyncio.shield(self._coming)
        return self.term

    def here(self, term: Term, addresses: Addresses) -> None:
        """Serve requests here; `addresses` are this node's."""
        self.term = term
        self._set(addresses)

    def elsewhere(self, owner: Addresses | None) -> None:
        """Pass requests on to the owner; hold them while it is None."""
        self.term = None
        self._set(owner)

    def _set(self, owner: Addresses | None) -> None:
        coming, self._coming = self._coming, None
        if coming is not None:
            coming.set_result(self.term)
        changed, self._owner = owner != self._owner, owner
        if changed:
            self.on_change()
        if owner is None:
            if self._found.done():
                self._found = asyncio.get_running_loop().create_future()
        elif self._found.done():
            if self._found.result() != owner:
                self._found = asyncio.get_running_loop().create_future()
                self._found.set_result(owner)
        else:
            self._found.set_result(owner)
