"""The place of the shard, as the doors of a node see it."""

import asyncio
from collections.abc import Awaitable

from topics_cluster.coordinator import Addresses
from topics_server.node.term import Term


class Place:
    """Here (`term`), at another node, or nowhere at present. Belongs to the event loop."""

    def __init__(self) -> None:
        self.term: Term | None = None
        """The ownership of this node; doors serve requests from it."""
        self.is_refused = False
        """True while the owner refuses what this node passes on."""
        self._owner: Addresses | None = None
        self._found: asyncio.Future[Addresses] = asyncio.get_running_loop().create_future()

    def owner(self) -> Addresses | Awaitable[Addresses]:
        """The addresses of the owner, which may be this node; an awaitable of them while there is none. See
        `OwnerSource`."""
        return asyncio.shield(self._found) if self._owner is None else self._owner

    @property
    def is_known(self) -> bool:
        """True while there is an owner, as far as this node knows."""
        return self._owner is not None

    def here(self, term: Term, addresses: Addresses) -> None:
        """Serve requests here; `addresses` are this node's."""
        self.term = term
        self._set(addresses)

    def elsewhere(self, owner: Addresses | None) -> None:
        """Pass requests on to the owner; hold them while it is None."""
        self.term = None
        self._set(owner)

    def _set(self, owner: Addresses | None) -> None:
        self._owner = owner
        if owner is None:
            if self._found.done():
                self._found = asyncio.get_running_loop().create_future()
        elif self._found.done():
            if self._found.result() != owner:
                self._found = asyncio.get_running_loop().create_future()
                self._found.set_result(owner)
        else:
            self._found.set_result(owner)
