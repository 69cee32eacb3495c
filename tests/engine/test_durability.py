"""Durable, then visible, then acknowledged; and what happens when the storage does not play along."""

import pytest
from engine_support import CrashStore, FaultyStore, World, code, gap, seqs

from topics_service.engine.errors import TopicsError
from topics_service.engine.model import ConfigInput, DeleteRequest, TopicConfig
from topics_service.storage.store import StoreError


def test_an_fsync_write_is_invisible_until_it_is_durable(world: World) -> None:
    world.put(durability="fsync")
    reply, ticket = world.try_append(1, 1)
    assert reply.fsync_gated
    assert ticket > world.engine.writer.synced
    assert (seqs(world.diff()), world.state().head_seq, world.state().last_write_ts) == ([], 0, None)
    world.engine.synced(ticket - 1)
    assert world.seqs() == []
    world.engine.synced(ticket)
    assert (world.seqs(), world.state().count) == ([1, 2], 2)


def test_fsync_writes_appear_in_order(world: World) -> None:
    world.put(durability="fsync")
    tickets = [world.try_append(1)[1] for _ in range(3)]
    assert tickets == sorted(set(tickets))
    for i, ticket in enumerate(tickets, 1):
        world.engine.synced(ticket)
        assert world.state().head_seq == i


@pytest.mark.parametrize("durability", ["memory", "disk", "ephemeral"])
def test_other_classes_wait_only_for_their_ceiling(world: World, durability: str) -> None:
    world.put(durability=durability)
    reply, ticket = world.try_append(1)
    assert ticket > world.engine.writer.synced
    assert not reply.fsync_gated
    assert world.seqs() == []
    world.engine.sync()
    assert world.try_append(1)[1] == 0
    assert world.seqs() == [1, 2]


def test_a_ceiling_is_renewed_in_good_time(small_steps: None) -> None:
    asked: list[int] = []
    world = World(CrashStore())
    world.put()
    world.append(1)
    world.engine.writer.request_sync = asked.append
    for _ in range(8):
        _, ticket = world.try_append(1)
        assert ticket == 0, "an fsync was asked for long before"
        if asked:
            world.engine.synced(asked.pop())


def test_deletes_of_an_fsync_topic_wait_too(world: World) -> None:
    world.put(durability="fsync")
    world.append(1, 1)
    reply, ticket = world.engine.delete_records(DeleteRequest(topic="t", before_seq=2))
    assert (reply.deleted, reply.count, world.state().count) == (1, 1, 2)
    world.engine.synced(ticket)
    assert world.seqs() == [2]


def test_a_pending_record_can_not_be_deleted_yet(world: World) -> None:
    world.put(durability="fsync")
    world.append(1)
    world.try_append(1)
    reply, _ = world.engine.delete_records(DeleteRequest(topic="t", before_seq=9))
    assert reply.deleted == 1
    world.engine.sync()
    assert world.seqs() == [2]


def test_a_topic_is_invisible_until_its_creation_is_durable(world: World) -> None:
    world.put(sync=False)
    for call in (world.state, world.diff, lambda: world.delete(1), lambda: world.engine.park("t", print)):
        with pytest.raises(TopicsError) as error:
            call()
        assert code(error) == "topic_not_found"
    world2 = World()
    reply, ticket = world2.try_append(1)
    assert reply.created
    world2.engine.synced(ticket)
    assert world2.seqs() == [1]


@pytest.fixture
def faulty(world: World) -> FaultyStore:
    assert isinstance(world.store, FaultyStore)
    return world.store


def test_a_stalled_store_throttles_and_changes_nothing(world: World, faulty: FaultyStore) -> None:
    world.append(1, 1, tags=[b"x", None])
    state, rows = world.state(), faulty.rows()
    total = world.engine.writer.total_bytes
    faulty.stalled = True
    for call in (
        lambda: world.append(1, idempotency_key="k"),
        lambda: world.append(1, topic="u"),
        lambda: world.put(cap_records=1),
        lambda: world.put("u"),
        lambda: world.delete(eq=b"x"),
        lambda: world.delete(2),
        lambda: world.engine.delete_topic("t"),
    ):
        with pytest.raises(TopicsError) as error:
            call()
        assert code(error) == "throttled"
        assert error.value.retry_after_ms
    assert (world.state(), faulty.rows(), world.engine.writer.total_bytes) == (state, rows, total)
    assert world.seqs() == [1, 2]
    faulty.stalled = False
    assert world.append(1, idempotency_key="k").first_seq == 3
    assert world.engine.ready().ready


def test_a_stalled_ephemeral_write_keeps_nothing_in_memory(world: World, faulty: FaultyStore) -> None:
    world.append(1)
    world.put(durability="ephemeral")
    faulty.stalled = True
    with pytest.raises(TopicsError) as error:
        world.append(b"lost")
    assert code(error) == "throttled"
    faulty.stalled = False
    world.append(b"kept")
    assert world.walk() == [(1, b"x"), (2, b"kept")]


def test_a_failed_write_is_internal_and_unseen(world: World, faulty: FaultyStore) -> None:
    world.append(1)
    rows = faulty.rows()
    faulty.broken = True
    with pytest.raises(TopicsError) as error:
        world.append(1)
    assert code(error) == "internal"
    assert (world.seqs(), faulty.rows()) == ([1], rows)
    faulty.broken = False
    with pytest.raises(TopicsError):  # read-only from the first failure on
        world.append(1)
    assert world.engine.ready().reason == "read_only"


def test_after_a_failed_fsync_nothing_is_written_or_shown_any_more(world: World, faulty: FaultyStore) -> None:
    world.put(durability="fsync")
    world.append(1)
    world.try_append(1)
    faulty.sync_broken = True
    with pytest.raises(StoreError) as failed:
        world.engine.sync()
    world.engine.sync_failed(failed.value)
    rows = faulty.rows()
    for call in (
        lambda: world.append(1),
        lambda: world.put(cap_records=1),
        lambda: world.put("u"),
        lambda: world.delete(2),
        lambda: world.engine.delete_topic("t"),
    ):
        with pytest.raises(TopicsError) as error:
            call()
        assert code(error) == "internal"
    assert not world.engine.maintain()
    world.engine.sweep()
    world.engine.close()
    assert faulty.rows() == rows, "and the directory is not marked as closed"
    assert world.seqs() == [1]
    assert world.state().config.durability == "fsync"


@pytest.mark.parametrize("durability", ["memory", "disk", "fsync"])
def test_kill_9_loses_no_written_record(small_steps: None, durability: str) -> None:
    world = World(CrashStore())
    world.put(durability=durability)
    for _ in range(5):
        world.append(1, sync=False)
    world.kill()
    assert world.seqs() == [1, 2, 3, 4, 5]
    assert gap(world.diff(5)) is None
    assert world.append(1).first_seq == 6


def test_a_power_cut_takes_only_what_no_fsync_covered(small_steps: None) -> None:
    for durability in ("memory", "disk", "fsync"):
        world = World(CrashStore())
        world.put(durability=durability)
        world.append(1, 1)
        world.append(1, sync=False)
        world.cut_power()
        assert world.seqs() == [1, 2]
        first = world.append(1).first_seq
        if durability == "fsync":
            assert (first, gap(world.diff(2))) == (3, None)  # 3 was never acked
        else:
            assert first > 3
            assert gap(world.diff(2)) == (3, first - 1, "cap")


def test_an_unknown_boot_is_taken_for_a_power_cut(small_steps: None) -> None:
    world = World(CrashStore(), boot_id="")
    world.put()
    world.append(1, 1)
    world.kill()
    assert world.append(1).first_seq > 3
    assert gap(world.diff(2)) is not None


@pytest.mark.parametrize("how", ["restart", "kill", "cut_power"])
def test_ephemeral_records_go_and_their_seqs_are_not_used_again(small_steps: None, how: str) -> None:
    world = World(CrashStore())
    world.put(durability="ephemeral")
    world.append(1, 1, 1)
    getattr(world, how)()
    state = world.state()
    assert (state.count, state.bytes) == (0, 0)
    assert state.config == TopicConfig(durability="ephemeral")
    assert world.append(1).first_seq > 3
    page = world.diff(1)
    assert gap(page) == (2, page.earliest_seq - 1, "cap")
    if how == "restart":
        assert page.earliest_seq == 4


CLASSES = ("ephemeral", "memory", "disk", "fsync")


@pytest.mark.parametrize("first", CLASSES)
@pytest.mark.parametrize("second", CLASSES)
def test_a_class_changes_in_place_with_the_data(first: str, second: str, small_steps: None) -> None:
    world = World(CrashStore())
    world.put(durability=first)
    for i in range(5):
        world.append(b"a%d" % i, tags=[b"x" if i % 2 else b"y"])
    world.delete(3, eq=b"x")
    world.maintain()
    world.put(durability=second)
    kept = [(1, b"a0"), (3, b"a2"), (4, b"a3"), (5, b"a4")]
    assert world.walk() == kept
    world.append(b"b", tags=[b"x"])
    world.maintain()
    assert world.walk() == [*kept, (6, b"b")]
    world.put(durability=first)
    assert world.walk() == [*kept, (6, b"b")]
    world.put(durability="fsync")
    world.cut_power()
    assert world.walk() == [*kept, (6, b"b")], "what became durable stays so"
    assert (world.state().count, world.state().bytes) == (5, 9)
    assert world.delete(eq=b"x").deleted == 2
    assert world.delete(glob=b"").deleted == 3


@pytest.mark.parametrize("how", ["restart", "kill", "cut_power"])
def test_records_on_disk_survive_an_ephemeral_phase(small_steps: None, how: str) -> None:
    world = World(CrashStore())
    world.append(1, 1, 1, tags=[None, b"x", None])
    world.put(durability="ephemeral")
    world.append(1, 1)
    world.delete(eq=b"x")
    getattr(world, how)()
    assert world.seqs() == [1, 3]
    assert (world.state().count, world.state().bytes) == (2, 2)
    first = world.append(1).first_seq
    assert first > 5
    assert gap(world.diff(3)) == (4, first - 1, "cap")


def test_a_put_is_acked_when_it_is_durable(world: World) -> None:
    world.put()
    _, ticket = world.engine.put_topic("t", ConfigInput(ttl_ms=5))
    assert ticket > world.engine.writer.synced
