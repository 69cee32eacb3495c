"""Row keys: byte order is the order that matters, and a tag never swallows another."""

from hypothesis import given, settings
from hypothesis import strategies as st

from topics_service.storage import keys

u64s = st.integers(0, (1 << 64) - 2)
tags = st.binary(max_size=4) | st.sampled_from((b"\x00", b"\x00\x01", b"\x00\xff", b"\xff", b"\xff\xff", b"a\x00"))
derandomized = settings(deadline=None, derandomize=True, max_examples=300)


@derandomized
@given(a=st.tuples(u64s, u64s), b=st.tuples(u64s, u64s))
def test_pairs_sort_like_their_numbers(a: tuple[int, int], b: tuple[int, int]) -> None:
    assert (keys.pair(*a) < keys.pair(*b)) == (a < b)
    assert (keys.read_u64(keys.pair(*a)), keys.read_u64(keys.pair(*a), 8)) == a
    start, stop = keys.log_range(a[0])
    assert (start <= keys.pair(*b) < stop) == (a[0] == b[0])


@derandomized
@given(log_id=u64s, tag=tags, other_log=u64s, other=tags, run=u64s)
def test_a_tag_range_holds_exactly_its_tags(log_id: int, tag: bytes, other_log: int, other: bytes, run: int) -> None:
    for owner in (log_id, other_log):
        key = keys.tag(owner, other, run)
        start, stop = keys.tag_range(log_id, tag, prefix=False)
        assert (start <= key < stop) == (owner == log_id and other == tag)
        start, stop = keys.tag_range(log_id, tag, prefix=True)
        assert (start <= key < stop) == (owner == log_id and other.startswith(tag))
        assert keys.tag_run(key) == run
