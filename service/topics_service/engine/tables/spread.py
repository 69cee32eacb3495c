"""Changes of a large transaction by key, over many dictionaries: one of a million entries stops the event loop for
50 ms when it grows."""

from collections.abc import ItemsView, Iterator, Mapping, MutableMapping
from itertools import chain
from typing import Final, TypeVar

T = TypeVar("T")

_PARTS: Final = 64
_LAST: Final = _PARTS - 1


class Spread(MutableMapping[bytes, bytes | None]):
    """Keys and values; the order of the keys is none in particular."""

    __slots__ = ("_parts",)

    def __init__(self, given: Mapping[bytes, bytes | None]) -> None:
        self._parts: list[dict[bytes, bytes | None]] = [{} for _ in range(_PARTS)]
        self.update(given)

    @property
    def largest(self) -> int:
        """The number of keys of the largest dictionary."""
        return max(map(len, self._parts))

    def copy(self) -> "Spread":
        """Copy it."""
        made = Spread({})
        made._parts = [part.copy() for part in self._parts]
        return made

    def items(self) -> "_Items":
        """All keys and values."""
        return _Items(self)

    def __getitem__(self, key: bytes) -> bytes | None:
        return self._parts[hash(key) & _LAST][key]

    def get(self, key: bytes, default: T | None = None) -> bytes | T | None:
        """Get the value of a key; the default if there is none."""
        return self._parts[hash(key) & _LAST].get(key, default)

    def __contains__(self, key: object) -> bool:
        return key in self._parts[hash(key) & _LAST]

    def __setitem__(self, key: bytes, value: bytes | None) -> None:
        self._parts[hash(key) & _LAST][key] = value

    def __delitem__(self, key: bytes) -> None:
        del self._parts[hash(key) & _LAST][key]

    def __iter__(self) -> Iterator[bytes]:
        return chain.from_iterable(self._parts)

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def __bool__(self) -> bool:
        return any(self._parts)


class _Items(ItemsView[bytes, bytes | None]):
    """Without a look-up for each key."""

    def __init__(self, spread: Spread) -> None:
        super().__init__(spread)
        self._spread = spread

    def __iter__(self) -> Iterator[tuple[bytes, bytes | None]]:
        return chain.from_iterable(part.items() for part in self._spread._parts)
