"""Counting of HTTP connections and message bytes against the limits of their keys (`api.access.quota`)."""

from collections.abc import Callable
from typing import Any, Final

from topics_service.api.access.auth import Principal
from topics_service.api.access.quota import Held, Usage
from topics_service.api.budget import MemoryBudget
from topics_service.engine.errors import TopicsError

_MAX_CALLERS: Final = 1000  # of one connection; there may be any number of subjects of tokens


def hold_connection(scope: Any, principal: Principal, usage: Usage) -> None:
    """Let the connection of a request count for its key, once, until it closes. Raises `throttled`.

    A connection that carries requests of several keys, as a proxy's may, counts for each of them, up to 1000.
    """
    resources = scope.get("state", {}).get("connection_resources")
    if resources is not None and principal.key_id not in resources.held:
        usage.take_connection()
        if len(resources.held) >= _MAX_CALLERS:
            resources.held.pop(next(iter(resources.held)))()
        resources.hold(principal.key_id, usage.leave_connection)


class MessageBytes:
    """Bytes that the message arriving or waiting on a WebSocket holds, of its key's share and of the memory for all."""

    def __init__(
        self, usage: Usage | None, memory: MemoryBudget | None, refused: Callable[[TopicsError], None]
    ) -> None:
        """`refused` receives the error if there is no room."""
        self._held = Held(usage, memory)
        self._refused = refused

    def grow(self, nbytes: int) -> bool:
        """Set the bytes that the message holds, 0 once it is done; return False if there is no room."""
        if not nbytes:
            self._held.release()
            return True
        try:
            self._held.grow(nbytes)
        except TopicsError as error:
            self._refused(error)
            return False
        return True

    def close(self) -> None:
        """The socket has ended."""
        self._held.release()
