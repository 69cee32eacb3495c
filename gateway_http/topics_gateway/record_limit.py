"""Writes of far more records than one may have, refused before the records are made: they take gigabytes and seconds.

Only bodies with enough objects for such a write are checked, and in steps.
"""

import asyncio
import re
from collections.abc import Iterator
from typing import Final

from topics_service.engine.checks import too_many_records
from topics_service.engine.limits import Limits

_SMALL_BYTES: Final = 256 << 10
_SLICE_BYTES: Final = 1 << 20
_DECODED: Final = 10  # times as many records as allowed are simply decoded, and then refused
_STEP_TOKENS: Final = 5000  # between turns of the loop
_TOKEN: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[][{},]', re.DOTALL)
_OPEN: Final = frozenset(b"[{")
_CLOSE: Final = frozenset(b"]}")


async def refuse_too_many(text: bytes, limits: Limits) -> None:
    """Raise `batch_too_large` for the body of a write whose decoding would take long for its many records."""
    if len(text) <= _SMALL_BYTES:
        return
    max_objects, objects = limits.max_batch_records * _DECODED, 0
    for at in range(0, len(text), _SLICE_BYTES):
        objects += text.count(b"{", at, at + _SLICE_BYTES)
        if objects > max_objects:
            break
        await asyncio.sleep(0)
    if objects <= max_objects:
        return
    for records in _records(text):
        if records > limits.max_batch_records:
            raise too_many_records(limits)
        await asyncio.sleep(0)


def _records(text: bytes) -> Iterator[int]:
    """Yield the number of records met so far: from time to time, and as soon as there are none or one more."""
    depth = count = 0
    name = b""
    counting = False
    for number, token in enumerate(_TOKEN.finditer(text), start=1):
        first = text[token.start()]
        if first in _OPEN:
            depth += 1
            if depth == 2:
                counting = first == b"["[0] and (name == b'"records"' or b"\\" in name)
                count = 0
        elif first in _CLOSE:
            depth -= 1
        elif first == b","[0]:
            count += depth == 2 and counting
        elif depth == 1:
            name = token[0]
        if number % _STEP_TOKENS == 0:
            yield count + 1
    yield count + 1
