"""RocksDB's table files on disk: detection of damaged parts, and location of blocks.

A table is a row of blocks: rows, then a filter, the index, range deletions, properties, the list of these (the
metaindex), and a footer of fixed size. Behind each block a trailer says how it is compressed and has its checksum,
which also covers its place in the file, together with a number of the table that stands in the footer.

Read are tables as this server makes them: format version 6, XXH3, LZ4 or no compression, one index.
"""

import mmap
import os
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import cramjam
import xxhash

from topics_service.storage.wal.batches import varint

FORMAT_VERSION: Final = 6
TRAILER: Final = struct.Struct("<BI")
FOOTER: Final = struct.Struct("<B4sIII24sIQ")
MAGIC: Final = 0x88E241B785F4CFF7
XXH3: Final = 4
MARK: Final = b"\x3e\x00\x7a\x00"
RANGES: Final = b"rocksdb.range_del"
PROPERTIES: Final = b"rocksdb.properties"
INDEX: Final = b"rocksdb.index"
PLAIN, LZ4 = 0, 4

_U32: Final = 0xFFFFFFFF
_LAST_BYTE: Final = 0x6B9083D9
_CHECKSUM_AT: Final = 5
_ENDS: Final = re.compile(rb"[\x00\x04]")  # a trailer begins with the way of compression
_LONGEST: Final = 1 << 20  # a block that is looked for without its checksum
_PARTS: Final = {INDEX: "index", RANGES: "range deletions", PROPERTIES: "properties"}


Data = bytes | mmap.mmap


class Handle(NamedTuple):
    """Offset and size of a block, without its trailer."""

    offset: int
    size: int

    @property
    def stop(self) -> int:
        """The byte behind the trailer."""
        return self.offset + self.size + TRAILER.size


class Footer(NamedTuple):
    """`salt` is the number that goes into the checksums of the table."""

    salt: int
    metaindex: Handle


def damaged_part(path: Path) -> str | None:
    """Name the damaged part around the rows of a table; None if all are sound. Blocks of rows are not read.

    Raises OSError.
    """
    with path.open("rb") as file:
        if not os.fstat(file.fileno()).st_size:
            return "footer"
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _damaged_part(data)


def _damaged_part(data: Data) -> str | None:
    footer = read_footer(data)
    if footer is None:
        return "footer"
    parts = read_metaindex(data, footer)
    if parts is None:
        return "metaindex"
    for name, handle in parts.items():
        if content(data, handle, footer.salt) is None:
            return _PARTS.get(name, "filter")
    return None


def checksum(data: bytes, kind: int, offset: int, salt: int) -> int:
    """The checksum of a block at this place."""
    return placed(xxhash.xxh3_64_intdigest(data), kind, offset, salt)


def placed(digest: int, kind: int, offset: int, salt: int) -> int:
    """The checksum of a block whose hash is known."""
    plain = (digest & _U32) ^ (kind * _LAST_BYTE & _U32)
    return plain + (salt ^ (offset + (offset >> 32) & _U32)) & _U32 if salt else plain


def read_footer(data: Data) -> Footer | None:
    """The footer; None if it is damaged, or of a table of another form."""
    at = len(data) - FOOTER.size
    if at < 0:
        return None
    kind, mark, stored, salt, size, _, version, magic = FOOTER.unpack_from(data, at)
    if (kind, mark, version, magic) != (XXH3, MARK, FORMAT_VERSION, MAGIC) or at < size + TRAILER.size:
        return None
    if stored != footer_checksum(data[at:], at, salt):
        return None
    return Footer(salt, Handle(at - size - TRAILER.size, size))


def footer_checksum(footer: bytes, offset: int, salt: int) -> int:
    """The checksum of a footer, which counts as zeros in it."""
    plain = footer[:_CHECKSUM_AT] + bytes(4) + footer[_CHECKSUM_AT + 4 :]
    return checksum(plain[:-1], plain[-1], offset, salt)


def read_metaindex(data: Data, footer: Footer) -> dict[bytes, Handle] | None:
    """Find the parts that are no rows, by RocksDB's names; None if their list is damaged."""
    found = content(data, footer.metaindex, footer.salt)
    if found is None:
        return None
    try:
        return {key: read_handle(value) for key, value in entries(found)}
    except (IndexError, struct.error):
        return None


def read_handle(value: bytes, at: int = 0) -> Handle:
    """A handle as it is written. Raises IndexError."""
    offset, at = varint(value, at)
    return Handle(offset, varint(value, at)[0])


def content(data: Data, handle: Handle, salt: int) -> bytes | None:
    """Return the content of a block; None if its checksum does not hold."""
    if handle.stop > len(data):
        return None
    payload = data[handle.offset : handle.offset + handle.size]
    kind, stored = TRAILER.unpack_from(data, handle.offset + handle.size)
    if stored != checksum(payload, kind, handle.offset, salt):
        return None
    return inflated(payload, kind)


def inflated(payload: bytes, kind: int) -> bytes | None:
    """A block without its compression; None if this server does not write such tables."""
    if kind == PLAIN:
        return payload
    if kind != LZ4:
        return None
    try:
        length, at = varint(payload, 0)
        if length > 255 * len(payload):  # more than LZ4 can make of it
            return None
        found = bytes(cramjam.lz4.decompress_block(payload[at:], output_len=length))
    except (IndexError, cramjam.DecompressionError):
        return None
    return found if len(found) == length else None


def entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The keys and values in a block. Raises IndexError and struct.error if it is none."""
    stop, key, at = _entries_stop(block), b"", 0
    while at < stop:
        shared, at = varint(block, at)
        more, at = varint(block, at)
        length, at = varint(block, at)
        if shared > len(key) or at + more + length > stop:
            raise IndexError
        key = key[:shared] + block[at : at + more]
        at += more + length
        yield key, block[at - length : at]


def index_handles(block: bytes) -> list[Handle]:
    """The handles in an index as RocksDB writes it: one without lengths. Raises IndexError and struct.error."""
    stop, at, found = _entries_stop(block), 0, []
    while at < stop:
        shared, at = varint(block, at)
        more, at = varint(block, at)
        if shared or at + more >= stop:
            raise IndexError
        offset, at = varint(block, at + more)
        size, at = varint(block, at)
        found.append(Handle(offset, size))
    return found


def _entries_stop(block: bytes) -> int:
    (count,) = struct.unpack_from("<I", block, len(block) - 4)
    stop = len(block) - 4 - 4 * int(count)
    if not count or stop < 0 or block[stop : stop + 4] != bytes(4):  # entries can be read from the first one on
        raise IndexError
    return stop


def block_at(data: Data, offset: int, limit: int, salt: int) -> Handle | None:
    """The block that begins at this byte and ends before `limit`: its end is where the checksum holds."""
    hasher, at = xxhash.xxh3_64(), offset
    for match in _ENDS.finditer(data, offset + 1, limit - TRAILER.size + 1):
        end = match.start()
        hasher.update(data[at:end])
        at = end
        kind, stored = TRAILER.unpack_from(data, end)
        if stored == placed(hasher.intdigest(), kind, offset, salt):
            return Handle(offset, end - offset)
    return None


def found_salt(data: Data) -> int | None:
    """The number of a table whose footer is lost, by its first block: one that can be read as one, and has a second
    one behind it or is all there is."""
    for match in _ENDS.finditer(data, 1, max(1, min(len(data) - TRAILER.size + 1, _LONGEST))):
        kind, stored = TRAILER.unpack_from(data, match.start())
        block = inflated(data[: match.start()], kind)
        if block is None or not is_block(block):
            continue
        salt: int = stored - checksum(data[: match.start()], kind, 0, 0) & _U32
        if block_at(data, match.end() + 4, len(data), salt) is not None:
            return salt
    return None


def is_block(block: bytes) -> bool:
    """Return whether it consists of entries."""
    try:
        return all(True for _ in entries(block))
    except (IndexError, struct.error):
        return False
