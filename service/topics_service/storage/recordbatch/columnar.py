"""Conversion between batches and columns of records, the form of the other protocols."""

from collections.abc import Sequence
from itertools import repeat
from typing import Final, NamedTuple

from topics_service.storage.recordbatch.header import MAGIC, Buffer, Header, assembled, header_of
from topics_service.storage.recordbatch.jsonvalue import BINARY, JSON, kinds_of
from topics_service.storage.recordbatch.mapping import NODE_HEADER, key_and_headers, meta_of, meta_of_any, tag_of
from topics_service.storage.recordbatch.records import Piece, body_of, parsed, pieces
from topics_service.storage.recordbatch.varint import MalformedRecordError
from topics_service.storage.recordbatch.written import HeaderList, written
from topics_service.storage.varbinary import Column

_NULL: Final = b"null"


class Columns(NamedTuple):
    """Records as columns of one length. A column is None if no record has a value there, or if all are JSON."""

    datas: list[bytes]
    tags: Column | None
    metas: Column | None
    kinds: bytes | None  # a byte for each record: 0 JSON, 1 binary


def columns(batch: Buffer) -> Columns:
    """The records of a batch, mapped as `mapping` says.

    It never raises for a batch that `check` let pass. A record that can't be read, or is not where its offset says,
    is its own bytes (without the length before them), as binary.
    """
    header = header_of(batch)
    datas: list[bytes] = []
    tags: Column = []
    metas: Column = []
    unread: list[int] = []
    for piece in pieces(body_of(batch, header), header.count):
        records = piece.read()
        if records is None:
            _read_slowly(piece, datas, tags, metas, unread)
            continue
        keys, values, headers = records
        datas += [_NULL if value is None else value for value in values]
        fit = [None if key is None else tag_of(key) for key in keys]
        tags += fit
        if fit == keys and not any(headers):
            metas += repeat(None, len(keys))
        else:
            unfit = [key if tag is None else None for key, tag in zip(keys, fit, strict=True)]
            metas += map(meta_of, unfit, headers)
    kinds = kinds_of(datas)
    if unread:
        marked = bytearray(len(datas)) if kinds is None else bytearray(kinds)
        for position in unread:
            marked[position] = BINARY
        kinds = bytes(marked)
    return Columns(datas, _unless_empty(tags), _unless_empty(metas), kinds)


def encoded(
    base_offset: int,
    ts: Sequence[int],
    columns: Columns,
    nodes: Column | None,
    keep: Sequence[int] | None = None,
    *,
    last_offset_delta: int | None = None,
) -> bytes:
    """The records as an uncompressed batch without a producer, mapped back as `mapping` says; CreateTime `ts`.

    The record at position i has the offset base_offset + i. With `keep`, at least one ascending position, only these
    records are in the batch. It reaches to the last of them, or to `last_offset_delta`.
    """
    datas, tags, metas, kinds = columns
    positions = range(len(datas)) if keep is None else keep
    if keep is not None:
        ts = [ts[i] for i in keep]
        datas = [datas[i] for i in keep]
        tags, metas, nodes = (None if c is None else [c[i] for i in keep] for c in (tags, metas, nodes))
        kinds = None if kinds is None else bytes([kinds[i] for i in keep])
    values: Column = list(datas)
    if _NULL in datas:
        values = [
            None if data == _NULL and (kinds is None or kinds[i] == JSON) else data for i, data in enumerate(datas)
        ]
    keys: Column = [None] * len(datas) if tags is None else tags
    headers: list[HeaderList] | None = None
    if metas is not None:
        read = [
            (key, []) if meta is None else key_and_headers(key, meta) for key, meta in zip(keys, metas, strict=True)
        ]
        keys = [key for key, _ in read]
        headers = [fields for _, fields in read]
    if nodes is not None:
        given = repeat([], len(nodes)) if headers is None else headers
        headers = [
            fields if node is None else [*fields, (NODE_HEADER, node)]
            for fields, node in zip(given, nodes, strict=True)
        ]
    records = written(positions, ts, keys, values, headers)
    if last_offset_delta is None:
        last_offset_delta = positions[-1]
    header = Header(base_offset, 0, 0, MAGIC, 0, 0, last_offset_delta, ts[0], max(ts), -1, -1, -1, len(positions))
    return assembled(header, records)


def _unless_empty(column: Column) -> Column | None:
    return None if column.count(None) == len(column) else column


def _read_slowly(piece: Piece, datas: list[bytes], tags: Column, metas: Column, unread: list[int]) -> None:
    for position, frame in enumerate(piece.frames(), start=piece.first):
        try:
            record = parsed(frame)
        except MalformedRecordError:
            record = None
        if record is None or record.offset_delta != position:
            unread.append(position)
            datas.append(frame)
            tags.append(None)
            metas.append(None)
            continue
        key = record.key
        tag = None if key is None else tag_of(key)
        datas.append(_NULL if record.value is None else record.value)
        tags.append(tag)
        metas.append(meta_of_any(None if tag is not None else key, record.headers))
