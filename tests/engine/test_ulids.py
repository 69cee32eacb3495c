"""ULIDs are those of the specification, and ascend."""

from hypothesis import given, settings
from hypothesis import strategies as st
from ulid import ULID

from topics_service.engine.ulids import Ulids


@given(st.lists(st.integers(0, (1 << 48) - 1), min_size=1))
@settings(max_examples=200, deadline=None)
def test_they_are_read_back(times: list[int]) -> None:
    make = Ulids()
    found = [make(ms) for ms in times for _ in range(2)]
    assert [ULID.from_str(each.upper()).milliseconds for each in found] == [ms for ms in times for _ in range(2)]
    assert [str(ULID.from_str(each.upper())).lower() for each in found] == found
    assert len(set(found)) == len(found)


def test_those_of_a_millisecond_ascend() -> None:
    make = Ulids()
    found = [make(1_800_000_000_000 + i // 1000) for i in range(3000)]
    assert found == sorted(found)
    assert len(set(found)) == len(found)


def test_two_makers_do_not_agree() -> None:
    assert Ulids()(1_800_000_000_000) != Ulids()(1_800_000_000_000)
