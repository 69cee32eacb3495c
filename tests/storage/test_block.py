"""The block codec: every combination of columns, merging, and no damage that goes unseen."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topics_service.storage.block import Block, CorruptBlockError, build, decode, encode, merge
from topics_service.storage.varbinary import Column

cells = st.none() | st.binary(max_size=4)
derandomized = settings(deadline=None, derandomize=True)


@st.composite
def blocks(draw: st.DrawFn, base: int = 7, least_ts: int = 0, cum_bytes: int = 3) -> Block:
    n = draw(st.integers(1, 5))

    def column() -> Column | None:
        return draw(st.none() | st.lists(cells, min_size=n, max_size=n))

    datas = draw(st.lists(st.binary(max_size=6), min_size=n, max_size=n))
    kinds = draw(st.none() | st.binary(min_size=n, max_size=n).map(lambda raw: bytes(b & 1 for b in raw)))
    ts = draw(st.integers(least_ts, least_ts + 3))
    return build(9, base, ts, datas, column(), column(), column(), kinds, cum_bytes)


@st.composite
def runs(draw: st.DrawFn) -> list[Block]:
    """Blocks that follow each other in seq and time."""
    run: list[Block] = [draw(blocks())]
    for _ in range(draw(st.integers(0, 3))):
        last = run[-1]
        run.append(draw(blocks(last.end_seq, last.last_ts, last.cum_bytes + last.nbytes)))
    return run


def rows(block: Block) -> list[tuple[object, ...]]:
    """Every record with everything that belongs to it."""
    return [
        (
            block.base_seq + i,
            block.ts_at(i),
            block.record_data(i),
            *(None if column is None else column[i] for column in (block.tags, block.nodes, block.metas)),
            0 if block.kinds is None else block.kinds[i],
        )
        for i in range(block.count)
    ]


def facts(block: Block) -> tuple[object, ...]:
    return rows(block), block.nbytes, block.cum_bytes, block.first_ts, block.last_ts, list(block.ts_runs)


@derandomized
@given(block=blocks())
def test_what_is_decoded_is_what_was_encoded(block: Block) -> None:
    found = decode(encode(block), 9, 7)
    assert facts(found) == facts(block)
    assert encode(found) == encode(block)


@pytest.mark.parametrize("present", list(product((False, True), repeat=4)))
def test_every_combination_of_columns_keeps_empty_and_absent_apart(present: tuple[bool, ...]) -> None:
    tags, nodes, metas = ([b"", None, b"v"] if there else None for there in present[:3])
    kinds = b"\x00\x01\x00" if present[3] else None
    found = decode(encode(build(1, 1, 0, [b"", b"d", b""], tags, nodes, metas, kinds, 0)), 1, 1)
    assert (found.tags, found.nodes, found.metas, found.kinds) == (tags, nodes, metas, kinds)
    assert [found.record_data(i) for i in range(3)] == [b"", b"d", b""]


@derandomized
@given(run=runs())
def test_a_merged_block_has_the_records_of_its_parts(run: list[Block]) -> None:
    merged = merge(run)
    assert rows(merged) == [row for block in run for row in rows(block)]
    assert merged.nbytes == sum(block.nbytes for block in run)
    assert merged.cum_bytes == run[0].cum_bytes
    assert facts(decode(encode(merged), 9, 7)) == facts(merged)
    ts = [merged.ts_at(i) for i in range(merged.count)]
    for at in range(min(ts), max(ts) + 2):
        assert merged.first_at_or_after(at) == sum(1 for t in ts if t < at)


@derandomized
@given(block=blocks(), budget=st.integers(0, 40), data=st.data())
def test_sizes_and_fit_agree_with_a_sum(block: Block, budget: int, data: st.DataObject) -> None:
    sizes = [len(block.record_data(i)) + len((block.metas or {i: None})[i] or b"") for i in range(block.count)]
    assert [block.sizes_upto(i) for i in range(block.count + 1)] == [sum(sizes[:i]) for i in range(block.count + 1)]
    start = data.draw(st.integers(0, block.count))
    stops = [stop for stop in range(start, block.count + 1) if sum(sizes[start:stop]) <= budget]
    assert block.fit(start, budget) == max(stops)


@settings(deadline=None, derandomize=True, max_examples=25)
@given(run=runs())
def test_every_flipped_bit_is_noticed(run: list[Block]) -> None:
    value = encode(merge(run))
    for at in range(len(value)):
        for bit in (0x01, 0x80, 0xFF):
            damaged = bytearray(value)
            damaged[at] ^= bit
            with pytest.raises(CorruptBlockError):
                decode(bytes(damaged), 9, 7)


@settings(deadline=None, derandomize=True, max_examples=25)
@given(run=runs(), extra=st.binary(min_size=1, max_size=3))
def test_every_cut_and_every_addition_is_noticed(run: list[Block], extra: bytes) -> None:
    value = encode(merge(run))
    for at in range(len(value)):
        with pytest.raises(CorruptBlockError):
            decode(value[:at], 9, 7)
    with pytest.raises(CorruptBlockError):
        decode(value + extra, 9, 7)


@pytest.mark.parametrize(("log_id", "base"), [(1, 7), (9, 8)])
def test_a_block_in_a_wrong_place_is_noticed(log_id: int, base: int) -> None:
    value = encode(build(9, 7, 0, [b"d"], None, None, None, None, 0))
    with pytest.raises(CorruptBlockError):
        decode(value, log_id, base)


@derandomized
@given(garbage=st.binary(max_size=200))
def test_garbage_is_corrupt_and_nothing_else(garbage: bytes) -> None:
    with pytest.raises(CorruptBlockError):
        decode(garbage, 1, 1)


def test_positions_of_a_tag() -> None:
    block = build(1, 1, 0, [b"d"] * 5, [b"a", None, b"ab", b"", b"a"], None, None, None, 0)
    assert block.positions_of(b"a") == [0, 4]
    assert block.positions_of(b"a", prefix=True) == [0, 2, 4]
    assert block.positions_of(b"", prefix=True) == [0, 2, 3, 4]
    assert block.positions_of(b"") == [3]
    assert build(1, 1, 0, [b"d"], None, None, None, None, 0).positions_of(b"", prefix=True) == []


def test_a_position_past_the_end_has_no_time() -> None:
    with pytest.raises(IndexError):
        build(1, 1, 0, [b"d"], None, None, None, None, 0).ts_at(1)
