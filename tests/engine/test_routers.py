"""Forwarding: what gets to the destination, what does not, and what stands in its way."""

import pytest
from engine_support import CrashStore, FaultyStore
from router_support import RouterWorld

from topics_service.engine.errors import TopicsError
from topics_service.engine.limits import Limits
from topics_service.engine.model import AppendRequest, Batch, TagMatch
from topics_service.engine.router import copies, router
from topics_service.storage import keys
from topics_service.storage.store import Family


@pytest.fixture
def world() -> RouterWorld:
    return RouterWorld()


def numbered(count: int) -> list[bytes]:
    return [b"%d" % i for i in range(count)]


# ------------------------------------------------------------------------ copies


def test_copies_have_their_own_seq_and_time(world: RouterWorld) -> None:
    world.append(b"direct", topic="b")
    world.route("a", "b")
    world.append(b"1", topic="a", tags=[b"t"], nodes=[b"n"], metas=[b'{"k" : 1.0}'])
    world.clock.advance(50)
    world.forward()
    assert world.walk("b") == [(1, b"direct"), (2, b"1")]
    page = world.diff(1, topic="b")
    block = page.slices[0].block
    assert (block.first_ts, block.tags, block.nodes, block.metas) == (1_000_050, [b"t"], [b"n"], [b'{"k" : 1.0}'])
    world.append(b"2", topic="b")
    assert world.seqs("b") == [1, 2, 3], "direct writes are allowed"


def test_preserve_flags_clear_the_columns(world: RouterWorld) -> None:
    world.route("a", "b", preserve_node=False)
    world.route("a", "c", preserve_tag=False)
    world.append(b"1", topic="a", tags=[b"t"], nodes=[b"n"])
    world.forward()
    assert (world.column("b", "nodes"), world.column("b", "tags")) == ([None], [b"t"])
    assert (world.column("c", "nodes"), world.column("c", "tags")) == ([b"n"], [None])


def test_binary_records_stay_binary(world: RouterWorld) -> None:
    world.route("a", "b")
    batch = Batch(datas=[b"\xff\x00", b"1"], kinds=b"\x01\x00")
    world.engine.append(AppendRequest(topic="a", batch=batch))
    world.append(b"2", topic="a")
    world.forward()
    assert world.datas("b") == [b"\xff\x00", b"1", b"2"]
    kinds = [s.block.kinds[i] for s in world.diff(topic="b").slices if s.block.kinds for i in range(s.start, s.stop)]
    assert kinds == [1, 0, 0]


def test_many_small_writes_become_one_block(world: RouterWorld) -> None:
    world.route("a", "b")
    for data in numbered(50):
        world.append(data, topic="a", tags=[b"t"] if int(data) % 3 else None)
    writes = world.engine.writer.written
    world.forward()
    assert world.engine.writer.written == writes + 1
    assert world.datas("b") == numbered(50)
    assert world.column("b", "tags") == [b"t" if i % 3 else None for i in range(50)]


def test_a_large_write_goes_in_slices(world: RouterWorld) -> None:
    world.route("a", "b")
    world.append(*numbered(2500), topic="a")
    assert world.engine.routers.forward()
    world.engine.sync()
    assert world.state("b").head_seq == copies.RECORDS
    assert world.router("a->b").lag_records == 1500
    world.forward()
    assert world.datas("b") == numbered(2500)


def test_a_slice_is_bounded_in_bytes_but_takes_one_record(world: RouterWorld) -> None:
    world.route("a", "b")
    world.append(copies.BYTES + 5, 10, 10, topic="a")
    world.append(copies.BYTES - 5, 10, topic="a")
    heads = []
    more = True
    while more:
        more = world.engine.routers.forward()
        world.engine.sync()
        heads.append(world.state("b").head_seq)
    assert heads == [1, 3, 4, 5]


def test_a_chain_and_a_fan(world: RouterWorld) -> None:
    for ends in (("a", "b"), ("a", "c"), ("b", "d"), ("d", "e")):
        world.route(*ends)
    world.append(b"1", b"2", topic="a")
    world.forward()
    assert all(world.datas(topic) == [b"1", b"2"] for topic in "bcde")


def test_routers_of_one_source_share_what_was_gathered(world: RouterWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    for dest in "bcd":
        world.route("a", dest)
    for data in numbered(20):
        world.append(data, topic="a")
    read: list[int] = []
    blocks = world.engine.catalog.topics["a"].log.blocks
    find = type(blocks).find

    def counted(self: object, seq: int, *, scan: bool = False) -> object:
        read.append(seq)
        return find(self, seq, scan=scan)  # type: ignore[arg-type]

    monkeypatch.setattr(type(blocks), "find", counted)
    for _ in "bcd":
        world.engine.routers.forward()
    assert len(read) == 20
    monkeypatch.undo()
    world.forward()
    assert all(world.datas(dest) == numbered(20) for dest in "bcd")


@pytest.mark.parametrize("change", ["mark", "front", "evict", "expire", "recreate"])
def test_what_was_gathered_is_not_used_after_a_change(world: RouterWorld, change: str) -> None:
    world.put("a", cap_records=4 if change == "evict" else 0, ttl_ms=100 if change == "expire" else 0)
    world.route("a", "b")
    world.route("a", "c")
    world.append(*numbered(4), topic="a", tags=[b"x", None, b"x", None])
    world.engine.routers.forward()
    wanted = numbered(4)
    match change:
        case "mark":
            world.delete(eq=b"x", topic="a")
            wanted = [b"1", b"3"]
        case "front":
            world.delete(3, topic="a")
            wanted = [b"2", b"3"]
        case "evict":
            world.append(b"4", topic="a")
            wanted = [b"1", b"2", b"3", b"4"]
        case "expire":
            world.clock.advance(101)
            wanted = []
        case "recreate":
            world.engine.delete_topic("a")
            world.append(b"new", topic="a")
            world.route("a", "c", backfill=True)
            wanted = [b"new"]
    world.forward()
    assert world.datas("b")[:4] == numbered(4)
    assert world.datas("c") == wanted


def test_routers_into_an_append_of_a_sealed_topic(world: RouterWorld, small_steps: None) -> None:
    world.route("a", "b")
    for data in numbered(20):
        world.append(data, topic="a")
        world.maintain()
        if int(data) % 4 == 0:
            world.forward()
            world.maintain()
    world.forward()
    assert world.datas("b") == numbered(20)


def test_the_source_pays_nothing_for_its_routers(world: RouterWorld) -> None:
    for i in range(20):
        world.route("a", f"b{i}")
    world.append(b"0", topic="a")
    world.forward()
    writes = world.engine.writer.written
    world.append(b"1", topic="a")
    assert world.engine.writer.written == writes + 1, "one durable write, whatever the fan-out"
    assert len(world.engine.routers._grown) == 1
    assert not world.engine.routers._due


# ------------------------------------------------------------------------ filters


@pytest.mark.parametrize(
    ("match", "passed"),
    [
        (TagMatch("Eq", b"a"), [1, 4]),
        (TagMatch("Eq", b"a*"), []),
        (TagMatch("Glob", b"a"), [1, 3, 4]),
        (TagMatch("Glob", b""), [1, 2, 3, 4]),
        (None, [0, 1, 2, 3, 4]),
    ],
)
def test_filters(world: RouterWorld, match: TagMatch | None, passed: list[int]) -> None:
    world.route("a", "b", filter=match)
    world.append(*numbered(5), topic="a", tags=[None, b"a", b"b", b"a:x", b"a"])
    world.forward()
    assert world.datas("b") == [b"%d" % i for i in passed]
    assert world.router("a->b").forwarded_total == len(passed)
    assert world.router("a->b").lag_records == 0


def test_a_filter_over_large_blocks_and_deleted_records(world: RouterWorld) -> None:
    world.route("a", "b", filter=TagMatch("Eq", b"x"))
    tags = [b"x" if i % 7 == 0 else b"y" if i % 2 else None for i in range(2400)]
    world.append(*numbered(2400), topic="a", tags=tags)
    world.append(*numbered(3), topic="a", tags=[b"x", None, b"x"])
    world.delete(400, topic="a")
    world.append(b"last", topic="a", tags=[b"x"])
    world.forward()
    wanted = [b"%d" % i for i in range(399, 2400) if i % 7 == 0] + [b"0", b"2", b"last"]
    assert world.datas("b") == wanted


# --------------------------------------------------- what is gone before its turn


def test_deleted_records_are_passed_over_in_silence(world: RouterWorld) -> None:
    world.route("a", "b")
    world.append(*numbered(6), topic="a", tags=[b"x", None, b"x", None, None, b"x"])
    world.delete(eq=b"x", topic="a")
    world.forward()
    assert world.datas("b") == [b"1", b"3", b"4"]
    assert world.gaps("b") == []
    world.append(*numbered(4), topic="a")
    world.delete(9, topic="a")
    world.forward()
    assert world.datas("b") == [b"1", b"3", b"4", b"2", b"3"]
    assert world.router("a->b").forwarded_total == 5
    world.append(b"x", topic="a", tags=[b"x"])
    world.delete(99, topic="a")
    world.forward()
    assert world.router("a->b").lag_records == 0
    assert world.gaps("b") == []


def test_evicted_records_become_one_gap(world: RouterWorld) -> None:
    world.put("a", cap_records=3)
    world.route("a", "b")
    world.append(b"0", topic="a")
    world.forward()
    world.append(*numbered(10), topic="a")
    world.forward()
    assert world.walk("b") == [(1, b"0"), (9, b"7"), (10, b"8"), (11, b"9")]
    assert world.gaps("b") == [(2, 8, "source_trim")]
    state = world.router("a->b")
    assert (state.forwarded_total, state.lag_records) == (11, 0)
    world.kill()
    assert world.gaps("b") == [(2, 8, "source_trim")]


def test_a_gap_at_the_start_of_the_destination(world: RouterWorld) -> None:
    world.put("a", cap_records=1)
    world.route("a", "b")
    world.append(*numbered(4), topic="a")
    world.forward()
    assert world.walk("b") == [(4, b"3")]
    assert world.gaps("b") == [(1, 3, "source_trim")]


def test_expired_records_become_a_gap(world: RouterWorld) -> None:
    world.put("a", ttl_ms=100)
    world.route("a", "b")
    world.append(*numbered(3), topic="a")
    world.clock.advance(101)
    world.append(b"new", topic="a")
    world.forward()
    assert world.datas("b") == [b"new"]
    assert world.gaps("b") == [(1, 3, "source_trim")]
    world.append(b"late", topic="a")
    world.clock.advance(101)
    world.forward()
    assert world.gaps("b")[0] == (1, 3, "source_trim")
    assert world.router("a->b").forwarded_total == 5
    assert world.state("b").head_seq == 5


def test_a_gap_of_the_source_goes_on_down_the_chain(world: RouterWorld) -> None:
    world.put("a", cap_records=2)
    world.route("a", "b")
    world.route("b", "c")
    world.append(b"0", topic="a")
    world.forward()
    world.append(*numbered(5), topic="a")
    world.forward()
    assert world.gaps("b") == world.gaps("c") == [(2, 4, "source_trim")]
    assert world.walk("b") == world.walk("c") == [(1, b"0"), (5, b"3"), (6, b"4")]


def test_deletes_around_a_loss_stay_silent(world: RouterWorld) -> None:
    """Only what was live when it went is told: the floor moves when a live record is evicted."""
    world.put("a", cap_records=3)
    world.route("a", "b")
    world.append(*numbered(3), topic="a")
    world.delete(4, topic="a")
    world.append(*numbered(3), topic="a")
    world.forward()
    assert world.gaps("b") == []
    assert world.walk("b") == [(1, b"0"), (2, b"1"), (3, b"2")]


def test_losses_in_a_row_are_one_gap(world: RouterWorld) -> None:
    """A destination that stays full does not gather a gap for each try."""
    world.put("a", cap_records=1)
    world.put("b", cap_records=1, discard="reject")
    world.route("a", "b")
    world.append(b"first", topic="a")
    world.forward()
    for i in range(20):
        world.append(b"%d" % i, topic="a")
        world.clock.advance(2000)
        world.engine.maintain()
        world.forward()
    assert world.router("a->b").last_error == 'topic "b" is full'
    assert world.gaps("b") == [(2, 20, "source_trim")]
    assert len(world.rows(Family.GAPS)) == 1
    world.delete(2, topic="b")
    world.engine.maintain()
    world.forward()
    assert world.walk("b") == [(21, b"19")]
    assert world.router("a->b").forwarded_total == 21


# ------------------------------------------------------- destinations that refuse


def test_a_full_destination_holds_the_router_at_that_record(world: RouterWorld) -> None:
    world.put("b", cap_records=3, discard="reject")
    world.route("a", "b")
    world.append(*numbered(5), topic="a")
    world.forward()
    state = world.router("a->b")
    assert world.datas("b") == numbered(3)
    assert (state.forwarded_total, state.lag_records, state.last_error) == (3, 2, 'topic "b" is full')
    world.delete(3, topic="b")
    world.engine.maintain()
    world.forward()
    state = world.router("a->b")
    assert world.datas("b") == [b"2", b"3", b"4"]
    assert (state.forwarded_total, state.lag_records, state.last_error) == (5, 0, None)


def test_room_in_bytes_counts_what_is_copied(world: RouterWorld) -> None:
    world.put("b", cap_bytes=25, discard="reject")
    world.route("a", "b")
    world.append(10, 10, 4, 2, 1, topic="a")
    world.forward()
    assert world.state("b").count == 3
    assert world.state("b").bytes == 24
    assert world.router("a->b").lag_records == 2


def test_a_record_larger_than_the_whole_cap_is_never_skipped(world: RouterWorld) -> None:
    world.put("b", cap_bytes=5, discard="reject")
    world.route("a", "b")
    world.append(6, 1, topic="a")
    world.forward()
    assert world.router("a->b").last_error == "the write is larger than the topic's whole cap"
    world.put("b", cap_bytes=7, discard="reject")
    world.engine.maintain()
    world.forward()
    assert world.state("b").count == 2


def test_records_that_the_filter_drops_do_not_wait_for_room(world: RouterWorld) -> None:
    world.put("b", cap_records=1, discard="reject")
    world.route("a", "b", eq=b"x")
    world.append(*numbered(4), topic="a", tags=[b"x", None, None, b"x"])
    world.forward()
    assert world.datas("b") == [b"0"]
    assert world.router("a->b").lag_records == 1
    world.kill()
    assert world.router("a->b").lag_records == 1


def test_the_total_quota_holds_for_copies() -> None:
    world = RouterWorld(limits=Limits(max_total_bytes=25))
    world.route("a", "b")
    world.append(10, 5, topic="a")
    world.forward()
    state = world.router("a->b")
    assert world.state("b").count == 1
    assert state.last_error == "the server has reached its limit of stored bytes"
    world.delete(2, topic="a")
    world.clock.advance(2000)
    world.engine.maintain()
    world.forward()
    assert world.router("a->b").last_error is None
    assert world.state("b").count == 2


def test_evicting_destinations_take_everything(world: RouterWorld) -> None:
    world.put("b", cap_records=2)
    world.route("a", "b")
    world.append(*numbered(7), topic="a")
    world.forward()
    assert world.walk("b") == [(6, b"5"), (7, b"6")]
    assert world.gaps("b") == [(1, 5, "cap")]
    assert world.router("a->b").forwarded_total == 7


def test_waits_between_tries_double_up_to_two_seconds(world: RouterWorld) -> None:
    world.put("b", cap_records=1, discard="reject")
    world.route("a", "b")
    world.append(b"0", b"1", topic="a")
    world.forward()
    waits = []
    for _ in range(8):
        fault = world.engine.routers.find("a->b").fault  # type: ignore[union-attr]
        assert fault is not None
        waits.append(fault.retry_at - world.clock.now)
        world.clock.advance(waits[-1] - 1)
        world.engine.maintain()
        assert not world.engine.routers._due, "not a moment too early"
        world.clock.advance(1)
        world.engine.maintain()
        world.forward()
    assert waits == [50, 100, 200, 400, 800, 1600, 2000, 2000]


def test_news_of_the_source_do_not_shorten_the_wait(world: RouterWorld) -> None:
    world.put("b", cap_records=1, discard="reject")
    world.route("a", "b")
    world.append(b"0", b"1", topic="a")
    world.forward()
    fault = world.engine.routers.find("a->b").fault  # type: ignore[union-attr]
    world.append(b"2", topic="a")
    world.forward()
    assert world.engine.routers.find("a->b").fault is fault  # type: ignore[union-attr]


def test_a_clock_that_steps_back_does_not_lengthen_the_wait(world: RouterWorld) -> None:
    world.put("b", cap_records=1, discard="reject")
    world.route("a", "b")
    world.append(b"0", b"1", topic="a")
    world.forward()
    world.clock.advance(-3_600_000 // 4)
    world.engine.maintain()
    assert world.engine.routers._due


def test_many_blocked_routers_are_all_looked_at(world: RouterWorld) -> None:
    count = 250
    for i in range(count):
        world.put(f"b{i}", cap_records=1, discard="reject", sync=False)
        world.route("a", f"b{i}", sync=False)
    world.append(b"0", b"1", topic="a")
    world.forward()
    assert len(world.engine.routers._blocked) == count
    for i in range(count):
        world.delete(2, topic=f"b{i}")
    for _ in range(3):
        world.engine.maintain()
    world.forward()
    assert all(world.datas(f"b{i}") == [b"1"] for i in range(count))
    assert not world.engine.routers._blocked


def test_an_unreadable_source_is_an_error_and_no_skip(world: RouterWorld) -> None:
    world.route("a", "b")
    world.append(b"0", topic="a")
    world.forward()
    world.append(b"1", topic="a")
    key, value = next(row for row in reversed(world.rows(Family.BLOCKS)) if row[0][:8] == keys.u64(1))
    batch = world.store.batch()
    batch.put(Family.BLOCKS, key, value[:-1] + b"X")
    world.store.write(batch)
    world.kill()
    world.forward()
    state = world.router("a->b")
    assert "can't be read" in (state.last_error or "")
    assert (state.lag_records, world.datas("b")) == (1, [b"0"])


# ----------------------------------------------------------------- classes, crashes


def test_nothing_is_forwarded_before_it_is_visible() -> None:
    world = RouterWorld(CrashStore())
    world.put("a", durability="fsync")
    world.route("a", "b")
    world.append(b"0", topic="b")
    world.try_append(b"1", topic="a")
    world.forward(sync=False)
    assert world.datas("b") == [b"0"]
    world.engine.sync()
    world.try_append(b"2", topic="a")
    world.forward(sync=False)
    assert world.datas("b") == [b"0", b"1"], "what is visible goes, what waits for its fsync does not"
    world.engine.sync()
    world.forward(sync=False)
    assert world.datas("b") == [b"0", b"1", b"2"]


def test_copies_into_an_fsync_topic_are_seen_when_durable() -> None:
    world = RouterWorld(CrashStore())
    world.put("b", durability="fsync")
    world.route("a", "b")
    world.append(b"1", topic="a")
    asked: list[int] = []
    world.engine.writer.request_sync = asked.append
    world.forward(sync=False)
    assert world.datas("b") == []
    assert asked == [world.engine.writer.written], "an fsync is asked for: nobody else would"
    world.engine.sync()
    assert world.datas("b") == [b"1"]


@pytest.mark.parametrize("durability", ["disk", "memory", "ephemeral"])
def test_copies_into_other_classes_are_seen_at_once(durability: str) -> None:
    world = RouterWorld(CrashStore())
    world.put("b", durability=durability)
    world.route("a", "b")
    world.append(b"0", topic="b")
    world.append(b"1", topic="a")
    asked: list[int] = []
    world.engine.writer.request_sync = asked.append
    world.forward(sync=False)
    assert world.datas("b") == [b"0", b"1"]
    assert asked == []


def test_ephemeral_copies_are_lost_with_the_process_and_told_of(world: RouterWorld) -> None:
    world.put("b", durability="ephemeral")
    world.route("a", "b")
    world.append(b"1", b"2", topic="a")
    world.forward()
    world.restart()
    world.append(b"3", topic="a")
    world.forward()
    assert world.walk("b") == [(3, b"3")]
    assert world.gaps("b") == [(1, 2, "cap")]
    assert world.router("a->b").forwarded_total == 3


def test_what_an_ephemeral_source_loses_becomes_a_gap(world: RouterWorld) -> None:
    world.put("a", durability="ephemeral")
    world.route("a", "b")
    world.append(b"1", topic="a")
    world.forward()
    world.append(b"2", b"3", topic="a")
    world.restart()
    world.append(b"4", topic="a")
    world.forward()
    assert world.walk("b") == [(1, b"1"), (4, b"4")]
    assert world.gaps("b") == [(2, 3, "source_trim")]


def test_a_kill_repeats_and_skips_nothing(world: RouterWorld) -> None:
    world.route("a", "b")
    for i in range(30):
        world.append(b"%d" % i, topic="a")
        if i % 3:
            world.engine.routers.forward()
        if i % 4 == 0:
            world.kill()
    world.forward()
    assert world.datas("b") == numbered(30)
    assert world.router("a->b").forwarded_total == 30


@pytest.mark.parametrize("kept", range(8))
def test_a_power_cut_takes_copies_and_cursor_together(kept: int) -> None:
    world = RouterWorld(CrashStore())
    store = world.store
    assert isinstance(store, CrashStore)
    world.put("b", durability="fsync")
    world.route("a", "b")
    world.append(b"0", topic="a")
    world.forward()
    world.engine.sync()
    synced = store.synced
    for i in range(1, 5):
        world.append(b"%d" % i, topic="a", sync=False)
        world.engine.routers.forward()
    world.cut_power(min(store.writes, synced + kept))
    world.forward()
    copied = world.datas("b")
    assert copied == world.datas("a"), "every record once, in order, and what the source lost is in neither"
    assert len(copied) >= 1 + kept // 2


def test_a_failing_write_leaves_the_router_where_it_was() -> None:
    store = FaultyStore()
    world = RouterWorld(store)
    world.route("a", "b")
    world.append(b"1", topic="a")
    store.stalled = True
    world.engine.routers.forward()
    assert (world.state("b").head_seq, world.router("a->b").lag_records) == (0, 1)
    store.stalled = False
    world.clock.advance(50)
    world.engine.maintain()
    world.forward()
    assert world.datas("b") == [b"1"]


# ------------------------------------------------------------- those who wait for it


def test_a_reader_waits_until_the_head_of_its_start(world: RouterWorld) -> None:
    world.route("a", "b")
    world.append(*numbered(2500), topic="a")
    routers = world.engine.routers
    (catch_up,) = routers.behind("b")
    assert routers.behind("a") == []
    assert routers.advance(catch_up)
    world.append(b"later", topic="a")
    assert routers.advance(catch_up)
    assert not routers.advance(catch_up)
    world.engine.sync()
    assert world.datas("b")[:2500] == numbered(2500)
    world.forward()
    assert routers.behind("b") == []


def test_the_wait_ends_when_the_router_can_not_go_on(world: RouterWorld) -> None:
    world.put("b", cap_records=1, discard="reject")
    world.route("a", "b")
    world.append(b"1", b"2", topic="a")
    routers = world.engine.routers
    (catch_up,) = routers.behind("b")
    assert routers.advance(catch_up)
    world.engine.sync()
    assert not routers.advance(catch_up)
    assert not routers.advance(catch_up), "nor does it try again before its time"
    world.delete(2, topic="b")
    assert not routers.advance(catch_up), "there is room now, and it is done"
    assert world.datas("b") == [b"2"]


@pytest.mark.parametrize("end", ["router", "source", "dest"])
def test_the_wait_ends_when_the_router_goes(world: RouterWorld, end: str) -> None:
    world.route("a", "b")
    world.append(*numbered(2500), topic="a")
    (catch_up,) = world.engine.routers.behind("b")
    assert world.engine.routers.advance(catch_up)
    if end == "router":
        world.unroute("a->b")
    else:
        world.engine.delete_topic({"source": "a", "dest": "b"}[end])
    assert not world.engine.routers.advance(catch_up)
    world.forward()


def test_the_wait_ends_when_the_router_gets_another_source(world: RouterWorld) -> None:
    world.append(b"x", topic="c")
    world.route("a", "b", "r")
    world.append(b"1", b"2", topic="a")
    (catch_up,) = world.engine.routers.behind("b")
    world.route("c", "b", "r")
    assert not world.engine.routers.advance(catch_up)


def test_a_reader_of_an_fsync_topic_waits_for_its_copies() -> None:
    world = RouterWorld(CrashStore())
    world.put("b", durability="fsync")
    world.route("a", "b")
    world.append(b"1", topic="a")
    (catch_up,) = world.engine.routers.behind("b")
    assert not world.engine.routers.advance(catch_up)
    assert catch_up.router.ticket > world.engine.writer.synced
    assert world.engine.routers.behind("b"), "not before they are durable"
    world.engine.sync()
    assert world.engine.routers.behind("b") == []


def test_the_watchers_of_a_destination_are_woken(world: RouterWorld) -> None:
    world.route("a", "b")
    woken: list[str] = []
    world.engine.park("b", lambda: woken.append("b"))
    world.append(b"1", topic="a")
    assert woken == []
    world.forward()
    assert woken == ["b"]


def test_a_bug_in_a_slice_does_not_stop_the_others(world: RouterWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world.route("a", "b")
    world.route("a", "c")
    world.append(b"1", topic="a")
    copy = world.engine.routers.forwarding._copy

    def broken(one: router.Router, *rest: object) -> tuple[int, int]:
        if one.name == "a->b":
            raise ZeroDivisionError("a bug")
        return copy(one, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(world.engine.routers.forwarding, "_copy", broken)
    with pytest.raises(ZeroDivisionError):
        world.engine.routers.forward()
    world.forward()
    assert world.datas("c") == [b"1"]
    assert world.router("a->b").last_error == "a bug"
    monkeypatch.undo()
    world.clock.advance(50)
    world.engine.maintain()
    world.forward()
    assert world.datas("b") == [b"1"]


def test_routers_wait_for_the_end_of_recovery() -> None:
    world = RouterWorld()
    world.route("a", "b")
    world.append(b"1", topic="a")
    world.engine.close()
    world.options["recover"] = False
    engine = world.start()
    assert not engine.routers.forward()
    assert not engine.maintain()
    for _ in engine.recover("boot-1"):
        pass
    world.forward()
    assert world.datas("b") == [b"1"]


def test_the_composition_root_hears_of_work(world: RouterWorld) -> None:
    told: list[int] = []
    world.route("a", "b")
    world.engine.routers.on_due = lambda: told.append(1)
    world.append(b"1", topic="other")
    assert not told
    world.append(b"1", topic="a")
    assert told


def test_a_router_of_an_absent_name(world: RouterWorld) -> None:
    assert world.engine.routers.catch_up("none") is None
    with pytest.raises(TopicsError):
        world.router("none")
