"""Records as the bytes of a batch.

aiokafka's C builder does it, two to three times faster than Python can. As its reader it is an internal module, wrapped
here and nowhere else. Header names that are not UTF-8 it can't write; then all of the batch is written in Python.
"""

from collections.abc import Sequence
from typing import Any, Final, cast

from aiokafka.record._crecords.default_records import DefaultRecordBatchBuilder

from topics_service.storage.recordbatch.header import HEADER
from topics_service.storage.recordbatch.varint import varint

HeaderList = list[tuple[str | bytes, bytes | None]]

_NO_LIMIT: Final = 1 << 40
_NULL: Final = varint(-1)


def written(
    offset_deltas: Sequence[int],
    ts: Sequence[int],
    keys: Sequence[bytes | None],
    values: Sequence[bytes | None],
    headers: Sequence[HeaderList] | None,
) -> bytes:
    """The records, without the header of the batch. The first time is the one that the others count from."""
    if headers is not None and any(isinstance(name, bytes) for fields in headers for name, _ in fields):
        return _written_slowly(offset_deltas, ts, keys, values, headers)
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, _NO_LIMIT)
    append = builder.append
    if headers is None:
        none: list[Any] = []
        for delta, time, key, value in zip(offset_deltas, ts, keys, values, strict=True):
            append(delta, time, key, value, none)
    else:
        for delta, time, key, value, fields in zip(offset_deltas, ts, keys, values, headers, strict=True):
            append(delta, time, key, value, cast(Any, fields))
    return bytes(memoryview(builder.build())[HEADER.size :])


def _written_slowly(
    offset_deltas: Sequence[int],
    ts: Sequence[int],
    keys: Sequence[bytes | None],
    values: Sequence[bytes | None],
    headers: Sequence[HeaderList],
) -> bytes:
    chunks: list[bytes] = []
    for delta, time, key, value, fields in zip(offset_deltas, ts, keys, values, headers, strict=True):
        record = [b"\0", varint(time - ts[0]), varint(delta), *_nullable(key), *_nullable(value), varint(len(fields))]
        for name, content in fields:
            record += (*_nullable(name.encode() if isinstance(name, str) else name), *_nullable(content))
        joined = b"".join(record)
        chunks += (varint(len(joined)), joined)
    return b"".join(chunks)


def _nullable(content: bytes | None) -> tuple[bytes, ...]:
    return (_NULL,) if content is None else (varint(len(content)), content)
