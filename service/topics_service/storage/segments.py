"""Large values apart from the rows that they belong to, so that compactions of these never move them.

The family SEGMENTS has each value under its *position* and the key of its row. Positions only grow, by about the bytes
of the values before, so a table of that family begins where the one before ends, however RocksDB cuts them, and goes
from level to level by name alone. The row has a small *reference* to the position, written and moved in one batch with
what it refers to. A value that nothing refers to any more stays until its table goes (`segment_upkeep`).
"""

import struct
from typing import Final, NamedTuple

MIN_BYTES: Final = 4096
"""Values from this size on are kept apart."""

_REFERENCE: Final = struct.Struct(">BQI")
_MARK: Final = 0xF0  # no block begins with it
_U64: Final = struct.Struct(">Q")
_GRAIN_BYTES: Final = 1 << 20
_LEAST_GRAIN_BYTES: Final = 1 << 14
_GRAINS: Final = 16  # in a table, at least


class Reference(NamedTuple):
    """A value of `size` bytes at a position."""

    position: int
    size: int


def is_apart(value: bytes) -> bool:
    """Return whether a value is kept apart: because of its size, or since it looks like a reference."""
    return len(value) >= MIN_BYTES or _is_reference(value)


def reference(value: bytes) -> Reference | None:
    """The reference that a row has in place of its value; None if it has the value."""
    return Reference(*_REFERENCE.unpack(value)[1:]) if _is_reference(value) else None


def encode(reference: Reference) -> bytes:
    """The row of a reference."""
    return _REFERENCE.pack(_MARK, *reference)


def key(position: int, row: bytes) -> bytes:
    """The key of the value of `row` at a position."""
    return _U64.pack(position) + row


def position_of(key: bytes) -> int:
    """The position in a key of `key`."""
    position: int = _U64.unpack_from(key)[0]
    return position


def row_of(key: bytes) -> bytes:
    """The key of the row in a key of `key`."""
    return key[_U64.size :]


def _is_reference(value: bytes) -> bool:
    return len(value) == _REFERENCE.size and value[0] == _MARK


class Usage:
    """Bytes of live values by their position, to the grain: an estimate, which says where looking is worth it.

    What was written since `first` is counted as it happens. Of what was there before, a walk over all rows tells
    (`found`), in the order of their keys; `counted` is how far it came, None: to the end.
    """

    def __init__(self, next_position: int, table_bytes: int) -> None:
        self.next = next_position
        """The position of the next value."""
        self.removed_to = -1
        """The highest position of which there may be no value any more."""
        self._grain = max(_LEAST_GRAIN_BYTES, min(_GRAIN_BYTES, table_bytes // _GRAINS))
        self.restart()

    def restart(self) -> None:
        """Begin the count again."""
        self.first = self.next
        self.counted: bytes | None = b""
        self.freed_bytes = 0
        """Bytes that were freed and not looked for yet."""
        self.live_bytes = 0
        self._live: dict[int, int] = {}

    def place(self, size: int) -> Reference:
        """A reference for a value of this size."""
        position = self.next
        self.next += max(1, size)
        return Reference(position, size)

    def added(self, row: bytes, reference: Reference) -> None:
        """Count a value that was written."""
        if self._is_counted(row, reference):
            self._add(reference)

    def found(self, reference: Reference) -> None:
        """Count a value that the walk has met."""
        if reference.position < self.first:
            self._add(reference)

    def freed(self, row: bytes, reference: Reference) -> None:
        """Count a value that nothing refers to any more."""
        self.freed_bytes += reference.size
        if not self._is_counted(row, reference):
            return
        grain = reference.position // self._grain
        left = self._live.get(grain, 0) - reference.size
        self.live_bytes -= reference.size
        if left > 0:
            self._live[grain] = left
        else:
            self._live.pop(grain, None)

    def live_in(self, start: int, stop: int) -> int:
        """The bytes of live values from the position `start` to `stop`; of a grain that is there in part, no more than
        that part."""
        grain, total = self._grain, 0
        for number in range(start // grain, (stop - 1) // grain + 1):
            part = min(stop, (number + 1) * grain) - max(start, number * grain)
            found = self._live.get(number, 0)
            total += found if part == grain else min(found, part)
        return total

    def _is_counted(self, row: bytes, reference: Reference) -> bool:
        return reference.position >= self.first or self.counted is None or row <= self.counted

    def _add(self, reference: Reference) -> None:
        grain = reference.position // self._grain
        self._live[grain] = self._live.get(grain, 0) + reference.size
        self.live_bytes += reference.size
