"""Topics that recovery found are opened by their first use, and what runs for all topics opens none."""

import sys
from types import FrameType
from typing import Any

import pytest
from engine_support import CrashStore, World, gap

from topics_service.api.catalog import CatalogView, uuid_of
from topics_service.engine import snapshot
from topics_service.engine.engine import Engine
from topics_service.engine.model import ConfigInput, ListTopicsRequest
from topics_service.engine.snapshot import Snapshot
from topics_service.engine.stored_catalog import RowWithRawConfig
from topics_service.engine.topic import TopicRow, decode_row
from topics_service.storage import keys
from topics_service.storage.store import Family, StoreOpenError


def dormant(world: World) -> set[str]:
    return {name for name, topic in world.engine.catalog.topics.items() if topic.is_dormant}


@pytest.fixture
def restarted(world: World) -> World:
    """Topics `a`, `b` and `c` of a server that was started again."""
    for topic in ("a", "b", "c"):
        world.append(b"1", b"2", topic=topic)
    world.kill()
    assert dormant(world) == {"a", "b", "c"}
    return world


def test_a_use_opens_the_topic_alone(restarted: World) -> None:
    assert restarted.seqs("b") == [1, 2]
    assert dormant(restarted) == {"a", "c"}
    assert restarted.append(b"3", topic="a").first_seq == 3
    assert dormant(restarted) == {"c"}
    assert restarted.seqs("a") == [1, 2, 3]


def test_what_recovery_has_read_is_released() -> None:
    """Dormant topics keep the rows that they are opened from, and nothing else that is as large as the directory."""
    world = World(CrashStore())
    for i in range(300):
        world.append(b"1", topic=f"t{i:03}")
    world.cut_power()
    opener = world.engine.catalog.topics["t000"]._open_log.__self__

    def kept() -> dict[str, int]:
        return {name: len(value) for name, value in vars(opener).items() if isinstance(value, dict) and len(value) > 4}

    assert kept() == {"_states": 300, "_ceilings": 300}
    for topic in world.engine.catalog.each():
        assert topic.log.state.gaps
    assert not kept()


def test_a_start_goes_on_in_slices() -> None:
    """Between them the server answers probes, and tells how far it has come."""
    world = World()
    for i in range(150):
        world.append(b"1", topic=f"t{i:03}")
    world.engine.put_topic("many", ConfigInput(durable=True), partition_count=50)
    engine = Engine(world.store, world.clock, boot_id="boot-1", recover=False)
    done, found = [], []
    for fraction in engine.recover("boot-1"):
        assert fraction == engine.ready().replay_progress
        done.append(fraction)
        found.append(engine.ready().topics)
    assert [(at, count) for at, count in zip(done, found, strict=True) if count] == [
        (64 / 200, 64),
        (128 / 200, 128),
        (0.999, 151),
        (0.999, 151),
    ]
    assert engine.ready().ready
    counts, totals = engine.catalog.counts.by_class, (engine.writer.total_records, engine.writer.total_bytes)
    assert (counts["disk"], counts["fsync"], totals) == (150, 1, (150, 150))
    assert not engine.catalog.has_room_for(engine.limits.max_topics - 199)
    assert engine.get_topic("many").identity.partition_count == 50


def test_totals_and_counts_need_no_topic(restarted: World) -> None:
    engine = restarted.engine
    assert (engine.writer.total_records, engine.writer.total_bytes) == (6, 6)
    assert engine.catalog.counts.by_class["disk"] == 3
    assert engine.ready().topics == 3
    assert engine.catalog.has_room_for(engine.limits.max_topics - 3)
    assert not engine.catalog.has_room_for(engine.limits.max_topics - 2)
    assert dormant(restarted) == {"a", "b", "c"}


def test_background_work_and_a_clean_end_open_none(restarted: World) -> None:
    restarted.maintain()
    restarted.engine.sweep()
    before = restarted.rows(Family.LOGS)
    restarted.restart()
    assert restarted.rows(Family.LOGS) == before
    assert dormant(restarted) == {"a", "b", "c"}


def test_a_page_of_a_list_opens_its_topics(restarted: World) -> None:
    page = restarted.engine.list_topics(ListTopicsRequest(page_size=2))
    assert [(state.topic, state.head_seq, state.count) for state in page.topics] == [("a", 2, 2), ("b", 2, 2)]
    assert dormant(restarted) == {"c"}


def test_ids_are_found_without_opening(restarted: World) -> None:
    view = CatalogView(restarted.engine)
    assert dormant(restarted) == {"a", "b", "c"}
    topic_id = restarted.engine.catalog.topics["b"].topic_id
    found = view.find(None, uuid_of(topic_id))
    assert found is restarted.engine.catalog.topics["b"]
    assert found.identity.topic_id == topic_id
    assert dormant(restarted) == {"a", "b", "c"}, "identity needs no log"
    assert restarted.state("b").identity.topic_id == topic_id
    assert dormant(restarted) == {"a", "c"}


def test_partitions_are_opened_together(world: World) -> None:
    world.engine.put_topic("p", ConfigInput(), 3)
    world.append(b"1", topic="p", partition=2)
    world.restart()
    topic = world.engine.catalog.topics["p"]
    assert (topic.is_dormant, topic.partition_count) == (True, 3)
    assert [log.state.head for log in topic.logs] == [0, 0, 1]
    assert [log.blocks.topic_partition for log in topic.logs] == [("p", 0), ("p", 1), ("p", 2)]
    assert (topic.is_dormant, topic.partition_count) == (False, 3)


def test_records_of_a_dormant_topic_expire(world: World) -> None:
    world.put("brief", ttl_ms=1000)
    world.append(b"1", topic="brief")
    world.append(b"1", topic="other")
    world.restart()
    world.clock.advance(1001)
    world.engine.sweep()
    assert world.engine.writer.total_records == 1
    assert dormant(world) == {"other"}
    assert gap(world.diff(topic="brief")) == (1, 1, "ttl")


def test_equal_configs_are_one_object(restarted: World) -> None:
    topics = restarted.engine.catalog.topics
    assert topics["a"].config is topics["b"].config
    assert restarted.state("a").config is topics["b"].config


def test_deletes_and_gaps_are_those_of_before() -> None:
    world = World(CrashStore())
    world.append(b"1", b"2", b"3", topic="a", tags=[None, b"t", None])
    world.delete(eq=b"t", topic="a")
    world.append(b"1", topic="b")
    world.cut_power()
    assert dormant(world) == {"a", "b"}
    assert gap(world.diff(1, topic="b"))
    assert dormant(world) == {"a"}
    world.append(b"4", topic="a")
    before = {topic: (world.diff(topic=topic), world.seqs(topic)) for topic in ("a", "b")}
    world.restart()
    assert dormant(world) == {"a", "b"}
    for topic, (page, found) in before.items():
        assert world.seqs(topic) == found
        assert gap(world.diff(topic=topic)) == gap(page)
    log = world.engine.catalog.topics["a"].log
    assert (log.state.deletes.numbers(), len(log.state.gaps)) == ([0], 1)


@pytest.mark.parametrize(
    ("field", "value"), [("config", {"durability": "steel"}), ("log_ids", []), ("topic_id", 7), ("name", None)]
)
def test_a_damaged_row_is_refused_at_the_start(restarted: World, field: str, value: Any) -> None:
    (key, row), *_ = restarted.rows(Family.TOPICS)
    bad = decode_row(row)
    setattr(bad, field, value)
    batch = restarted.store.batch()
    batch.put(Family.TOPICS, key, bad.encode())
    restarted.store.write(batch)
    with pytest.raises(StoreOpenError, match=f"the catalog row {keys.read_u64(key)} is damaged: "):
        restarted.kill()


@pytest.mark.parametrize("row", [b"", b"\x02", b"\x03" + bytes(104), None])
def test_a_damaged_state_is_refused_at_the_start(restarted: World, row: bytes | None) -> None:
    (key, _), *_ = restarted.rows(Family.LOGS)
    batch = restarted.store.batch()
    batch.delete(Family.LOGS, key) if row is None else batch.put(Family.LOGS, key, row)
    restarted.store.write(batch)
    with pytest.raises(StoreOpenError, match=r'the state row of topic "a" is damaged|topic "a" has no state row'):
        restarted.kill()


def test_a_damaged_ceiling_is_refused_at_the_start(restarted: World) -> None:
    (key, _), *_ = restarted.rows(Family.CEILINGS)
    batch = restarted.store.batch()
    batch.put(Family.CEILINGS, key, b"short")
    restarted.store.write(batch)
    with pytest.raises(StoreOpenError, match='the ceiling of topic "a" is damaged: '):
        restarted.kill()


def test_a_typing_error_is_no_attribute(restarted: World) -> None:
    for topic in ("a", "b"):
        with pytest.raises(AttributeError, match="lgos"):
            _ = restarted.engine.catalog.topics[topic].lgos  # type: ignore[attr-defined]
        restarted.seqs("b")


def test_a_topic_costs_few_calls_at_a_start(world: World) -> None:
    """Python calls of a start per topic: 100,000 topics are to be ready in a second."""

    def calls(topics: int) -> int:
        many = World()
        for i in range(topics):
            many.append(b"1", topic=f"t{i}")
        made = 0

        def count(frame: FrameType, event: str, argument: object) -> None:
            nonlocal made
            made += event == "call"

        sys.setprofile(count)
        try:
            many.kill()
        finally:
            sys.setprofile(None)
        return made

    assert (calls(200) - calls(100)) / 100 <= 25


def test_the_figures_of_a_state_are_those_that_it_decodes_to() -> None:
    s = Snapshot(*range(13))
    row = snapshot.encode(s)
    for stored in (row, b"\x01" + row[1:-8]):
        decoded = snapshot.decode(stored)
        assert snapshot.figures(stored) == (decoded.head, decoded.count, decoded.bytes, decoded.volatile_from)
        assert (decoded.head, decoded.volatile_from) == (s.head, s.volatile_from)


def test_rows_decode_with_the_config_raw_as_with_it() -> None:
    """The reader of rows at a start has the fields of TopicRow, in their order."""
    assert RowWithRawConfig.__struct_fields__ == TopicRow.__struct_fields__
