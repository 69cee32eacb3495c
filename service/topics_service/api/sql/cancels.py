"""Requests to cancel the statement of a session, which may be a connection of another process."""

from collections.abc import Callable
from typing import Protocol


def _none(_pid: int, _secret: bytes) -> bool:
    return False


class SessionCancels:
    """The part of a process that others ask to cancel statements."""

    def __init__(self) -> None:
        self.here: Callable[[int, bytes], bool] = _none
        """Cancels the statement of a session of this process, if the secret is right."""

    async def cancel(self, pid: int, secret: bytes) -> None:
        """Cancel the statement under way of a session here, if there is one and the secret is right."""
        self.here(pid, secret)


class PassesOn(Protocol):
    """Knows the processes by the numbers of sessions."""

    def number(self, chance: int) -> int:
        """The number of a session that this process makes of a random one: 31 bits that name the process."""
        ...

    async def pass_on(self, pid: int, secret: bytes) -> None:
        """Pass a request on to the process that the number of the session names, if that is another one."""
        ...
