"""What can still be read of a family with damaged blocks in it. Takes some milliseconds: for when a read has failed.

Keys are taken for numbers, by their first bytes, so that there is a middle between two of them. Each look is by a
cursor of its own: one that has met damage goes on telling of it.
"""

from collections.abc import Callable
from typing import Final

from rocksdict import Rdict, RdictIter, ReadOptions

KEY_BYTES: Final = 24


def error_of(cursor: RdictIter) -> str | None:
    """Why the cursor stands at no row; None at the end of the rows."""
    try:
        cursor.status()
    except Exception as error:  # rocksdict raises bare Exception
        return " ".join(str(error).split())
    return None


def seek_behind(rows: Rdict, options: ReadOptions, bad: bytes) -> RdictIter | None:
    """A cursor at the first row behind a damaged stretch that begins after the key `bad`.

    None: nothing can be read up to the end. The steps double until something can be read again, and the place is looked
    for in between: what lies between two damaged stretches close to each other can be passed over with them.
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


def floor(rows: Rdict, key: bytes) -> tuple[bytes, bytes] | None:
    """The row with the greatest key <= `key`, if nothing between it and `key` is damaged, else None.

    To go to a row from behind RocksDB reads the row before it as well, which may be the one that is damaged.
    """

    def look(number: int) -> RdictIter | None:
        return _look(rows.iter(), number)

    high = _number(key)
    if look(high) is None:
        return None
    step = 1
    while high >= step:
        cursor = look(high - step)
        if cursor is None:
            cursor = look(_first(look, high - step, high))
            return None if cursor is None else _last_upto(cursor, key)
        if cursor.valid() and cursor.key() <= key:
            return _last_upto(cursor, key)
        high, step = high - step, step * 2
    return None


def _last_upto(cursor: RdictIter, key: bytes) -> tuple[bytes, bytes] | None:
    """The last row up to `key`, from the cursor on; None if there is none, or damage comes first."""
    found: tuple[bytes, bytes] | None = None
    while cursor.valid() and cursor.key() <= key:
        found = cursor.key(), cursor.value()
        cursor.next()
    return found if cursor.valid() or error_of(cursor) is None else None


def _first(look: Callable[[int], RdictIter | None], low: int, high: int) -> int:
    """The first number from which can be read, when it can from `high` and can't from `low`."""
    while high - low > 1:
        middle = (low + high) // 2
        if look(middle) is None:
            low = middle
        else:
            high = middle
    return high


def _look(cursor: RdictIter, number: int) -> RdictIter | None:
    """The cursor at the first row from there on, or at the end; None if that can't be read."""
    cursor.seek(number.to_bytes(KEY_BYTES, "big"))
    return cursor if cursor.valid() or error_of(cursor) is None else None


def _number(key: bytes) -> int:
    return int.from_bytes(key[:KEY_BYTES].ljust(KEY_BYTES, b"\x00"), "big")
