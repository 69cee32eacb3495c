"""Reading a family around damaged blocks. Takes some milliseconds: for use after a read has failed.

Keys are treated as numbers, by their first bytes, so that two of them have a midpoint. Each probe uses a new cursor:
one that has met damage keeps reporting it.
"""

from collections.abc import Callable
from typing import Final

from rocksdict import Rdict, RdictIter, ReadOptions

from topics_service.storage.store import StoreError

KEY_BYTES: Final = 24
_MOST_VALUES: Final = 256  # that are tried in each direction


class DamagedRowsError(StoreError):
    """A row and others around it are unreadable.

    `below` is the nearest row in front of them, `above` the key of the nearest one behind; None: there is none up to
    the end of the family. `at` is the key of the first of them, where the rows are there and only their values are not.
    """

    def __init__(
        self, why: str, below: tuple[bytes, bytes] | None, above: bytes | None, *, at: bytes | None = None
    ) -> None:
        super().__init__(why if at is not None else f"read failed: {why}")
        self.below = below
        self.above = above
        self.at = at


def error_of(cursor: RdictIter) -> str | None:
    """Return the error that stopped the cursor; None at the end of the rows."""
    try:
        cursor.status()
    except Exception as error:  # rocksdict raises bare Exception
        return " ".join(str(error).split())
    return None


def seek_behind(rows: Rdict, options: ReadOptions, bad: bytes) -> RdictIter | None:
    """Return a cursor at the first row behind a damaged stretch that begins after the key `bad`.

    None if nothing is readable up to the end. The steps double until a row is readable, followed by a binary search:
    rows between two damaged stretches close to each other may be skipped with them.
    """

    def look(number: int) -> RdictIter | None:
        return _look(rows.iter(options), number)

    low, step = _number(bad), 1
    while look(low + step) is None:
        low, step = low + step, step * 2
        if low + step >= 1 << 8 * KEY_BYTES:
            return None
    cursor = look(_first(look, low, low + step))
    return cursor if cursor is not None and cursor.valid() else None


def unreadable(rows: Rdict, key: bytes, is_readable: Callable[[bytes, bytes], bool]) -> tuple[bytes, bytes | None]:
    """Find the stretch of unreadable values around that of the row `key`, within its log.

    Returns the key of its first row, and of the next row behind it, if any.
    """
    cursor, first, above = rows.iter(), key, None
    cursor.seek(key)
    for _ in range(_MOST_VALUES):
        cursor.prev()
        if not cursor.valid() or cursor.key()[:8] != key[:8] or is_readable(cursor.key(), cursor.value()):
            break
        first = cursor.key()
    cursor = rows.iter()
    cursor.seek(key)
    for _ in range(_MOST_VALUES):
        cursor.next()
        above = cursor.key() if cursor.valid() else None
        if above is None or above[:8] != key[:8] or is_readable(above, cursor.value()):
            break
    return first, above


def floor(rows: Rdict, key: bytes, why: str) -> tuple[bytes, bytes] | None:
    """Return the row with the greatest key <= `key`, if nothing between it and `key` is damaged.

    To go to a row from behind RocksDB reads the row before it as well, which may be the one that is damaged: that is
    why it has failed, in the words `why`. Raises DamagedRowsError if there is damage at or right below `key`.
    """

    def look(number: int) -> RdictIter | None:
        return _look(rows.iter(), number)

    high, step = _number(key), 1
    bad = None if look(high) is not None else high
    while bad is None:
        low = max(0, high - step)
        cursor = look(low)
        if cursor is None:
            cursor = look(_first(look, low, high))
            found, whole = (None, False) if cursor is None else _last_upto(cursor, key)
            if found is not None and whole:
                return found
            bad = low
        elif cursor.valid() and cursor.key() <= key:
            found, whole = _last_upto(cursor, key)
            if whole or found is None:
                return found
            bad = _number(found[0]) + 1
        elif not low:
            return None
        high, step = low, step * 2
    behind = seek_behind(rows, ReadOptions(), bad.to_bytes(KEY_BYTES, "big"))
    raise DamagedRowsError(why, _last_below(rows, bad), None if behind is None else behind.key())


def _last_below(rows: Rdict, bad: int) -> tuple[bytes, bytes] | None:
    """Return the last row in front of the damage at the number `bad`."""
    step = 1
    while True:
        low = max(0, bad - step)
        cursor = _look(rows.iter(), low)
        if cursor is not None:
            found, _ = _last_upto(cursor, bad.to_bytes(KEY_BYTES, "big"))
            if found is not None:
                return found
        if not low:
            return None
        step *= 2


def _last_upto(cursor: RdictIter, key: bytes) -> tuple[tuple[bytes, bytes] | None, bool]:
    """Return the last readable row up to `key`, from the cursor on, and whether no damage comes first."""
    found: tuple[bytes, bytes] | None = None
    while cursor.valid() and cursor.key() <= key:
        found = cursor.key(), cursor.value()
        cursor.next()
    return found, bool(cursor.valid()) or error_of(cursor) is None


def _first(look: Callable[[int], RdictIter | None], low: int, high: int) -> int:
    """Return the first number from which reading works, given that it works from `high` and not from `low`."""
    while high - low > 1:
        middle = (low + high) // 2
        if look(middle) is None:
            low = middle
        else:
            high = middle
    return high


def _look(cursor: RdictIter, number: int) -> RdictIter | None:
    """Return a cursor at the first row from there on, or at the end; None if that is unreadable."""
    cursor.seek(number.to_bytes(KEY_BYTES, "big"))
    return cursor if cursor.valid() or error_of(cursor) is None else None


def _number(key: bytes) -> int:
    return int.from_bytes(key[:KEY_BYTES].ljust(KEY_BYTES, b"\x00"), "big")
