"""Rows of a table by its keys: ranges of the primary key or of an index, and whole primary keys."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from topics_service.engine.tables import keycode, plans
from topics_service.engine.tables.compilation import Evaluator
from topics_service.engine.tables.runtime import IndexRuntime, Row, TableRuntime, key_of_entry
from topics_service.engine.tables.types import Type, Value
from topics_service.storage import keys
from topics_service.storage.store import Family, Reader

_NOT_NULL = b"\x01"


class Found(NamedTuple):
    """A row with its key and its stored form."""

    key: bytes
    stored: bytes
    row: Row


NO_ROW: Row = []
"""Stands for a row that is not looked at."""

Open = Callable[[Reader, Sequence[Value]], Iterator[Found]]
"""Begins to read, with these parameters."""


def compiled(runtime: TableRuntime, access: plans.Scan | plans.Lookup, *, decode: bool = True) -> Open:
    """Compile an access. It yields each row once; without `decode` only keys count."""
    read = runtime.read if decode else _unread
    if isinstance(access, plans.Lookup):
        return _lookup(runtime, access, read)
    return _scan(runtime, access, read)


def _unread(_stored: bytes) -> Row:
    return NO_ROW


def is_point(access: plans.Scan | plans.Lookup) -> bool:
    """Return whether an access reads a few rows at most, by whole keys."""
    return isinstance(access, plans.Lookup) and len(access.keys) <= 1


def _lookup(runtime: TableRuntime, access: plans.Lookup, read: Callable[[bytes], Row]) -> Open:
    compiled_keys = [[runtime.compile(value) for value in key] for key in access.keys]
    prefix, encode = runtime.prefix, runtime.encode_key

    def one(reader: Reader, parameters: Sequence[Value]) -> Iterator[Found]:
        values = [value((), None, parameters) for value in compiled_keys[0]]
        if None not in values:
            key = prefix + encode(values)
            stored = reader.get(Family.ROWS, key)
            if stored is not None:
                yield Found(key, stored, read(stored))

    def several(reader: Reader, parameters: Sequence[Value]) -> Iterator[Found]:
        wanted = set()
        for each in compiled_keys:
            values = [value((), None, parameters) for value in each]
            if None not in values:
                wanted.add(prefix + encode(values))
        for key in sorted(wanted):
            stored = reader.get(Family.ROWS, key)
            if stored is not None:
                yield Found(key, stored, read(stored))

    return one if len(compiled_keys) == 1 else several


def _scan(runtime: TableRuntime, access: plans.Scan, read: Callable[[bytes], Row]) -> Open:
    index = None if access.index is None else runtime.index(access.index)
    between = _bounds(runtime, index, access)
    reverse, prefix = access.reverse, runtime.prefix

    def rows(reader: Reader, parameters: Sequence[Value]) -> Iterator[Found]:
        bounds = between(parameters)
        if bounds is not None:
            scan = reader.scan_back if reverse else reader.scan
            for key, stored in scan(Family.ROWS, *bounds):
                yield Found(key, stored, read(stored))

    def by_index(reader: Reader, parameters: Sequence[Value]) -> Iterator[Found]:
        bounds = between(parameters)
        if bounds is not None:
            scan = reader.scan_back if reverse else reader.scan
            for entry, length in scan(Family.INDEXES, *bounds):
                key = key_of_entry(prefix, entry, length)
                if read is _unread:
                    yield Found(key, length, NO_ROW)
                    continue
                stored = reader.get(Family.ROWS, key)
                if stored is not None:
                    yield Found(key, stored, read(stored))

    return rows if index is None else by_index


def _bounds(
    runtime: TableRuntime, index: IndexRuntime | None, access: plans.Scan
) -> Callable[[Sequence[Value]], tuple[bytes, bytes] | None]:
    """The function that makes the range of keys; None for one in which no row can be."""
    base, types = (runtime.prefix, runtime.key_types) if index is None else (index.prefix, index.types)
    count = len(access.prefix)
    encode = keycode.encoder(types[:count]) if count else None
    prefix = [runtime.compile(value) for value in access.prefix]
    lower, upper = _end(runtime, types, count, access.lower), _end(runtime, types, count, access.upper)

    def between(parameters: Sequence[Value]) -> tuple[bytes, bytes] | None:
        start = base
        if encode is not None:
            values = [value((), None, parameters) for value in prefix]
            if None in values:
                return None
            start += encode(values)
        start, stop = keys.prefix_range(start)
        before = start
        if lower is not None or upper is not None:
            start = before + _NOT_NULL
        if lower is not None:
            evaluate, end, inclusive = lower
            value = evaluate((), None, parameters)
            if value is None:
                return None
            start = before + end((value,))
            if not inclusive:
                start = keys.prefix_range(start)[1]
        if upper is not None:
            evaluate, end, inclusive = upper
            value = evaluate((), None, parameters)
            if value is None:
                return None
            stop = before + end((value,))
            if inclusive:
                stop = keys.prefix_range(stop)[1]
        return (start, stop) if start < stop else None

    return between


def _end(
    runtime: TableRuntime, types: Sequence[Type], at: int, bound: plans.Bound | None
) -> tuple[Evaluator, Callable[[Sequence[Value]], bytes], bool] | None:
    if bound is None:
        return None
    return runtime.compile(bound.value), keycode.encoder((types[at],)), bound.inclusive
