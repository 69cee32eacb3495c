"""Rebuilding a table with damaged parts around its rows, from the same blocks of rows.

The blocks are found one after the other from the start of the file, each by its checksum, so that the parts around them
are not needed. Index, metaindex and footer are rebuilt from the blocks found; range deletions and the family are taken
over, a filter is not. A stretch of rows that can't be read stays as it is: a read of it fails as before.

Rows, including deletions, keep their sequence numbers: deleted rows do not come back.
"""

import struct
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from topics_service.storage import tables
from topics_service.storage.tables import Handle
from topics_service.storage.wal.batches import to_varint, varint

_FAMILY_ID: Final = b"rocksdb.column.family.id"
_FAMILY_NAME: Final = b"rocksdb.column.family.name"
_DATA_SIZE: Final = b"rocksdb.data.size"
_RANGE_COUNT: Final = b"rocksdb.num.range-deletions"
_KINDS: Final = frozenset({0, 1})  # of rows: a removal, a value
_RANGE_KIND: Final = 15
_LAST: Final = b"\xff" * 8  # behind a user key: before every row of that key, behind those of keys before it
_LOOK_BYTES: Final = 64 << 10  # how far behind a damaged block the next one is looked for
_WAYS: Final = (tables.PLAIN, tables.LZ4)
_FILLER: Final = bytes(16)


class Mended(NamedTuple):
    """`ranges_lost`: it had range deletions (or may have had) that can't be read. `end_lost`: it is not known where its
    rows ended. `whole`: every row that it had is there."""

    data: bytes
    ranges_lost: bool
    end_lost: bool
    whole: bool


class _Parts(NamedTuple):
    rows: list[tuple[Handle, bytes, bytes]]  # with the first and the last key
    ranges: bytes | None
    properties: dict[bytes, bytes] | None
    listed: list[Handle] | None


def mend(data: bytes, last_key: bytes | None = None) -> Mended | None:
    """The table `data`, readable again; None if not even its first block is. `last_key` is the greatest that it has."""
    footer = tables.read_footer(data)
    salt = tables.found_salt(data) if footer is None else footer.salt
    if salt is None:
        return None
    listed = None if footer is None else tables.read_metaindex(data, footer)
    end = len(data) if footer is None else footer.metaindex.stop
    parts = _parts(data, salt, end, _starts(data, salt, listed))
    stop = _rows_stop(parts, listed)
    rows = [row for row in parts.rows if stop is None or row[0].stop <= stop]
    ranges, ranges_lost = parts.ranges, False
    if ranges is None and listed is not None and tables.RANGES in listed:
        ranges = _corrected(data, listed[tables.RANGES], salt)
        ranges_lost = ranges is None
    elif ranges is None and listed is None:
        ranges_lost = parts.properties is None or parts.properties.get(_RANGE_COUNT, b"\x00") != b"\x00"
    return _made(data, salt, rows, stop, ranges, parts.properties, last_key, ranges_lost=ranges_lost)


class _Starts(NamedTuple):
    """Offsets of blocks, in order. `all`: there are no others."""

    offsets: list[int]
    all: bool


def _starts(data: bytes, salt: int, listed: dict[bytes, Handle] | None) -> _Starts:
    """Facts from metaindex and index, as far as these are sound."""
    handles = list((listed or {}).values())
    index = tables.content(data, listed[tables.INDEX], salt) if listed and tables.INDEX in listed else None
    rows: list[Handle] | None = None
    if index is not None:
        with suppress(IndexError, struct.error):
            rows = tables.index_handles(index)
    return _Starts(sorted(handle.offset for handle in (*handles, *(rows or ()))), rows is not None)


def _parts(data: bytes, salt: int, end: int, starts: _Starts) -> _Parts:
    """Find readable parts by their content, independent of each other."""
    rows: list[tuple[Handle, bytes, bytes]] = []
    ranges, properties, listed = None, None, None
    at, seen = 0, list[Handle]()
    while at < end:
        handle = _next_block(data, at, end, salt, starts)
        if handle is None:
            break
        at = handle.stop
        block = tables.content(data, handle, salt)
        if block is None:
            continue
        if _is_index_of(block, seen):
            listed = seen[: len(tables.index_handles(block))]
            rows = [row for row in rows if row[0] in listed]
            continue
        seen.append(handle)
        if not tables.is_block(block):
            continue  # a filter
        found = list(tables.entries(block))
        keys = [key for key, _ in found]
        if any(key.startswith(b"rocksdb.") for key in keys):
            if _FAMILY_ID in keys:
                properties = dict(found)
        elif keys and all(len(key) >= 8 and key[-8] == _RANGE_KIND for key in keys):
            ranges = block
        elif keys and listed is None and all(len(key) >= 8 and key[-8] in _KINDS for key in keys):
            rows.append((handle, keys[0], keys[-1]))
    return _Parts(rows, ranges, properties, listed)


def _is_index_of(block: bytes, seen: Sequence[Handle]) -> bool:
    """Return whether it points to the blocks before it, and to nothing else."""
    try:
        handles = tables.index_handles(block)
    except (IndexError, struct.error):
        return False
    return bool(handles) and handles[-1] in seen and set(seen[: len(handles)]) <= set(handles)


def _next_block(data: bytes, at: int, end: int, salt: int, starts: _Starts) -> Handle | None:
    """The block that begins there, or the first one that can be found behind."""
    handle = tables.block_at(data, at, end, salt)
    if handle is not None:
        return handle
    known = starts.offsets[bisect_right(starts.offsets, at) :]
    if not starts.all:
        for start in range(at + tables.TRAILER.size, min(at + _LOOK_BYTES, known[0] if known else end)):
            if data[start - tables.TRAILER.size] not in _WAYS or data[start : start + 2] == bytes(2):
                continue  # there is no trailer in front, or no block begins so
            handle = tables.block_at(data, start, min(start + _LOOK_BYTES, end), salt)
            if handle is not None and tables.content(data, handle, salt) is not None:
                return handle
    for start in known:
        handle = tables.block_at(data, start, end, salt)
        if handle is not None:
            return handle
    return None


def _rows_stop(parts: _Parts, listed: dict[bytes, Handle] | None) -> int | None:
    """Find the end of the blocks of rows; None if unknown."""
    if listed:
        return min(handle.offset for handle in listed.values())
    if parts.listed is not None:
        return parts.listed[-1].stop
    if parts.properties is not None and _DATA_SIZE in parts.properties:
        return varint(parts.properties[_DATA_SIZE], 0)[0]
    return None


def _corrected(data: bytes, handle: Handle, salt: int) -> bytes | None:
    """A small block with one changed byte, as it was: the one for which the checksum holds again."""
    if handle.stop > len(data) or handle.size > 4096:
        return None
    found = bytearray(data[handle.offset : handle.stop])
    for at in range(len(found)):
        was = found[at]
        for value in range(256):
            found[at] = value
            kind, stored = tables.TRAILER.unpack_from(found, handle.size)
            payload = bytes(found[: handle.size])
            if stored == tables.checksum(payload, kind, handle.offset, salt):
                block = tables.inflated(payload, kind)
                if block is not None and tables.is_block(block):
                    return block
        found[at] = was
    return None


def _made(
    data: bytes,
    salt: int,
    rows: Sequence[tuple[Handle, bytes, bytes]],
    stop: int | None,
    ranges: bytes | None,
    properties: dict[bytes, bytes] | None,
    last_key: bytes | None,
    *,
    ranges_lost: bool,
) -> Mended:
    index: list[tuple[bytes, bytes]] = []
    at, whole = 0, True
    for handle, first, last in rows:
        if handle.offset > at:
            index.append((first[:-8] + _LAST, _handle(Handle(at, handle.offset - at - tables.TRAILER.size))))
            whole = False
        index.append((last, _handle(handle)))
        at = handle.stop
    made = bytearray(data[: at if stop is None else stop])
    if stop is None or at < stop:
        made += _FILLER
        behind = b"\xff" * 64 + _LAST if last_key is None else last_key
        if not index or behind[:-8] > index[-1][0][:-8]:
            index.append((behind, _handle(Handle(at, len(made) - at - tables.TRAILER.size))))
        whole = False
    listed: dict[bytes, Handle] = {}
    listed[tables.INDEX] = _append(made, _block(index), salt)
    kept = {key: value for key, value in (properties or {}).items() if key in (_FAMILY_ID, _FAMILY_NAME)}
    listed[tables.PROPERTIES] = _append(made, _block(sorted(kept.items())), salt)
    if ranges is not None:
        listed[tables.RANGES] = _append(made, ranges, salt)
    metaindex = _append(made, _block([(name, _handle(handle)) for name, handle in sorted(listed.items())]), salt)
    made += _footer(metaindex, len(made), salt)
    return Mended(bytes(made), ranges_lost, stop is None, whole and stop is not None)


def _append(made: bytearray, block: bytes, salt: int) -> Handle:
    handle = Handle(len(made), len(block))
    made += block
    made += tables.TRAILER.pack(tables.PLAIN, tables.checksum(block, tables.PLAIN, handle.offset, salt))
    return handle


def _block(found: Sequence[tuple[bytes, bytes]]) -> bytes:
    """A block of these entries, without shared parts of keys: each can be begun from."""
    made, starts = bytearray(), list[int]()
    for key, value in found:
        starts.append(len(made))
        made += to_varint(0) + to_varint(len(key)) + to_varint(len(value)) + key + value
    starts = starts or [0]
    return bytes(made) + struct.pack(f"<{len(starts)}I", *starts) + struct.pack("<I", len(starts))


def _footer(metaindex: Handle, offset: int, salt: int) -> bytes:
    def packed(checksum: int) -> bytes:
        return tables.FOOTER.pack(
            tables.XXH3, tables.MARK, checksum, salt, metaindex.size, bytes(24), tables.FORMAT_VERSION, tables.MAGIC
        )

    return packed(tables.footer_checksum(packed(0), offset, salt))


def _handle(handle: Handle) -> bytes:
    return to_varint(handle.offset) + to_varint(handle.size)
