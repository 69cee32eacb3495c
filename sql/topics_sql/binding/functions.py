"""Functions that statements may call."""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from topics_service.engine.tables.types import Kind, Type
from topics_sql.binding.types import DOUBLE, INTEGER, TEXT, TIMESTAMP


class Function(Struct, frozen=True):
    """A function as binding sees it."""

    result: Type | None
    immutable: bool = True
    unified: bool = False
    arguments: tuple[Type | None, ...] = ()

    def argument(self, position: int) -> Type | None:
        """The type of an argument, if it has one of its own."""
        return self.arguments[min(position, len(self.arguments) - 1)] if self.arguments else None


FUNCTIONS: Final = {
    "lower": Function(TEXT, arguments=(TEXT,)),
    "upper": Function(TEXT, arguments=(TEXT,)),
    "length": Function(INTEGER, arguments=(TEXT,)),
    "coalesce": Function(None, unified=True),
    "abs": Function(None, arguments=(DOUBLE,)),
    "now": Function(TIMESTAMP, immutable=False),
    "snowflake_id": Function(Type(Kind.BIGINT), immutable=False),
    "uuid_v7": Function(Type(Kind.UUID), immutable=False),
    "ulid": Function(TEXT, immutable=False),
}


def find(name: str) -> Function | None:
    """The function of a name."""
    return FUNCTIONS.get(name)


def result(name: str, arguments: Sequence[Type | None]) -> Type | None:
    """The type of what a function returns."""
    own = FUNCTIONS[name].result
    return own or next((kind for kind in arguments if kind is not None), None)


def is_stable(name: str) -> bool:
    """Return whether a function has one result for the whole of a statement."""
    function = FUNCTIONS.get(name)
    return function is not None and (function.immutable or name in STABLE)


STABLE: Final = frozenset({"now", "current_date", "current_time"})


def is_immutable(name: str) -> bool:
    """Return whether a function always has the same result."""
    function = FUNCTIONS.get(name)
    return function is not None and function.immutable
