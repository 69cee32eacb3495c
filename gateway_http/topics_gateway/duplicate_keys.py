"""Duplicate keys in the body of a write, found at no cost in the usual body.

msgspec lets the last of two equal keys win. But a compact body without unknown members is exactly as long as what was
decoded from it, and the smallest duplicate takes 9 bytes (`"tag":"",`). So a body less than 9 bytes longer than its
compact form hides none. In any other body (white space, escapes, unknown members, nulls) the same is asked of each
record, and only what has room for a duplicate is parsed exactly.
"""

from collections.abc import Sequence
from operator import sub
from typing import Final, NamedTuple

import msgspec
from msgspec import UNSET, Raw

from topics_gateway.append_schema import RECORD_MEMBERS, Body, Outline, Record, text_size
from topics_gateway.json_fields import Fields, parse_object
from topics_service.engine.errors import invalid

_MAX_FILLER: Final = 8 << 20  # what is parsed exactly takes the more the larger it is
_ROOM: Final = len(b'"tag":"",')
_OUTLINE: Final = msgspec.json.Decoder(Outline)
_RECORDS: Final = msgspec.json.Decoder(list[Raw])

Column = list[bytes | None] | None


class Columns(NamedTuple):
    """The members of the records as decoded: None where no record has one, or none was looked for."""

    datas: list[Raw]
    sizes: list[int]
    tags: Column = None
    nodes: Column = None
    metas: Column = None


def has_room_for_more(text: bytes, body: Body, columns: Columns) -> bool:
    """Return True if `text` may hold members, or values of members, beyond `body` and `columns`."""
    return len(text) - _outer_size(body) - _records_size(columns) >= _ROOM


def refuse_duplicates(text: bytes, body: Body, columns: Columns, max_record_bytes: int) -> None:
    """Raise `invalid_request` if a known member comes twice in `text`, of which `body` and `columns` were made."""
    if not has_room_for_more(text, body, columns):
        return
    records_size = _records_size(columns)
    outer_size = _outer_size(body)
    records = bytes(_OUTLINE.decode(text).records)
    if len(text) - outer_size - len(records) >= _ROOM:
        _refuse_filler(len(text) - outer_size - len(records))
        Fields(parse_object(_without(text, records)), body.members)
    if len(records) - records_size < _ROOM:
        return
    raws = _RECORDS.decode(records)
    slacks = map(sub, map(len, raws), _record_sizes(body.records))
    for raw, slack, size in zip(raws, slacks, columns.sizes, strict=True):
        if slack >= _ROOM and size <= max_record_bytes:  # a larger one is refused for that
            _refuse_filler(slack)
            Fields(parse_object(bytes(raw), "the record", max_parts=max_record_bytes + _ROOM), RECORD_MEMBERS)


def _refuse_filler(slack: int) -> None:
    if slack > _MAX_FILLER:
        raise invalid(f"the body has more than {_MAX_FILLER} bytes of white space or unknown members in one place")


def _without(text: bytes, records: bytes) -> bytes:
    """The body with `0` in place of the first occurrence of its records.

    An earlier occurrence than the true one can't be in a string, for the quotes in it, so it is a value of its own.
    """
    at = text.find(b"[")  # nearly always here; a search for a long needle costs more than the whole decoding
    if text.startswith(records, at):
        return b"%b0%b" % (text[:at], text[at + len(records) :])
    return text.replace(records, b"0", 1)


def _outer_size(body: Body) -> int:
    """The compact size of the body without the array of its records."""
    size = len(b'{"records":}') + body.envelope_size
    size += text_size(len(b',"node":'), body.node) + text_size(len(b',"idempotency_key":'), body.idempotency_key)
    if body.create is not UNSET:
        size += len(b',"create":') + (5 if body.create is False else 4)
    if body.disable_backpressure is not UNSET:
        size += len(b',"disable_backpressure":') + (4 if body.disable_backpressure else 5)
    if body.config:
        size += len(b',"config":') + len(body.config)
    if body.delay_ms:
        size += len(b',"delay_ms":') + len(body.delay_ms)
    if body.priority:
        size += len(b',"priority":') + len(body.priority)
    if body.partition:
        size += len(b',"partition":') + len(body.partition)
    return size


def _records_size(columns: Columns) -> int:
    """The compact size of the array of the records; members that are null are left out."""
    count = len(columns.datas)
    return (
        len(b"[]")
        + count * len(b'{"data":},')
        - 1
        + sum(columns.sizes)
        + _column_size(b',"tag":""', columns.tags)
        + _column_size(b',"node":""', columns.nodes)
        + _column_size(b',"meta":', columns.metas)
    )


def _column_size(frame: bytes, column: Column) -> int:
    if column is None:
        return 0
    present = len(column) - column.count(None)
    return present * len(frame) + sum(map(len, filter(None, column)))


def _record_sizes(records: Sequence[Record]) -> list[int]:
    """The compact size of each record, null members included."""
    frame = len(b'{"data":}')
    sizes = [frame + len(record.data) for record in records]
    for frame, texts in (
        (len(b',"tag":'), [record.tag for record in records]),
        (len(b',"node":'), [record.node for record in records]),
    ):
        if texts.count(UNSET) < len(texts):
            sizes = [size + text_size(frame, text) for size, text in zip(sizes, texts, strict=True)]
    metas = [len(record.meta) for record in records]
    if any(metas):
        frame = len(b',"meta":')
        sizes = [size + (frame + meta if meta else 0) for size, meta in zip(sizes, metas, strict=True)]
    return sizes
