"""One engine of several shards: the topics whose home it is, and the parts of others."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from corruption.repairs import MemorySink, repaired
from engine_support import CrashStore, FakeClock, World
from test_replica import FollowingMemory

from support.audit import MemorySource, audit
from topics_service.engine.engine import Engine
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.limits import Limits
from topics_service.engine.model import BulkRequest, ConfigInput, DiffRequest, ListTopicsRequest
from topics_service.engine.offsets.positions import CommitItem, position_key
from topics_service.engine.parts import TopicDefinition
from topics_service.engine.placement import Place, home_of
from topics_service.engine.repair import Salvage
from topics_service.engine.replica import Replica
from topics_service.engine.stored_catalog import StoredCatalog
from topics_service.engine.topic import decode_row
from topics_service.storage.memory import MemoryStore
from topics_service.storage.store import Family, StoreOpenError

HOUR = 3_600_000
NAME = next(name for name in "abcdefgh" if home_of(name, 3) == 0)
ALIEN = next(name for name in "abcdefgh" if home_of(name, 3) == 2)
"""Their homes are shard 0, and another one than shard 1."""


@contextmanager
def refused(code: str) -> Iterator[None]:
    """It raises this error."""
    with pytest.raises(TopicsError) as error:
        yield
    assert error.value.reason.code == code


class Pair:
    """Shards 0 and 1 of three."""

    def __init__(self) -> None:
        self.home = World(CrashStore(), place=Place(0, 3))
        self.other = World(CrashStore(), place=Place(1, 3))

    def __iter__(self) -> Iterator[World]:
        yield from (self.home, self.other)

    def put(self, count: int | None = None, **config: int) -> None:
        self.home.engine.put_topic(NAME, ConfigInput(**config), count)  # type: ignore[arg-type]
        self.home.engine.sync()

    def extend(self) -> TopicDefinition:
        definition = self.home.engine.parts.register(NAME, 1)
        self.home.engine.sync()
        self.adopt(definition)
        return definition

    def adopt(self, definition: TopicDefinition) -> None:
        self.other.engine.parts.adopt(definition)
        self.other.engine.sync()

    def numbers(self) -> list[list[int]]:
        return [[number for number, _ in world.engine.catalog.topics[NAME].numbered()] for world in self]


@pytest.fixture
def pair() -> Pair:
    return Pair()


def test_each_shard_has_the_logs_of_its_partitions(pair: Pair) -> None:
    pair.put(5)
    pair.extend()
    assert pair.numbers() == [[0, 3], [1, 4]]
    pair.other.append(b"1", topic=NAME, partition=4)
    for _ in range(2):
        assert [each.engine.catalog.topics[NAME].identity.partition_count for each in pair] == [5, 5]
        assert pair.other.diff(topic=NAME, partition=4).head_seq == 1
        for world, partition in ((pair.home, 1), (pair.home, 2), (pair.other, 0), (pair.other, 2)):
            with pytest.raises(TopicsError) as error:
                world.diff(topic=NAME, partition=partition)
            assert error.value.reason is Reason.INTERNAL
            assert error.value.detail == {"topic": NAME, "partition": partition, "in_another_shard": True}
        for world in pair:
            for partition in (-1, 5):
                with refused("partition_not_found"):
                    world.diff(topic=NAME, partition=partition)
            world.kill()


def test_a_dormant_part_knows_its_count(pair: Pair) -> None:
    pair.put(5)
    pair.extend()
    pair.other.kill()
    topic = pair.other.engine.catalog.topics[NAME]
    assert (topic.is_dormant, topic.partition_count, topic.log_count, topic.is_part) == (True, 5, 2, True)
    assert [number for number, _ in topic.numbered()] == [1, 4]
    assert not topic.is_dormant


def test_a_part_may_have_no_log(pair: Pair) -> None:
    pair.put(1)
    definition = pair.extend()
    assert pair.numbers() == [[0], []]
    engine = pair.other.engine
    engine.groups.create("g")
    pair.other.kill()
    assert pair.numbers() == [[0], []]
    pair.put(2, cap_records=3)
    pair.adopt(pair.home.engine.parts.define(NAME))
    assert pair.numbers() == [[0], [1]]
    assert pair.other.engine.catalog.topics[NAME].config.cap_records == 3
    pair.adopt(definition)
    assert pair.numbers() == [[0], [1]], "an older revision changes nothing"


def test_only_home_lists_and_counts_a_topic(pair: Pair) -> None:
    pair.put(4)
    pair.extend()
    pair.other.put(next(name for name in "abcdefgh" if home_of(name, 3) == 1))
    for _ in range(2):
        for world, topics in ((pair.home, 1), (pair.other, 1)):
            assert len(world.engine.list_topics(ListTopicsRequest()).topics) == topics
            assert len(world.engine.catalog) == topics
            assert sum(world.engine.catalog.counts.by_class.values()) == topics
            world.kill()
    assert next(name for name, _ in pair.other.engine.sample(10)) == NAME, "its figures are those of the shard"


def test_a_part_changes_through_its_home_only(pair: Pair) -> None:
    pair.put(3)
    pair.extend()
    for call in (pair.other.engine.put_topic, pair.other.engine.delete_topic):
        with refused("internal"):
            call(NAME, *((ConfigInput(),) if call == pair.other.engine.put_topic else ()))  # type: ignore[operator]
    with refused("topic_not_found"):
        pair.other.append(b"1", topic=ALIEN)
    with refused("topic_not_found"):
        pair.other.put(ALIEN)
    assert not pair.other.engine.has_topic(ALIEN)


def test_the_epoch_is_that_of_home(pair: Pair) -> None:
    for _ in range(5):  # numbers differ
        pair.put(2)
        pair.home.engine.delete_topic(NAME)
    pair.put(2)
    pair.extend()
    home, part = (world.engine.catalog.topics[NAME] for world in pair)
    assert home.number != part.number
    assert home.identity == part.identity
    assert home.created_ts == part.created_ts
    request = BulkRequest(topic=NAME, partition=1, limit=10, max_batch_bytes=1000)
    _, epoch = pair.other.engine.bulk(request)
    assert epoch == home.identity.epoch
    request.epoch = epoch
    assert pair.other.engine.bulk(request)[1] == epoch
    request.epoch = part.number
    with refused("topic_not_found"):
        pair.other.engine.bulk(request)


def test_a_dropped_life_does_not_return(pair: Pair) -> None:
    pair.put(3)
    dead = pair.extend()
    pair.home.engine.delete_topic(NAME)
    pair.other.engine.parts.drop(NAME, dead.topic_id)
    pair.other.engine.sync()
    for _ in range(2):
        with refused("topic_not_found"):
            pair.other.engine.parts.adopt(dead)
        pair.other.kill()
    assert pair.other.engine.parts.drop(NAME, dead.topic_id)[0] == []


def test_a_drop_that_comes_first_keeps_a_copy_out(pair: Pair) -> None:
    pair.put(3)
    definition = pair.home.engine.parts.register(NAME, 1)
    pair.other.engine.parts.drop(NAME, definition.topic_id)
    with refused("topic_not_found"):
        pair.other.engine.parts.adopt(definition)


def test_a_drop_of_another_life_is_left_alone(pair: Pair) -> None:
    pair.put(3)
    pair.extend()
    assert pair.other.engine.parts.drop(NAME, "top_another")[0] == []
    assert pair.numbers() == [[0], [1]]


def test_a_part_of_another_life_is_not_replaced(pair: Pair) -> None:
    pair.put(3)
    definition = pair.extend()
    pair.other.append(b"1", topic=NAME, partition=1)
    for name, value in (("topic_id", "top_another"), ("epoch", 99)):
        fields = {field: getattr(definition, field) for field in definition.__struct_fields__}
        another = TopicDefinition(**{**fields, "topic_id": "top_another", name: value})
        with refused("internal"):
            pair.other.engine.parts.adopt(another)
    assert pair.other.diff(topic=NAME, partition=1).head_seq == 1


def test_a_home_is_no_part(pair: Pair) -> None:
    pair.put(3)
    with refused("internal"):
        pair.home.engine.parts.adopt(pair.home.engine.parts.define(NAME))
    with pytest.raises(ValueError, match="there is no shard 3"):
        pair.home.engine.parts.register(NAME, 3)


def test_markers_go_after_an_hour(pair: Pair) -> None:
    engine = pair.other.engine

    def markers() -> int:
        return sum(key.startswith(b"dropped\x00") for key, _ in pair.other.store.scan(Family.META, b"", b"\xff"))

    for number in range(450):
        engine.parts.drop(f"t{number}", "top_x")
    assert markers() == 450
    pair.other.clock.advance(HOUR)
    engine.sweep()
    assert markers() == 450
    pair.other.clock.advance(1)
    for _ in range(4):
        before = markers()
        engine.sweep()
        assert before - markers() <= 200, "a slice at a time"
    assert markers() == 0


def test_a_limit_counts_all_partitions_of_a_topic_at_its_home() -> None:
    stores = CrashStore(), CrashStore()
    home = World(stores[0], place=Place(0, 3), limits=Limits(max_topics=6))
    other = World(stores[1], place=Place(1, 3), limits=Limits(max_topics=6))
    home.engine.put_topic(NAME, ConfigInput(), 5)
    definition = home.engine.parts.register(NAME, 1)
    other.engine.parts.adopt(definition)
    for _ in range(2):
        assert home.engine.catalog.partitions == 5
        assert not home.engine.catalog.has_room_for(2)
        assert other.engine.catalog.partitions == 0
        home, other = (
            World(store, place=Place(shard, 3), limits=Limits(max_topics=6)) for shard, store in enumerate(stores)
        )
    with refused("throttled"):
        home.engine.put_topic(NAME, ConfigInput(), 7)
    home.engine.put_topic(NAME, ConfigInput(), 6)
    assert not home.engine.catalog.has_room_for(1)
    other.engine.parts.adopt(home.engine.parts.define(NAME))
    other.engine.parts.drop(NAME, definition.topic_id)
    home.engine.delete_topic(NAME)
    assert home.engine.catalog.partitions == other.engine.catalog.partitions == 0


def test_retention_of_a_part(pair: Pair) -> None:
    pair.put(3, ttl_ms=1000)
    pair.extend()
    pair.other.append(b"1", topic=NAME, partition=1)
    pair.other.clock.advance(2000)
    pair.other.engine.sweep()
    assert pair.other.engine.catalog.topics[NAME].partition(1).view.count == 0


def test_a_part_is_held_back_for_a_group_without_a_position(pair: Pair) -> None:
    pair.home.engine.put_topic(NAME, ConfigInput(retain_until_acked_by=("g",)), 4)
    pair.extend()
    for _ in range(2):
        assert [[log.hold for log in world.engine.catalog.topics[NAME].logs] for world in pair] == [[0, 0], [0]]
        for world in pair:
            world.kill()


# ------------------------------------------------------------------------- rows


def test_an_audit_and_a_repair_know_parts(pair: Pair) -> None:
    pair.put(4)
    pair.extend()
    pair.home.append(b"1", topic=NAME, partition=3)
    pair.other.append(b"2", topic=NAME, partition=1)
    pair.put(5, cap_records=7)  # which is pending
    for world in pair:
        world.engine.groups.commit("g", [CommitItem(NAME, world.engine.catalog.topics[NAME].spread.first, 0)])  # type: ignore[union-attr]
        world.engine.parts.drop("gone", "top_x")
        world.engine.close()
        assert isinstance(world.store, MemoryStore)
        assert audit(world.store) == []
        done = repaired(world.store)
        assert done.actions == []
        for family in set(Family) - {Family.META}:
            rows = [list(store.scan(family, b"", b"\xff" * 99)) for store in (world.store, done.store)]
            assert rows[0] == rows[1], family
        again = Engine(done.store, FakeClock(), place=world.options["place"])
        assert again.catalog.topics[NAME].partition_count == world.engine.catalog.topics[NAME].partition_count
        assert again.parts.pending == world.engine.parts.pending


def test_a_position_in_a_partition_of_another_shard_is_sound(pair: Pair) -> None:
    pair.put(3)
    pair.extend()
    engine = pair.other.engine
    engine.groups.commit("g", [CommitItem(NAME, 1, 0)])
    engine.close()
    ((_, position),) = pair.other.store.scan(Family.POSITIONS, b"", b"\xff" * 40)
    assert isinstance(pair.other.store, MemoryStore)
    for partition, is_sound in ((2, True), (3, False)):
        batch = pair.other.store.batch()
        batch.put(Family.POSITIONS, position_key(1, engine.catalog.topics[NAME].number, partition), position)
        pair.other.store.write(batch)
        assert (not audit(pair.other.store)) == is_sound
        assert (not repaired(pair.other.store).actions) == is_sound


def test_a_repair_names_what_it_saves_so_that_it_is_found(pair: Pair) -> None:
    """The home of a topic whose row is lost is made up: its new name leads to the shard that has the records."""
    for number in range(9):
        name = f"{NAME}{number}"
        if home_of(name, 3) == 0:
            pair.home.append(b"1", topic=name)
    pair.home.engine.close()
    batch = pair.home.store.batch()
    for key, _ in pair.home.store.scan(Family.TOPICS, b"", b"\xff" * 9):
        batch.delete(Family.TOPICS, key)
    pair.home.store.write(batch)
    sink = MemorySink()
    assert isinstance(pair.home.store, MemoryStore)
    Salvage(MemorySource(pair.home.store), sink, lambda _: None, place=Place(0, 3)).run()
    assert audit(sink.store) == []
    saved = Engine(sink.store, FakeClock(), place=Place(0, 3)).catalog.topics
    assert len(saved) >= 2
    assert {home_of(name, 3) for name in saved} == {0}
    assert all(name.startswith("recovered:log-") for name in saved)


def test_a_row_with_too_few_logs_is_refused(pair: Pair) -> None:
    pair.put(4)
    pair.home.engine.close()
    ((key, value),) = pair.home.store.scan(Family.TOPICS, b"", b"\xff" * 9)
    row = decode_row(value)
    row.log_ids.pop()
    batch = pair.home.store.batch()
    batch.put(Family.TOPICS, key, row.encode())
    pair.home.store.write(batch)
    with pytest.raises(StoreOpenError, match="the catalog row 1 is damaged: it has 1 logs for 2 partitions"):
        pair.home.kill()
    assert isinstance(pair.home.store, MemoryStore)
    assert any("1 logs for 2 partitions" in problem.text for problem in audit(pair.home.store))


def test_a_damaged_pending_change_is_refused(pair: Pair) -> None:
    batch = pair.home.store.batch()
    batch.put(Family.META, b"parts\x00t", b"\x91\x07")
    pair.home.store.write(batch)
    with pytest.raises(StoreOpenError, match='the pending change of topic "t" is damaged'):
        pair.home.kill()


def test_a_follower_reads_a_part(pair: Pair) -> None:
    pair.put(5)
    pair.extend()
    pair.other.append(b"1", topic=NAME, partition=4)
    assert isinstance(pair.other.store, MemoryStore)
    replica = Replica(FollowingMemory(pair.other.store), pair.other.clock, is_durable=True)
    replica.follow()
    request = BulkRequest(topic=NAME, partition=4, limit=10, max_batch_bytes=1000)
    page, epoch = replica.bulk(request)
    assert (page.head_seq, epoch) == (1, pair.home.engine.catalog.topics[NAME].identity.epoch)
    assert replica.diff(DiffRequest(topic=NAME, partition=4)).partition_count == 5
    with refused("partition_not_found"):
        replica.diff(DiffRequest(topic=NAME, partition=5))
    for call in (lambda: replica.diff(DiffRequest(topic=NAME, partition=2)), lambda: replica.state(NAME, 4)):
        with refused("not_ready"):
            call()


def test_a_follower_keeps_parts_in_its_catalog(pair: Pair) -> None:
    pair.put(5)
    definition = pair.extend()
    pair.other.engine.close()
    stored = StoredCatalog(pair.other.store)
    for _ in stored.complete():
        pass
    assert (stored.parts, stored.partitions, sum(stored.counts.by_class.values())) == (1, 2, 0)
    engine = Engine(pair.other.store, FakeClock(), place=Place(1, 3), recover=False)
    for _ in engine.recover("", stored):
        pass
    assert engine.catalog.topics[NAME].identity.epoch == definition.epoch


def test_a_directory_without_shards_has_the_rows_it_had(world: World) -> None:
    """Nothing is added to a row of a topic whose partitions are all in one engine."""
    world.engine.put_topic("t", ConfigInput(), 3)
    world.engine.put_topic("t", ConfigInput(cap_records=9), 5)
    ((_, value),) = world.store.scan(Family.TOPICS, b"", b"\xff" * 9)
    assert value[0] == 0x99, "an array of nine fields, as ever"
    assert not [key for key, _ in world.store.scan(Family.META, b"", b"\xff") if b"\x00" in key]
