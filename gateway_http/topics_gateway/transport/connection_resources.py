"""Resources of the application that a connection holds until it closes."""

from collections.abc import Callable


class ConnectionResources:
    """The resources of one connection, in `scope["state"]["connection_resources"]` of all its requests.

    `held` are the release functions, by names that the application chooses; it adds them with `hold`.
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
        """Release everything: the connection is closed or serves no more requests. Idempotent."""
        self._closed = True
        for release in self.held.values():
            release()
        self.held.clear()
