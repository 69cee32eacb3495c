"""Deletes by tag: the index, the unsealed tail, and bytes that could confuse keys."""

import pytest
from engine_support import World, code, runs, tags_of
from hypothesis import given, settings
from hypothesis import strategies as st

from topics_service.engine.errors import TopicsError

ODD = (
    b"",
    b"\x00",
    b"\x00\x01",
    b"\x00\xff",
    b"a",
    b"a\x00",
    b"a\x00b",
    b"a\xff",
    b"a\xff\xff",
    b"ab",
    b"\xff",
    b"\xff\xff",
)


def filled(*tags: bytes | None, sealed: int = 0) -> World:
    """A world with one record per tag, the first `sealed` of them behind the index."""
    world = World()
    for i, tag in enumerate(tags, 1):
        world.append(1, tags=[tag])
        if i == sealed:
            world.seal()
    return world


@pytest.mark.parametrize("sealed", [0, 5, len(ODD)])
@pytest.mark.parametrize("value", ODD)
@pytest.mark.parametrize("how", ["eq", "glob"])
def test_odd_bytes_match_only_what_they_should(sealed: int, value: bytes, how: str) -> None:
    world = filled(*ODD, None, sealed=sealed)
    hit = [tag == value if how == "eq" else tag.startswith(value) for tag in ODD]
    reply = world.delete(**{how: value})  # type: ignore[arg-type]
    assert reply.deleted == sum(hit)
    assert world.seqs() == [i for i, gone in enumerate([*hit, False], 1) if not gone]
    assert (reply.count, reply.bytes) == (len(world.seqs()),) * 2
    assert world.delete(**{how: value}).deleted == 0  # type: ignore[arg-type]


def test_a_match_ends_at_the_head_of_its_time(world: World) -> None:
    world.append(1, tags=[b"x"])
    world.delete(eq=b"x")
    world.append(1, tags=[b"x"])
    assert world.seqs() == [2]


@pytest.mark.parametrize(
    ("before", "gone"), [(0, []), (1, []), (2, [1]), (4, [1, 3]), (6, [1, 3, 5]), (10**6, [1, 3, 5])]
)
def test_before_seq_and_match_are_both_needed(before: int, gone: list[int]) -> None:
    world = filled(b"x", b"y", b"x", b"y", b"x", sealed=3)
    assert world.delete(before, eq=b"x").deleted == len(gone)
    assert world.seqs() == [seq for seq in range(1, 6) if seq not in gone]
    assert world.delete(eq=b"x").deleted == 3 - len(gone), "the index still knows the others"


@pytest.mark.parametrize(("before", "earliest"), [(0, 1), (1, 1), (3, 3), (5, 5), (6, 6), (1 << 64, 6)])
def test_before_seq_alone_moves_the_start(world: World, before: int, earliest: int) -> None:
    world.append(*[2] * 5)
    reply = world.delete(before)
    assert (reply.deleted, reply.earliest_seq, reply.head_seq) == (earliest - 1, earliest, 5)
    assert (reply.count, reply.bytes) == (6 - earliest, 2 * (6 - earliest))


def test_deleting_a_front_run_by_tag_moves_the_start_past_earlier_holes() -> None:
    world = filled(b"x", b"y", b"x", None)
    world.delete(eq=b"y")
    assert world.state().earliest_seq == 1
    assert world.delete(eq=b"x").earliest_seq == 4


def test_a_delete_counts_only_what_is_alive(world: World) -> None:
    world.put(cap_records=3, ttl_ms=100)
    world.append(*[1] * 5, tags=[b"x"] * 5)
    assert world.delete(4).deleted == 1
    world.clock.advance(101)
    assert world.delete(eq=b"x").deleted == 0


def test_a_selector_is_needed(world: World) -> None:
    with pytest.raises(TopicsError) as error:
        world.delete()
    assert code(error) == "invalid_request", "before the topic is looked up"
    with pytest.raises(TopicsError) as error:
        world.delete(1)
    assert code(error) == "topic_not_found"


def test_a_match_prunes_the_long_entries_that_it_emptied() -> None:
    world = filled(*[b"x"] * 64, b"y", b"z", *[b"z"] * 70, sealed=136)
    assert tags_of(world) == [b"x", b"y", b"z"]
    world.delete(eq=b"x")
    assert tags_of(world) == [b"y", b"z"]
    world.delete(3, glob=b"")
    assert tags_of(world) == [b"y", b"z"], "with before_seq other records may need the entry"
    world.delete(eq=b"y")
    assert tags_of(world) == [b"y", b"z"], "a short one is not worth it"
    assert world.delete(glob=b"").deleted == 71
    assert tags_of(world) == [b"y"]


def test_a_chunk_whose_entries_are_all_pruned_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topics_service.engine.tagruns.PRUNED", 1)
    world = filled(b"x", b"y", sealed=2)
    world.delete(glob=b"")
    assert tags_of(world) == []
    world.append(1, tags=[b"x"])
    assert world.delete(eq=b"x").deleted == 1


def test_reclaim_drops_runs_below_the_start(small_steps: None) -> None:
    world = filled(b"x", b"y", b"z", b"x", sealed=2)
    world.seal()
    assert [run.base for run in runs(world)] == [1, 3]
    world.delete(4)
    world.maintain()
    assert [run.base for run in runs(world)] == [3]
    assert tags_of(world) == [b"x", b"z"]
    assert world.delete(eq=b"x").deleted == 1


def test_deletes_survive_every_restart(world: World, small_steps: None) -> None:
    world.append(*[1] * 8, tags=[b"x", b"y"] * 4)
    world.delete(eq=b"x")
    for how in (world.kill, world.restart, world.seal, world.kill):
        how()
        assert world.seqs() == [2, 4, 6, 8]
        assert world.state().count == 4


@settings(deadline=None, derandomize=True, max_examples=80)
@given(data=st.data())
def test_deletes_against_a_list(data: st.DataObject) -> None:
    world = World()
    kept: list[tuple[int, bytes | None]] = []
    head = 0
    for _ in range(data.draw(st.integers(1, 6))):
        tags = data.draw(st.lists(st.sampled_from((None, *ODD)), min_size=1, max_size=5))
        world.append(*[1] * len(tags), tags=tags)
        kept += [(head + i, tag) for i, tag in enumerate(tags, 1)]
        head += len(tags)
        if data.draw(st.booleans()):
            world.seal()
        before = data.draw(st.none() | st.integers(0, head + 1))
        value = data.draw(st.sampled_from(ODD))
        how = data.draw(st.sampled_from(("eq", "glob")))
        gone = {
            seq
            for seq, tag in kept
            if tag is not None
            and (tag == value if how == "eq" else tag.startswith(value))
            and (before is None or seq < before)
        }
        assert world.delete(before, **{how: value}).deleted == len(gone)  # type: ignore[arg-type]
        kept = [(seq, tag) for seq, tag in kept if seq not in gone]
        assert world.seqs() == [seq for seq, _ in kept]
