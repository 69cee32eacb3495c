"""Tags of a block that was read stay in their stored form until somebody looks; what is seen is the same."""

from hypothesis import given, settings
from hypothesis import strategies as st

from topics_service.storage.block import Column, build, decode, encode

part = st.none() | st.binary(max_size=5)
rows = st.lists(st.tuples(st.binary(max_size=4), part, part, part), min_size=1, max_size=8)


def _column(values: list[bytes | None]) -> Column | None:
    return values if any(value is not None for value in values) else None


@settings(max_examples=200, deadline=None)
@given(rows, st.booleans(), st.integers(0, 8), st.integers(0, 8))
def test_packed_tags(given_rows: list[tuple[bytes, ...]], binary: bool, start: int, stop: int) -> None:
    datas, tags, nodes, metas = (list(values) for values in zip(*given_rows, strict=True))
    count = len(datas)
    start, stop = sorted((min(start, count), min(stop, count)))
    kinds = bytes(count) if binary else None
    block = build(1, 7, 5, datas, _column(tags), _column(nodes), _column(metas), kinds, 3)
    assert block.packed_tags(start, stop) is None
    found = decode(encode(block), 1, 7)
    packed = found.packed_tags(start, stop)
    if None in tags:
        assert packed is None
    else:
        assert packed is not None
        assert (list(packed[0]), packed[1]) == (list(map(len, tags[start:stop])), b"".join(tags[start:stop]))
    assert (found.tags, found.nodes, found.metas, found.kinds) == (block.tags, block.nodes, block.metas, block.kinds)
    assert found.packed_tags(start, stop) is None
    assert encode(found) == encode(block)
