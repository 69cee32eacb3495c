"""The read path: pages, budgets, filters, and one tombstone for every loss."""

import pytest
from engine_support import CrashStore, World, code, gap, records, seqs

from topics_service.engine.errors import TopicsError
from topics_service.storage.store import Family


def test_an_absent_topic_is_not_found(world: World) -> None:
    with pytest.raises(TopicsError) as error:
        world.diff()
    assert code(error) == "topic_not_found"
    assert error.value.detail == {"topic": "t"}


def test_an_empty_topic_is_caught_up(world: World) -> None:
    world.put()
    page = world.diff()
    assert (records(page), page.next_from_seq, page.head_seq, page.earliest_seq) == ([], 0, 0, 1)
    assert page.caught_up
    assert gap(page) is None


def test_pages_of_a_limit(world: World) -> None:
    world.append(b"a", b"b", b"c")
    world.append(b"d", b"e")
    page = world.diff(limit=2)
    assert (records(page), page.next_from_seq, page.lag) == ([(1, b"a"), (2, b"b")], 2, 3)
    assert not page.caught_up
    page = world.diff(2, limit=3)
    assert (records(page), page.caught_up) == ([(3, b"c"), (4, b"d"), (5, b"e")], True)
    assert world.diff(2, limit=3).records_scanned == 3


def test_limits_have_a_default_and_a_bound(world: World) -> None:
    world.append(*[1] * 1200)
    assert len(seqs(world.diff())) == 256
    assert len(seqs(world.diff(limit=5000))) == 1000


def test_the_byte_budget_stops_before_the_record_that_exceeds_it(world: World) -> None:
    world.append(4, 4, 4, metas=[None, b"{}", None])
    world.append(4)
    assert seqs(world.diff(max_batch_bytes=10)) == [1, 2]
    assert seqs(world.diff(max_batch_bytes=9)) == [1]
    assert seqs(world.diff(1, max_batch_bytes=14)) == [2, 3, 4]
    assert world.diff(max_batch_bytes=9).next_from_seq == 1


def test_a_page_has_at_least_one_record(world: World) -> None:
    world.append(100, 1)
    page = world.diff(max_batch_bytes=1)
    assert (seqs(page), page.next_from_seq) == ([1], 1)
    page = world.diff(max_batch_bytes=100)
    assert seqs(page) == [1]


def test_the_budget_has_a_default_and_a_bound(world: World) -> None:
    world.append(*[1 << 20] * 10)
    assert len(seqs(world.diff())) == 1
    assert len(seqs(world.diff(max_batch_bytes=1 << 40))) == 8


def test_node_filters_examine_up_to_the_limit(world: World) -> None:
    world.append(*[1] * 6, nodes=[b"n", b"n", b"m", None, b"", b"n"])
    page = world.diff(nodes=(b"n",), limit=2)
    assert (seqs(page), page.next_from_seq, page.records_scanned, page.caught_up) == ([], 2, 2, False)
    page = world.diff(nodes=(b"n",))
    assert (seqs(page), page.next_from_seq, page.caught_up) == ([3, 4, 5], 6, True)
    assert seqs(world.diff(nodes=(b"n", b"m", b""))) == [4]
    assert seqs(world.diff(nodes=(b"N",))) == [1, 2, 3, 4, 5, 6]
    world.put(dedupe_node=False)
    assert seqs(world.diff(nodes=(b"n",))) == [1, 2, 3, 4, 5, 6]


def test_filtered_records_cost_no_bytes(world: World) -> None:
    world.append(50, 5, 5, nodes=[b"n", None, None])
    assert seqs(world.diff(nodes=(b"n",), max_batch_bytes=10)) == [2, 3]


def test_deleted_records_are_passed_in_silence(world: World) -> None:
    world.append(*[1] * 6, tags=[b"x", b"x", None, b"x", None, b"x"])
    world.delete(eq=b"x")
    page = world.diff()
    assert (seqs(page), gap(page), page.caught_up, page.records_scanned) == ([3, 5], None, True, 2)
    assert world.diff(limit=1).next_from_seq == 3
    assert world.diff(3, limit=1).next_from_seq == 5, "a full page ends at its last record"
    assert world.diff(5).caught_up
    world.delete(6)
    page = world.diff()
    assert (seqs(page), page.next_from_seq, page.caught_up) == ([], 6, True)


def test_slices_join_within_a_block_and_split_around_deletes(world: World) -> None:
    world.append(*[1] * 6, tags=[None, None, b"x", None, None, None], nodes=[None, None, None, None, b"n", None])
    world.delete(eq=b"x")
    assert [(part.start, part.stop) for part in world.diff(nodes=(b"n",)).slices] == [(0, 2), (3, 4), (5, 6)]
    assert [(part.start, part.stop) for part in world.diff(nodes=(b"m",)).slices] == [(0, 2), (3, 6)]


def test_a_tombstone_reaches_to_the_first_live_record(world: World) -> None:
    world.put(cap_records=5)
    for _ in range(8):
        world.append(1)
    world.delete(7)
    page = world.diff()
    assert (gap(page), page.earliest_seq, seqs(page)) == ((1, 6, "cap"), 7, [7, 8])
    assert page.tombstone is not None
    assert (page.tombstone.earliest_seq, page.tombstone.head_seq, page.tombstone.missed_estimate) == (7, 8, 6)
    assert gap(world.diff(2)) == (3, 6, "cap")
    assert gap(world.diff(3)) is None, "4 to 6 were only deleted"


def test_a_cursor_beyond_the_head_means_a_recreated_topic(world: World) -> None:
    world.append(1, 1, 1)
    page = world.diff(4)
    assert (gap(page), seqs(page)) == ((1, 3, "recreated"), [1, 2, 3])
    assert gap(world.diff(3)) is None
    world.delete(4)
    page = world.diff(9)
    assert (gap(page), seqs(page), page.caught_up) == ((1, 3, "recreated"), [], True)


def test_a_recreated_topic_that_is_empty(world: World) -> None:
    world.put()
    page = world.diff(5)
    assert page.tombstone is not None
    assert (gap(page), page.tombstone.missed_estimate) == ((1, 0, "recreated"), 0)
    assert (page.next_from_seq, page.caught_up) == (0, True)


@pytest.fixture
def torn(small_steps: None) -> World:
    """Records 1 to 3, a power cut, records after it."""
    world = World(CrashStore())
    world.put()
    world.append(1, 1, 1)
    world.append(1, 1, sync=False)
    world.cut_power()
    world.append(1, 1)
    return world


def test_an_interior_gap_stops_a_page_and_is_told_once(torn: World) -> None:
    first = torn.state().head_seq - 1
    assert first > 5
    page = torn.diff()
    assert (seqs(page), gap(page), page.next_from_seq, page.caught_up) == ([1, 2, 3], None, 3, False)
    page = torn.diff(3)
    assert (seqs(page), gap(page), page.caught_up) == ([first, first + 1], (4, first - 1, "cap"), True)
    assert page.earliest_seq == 1
    assert gap(torn.diff(4)) == (5, first - 1, "cap")
    assert gap(torn.diff(first - 1)) is None
    assert torn.seqs() == [1, 2, 3, first, first + 1]


def test_a_gap_survives_restarts_and_ends_under_the_floor(torn: World) -> None:
    first = torn.state().head_seq - 1
    torn.kill()
    torn.restart()
    assert gap(torn.diff(3)) == (4, first - 1, "cap")
    torn.put(cap_records=1)
    assert gap(torn.diff(3)) == (4, first, "cap")
    torn.kill()
    assert gap(torn.diff(3)) == (4, first, "cap")
    assert torn.state().count == 1


def test_records_deleted_before_a_gap_leave_the_gap_to_be_told(torn: World) -> None:
    first = torn.state().head_seq - 1
    torn.delete(4)
    page = torn.diff()
    assert (seqs(page), gap(page), page.next_from_seq) == ([], None, 3)
    assert gap(torn.diff(3)) == (4, first - 1, "cap")
    assert torn.state().earliest_seq == first


def test_counts_and_expiry_pass_over_a_gap(torn: World) -> None:
    assert (torn.state().count, torn.state().bytes) == (5, 5)
    torn.put(ttl_ms=100)
    torn.clock.advance(50)
    torn.append(1)
    torn.clock.advance(51)
    assert torn.seqs() == [torn.state().head_seq]
    assert (torn.state().count, torn.state().bytes) == (1, 1)


def test_reads_count_as_consumption(world: World) -> None:
    world.append(1)
    assert world.state().last_read_ts is None
    world.diff()
    assert world.state().last_read_ts == world.clock.now


def test_waiters_wake_on_visible_records_and_on_deletion(world: World) -> None:
    world.put(durability="fsync")
    woken: list[str] = []
    parked = world.engine.park("t", lambda: woken.append("a"))
    left = world.engine.park("t", lambda: woken.append("b"))
    left.leave()
    left.leave()
    world.append(1, sync=False)
    assert woken == []
    world.engine.sync()
    assert woken == ["a"]
    world.engine.delete_topic("t")
    assert woken == ["a", "a"]
    parked.leave()


def test_a_damaged_block_fails_the_read_that_needs_it_by_name(world: World) -> None:
    for _ in range(3):
        world.append(1)
    key, value = world.rows(Family.BLOCKS)[1]
    batch = world.store.batch()
    batch.put(Family.BLOCKS, key, value[:-1] + b"!")
    world.store.write(batch)
    world.kill()
    assert seqs(world.diff(limit=1)) == [1]
    with pytest.raises(TopicsError, match=r"record 2 of topic \"t\" .*damaged: 2\.\.2") as error:
        world.diff(1)
    assert code(error) == "internal"
    assert seqs(world.diff(2)) == [3]
