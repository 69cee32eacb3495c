"""Decompression of record bytes with a hard bound on what comes out.

The bound holds in memory and in time: nothing past it is ever written. Buffers grow with what a batch really holds,
a size that the bytes merely claim is believed only as far as the format allows it.
"""

import struct
import zlib
from collections.abc import Callable
from typing import Final

import cramjam

from topics_service.storage.recordbatch.header import InvalidBatchError

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)

_FIRST_BUFFER: Final = 64 << 10
_GROWTH: Final = 4
_XERIAL: Final = b"\x82SNAPPY\x00"  # the framing of snappy-java: magic, version, compatible version, chunks
_XERIAL_HEADER: Final = 16
_CHUNK: Final = struct.Struct(">i")
_SNAPPY_RATIO: Final = 22  # its densest element turns 3 bytes into 64
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"

# raises DecompressionError if the output does not fit
_Into = Callable[[bytes, bytearray], int]


def inflated(codec: int, data: bytes, limit: int) -> bytes:
    """The bytes that `data` stands for in this codec.

    Raises InvalidBatchError: codec (unknown), too_large (more than `limit` bytes), invalid (not such data).
    """
    match codec:
        case 0:  # NONE
            result = data
        case 1:  # GZIP
            result = _gzip(data, limit)
        case 2:  # SNAPPY
            result = _snappy(data, limit)
        case 3:  # LZ4
            result = _grown(cramjam.lz4.decompress_into, data, 4 * len(data), limit, "lz4")
        case 4:  # ZSTD
            result = _grown(cramjam.zstd.decompress_into, data, _zstd_size(data) or 4 * len(data), limit, "zstd")
        case _:
            raise InvalidBatchError("codec", f"unknown compression {codec}")
    if len(result) > limit:
        raise _too_large(limit)
    return result


def _gzip(data: bytes, limit: int) -> bytes:
    pieces: list[bytes] = []
    room = limit
    while data or not pieces:
        member = zlib.decompressobj(wbits=31)
        try:
            piece = member.decompress(data, room + 1)
        except zlib.error as error:
            raise InvalidBatchError("invalid", f"gzip: {error}") from None
        room -= len(piece)
        if room < 0:
            raise _too_large(limit)
        if not member.eof:
            raise InvalidBatchError("invalid", "gzip: incomplete")
        pieces.append(piece)
        data = member.unused_data
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _snappy(data: bytes, limit: int) -> bytes:
    if not data.startswith(_XERIAL):
        return _snappy_block(data, limit)
    pieces: list[bytes] = []
    room = limit
    position = _XERIAL_HEADER
    while position < len(data):
        try:
            (size,) = _CHUNK.unpack_from(data, position)
        except struct.error:
            raise InvalidBatchError("invalid", "snappy: incomplete") from None
        position += _CHUNK.size
        if not 0 < size <= len(data) - position:
            raise InvalidBatchError("invalid", f"snappy: a chunk of {size} bytes")
        piece = _snappy_block(data[position : position + size], room)
        room -= len(piece)
        pieces.append(piece)
        position += size
    return b"".join(pieces)


def _snappy_block(block: bytes, limit: int) -> bytes:
    try:
        size = cramjam.snappy.decompress_raw_len(block)
        if size > limit:
            raise _too_large(limit)
        if size > _SNAPPY_RATIO * len(block):
            raise InvalidBatchError("invalid", f"snappy: {len(block)} bytes can't hold {size}")
        buffer = bytearray(size)
        written = cramjam.snappy.decompress_raw_into(block, buffer)
    except cramjam.DecompressionError as error:
        raise InvalidBatchError("invalid", f"snappy: {error}") from None
    return bytes(memoryview(buffer)[:written])


def _zstd_size(data: bytes) -> int:
    """The content size that the first frame states; 0 if it states none."""
    if not data.startswith(_ZSTD_MAGIC) or len(data) < 5:
        return 0
    descriptor = data[4]
    single_segment = descriptor >> 5 & 1
    at = 5 + (not single_segment) + (0, 1, 2, 4)[descriptor & 3]
    width = (single_segment, 2, 4, 8)[descriptor >> 6]
    size = int.from_bytes(data[at : at + width], "little")
    return size + 256 if width == 2 else size


def _grown(into: _Into, data: bytes, guess: int, limit: int, name: str) -> bytes:
    size = min(max(guess, 1), limit, max(_FIRST_BUFFER, 64 * len(data)))
    while True:
        buffer = bytearray(size)
        try:
            written = into(data, buffer)
        except cramjam.DecompressionError as error:
            # Damaged data and a full buffer raise the same: only a larger buffer tells. The attempts together write
            # at most 4/3 of the limit.
            full = "whole buffer" in str(error)
            if size >= limit:
                raise (_too_large(limit) if full else InvalidBatchError("invalid", f"{name}: {error}")) from None
            size = min(size * _GROWTH, limit)
            continue
        return bytes(memoryview(buffer)[:written])


def _too_large(limit: int) -> InvalidBatchError:
    return InvalidBatchError("too_large", f"the records inflate to more than {limit} bytes")
