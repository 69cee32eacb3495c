"""Texts of a block that was read stay in their stored form until somebody looks; what is seen is the same."""

from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topics_service.storage.block import Block, build, decode, encode
from topics_service.storage.varbinary import Column, VarBinary

part = st.none() | st.binary(max_size=5)
rows = st.lists(st.tuples(st.binary(max_size=4), part, part, part), min_size=1, max_size=8)
PARTS: tuple[Literal["tag", "node", "meta"], ...] = ("tag", "node", "meta")


def _column(values: list[bytes | None]) -> Column | None:
    return values if any(value is not None for value in values) else None


def _unpacked(block: Block) -> list[Column | None]:
    found = [block.packed(name) for name in PARTS]
    return [packed.values() if isinstance(packed, VarBinary) else packed for packed in found]


@settings(max_examples=200, deadline=None)
@given(rows, st.booleans(), st.integers(0, 8), st.integers(0, 8))
def test_packed_texts(given_rows: list[tuple[bytes, ...]], binary: bool, start: int, stop: int) -> None:
    datas, tags, nodes, metas = (list(values) for values in zip(*given_rows, strict=True))
    count = len(datas)
    start, stop = sorted((min(start, count), min(stop, count)))
    kinds = bytes(count) if binary else None
    block = build(1, 7, 5, datas, _column(tags), _column(nodes), _column(metas), kinds, 3)
    columns = [block.tags, block.nodes, block.metas]
    assert block.packed_tags() is None
    assert _unpacked(block) == columns
    found = decode(encode(block), 1, 7)
    assert found.nbytes == block.nbytes
    assert [found.sizes_upto(i) for i in range(count)] == [block.sizes_upto(i) for i in range(count)]
    packed = found.packed_tags()
    if None in tags:
        assert packed is None
    else:
        assert packed is not None
        assert packed.data == b"".join(tags)
    for name, column in zip(PARTS, columns, strict=True):
        values = found.packed(name)
        if values is None:
            assert column is None
        else:
            assert column is not None
            assert isinstance(values, VarBinary), "nobody has looked at them"
            absent = [i for i in range(start, stop) if column[i] is None]
            assert list(values.absent_between(start, stop)) == absent
    moved = found.moved(1, 9, 5, 3)
    for read in (found, moved, decode(encode(block), 1, 7).moved(1, 9, 5, 3)):
        assert _unpacked(read) == columns
        assert read.nbytes == block.nbytes
        assert [read.tags, read.nodes, read.metas, read.kinds] == [*columns, block.kinds]
        assert _unpacked(read) == columns
        assert read.sizes_upto(count) == block.sizes_upto(count)
    assert found.packed_tags() is None
    assert encode(found) == encode(block)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_one_text_at_a_time(order: tuple[int, ...]) -> None:
    """Each column has its own form."""
    block = decode(encode(build(1, 7, 5, [b"1", b"2"], [b"t", None], [b"n", b"n"], [None, b"{}"], None, 3)), 1, 7)
    want: list[Column] = [[b"t", None], [b"n", b"n"], [None, b"{}"]]
    for i in order:
        assert [block.tags, block.nodes, block.metas][i] == want[i]
        assert _unpacked(block) == want
