"""Stored rows: read back as they were, in today's columns, and refused if they are damaged."""

from decimal import Decimal
from typing import Any

import pytest
from engine.test_table_values import TYPES, VALUES
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from topics_service.engine.tables import rowcode
from topics_service.engine.tables.expressions import Literal
from topics_service.engine.tables.model import ColumnSchema, Table
from topics_service.engine.tables.types import Kind, Type


def table_of(types: list[Type]) -> Table:
    columns = tuple(ColumnSchema(id=i + 1, name=f"c{i}", type=each) for i, each in enumerate(types))
    ids = tuple(column.id for column in columns)
    return Table(
        number=1, namespace="n", name="t", columns=columns, primary_key=(1,), versions=(ids,), next_column=len(ids) + 1
    )


EVERY = table_of(list(TYPES.values()))
ROW = [True, 1, 2, 3, 0.5, 1.5, Decimal("1.50"), "t", b"\0", "{}", 5, 6, 7, "0188e5b5-2e9c-7a6b-8a1c-0242ac120002"]


@given(st.tuples(*(st.none() | VALUES[kind] for kind in TYPES)))
def test_rows_are_read_back(values: tuple[Any, ...]) -> None:
    again = rowcode.Reader(EVERY).read(rowcode.encode(0, values, list(TYPES.values())))
    assert again == list(values)
    assert [(type(value), str(value)) for value in again] == [(type(value), str(value)) for value in values]


def test_old_versions_become_todays_columns() -> None:
    table = table_of([TYPES[Kind.SMALLINT], TYPES[Kind.TEXT], TYPES[Kind.REAL], TYPES[Kind.DECIMAL]])
    a, _, c, d = table.columns
    added = ColumnSchema(id=5, name="b", type=TYPES[Kind.TEXT], default=Literal("now"), initial=Literal("then"))
    empty = ColumnSchema(id=6, name="e", type=TYPES[Kind.JSON])
    today = replace(
        table,
        columns=(replace(a, type=TYPES[Kind.BIGINT]), d, replace(c, type=TYPES[Kind.DOUBLE]), added, empty),
        versions=((1, 2, 3, 4), (1, 3, 4), (1, 4, 3, 5, 6)),
    )  # fmt: skip
    reader = rowcode.Reader(today)
    assert reader.read(rowcode.encode(0, [1, "gone", 0.5, Decimal("2.50")])) == [1, Decimal("2.50"), 0.5, "then", None]
    assert reader.read(rowcode.encode(1, [2, None, None])) == [2, None, None, "then", None]
    assert reader.read(rowcode.encode(2, [3, None, 1.5, None, "{}"])) == [3, None, 1.5, None, "{}"]


@pytest.mark.parametrize(
    "stored",
    [
        b"", b"\0", b"\0\0", rowcode.encode(1, ROW), rowcode.encode(0, ROW[:-1]), rowcode.encode(0, [*ROW, 1]),
        rowcode.encode(0, ROW)[:-1], rowcode.encode(0, ROW) + b"\0", rowcode.encode(0, ["x", *ROW[1:]]),
        b"\0\0" + b"\x91" * 5000, rowcode.encode(0, [*ROW[:6], "1e99999", *ROW[7:]]),
        rowcode.encode(0, [*ROW[:6], "NaN", *ROW[7:]]), rowcode.encode(0, [*ROW[:6], "0." + "1" * 500, *ROW[7:]]),
        rowcode.encode(0, [*ROW[:7], b"bytes", *ROW[8:]]), b"\0\0\xdd\xff\xff\xff\xff",
    ],
)  # fmt: skip
def test_damaged_rows_are_refused(stored: bytes) -> None:
    with pytest.raises(rowcode.CorruptRowError, match=r"no row of table n\.t"):
        rowcode.Reader(EVERY).read(stored)
