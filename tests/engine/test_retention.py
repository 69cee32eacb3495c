"""Eviction by caps and expiry by age: exact, per record, and never more than asked."""

import pytest
from engine_support import World, code, gap
from hypothesis import given, settings
from hypothesis import strategies as st

from topics_service.engine.config import U64_MAX
from topics_service.engine.errors import TopicsError


def test_the_record_cap_is_exact(world: World) -> None:
    world.put(cap_records=3)
    for i in range(1, 7):
        world.append(1)
        assert world.state().count == min(i, 3)
    assert world.seqs() == [4, 5, 6]
    assert gap(world.diff(0)) == (1, 3, "cap")


def test_a_batch_larger_than_the_cap_is_taken_and_evicts_itself(world: World) -> None:
    world.put(cap_records=3)
    reply = world.append(1, 1, 1, 1, 1)
    assert (reply.first_seq, reply.last_seq) == (1, 5)
    assert world.seqs() == [3, 4, 5]
    world.append(*[1] * 4)
    assert world.seqs() == [7, 8, 9]


def test_a_record_larger_than_the_byte_cap_leaves_nothing(world: World) -> None:
    world.put(cap_bytes=5)
    world.append(6)
    state = world.state()
    assert (state.count, state.bytes, state.earliest_seq, state.head_seq) == (0, 0, 2, 1)
    assert world.diff(0).caught_up


def test_the_byte_cap_counts_data_and_meta(world: World) -> None:
    world.put(cap_bytes=10)
    world.append(3, 3, metas=[b"{}", None])
    world.append(2)
    assert (world.seqs(), world.state().bytes) == ([1, 2, 3], 10)
    world.append(1)
    assert (world.seqs(), world.state().bytes) == ([2, 3, 4], 6)


def test_both_caps_take_what_the_tighter_one_asks(world: World) -> None:
    world.put(cap_records=3, cap_bytes=30)
    for _ in range(8):
        world.append(10)
        assert world.state().count == min(3, world.state().head_seq)
    world.append(25)
    assert world.seqs() == [9]


def test_deleted_records_do_not_use_the_cap(world: World) -> None:
    world.put(cap_records=4)
    world.append(1, 1, 1, 1, tags=[None, b"x", b"x", None])
    world.delete(eq=b"x")
    world.append(1)
    assert world.seqs() == [1, 4, 5]
    assert gap(world.diff(0)) is None


def test_what_was_only_deleted_moves_no_floor(world: World) -> None:
    world.put(cap_records=3)
    world.append(1, 1, 1)
    world.delete(4)
    world.append(1, 1, 1)
    assert gap(world.diff(0)) is None
    world.append(1)
    assert gap(world.diff(0)) == (1, 4, "cap")


def test_expiry_is_strict(world: World) -> None:
    world.put(ttl_ms=100)
    world.append(1)
    world.clock.advance(100)
    assert world.seqs() == [1]
    world.clock.advance(1)
    page = world.diff(0)
    assert (world.seqs(), gap(page), page.next_from_seq, page.caught_up) == ([], (1, 1, "ttl"), 1, True)
    state = world.state()
    assert (state.count, state.bytes, state.earliest_seq) == (0, 0, 2)


def test_expiry_cuts_inside_a_sealed_block(world: World) -> None:
    world.put(ttl_ms=100)
    for _ in range(10):
        world.append(1, 1)
        world.clock.advance(10)
    world.seal()
    world.clock.advance(45)  # the records of the first five appends are 145..105 ms old
    assert world.seqs() == list(range(11, 21))
    world.clock.advance(1000)
    assert world.seqs() == []


def test_time_never_goes_back_within_a_log(world: World) -> None:
    world.put(ttl_ms=100)
    world.append(1)
    world.clock.advance(-50)
    world.append(1)
    assert world.state().last_write_ts == 1_000_000
    world.clock.advance(150)
    assert world.seqs() == [1, 2]
    world.clock.advance(1)
    assert world.seqs() == []


def test_cap_and_ttl_together_are_mixed(world: World) -> None:
    world.put(ttl_ms=100, cap_records=2)
    world.append(1, 1, 1)
    world.clock.advance(101)
    assert gap(world.diff(0)) == (1, 3, "mixed")
    assert gap(world.diff(1)) == (2, 3, "ttl")
    world.append(1, 1, 1)
    assert gap(world.diff(3)) == (4, 4, "cap")
    assert gap(world.diff(2)) == (3, 4, "mixed")


@pytest.mark.parametrize("given", [{"ttl_ms": U64_MAX}, {"cap_records": U64_MAX}, {"cap_bytes": U64_MAX}])
def test_huge_bounds_bind_nothing(world: World, given: dict[str, int]) -> None:
    world.put(**given)
    world.append(1)
    world.clock.advance(10**12)
    assert world.seqs() == [1]


def test_a_tighter_config_takes_effect_in_the_put(world: World) -> None:
    world.append(2, 2, 2, 2)
    world.put(cap_records=3)
    assert world.seqs() == [2, 3, 4]
    world.put(cap_bytes=4)
    assert world.seqs() == [3, 4]
    world.clock.advance(11)
    world.put(ttl_ms=10)
    assert world.seqs() == []


def test_a_reject_topic_never_drops_a_record(world: World) -> None:
    world.append(1, 1, 1, tags=[None, b"x", b"x"])
    world.put(discard="reject", cap_records=2, cap_bytes=2)
    assert world.seqs() == [1, 2, 3]
    with pytest.raises(TopicsError) as error:
        world.append(1)
    assert code(error) == "topic_full"
    assert error.value.detail == {"topic": "t", "cap_records": 2, "cap_bytes": 2, "head_seq": 3, "earliest_seq": 1}
    world.delete(eq=b"x")
    assert world.append(1).first_seq == 4
    assert world.seqs() == [1, 4]


@pytest.mark.parametrize(
    ("cap", "sizes", "expected"),
    [
        ({"cap_records": 2}, (1, 1, 1), "record_too_large"),
        ({"cap_bytes": 5}, (6,), "record_too_large"),
        ({"cap_bytes": 5}, (3, 3), "record_too_large"),
        ({"cap_records": 2}, (1, 1), "topic_full"),
        ({"cap_bytes": 5}, (5,), "topic_full"),
    ],
)
def test_reject_tells_what_never_fits_from_what_does_not_fit_now(
    world: World, cap: dict[str, int], sizes: tuple[int, ...], expected: str
) -> None:
    world.put(discard="reject", **cap)
    world.append(1)
    with pytest.raises(TopicsError) as error:
        world.append(*sizes)
    assert code(error) == expected
    assert world.state().head_seq == 1


def test_expired_records_make_room_under_reject(world: World) -> None:
    world.put(discard="reject", cap_records=1, ttl_ms=10)
    world.append(1)
    world.clock.advance(11)
    assert world.append(1).first_seq == 2


@settings(deadline=None, derandomize=True, max_examples=80)
@given(
    appends=st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=4), max_size=8),
    cap_records=st.integers(0, 5),
    cap_bytes=st.integers(0, 25),
    doomed=st.integers(0, 10),
    sealed=st.booleans(),
)
def test_eviction_is_the_oldest_live_record_again_and_again(
    appends: list[list[int]], cap_records: int, cap_bytes: int, doomed: int, sealed: bool
) -> None:
    world = World()
    world.put(cap_records=cap_records, cap_bytes=cap_bytes)
    kept: list[tuple[int, int]] = []
    seq = 0
    for sizes in appends:
        tags = [b"x" if seq + i + 1 == doomed else None for i in range(len(sizes))]
        world.append(*sizes, tags=tags)
        for size in sizes:
            seq += 1
            kept.append((seq, size))
        while (cap_records and len(kept) > cap_records) or (cap_bytes and sum(s for _, s in kept) > cap_bytes):
            kept.pop(0)
        assert world.seqs() == [s for s, _ in kept]
        state = world.state()
        assert (state.count, state.bytes) == (len(kept), sum(size for _, size in kept))
        if sealed:
            world.seal()
        world.delete(eq=b"x")
        kept = [(s, size) for s, size in kept if s != doomed]
