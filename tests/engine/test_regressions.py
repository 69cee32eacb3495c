"""Bugs that were found, each as the shortest story that showed it."""

import re

import pytest
from engine_support import CrashStore, FaultyStore, World, code, gap, seqs

from topics_service.engine import maintenance
from topics_service.engine.clock import SystemClock
from topics_service.engine.engine import Engine
from topics_service.engine.errors import TopicsError
from topics_service.engine.limits import Limits
from topics_service.engine.log import Log
from topics_service.engine.model import ConfigInput, DeleteRequest, TagMatch
from topics_service.engine.queue.jobs import ListJobsRequest
from topics_service.engine.writer import Writer
from topics_service.storage import keys
from topics_service.storage.memory import MemoryStore
from topics_service.storage.store import Family, Store, StoreError, StoreOpenError


@pytest.mark.parametrize("boot_id", ["", "boot-1"])
def test_a_clean_restart_loses_nothing_whether_or_not_the_boot_is_known(boot_id: str) -> None:
    world = World(boot_id=boot_id)
    world.append(1, 1, 1)
    world.restart()
    assert world.state().head_seq == 3
    assert gap(world.diff(3)) is None


def test_a_clean_restart_of_an_ephemeral_topic_without_records_in_memory_loses_nothing(world: World) -> None:
    world.append(1, 1, 1)
    world.put(durability="ephemeral")
    world.restart()
    assert (world.state().head_seq, world.state().count) == (3, 3)


@pytest.mark.parametrize("how", ["delete", "evict"])
def test_records_on_disk_that_an_ephemeral_topic_dropped_stay_dropped(world: World, how: str) -> None:
    world.append(1, 1, 1)
    world.put(durability="ephemeral", cap_records=2 if how == "evict" else 0)
    for _ in range(4):
        world.append(1)
    if how == "delete":
        world.delete(6)
    assert world.seqs() == [6, 7]
    world.kill()
    assert world.seqs() == []
    assert world.state().count == 0


def test_a_huge_idempotency_window_is_just_huge(world: World) -> None:
    world.put(idempotency_window_ms=(1 << 64) - 1, ttl_ms=(1 << 64) - 1)
    world.append(1, idempotency_key="k")
    world.engine.sweep()
    assert world.append(1, idempotency_key="k").deduped


def test_a_key_is_remembered_when_the_topic_becomes_ephemeral(world: World) -> None:
    world.append(1, idempotency_key="k")
    world.put(durability="ephemeral")
    assert world.append(1, idempotency_key="k").deduped


def test_what_a_pending_write_still_counts_is_not_reclaimed_from_under_it(world: World, small_steps: None) -> None:
    world.put(durability="fsync", ttl_ms=100)
    for _ in range(5):
        world.append(1)
    world.clock.advance(100)
    world.append(1, sync=False)
    world.clock.advance(1)
    assert world.seqs() == []  # the reader sees the five expire while the sixth waits
    world.maintain()
    world.engine.sync()
    assert world.seqs() == [6]
    world.append(1)
    assert world.seqs() == [6, 7]


def test_what_a_reader_saw_expire_stays_away_when_the_clock_steps_back(world: World) -> None:
    world.put(durability="fsync", ttl_ms=100)
    world.append(1)
    world.clock.advance(50)
    world.append(1, sync=False)
    world.clock.advance(51)
    assert world.seqs() == []
    world.clock.advance(-60)
    world.engine.sync()
    assert world.seqs() == [2]
    assert gap(world.diff(0)) == (1, 1, "ttl")


def test_what_has_expired_stays_away_when_the_ttl_goes_up(world: World) -> None:
    world.put(ttl_ms=100)
    world.append(1)
    world.clock.advance(101)
    world.put(ttl_ms=0)
    assert world.seqs() == []
    assert gap(world.diff(0)) == (1, 1, "ttl")


@pytest.mark.parametrize("killed", [False, True])
def test_sealing_right_after_ephemeral_became_disk_keeps_the_tag_index(
    world: World, small_steps: None, killed: bool
) -> None:
    world.put(durability="ephemeral")
    for _ in range(4):
        world.append(1, tags=[b"x"])
    world.put(durability="disk", sync=False)
    world.maintain()
    world.engine.sync()
    assert world.seqs() == [1, 2, 3, 4]
    world.append(1)
    if killed:
        world.kill()
    assert world.delete(eq=b"x").deleted == 4


def test_a_stalled_delete_leaves_the_tag_index_alone(world: World, small_steps: None) -> None:
    assert isinstance(world.store, FaultyStore)
    world.append(1)
    world.put(durability="ephemeral")
    for _ in range(4):
        world.append(1, tags=[b"x"])
    world.seal()
    world.seal()
    world.store.stalled = True
    with pytest.raises(TopicsError) as error:
        world.engine.delete_records(DeleteRequest(topic="t", match=TagMatch("Eq", b"x")))
    assert code(error) == "throttled"
    world.store.stalled = False
    assert world.delete(eq=b"x").deleted == 4


@pytest.mark.parametrize("how", ["restart", "kill"])
def test_recovery_asks_nothing_of_deleted_records_that_were_reclaimed(
    world: World, small_steps: None, how: str
) -> None:
    for i in range(6):
        world.append(1, tags=[b"x" if i == 1 else None])
    world.delete(eq=b"x")
    world.delete(5)
    world.maintain()
    world.put(durability="ephemeral")
    world.append(1, 1)
    getattr(world, how)()
    assert world.seqs() == [5, 6]
    assert gap(world.diff(6)) is not None


def test_reclaiming_in_memory_does_not_hide_dead_blocks_on_disk(world: World, small_steps: None) -> None:
    world.append(1)
    world.append(1)
    world.put(durability="ephemeral", cap_records=1)
    for _ in range(10):
        world.append(1)
    world.maintain()
    assert world.rows(Family.BLOCKS) == []


def test_expired_records_give_their_bytes_back_to_the_total_quota() -> None:
    world = World(limits=Limits(max_total_bytes=10))
    world.put(ttl_ms=100)
    world.append(10)
    world.clock.advance(101)
    assert world.append(10).first_seq == 2


def test_a_repeated_put_waits_for_the_fsync_of_the_first(world: World) -> None:
    world.put()
    first = world.put(cap_records=5, sync=False)
    _, again = world.engine.put_topic("t", ConfigInput(cap_records=5))
    assert first > world.engine.writer.synced
    assert again >= first


def test_a_full_page_ends_at_the_same_record_however_the_blocks_lie(world: World) -> None:
    for tag in (None, None, b"x", b"x"):
        world.append(1, tags=[tag])
    world.delete(eq=b"x")
    page = world.diff(limit=2)
    world.seal()
    sealed = world.diff(limit=2)
    assert (seqs(page), page.next_from_seq) == (seqs(sealed), sealed.next_from_seq) == ([1, 2], 2)
    assert world.diff(2).caught_up


def test_gaps_may_touch(world: World) -> None:
    world.append(1)
    world.put(durability="ephemeral")
    for _ in range(2):
        world.append(1)
        world.restart()
    assert [gap(world.diff(at)) for at in (1, 2)] == [(2, 2, "cap"), (3, 3, "cap")]
    world.put(ttl_ms=100, cap_records=3)
    world.clock.advance(50)
    world.append(1, 1)
    world.append(1)
    assert world.seqs() == [4, 5, 6]
    world.clock.advance(101)
    assert world.seqs() == []
    assert (world.state().count, world.state().bytes) == (0, 0)


@pytest.mark.parametrize("age", range(5))
def test_expiry_finds_its_record_around_touching_gaps(world: World, age: int) -> None:
    """Records 1, 2, two gaps, 5, 6; the time of each is its number times 10."""
    world.put(ttl_ms=1000)
    start = world.clock.now
    for seq in (1, 2, 3, 4, 5, 6):
        world.clock.now = start + seq * 10
        if seq == 3:
            world.put(ttl_ms=1000, durability="ephemeral")
        world.append(1)
        if seq in (3, 4):
            world.restart()
        if seq == 4:
            world.put(ttl_ms=1000)
    expected = [1, 2, 5, 6][min(age, 4) :]
    last = [0, 1, 2, 5, 6][age]
    world.clock.now = start + 1000 + last * 10 + 1
    assert world.seqs() == expected
    assert world.state().count == len(expected)


def test_the_ceiling_is_durable_before_the_first_ack() -> None:
    world = World(CrashStore())
    world.put(durability="ephemeral")
    reply, ticket = world.try_append(1)
    assert ticket > world.engine.writer.synced
    world.engine.sync()
    world.cut_power()
    assert world.append(1).first_seq > reply.first_seq


@pytest.mark.parametrize(
    ("family", "key", "value", "named"),
    [
        (Family.TOPICS, keys.u64(1), b"\x00", "the catalog row 1"),
        (Family.LOGS, keys.u64(1), b"short", 'the state row of topic "t"'),
        (Family.DELETES, keys.pair(1, 0), b"no bitmap", "the delete bitmap 0 of log 1"),
        (Family.GAPS, keys.pair(1, 5), keys.u64(9) + b"nonsense", "the gap at 5 of log 1"),
        (Family.GAPS, keys.pair(1, 5), b"", "the gap at 5 of log 1"),
    ],
)
def test_a_damaged_row_refuses_to_start_and_is_named(family: Family, key: bytes, value: bytes, named: str) -> None:
    store = MemoryStore()
    engine = Engine(store, SystemClock(), boot_id="boot")
    engine.put_topic("t", ConfigInput())
    batch = store.batch()
    batch.put(family, key, value)
    store.write(batch)
    with pytest.raises(StoreOpenError, match=re.escape(named)):
        Engine(store, SystemClock(), boot_id="boot")


def test_a_queue_without_jobs_leaves_no_rows_of_leases_when_it_is_deleted(world: World) -> None:
    """A change of `leases_durable` writes the queue's own row, also before its first job: nobody removed that one."""
    world.put(type="queue")
    world.put(type="queue", leases_durable=True)
    assert world.rows(Family.LEASES)
    world.engine.delete_topic("t")
    assert world.rows(Family.LEASES) == []


def test_delayed_jobs_that_a_crash_has_taken_are_not_counted(world: World) -> None:
    """Their delays are on the disk though they were in memory: `ready` went below zero, and a listing failed."""
    world.put(type="queue")
    world.append(1)
    world.put(type="queue", durability="ephemeral")
    for delay_ms in (0, 5000, 5000, 5000):
        world.append(1, delay_ms=delay_ms)
    world.kill()
    assert gap(world.diff(1)) is not None
    assert world.engine.queues.counters("t").ready == 1
    assert world.engine.queues.jobs(ListJobsRequest(topic="t", state="delayed")).jobs == []


def test_dead_blocks_that_can_not_be_read_stop_the_upkeep_of_no_other_log(
    world: World, small_steps: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for topic in ("damaged", "sound"):
        for _ in range(4):
            world.append(1, topic=topic)
        world.engine.delete_records(DeleteRequest(topic=topic, before_seq=5))
    bad, reclaim = world.engine.catalog.topics["damaged"].logs[0], maintenance._reclaim

    def unreadable(log: Log, writer: Writer, memory: Store) -> bool:
        if log is bad:
            raise StoreError("Corruption: block checksum mismatch")
        return reclaim(log, writer, memory)

    monkeypatch.setattr(maintenance, "_reclaim", unreadable)
    with pytest.raises(TopicsError, match=r'topic "damaged".*Corruption'):
        world.engine.maintain()
    left = {key[:8] for key, _ in world.rows(Family.BLOCKS)}
    assert left == {keys.u64(bad.log_id)}, "the other log gave its space back"
