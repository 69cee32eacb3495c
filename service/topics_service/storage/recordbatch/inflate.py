"""Decompression of record bytes with a hard bound on the result.

The bound holds in memory and in time: nothing past it is ever written. Buffers grow with the actual content; a claimed
size is trusted only as far as the format allows.
"""

import struct
import zlib
from collections.abc import Callable
from enum import IntEnum
from typing import Final

import cramjam

from topics_service.storage.recordbatch.header import Buffer, InvalidBatchError


class Codec(IntEnum):
    """The compression types of batches, the lowest three bits of their attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


_FIRST_BUFFER: Final = 64 << 10
_GROWTH: Final = 4  # so all attempts together write at most 4/3 of the limit
_FULL: Final = "whole buffer"  # how cramjam says that the output does not fit; damaged data raises the same class
_MAX_MEMBERS: Final = 16  # producers write one; each costs a copy of those that follow
_MAX_CHUNKS: Final = 10_000  # producers fill 32 KiB with each
_XERIAL: Final = b"\x82SNAPPY\x00"  # the framing of snappy-java: magic, version, compatible version, chunks
_XERIAL_HEADER: Final = 16
_CHUNK: Final = struct.Struct(">i")
_SNAPPY_RATIO: Final = 22  # its densest element turns 3 bytes into 64
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_ZSTD_HEADER: Final = 18  # bytes at most

_Into = Callable[[bytes, bytearray], int]


def inflated(codec: int, data: memoryview, limit: int) -> Buffer:
    """`data` decompressed with this codec; unchanged if there is none.

    Raises InvalidBatchError: codec (unknown), too_large (more than `limit` bytes), invalid (not such data).
    """
    result: Buffer
    match codec:
        case Codec.NONE:
            result = data
        case Codec.GZIP:
            result = _gzip(bytes(data), limit)
        case Codec.SNAPPY:
            result = _snappy(bytes(data), limit)
        case Codec.LZ4:
            result = _grown(cramjam.lz4.decompress_into, bytes(data), 4 * len(data), limit, "lz4")
        case Codec.ZSTD:
            guess = _zstd_size(bytes(data[:_ZSTD_HEADER])) or 4 * len(data)
            result = _grown(cramjam.zstd.decompress_into, bytes(data), guess, limit, "zstd")
        case _:
            raise InvalidBatchError("codec", f"unknown compression {codec}")
    if len(result) > limit:
        raise _too_large(limit)
    return result


def _gzip(data: bytes, limit: int) -> bytes:
    pieces: list[bytes] = []
    room = limit
    while data or not pieces:
        if len(pieces) == _MAX_MEMBERS:
            raise InvalidBatchError("invalid", f"gzip: more than {_MAX_MEMBERS} members")
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
        return _snappy_block(data, limit, limit)
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
        piece = _snappy_block(data[position : position + size], room, limit)
        room -= len(piece)
        pieces.append(piece)
        position += size
        if len(pieces) > _MAX_CHUNKS:
            raise InvalidBatchError("invalid", f"snappy: more than {_MAX_CHUNKS} chunks")
    return b"".join(pieces)


def _snappy_block(block: bytes, room: int, limit: int) -> bytes:
    try:
        size = cramjam.snappy.decompress_raw_len(block)
        if size > room:
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
            if _FULL not in str(error):
                raise InvalidBatchError("invalid", f"{name}: {error}") from None
            if size >= limit:
                raise _too_large(limit) from None
            size = min(size * _GROWTH, limit)
            continue
        return bytes(memoryview(buffer)[:written])


def _too_large(limit: int) -> InvalidBatchError:
    return InvalidBatchError("too_large", f"the records inflate to more than {limit} bytes")
