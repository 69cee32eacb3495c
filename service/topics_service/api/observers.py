"""The seam for observers: the API reports its calls and the steps within them, once for all protocols.

The audit log and tracing are observers. Without one the paths of appends, reads and claims neither await nor allocate
anything for the seam.
"""

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Final

from topics_service.api.access.auth import Principal

Facts = dict[str, Any]
End = Callable[[BaseException | None], None]
"""Called with the error that ended the work, or None."""


class Observation:
    """A call or a step that is observed while its context is entered.

    `facts` may grow until the end. `principal` is the caller; None means that of the current request.
    """

    __slots__ = ("_ends", "_observers", "facts", "name", "principal")

    def __init__(self, observers: "Sequence[Observer]", name: str, facts: Facts, principal: Principal | None) -> None:
        self._observers = observers
        self._ends: list[End] = []
        self.name = name
        self.facts = facts
        self.principal = principal

    def __enter__(self) -> Facts:
        for begin in self._observers:
            end = begin(self)
            if end is not None:
                self._ends.append(end)
        return self.facts

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for end in reversed(self._ends):
            end(error)


Observer = Callable[[Observation], End | None]
"""Called at the begin of an observation; returns the function to call at its end, or None to ignore it."""


class Observers:
    """The observers of one server. Calls have the names of audit actions, steps those of spans."""

    __slots__ = ("_observers",)

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers

    def __call__(self, name: str, facts: Facts, principal: Principal | None = None) -> Observation:
        """Return the context manager in which the work runs."""
        return Observation(self._observers, name, facts, principal)

    def note(
        self, name: str, facts: Facts, principal: Principal | None = None, error: BaseException | None = None
    ) -> None:
        """Report a call that has already ended, or was refused with `error`."""
        observation = self(name, facts, principal)
        observation.__enter__()
        observation.__exit__(None, error, None)


NO_OBSERVERS: Final = Observers()
