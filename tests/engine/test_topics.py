"""The catalog: creating, listing, deleting and recreating topics; limits; recency."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from engine_support import CrashStore, FaultyStore, World, code, gap

from topics_service.engine.errors import TopicsError
from topics_service.engine.limits import Limits
from topics_service.engine.model import ConfigInput, ListTopicsRequest, QueueCounters
from topics_service.storage.memory import MemoryBatch, MemoryStore
from topics_service.storage.store import Family, StoreError, WriteBatch


def test_a_fresh_topic(world: World) -> None:
    world.put()
    s = world.state()
    assert (s.head_seq, s.earliest_seq, s.next_seq, s.count, s.bytes) == (0, 1, 1, 0, 0)
    assert (s.last_write_ts, s.last_read_ts, s.effective_priority) == (None, None, 0)
    assert s.identity.topic_id.startswith("top_")
    assert s.identity.topic_id == s.identity.topic_id.lower()


def test_a_put_of_a_bad_name_is_refused_and_reads_do_not_find_it(world: World) -> None:
    with pytest.raises(TopicsError) as error:
        world.put("a/b")
    assert code(error) == "invalid_request"
    for call in (world.state, world.diff):
        with pytest.raises(TopicsError) as error:
            call(topic="a/b")
        assert code(error) == "topic_not_found"
    assert not world.engine.delete_topic("a/b")[0].deleted


@pytest.mark.parametrize(
    ("request_", "created"),
    [
        ({}, True),
        ({"create": True, "config": ConfigInput(auto_create=False)}, True),
        ({"create": False}, False),
        ({"config": ConfigInput(auto_create=False)}, False),
        ({"create": False, "config": ConfigInput(auto_create=True)}, False),
    ],
)
def test_a_write_creates_or_not(world: World, request_: dict[str, Any], created: bool) -> None:
    if created:
        assert world.append(1, **request_).created
        assert not world.append(1, **request_).created
    else:
        with pytest.raises(TopicsError) as error:
            world.append(1, **request_)
        assert code(error) == "topic_not_found"
        assert world.rows(Family.TOPICS) == []


def test_an_inline_config_counts_only_on_creation(world: World) -> None:
    world.append(1, 1, config=ConfigInput(cap_records=1, type="queue"))
    assert (world.state().config.cap_records, world.state().config.type, world.state().count) == (1, "queue", 1)
    world.append(1, config=ConfigInput(cap_records=9, type="log"))
    assert world.state().config.cap_records == 1


@pytest.mark.parametrize(
    ("name", "request_"), [("a/b", {}), ("t", {"config": ConfigInput(ttl_ms=-1)}), ("", {"create": True})]
)
def test_a_write_that_would_create_checks_name_and_config(world: World, name: str, request_: dict[str, Any]) -> None:
    with pytest.raises(TopicsError) as error:
        world.append(1, topic=name, **request_)
    assert code(error) == "invalid_request"
    assert len(world.rows(Family.TOPICS)) == 0


def test_a_topic_that_was_created_stays_though_its_first_write_is_refused(world: World) -> None:
    with pytest.raises(TopicsError) as error:
        world.append(1, 1, config=ConfigInput(discard="reject", cap_records=1))
    assert code(error) == "record_too_large"
    world.engine.sync()
    assert world.state().head_seq == 0


@pytest.mark.parametrize("durability", ["fsync", "disk", "memory", "ephemeral"])
def test_a_topic_and_its_first_records_are_one_write(durability: str) -> None:
    world = World(CrashStore())
    before = world.engine.writer.written
    reply, ticket = world.try_append(1, 1, config=ConfigInput(durability=durability))
    assert ticket == world.engine.writer.written == before + 1
    assert reply.created
    with pytest.raises(TopicsError, match="does not exist"):
        world.state()
    world.engine.sync()
    assert (world.state().head_seq, world.seqs()) == (2, [1, 2])
    world.cut_power()
    assert world.seqs() == ([] if durability == "ephemeral" else [1, 2])
    world.append(1, topic="u", sync=False)
    world.cut_power()
    assert not world.engine.has_topic("u"), "neither the topic nor its record"


@pytest.mark.parametrize("fault", ["stalled", "broken"])
def test_a_first_write_that_fails_leaves_no_topic_and_no_open_queue(fault: str) -> None:
    store = FaultyStore()
    world = World(store)
    rows = store.rows()
    setattr(store, fault, True)
    for request in ({}, {"config": ConfigInput(type="queue"), "delay_ms": 50}):
        with pytest.raises(TopicsError) as error:
            world.append(1, **request)
        assert code(error) == ("throttled" if fault == "stalled" else "internal")
    assert (store.rows(), world.engine.ready().topics) == (rows, 0)
    setattr(store, fault, False)
    if fault == "broken":
        world.kill()
    world.append(1, config=ConfigInput(type="queue"), priority=1)
    world.append(1, delay_ms=50)
    assert world.state().identity.epoch == 1, "the number of the topic that was not made"
    assert world.state().queue == QueueCounters(
        ready=1, in_flight=0, dead_lettered=0, delayed=1, retrying=0, exhausted=0
    )


def test_topics_of_the_default_config_share_it(world: World) -> None:
    world.append(1, topic="a")
    world.put("b")
    world.put("c", cap_records=1)
    world.put("c")
    assert world.state("a").config is world.state("b").config
    assert world.state("c").config == world.state("a").config


def test_deleting(world: World) -> None:
    world.append(1, tags=[b"x"], idempotency_key="k")
    world.seal()
    world.append(1, 1, topic="u", tags=[b"x", b"y"])
    world.delete(eq=b"x", topic="u")
    for name in ("t", "u"):
        reply, ticket = world.engine.delete_topic(name)
        assert reply.deleted
        assert ticket > world.engine.writer.synced
    for family in (Family.TOPICS, Family.LOGS, Family.BLOCKS, Family.TAGS, Family.DELETES, Family.IDEMPOTENCY):
        assert world.rows(family) == [], family
    assert (world.rows(Family.CEILINGS), world.engine.writer.total_bytes) == ([], 0)
    assert not world.engine.delete_topic("t")[0].deleted
    with pytest.raises(TopicsError):
        world.state()
    world.kill()
    assert world.engine.list_topics(ListTopicsRequest()).topics == []


@pytest.mark.parametrize(("records", "is_small"), [(1, True), (7, True), (9, False), (2000, False)])
def test_few_rows_are_deleted_one_by_one_and_nothing_is_left(world: World, records: int, is_small: bool) -> None:
    world.append(1, topic="other", tags=[b"x"], idempotency_key="k")
    before = [dict(world.rows(family)) for family in Family]
    if records > 1000:
        world.append(*[1] * records, tags=[b"x"] * records)
        world.seal()
    else:
        for i in range(records):
            world.append(1, tags=[b"x"], idempotency_key=f"k{i}")
    if records > 1:
        world.append(1)
        world.delete(eq=b"x")
    with spied(world.store) as batches:
        world.engine.delete_topic("t")
    ranges = [family for family, _, _, stop in batches[0].changes if stop is not None]
    assert (Family.BLOCKS not in ranges) == is_small
    assert is_small == (not ranges)
    after = [dict(world.rows(family)) for family in Family]
    for family in set(Family) - {Family.META, Family.IDEMPOTENCY_EXPIRY}:
        assert after[family] == before[family], family


def test_a_log_that_can_not_be_read_is_deleted(world: World) -> None:
    world.append(1, tags=[b"x"], idempotency_key="k")

    def damaged(*_: object) -> Iterator[tuple[bytes, bytes]]:
        raise StoreError("read failed: block checksum mismatch")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world.store, "scan", damaged)
        assert world.engine.delete_topic("t")[0].deleted
    for family in (Family.TOPICS, Family.LOGS, Family.BLOCKS, Family.TAGS, Family.IDEMPOTENCY):
        assert world.rows(family) == [], family


@contextmanager
def spied(store: MemoryStore) -> Iterator[list[MemoryBatch]]:
    """The batches that are written meanwhile."""
    batches: list[MemoryBatch] = []
    write = store.write

    def written(batch: WriteBatch) -> None:
        assert isinstance(batch, MemoryBatch)
        batches.append(batch)
        write(batch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "write", written)
        yield batches


def test_deleting_an_ephemeral_topic_frees_its_memory(world: World) -> None:
    world.put(durability="ephemeral")
    world.append(1)
    world.engine.delete_topic("t")
    assert list(world.engine._memory.scan(Family.BLOCKS, b"", b"\xff" * 20)) == []


def test_delete_if_empty(world: World) -> None:
    assert not world.engine.delete_topic("t", if_empty=True)[0].deleted
    world.put(ttl_ms=10)
    world.append(1)
    with pytest.raises(TopicsError) as error:
        world.engine.delete_topic("t", if_empty=True)
    assert code(error) == "topic_not_empty"
    assert error.value.detail == {"topic": "t", "count": 1}
    world.clock.advance(11)
    assert world.engine.delete_topic("t", if_empty=True)[0].deleted


def test_a_recreated_topic_starts_over_with_a_new_identity(world: World) -> None:
    world.append(1, 1, 1, tags=[b"x"] * 3)
    old = world.state().identity
    world.engine.delete_topic("t")
    world.append(1)
    new = world.state().identity
    assert new.topic_id != old.topic_id
    assert new.epoch > old.epoch
    assert (new.slug, new.rrl) == (old.slug, old.rrl)
    assert world.seqs() == [1]
    assert gap(world.diff(3)) == (1, 1, "recreated")
    assert world.delete(eq=b"x").deleted == 0
    world.kill()
    assert world.state().identity == new


def test_epochs_go_on_after_a_restart(world: World) -> None:
    world.put("a")
    world.put("b")
    last = world.state("b").identity.epoch
    world.engine.delete_topic("b")
    world.kill()
    world.put("b")
    assert world.state("b").identity.epoch > last


def listed(world: World, **request: Any) -> tuple[list[str], str | None]:
    reply = world.engine.list_topics(ListTopicsRequest(**request))
    return [state.topic for state in reply.topics], reply.next_after


def test_listing_pages_in_name_order(world: World) -> None:
    names = ["B", "a", "a:1", "a:2", "a:3", "b", "a-1"]
    for name in names:
        world.put(name)
    order = sorted(names)
    assert listed(world) == (order, None)
    found, after = listed(world, page_size=3)
    assert (found, after) == (order[:3], order[2])
    assert listed(world, page_size=3, after=after) == (order[3:6], order[5])
    assert listed(world, page_size=3, after=order[5]) == (order[6:], None)
    assert listed(world, page_size=4, after=order[2])[1] is None, "a full last page is the last"
    assert listed(world, prefix="a:") == (["a:1", "a:2", "a:3"], None)
    assert listed(world, prefix="a:", page_size=2) == (["a:1", "a:2"], "a:2")
    assert listed(world, prefix="a:", after="a:2") == (["a:3"], None)
    assert listed(world, prefix="a:", after="a:") == (["a:1", "a:2", "a:3"], None)
    assert listed(world, prefix="a:", after="B") == (["a:1", "a:2", "a:3"], None)
    assert listed(world, prefix="a:", after="z") == ([], None)
    assert listed(world, prefix="zz") == ([], None)


def test_a_cursor_outlives_its_topic_and_pending_topics_are_not_listed(world: World) -> None:
    for name in ("a", "b", "c"):
        world.put(name)
    world.engine.delete_topic("b")
    assert listed(world, after="b") == (["c"], None)
    world.put("d", sync=False)
    assert listed(world, page_size=2) == (["a", "c"], None)


def test_recency(world: World) -> None:
    world.put()
    world.engine.get_topic("t")
    for idle, priority in ((0, 500), (15_000, 354), (30_000, 250), (60_000, 125), (120_000, 31), (299_999, 0)):
        world.clock.now = 1_000_000 + idle
        assert world.state().effective_priority == priority
    world.clock.now = 1_000_000 - 5
    assert world.state().effective_priority == 500, "a clock that stepped back is no longer ago than now"
    world.clock.now = 1_000_000 + 300_000
    assert world.state().effective_priority == 0
    world.diff()
    assert world.state().effective_priority == 500


def test_recency_is_touched_by_reads_only(world: World) -> None:
    world.append(1)
    assert (world.state().effective_priority, world.state().last_read_ts) == (0, None)
    world.engine.list_topics(ListTopicsRequest())
    assert world.state().effective_priority == 0
    world.engine.list_topics(ListTopicsRequest(touch=True))
    assert (world.state().effective_priority, world.state().last_read_ts) == (500, None)
    assert world.engine.get_topic("t").last_read_ts == world.clock.now


def test_a_manual_priority_stands_alone(world: World) -> None:
    world.put(priority=-3)
    assert world.engine.get_topic("t").effective_priority == -3
    world.put(priority=0)
    assert world.engine.get_topic("t").effective_priority == 0
    world.put(auto_priority=False)
    assert world.engine.get_topic("t").effective_priority == 0


def test_the_number_of_topics_is_limited() -> None:
    world = World(limits=Limits(max_topics=1))
    world.put("a")
    for call in (lambda: world.put("b"), lambda: world.append(1, topic="b")):
        with pytest.raises(TopicsError) as error:
            call()
        assert code(error) == "throttled"
        assert error.value.detail == {"limit": "max_topics", "max": 1}
    world.put("a", ttl_ms=1)
    world.engine.delete_topic("a")
    world.put("b")


def test_the_total_of_bytes_is_limited() -> None:
    world = World(limits=Limits(max_total_bytes=10))
    world.append(5, metas=[b"{}"])
    world.append(3, topic="u")
    with pytest.raises(TopicsError) as error:
        world.append(1)
    assert code(error) == "throttled"
    assert error.value.detail == {"limit": "max_total_bytes", "max": 10}
    world.engine.delete_topic("u")
    world.append(2)
    world.kill()
    with pytest.raises(TopicsError):
        world.append(2)
    world.delete(2)
    world.append(8)


def test_rejected_appends_change_no_total(world: World) -> None:
    world.put(discard="reject", cap_records=1)
    world.append(3)
    with pytest.raises(TopicsError):
        world.append(3)
    assert (world.engine.writer.total_bytes, world.engine.writer.total_records) == (3, 1)
