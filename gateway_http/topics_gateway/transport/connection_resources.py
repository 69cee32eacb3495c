"""What the application holds for a connection: it is given back when that closes."""

from collections.abc import Callable


class ConnectionResources:
    """One for each connection, in `scope["state"]["connection_resources"]` of all its requests.

    `held` are the calls that give back, by whatever the application tells apart; it adds to it with `hold`.
    """

    __slots__ = ("_closed", "held")

    def __init__(self) -> None:
        self.held: dict[str, Callable[[], None]] = {}
        self._closed = False

    def hold(self, name: str, release: Callable[[], None]) -> None:
        """Call `release` when the connection closes; at once if it is closed already."""
        if self._closed:
            release()
        else:
            self.held[name] = release

    def close(self) -> None:
        """The connection is closed, or nobody will be asked for anything on it any more. Idempotent."""
        self._closed = True
        for release in self.held.values():
            release()
        self.held.clear()
