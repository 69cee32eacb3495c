"""The Arrow IPC messages that are written by hand, read by pyarrow."""

from itertools import accumulate, product
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topics_service.api.grpc import arrow
from topics_service.api.grpc.arrow import Column, Field

TYPES = {
    arrow.INT64: pa.int64(),
    arrow.INT8: pa.int8(),
    arrow.MICROSECONDS_UTC: pa.timestamp("us", tz="UTC"),
    arrow.UTF8: pa.string(),
    arrow.BINARY: pa.binary(),
}
WIDTH = {arrow.INT64: 8, arrow.INT8: 1, arrow.MICROSECONDS_UTC: 8}


def _field(field: Field) -> pa.Field:
    return pa.field(field.name, TYPES[field.type], nullable=field.nullable)


@st.composite
def columns(draw: st.DrawFn, count: int) -> tuple[Field, Column, list[Any]]:
    """A field, its column and the values that are in it."""
    kind, nullable = draw(st.sampled_from(sorted(TYPES))), draw(st.booleans())
    field = Field(draw(st.text(st.characters(codec="utf-8"), max_size=9)), kind, nullable)
    absent = draw(st.lists(st.booleans(), min_size=count, max_size=count)) if nullable else [False] * count
    bits = sum((not there) << i for i, there in enumerate(absent)).to_bytes((count + 7) // 8, "little")
    validity = (bits[:1], bits[1:]) if any(absent) or draw(st.booleans()) else ()
    if kind in WIDTH:
        numbers = draw(st.lists(st.integers(-128, 127), min_size=count, max_size=count))
        pieces = [number.to_bytes(WIDTH[kind], "little", signed=True) for number in numbers]
        buffers: tuple[Any, ...] = (validity, pieces)
        values: list[Any] = list(numbers)
    else:
        texts = draw(st.lists(st.sampled_from(["", "a", "é", "longer than eight"]), min_size=count, max_size=count))
        datas = [b"" if gone else text.encode() for text, gone in zip(texts, absent, strict=True)]
        offsets = [end.to_bytes(4, "little") for end in accumulate(map(len, datas), initial=0)]
        buffers = (validity, offsets, list(map(memoryview, datas)))
        values = [data.decode() if kind is arrow.UTF8 else data for data in datas]
    return (
        field, Column(sum(absent), buffers), [None if gone else v for v, gone in zip(values, absent, strict=True)]
    )  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(st.data(), st.integers(0, 40), st.integers(0, 7), st.integers(0, 3))
def test_pyarrow_reads_what_is_written(data: st.DataObject, count: int, width: int, batches: int) -> None:
    drawn = [[data.draw(columns(count)) for _ in range(width)] for _ in range(min(batches, 1))] or [[]]
    fields = [field for field, _, _ in drawn[0]]
    message = arrow.schema(fields)
    batch = b"".join(arrow.batch(count, [column for _, column, _ in drawn[0]]))
    assert len(message) % 8 == len(batch) % 8 == 0
    stream = pa.ipc.open_stream(message + batch * batches)
    assert stream.schema == pa.schema(list(map(_field, fields)))
    found = list(stream)
    assert len(found) == batches
    for one in found:
        one.validate(full=True)
        assert one.num_rows == (count if width else one.num_rows)
        for i, (field, column, values) in enumerate(drawn[0]):
            array = one.column(i)
            assert array.null_count == column.nulls
            as_number = array.cast(pa.int64()) if field.type is arrow.MICROSECONDS_UTC else array
            assert as_number.to_pylist() == values


@pytest.mark.parametrize(("kind", "nullable"), list(product(TYPES, [False, True])))
def test_every_type(kind: arrow.Type, nullable: bool) -> None:
    field = Field("f", kind, nullable)
    assert pa.ipc.read_schema(pa.py_buffer(arrow.schema([field]))) == pa.schema([_field(field)])
