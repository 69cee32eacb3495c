"""Sections of a stored block: runs of bytes that are compressed with lz4 where that pays.

A section is stored as it is unless compression saves an eighth. Sections of less than `WORTH` bytes are not tried. Of a
large one a piece is tried first, so that records that don't shrink cost little.
"""

from typing import Final, NamedTuple

import cramjam

from topics_service.storage.recordbatch.header import Buffer
from topics_service.storage.recordbatch.inflate import Codec

WORTH: Final = 256
NONE: Final = int(Codec.NONE)
LZ4: Final = int(Codec.LZ4)
_LARGE: Final = 8 << 10
_PIECE: Final = 2 << 10
_MAX_RATIO: Final = 255  # of lz4: a byte of a length adds that many bytes to a match


class DamagedSectionError(Exception):
    """The stored bytes don't inflate to the stated length."""


class Packed(NamedTuple):
    """A section in its stored form, which inflates to `size` bytes."""

    codec: int
    stored: bytes
    size: int

    def inflated(self) -> bytes:
        """Return the section, in memory that `size` and the stored form bound. Raises DamagedSectionError."""
        if self.codec == NONE:
            if len(self.stored) != self.size:
                raise DamagedSectionError(f"a section has {len(self.stored)} bytes, not {self.size}")
            return self.stored
        if self.codec != LZ4:
            raise DamagedSectionError(f"the compression {self.codec} is unknown")
        if not 0 < self.size <= _MAX_RATIO * len(self.stored):
            raise DamagedSectionError(f"{len(self.stored)} bytes of lz4 can't hold {self.size}")
        buffer = bytearray(self.size)
        try:
            written = cramjam.lz4.decompress_block_into(self.stored, buffer)
        except cramjam.DecompressionError as error:
            raise DamagedSectionError(f"lz4: {error}") from None
        if written != self.size:
            raise DamagedSectionError(f"a section inflates to {written} bytes, not {self.size}")
        return bytes(buffer)


def compressed(plain: Buffer) -> bytes | None:
    """Return the section compressed with lz4; None if it is to be stored as it is."""
    size = len(plain)
    if size < WORTH or (size >= _LARGE and not _pays(_lz4(plain[size // 2 : size // 2 + _PIECE]), _PIECE)):
        return None
    stored = _lz4(plain)
    return stored if _pays(stored, size) else None


def _lz4(plain: Buffer) -> bytes:
    return bytes(cramjam.lz4.compress_block(plain, store_size=False))


def _pays(stored: bytes, size: int) -> bool:
    return len(stored) <= size - size // 8
