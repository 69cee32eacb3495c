"""A catalog that is kept up to date by changes of rows is the one that a start finds in the store."""

import random
from collections import deque
from contextlib import suppress
from typing import Any

import pytest
from engine_support import FakeClock
from router_support import RouterWorld

from topics_service.engine import snapshot
from topics_service.engine.engine import Engine
from topics_service.engine.errors import TopicsError
from topics_service.engine.model import ConfigInput
from topics_service.engine.offsets.positions import CommitItem
from topics_service.engine.stored_catalog import FAMILIES, Change, StoredCatalog
from topics_service.storage import keys
from topics_service.storage.memory import MemoryBatch, MemoryStore
from topics_service.storage.store import Family, StoreOpenError, WriteBatch

NAMES = ("a", "b", "c", "d", "e")
DURABILITIES = ("disk", "disk", "fsync", "ephemeral", "memory")


class LoggedStore(MemoryStore):
    """Keeps the batches that were written, for a follower, and notes which of them are durable."""

    def __init__(self, rows: MemoryStore | None = None) -> None:
        super().__init__()
        if rows is not None:
            self._rows = [family.copy() for family in rows._rows]
        self.log: deque[list[Change]] = deque()
        self.durable = 0

    def sync(self) -> None:
        self.durable = len(self.log)

    def write(self, batch: WriteBatch) -> None:
        assert isinstance(batch, MemoryBatch)
        super().write(batch)
        self.log.append([Change(*change) for change in batch.changes])


class Follower:
    """A store that gets what an owner writes, some batches at a time, and the catalog that it keeps."""

    def __init__(self, owner: LoggedStore) -> None:
        self.store = LoggedStore(owner)
        self.owner = owner
        self.catalog: StoredCatalog | None = None
        self._untold: deque[list[Change]] = deque()
        owner.log.clear()
        owner.durable = 0

    def apply(self, batches: int) -> None:
        """Write so many batches as one object; the catalog hears of it later."""
        batch, told = self.store.batch(), []
        for _ in range(min(batches, len(self.owner.log))):
            self.owner.durable = max(0, self.owner.durable - 1)
            for change in self.owner.log.popleft():
                batch.changes.append(tuple(change))
                if change.family in FAMILIES:
                    told.append(change)
        self.store.write(batch)
        self.store.log.clear()
        if self.catalog is not None:
            self._untold.append(told)

    def begin(self) -> None:
        """Begin to keep the catalog."""
        if self.catalog is None:
            self.catalog = StoredCatalog(self.store)

    def tell(self) -> None:
        """Let the catalog hear of the next object, if there is one."""
        if self._untold and self.catalog is not None:
            self.catalog.changed(self._untold.popleft())

    def tell_all(self) -> None:
        while self._untold:
            self.tell()


class Owner(RouterWorld):
    """A world on any store, whose calls may be refused."""

    def __init__(self, store: LoggedStore, boot: str, stored: StoredCatalog | None = None) -> None:
        self.stored = stored
        self.acked: dict[tuple[str, int], int] = {}
        self.unacked: list[tuple[int, tuple[str, int], int]] = []
        super().__init__(store, boot_id=boot)

    def start(self) -> Engine:
        self.engine = Engine(self.store, self.clock, recover=False)
        for _ in self.engine.recover(self.options["boot_id"], self.stored):
            pass
        return self.engine


def do_something(world: Owner, chance: random.Random) -> None:
    name, other = chance.sample(NAMES, 2)
    engine = world.engine
    match chance.randrange(16):
        case 0 | 1:
            config = ConfigInput(
                durability=chance.choice(DURABILITIES),
                cap_records=chance.choice((0, 0, 4)),
                retain_until_acked_by=chance.choice(((), (), ("g",))),
            )
            engine.put_topic(name, config, chance.choice((None, 1, 2, 3)))
        case 2:
            engine.delete_topic(name)
        case 3:
            world.delete(eq=b"t", topic=name)
        case 4:
            world.delete(chance.randrange(1, 40), topic=name)
        case 5:
            world.route(name, other)
        case 6:
            world.unroute(f"{name}->{other}")
        case 7:
            world.forward()
        case 8:
            engine.groups.commit(chance.choice(("g", "h")), [CommitItem(name, 0, chance.randrange(1, 9))])
        case 9:
            world.maintain()
        case 10:
            engine.put_topic(name, ConfigInput(type="queue", durability=chance.choice(DURABILITIES)))
        case _:
            topic = engine.catalog.find(name)
            partition = chance.randrange(topic.partition_count) if topic is not None else 0
            count = chance.choice((1, 1, 3, 20))
            tags = [chance.choice((None, b"t")) for _ in range(count)]
            reply, ticket = world.try_append(*[b"x"] * count, topic=name, tags=tags, partition=partition)
            topic = engine.catalog.topics[name]
            key = topic.topic_id, partition
            assert reply.first_seq > world.acked.get(key, 0), "no seq is given twice"
            world.unacked.append((ticket, key, reply.first_seq + count - 1))
    if chance.random() < 0.5:
        engine.sync()
    acknowledge(world)


def acknowledge(world: Owner) -> None:
    for ticket, key, seq in world.unacked:
        if ticket <= world.engine.writer.synced:
            world.acked[key] = max(seq, world.acked.get(key, 0))
    world.unacked = [each for each in world.unacked if each[0] > world.engine.writer.synced]


def described(engine: Engine) -> dict[str, Any]:
    """All that a start has found. Opens every topic."""
    catalog = engine.catalog
    before = [(name, topic.number, topic.config, topic.partition_count) for name, topic in catalog.topics.items()]
    logs = [
        (
            name, log.log_id, snapshot.encode(log.state), log.ceiling, log.hold, log.state.gaps, dict(log.owed),
            {number: log.state.deletes.encode(number) for number in log.state.deletes.numbers()},
        )
        for name, topic in catalog.topics.items() for log in topic.logs
    ]  # fmt: skip
    return {
        "topics": before,
        "rows": {name: topic.row(topic.config).encode() for name, topic in catalog.topics.items()},
        "logs": logs,
        "sorted": list(catalog.topics),
        "counts": (catalog.counts.by_class, catalog.counts.queues, catalog.partitions),
        "totals": (engine.writer.total_records, engine.writer.total_bytes, engine.writer.life),
        "routers": {name: (each.cursor, each.forwarded) for name, each in engine.routers._routers.items()},
        "groups": {
            name: sorted((each.topic, each.partition, each.from_seq) for each in engine.groups.positions(name))
            for name in ("g", "h") if engine.groups.find(name) is not None
        },
    }  # fmt: skip


@pytest.mark.parametrize("seed", range(40))
def test_a_takeover_finds_what_a_start_finds(small_steps: None, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr("topics_service.engine.stored_catalog._SLICE", 2)
    monkeypatch.setattr("topics_service.engine.stored_catalog._ROWS_A_SLICE", 3)
    monkeypatch.setattr("topics_service.engine.stored_catalog._NAMES_A_SLICE", 1)
    chance = random.Random(seed)
    world, compared = Owner(LoggedStore(), "epoch 1"), 0
    assert isinstance(world.store, LoggedStore)
    follower = Follower(world.store)
    for epoch in range(2, 8):
        for _ in range(chance.randrange(80)):
            with suppress(TopicsError):
                do_something(world, chance)
            step = chance.randrange(8)
            if step < 3:
                follower.apply(chance.randrange(1, 6))
            elif step == 3:
                follower.begin()
            elif step < 6:
                follower.tell()
            if follower.catalog is not None:
                for _ in range(chance.randrange(4)):
                    follower.catalog.advance()
        end = chance.choice(("cut", "cut", "cut", "kill", "close"))
        if end == "close":
            world.engine.close()
        store = world.store
        assert isinstance(store, LoggedStore)
        follower.apply(chance.randint(store.durable, len(store.log)) if end == "cut" else len(store.log))
        follower.tell_all()
        boot = world.options["boot_id"] if end == "kill" else f"epoch {epoch}"
        copy = LoggedStore(follower.store)
        taken = Owner(follower.store, boot, follower.catalog)
        if chance.random() < 0.6:
            fresh = Owner(copy, boot)
            assert described(taken.engine) == described(fresh.engine)
            assert [dict(rows) for rows in taken.store._rows] == [dict(rows) for rows in fresh.store._rows]
            compared += 1
        taken.acked = world.acked
        world, follower = taken, Follower(follower.store)
    assert compared or seed


def filled() -> tuple[MemoryStore, FakeClock]:
    """A store with the topics `a` and `b`, of which `b` has three partitions."""
    world = RouterWorld(LoggedStore())
    world.append(b"1", b"2", topic="a", tags=[b"t", None])
    world.delete(eq=b"t", topic="a")
    world.engine.put_topic("b", ConfigInput(), 3)
    world.engine.sync()
    return world.store, world.clock


def prepared(store: MemoryStore) -> StoredCatalog:
    catalog = StoredCatalog(store)
    while catalog.advance():
        pass
    return catalog


def start(store: MemoryStore, clock: FakeClock, stored: StoredCatalog | None) -> Engine:
    engine = Engine(store, clock, recover=False)
    for _ in engine.recover("boot-1", stored):
        pass
    return engine


DAMAGE = [
    (Family.LOGS, keys.u64(1), b"short", 'the state row of topic "a" is damaged: log row of 5 bytes'),
    (Family.LOGS, keys.u64(2), None, 'the log of topic "b" has no state row'),
    (Family.CEILINGS, keys.u64(1), b"short", 'the ceiling of topic "a" is damaged: a ceiling of 5 bytes'),
    (Family.TOPICS, keys.u64(2), b"short", "the catalog row 2 is damaged: "),
    (Family.DELETES, keys.pair(1, 0), b"short", "the delete bitmap 0 of log 1 is damaged: "),
    (Family.GAPS, keys.pair(1, 7), b"short", "the gap at 7 of log 1 is damaged: "),
]


@pytest.mark.parametrize(("family", "key", "value", "text"), DAMAGE)
def test_damage_is_named_whether_it_was_read_or_came_as_a_change(
    family: Family, key: bytes, value: bytes | None, text: str
) -> None:
    store, clock = filled()
    catalog, sound = prepared(store), store.get(family, key)
    batch = store.batch()
    batch.apply(family, {key: value})
    store.write(batch)
    catalog.changed([Change(family, key, value)])
    with pytest.raises(StoreOpenError, match=text):
        start(store, clock, None)
    with pytest.raises(StoreOpenError, match=text):
        start(store, clock, catalog)
    repaired = prepared(store)
    batch = store.batch()
    batch.apply(family, {key: sound})
    store.write(batch)
    repaired.changed([Change(family, key, sound)])
    assert described(start(LoggedStore(store), clock, repaired)) == described(start(LoggedStore(store), clock, None))


def test_a_topic_that_goes_takes_its_damage_along() -> None:
    store, clock = filled()
    catalog = prepared(store)
    gone = [Change(Family.TOPICS, keys.u64(1)), Change(Family.LOGS, keys.u64(1)), Change(Family.CEILINGS, keys.u64(1))]
    catalog.changed([Change(Family.LOGS, keys.u64(1), b"short"), Change(Family.CEILINGS, keys.u64(1), b"short")])
    catalog.changed([*gone, Change(Family.DELETES, keys.u64(1), stop=keys.u64(2))])
    batch = store.batch()
    for family in (Family.TOPICS, Family.LOGS, Family.CEILINGS):
        batch.delete(family, keys.u64(1))
    batch.delete_range(Family.DELETES, *keys.log_range(1))
    store.write(batch)
    engine = start(store, clock, catalog)
    assert (list(engine.catalog.topics), engine.writer.total_records, not catalog.logs.damaged) == (["b"], 0, True)


def test_a_takeover_takes_over_what_has_changed_alone() -> None:
    store, clock = filled()
    catalog = prepared(store)
    read = catalog.rows
    world = Owner(LoggedStore(store), "boot-1")
    world.append(b"3", topic="a")
    assert isinstance(world.store, LoggedStore)
    for changes in list(world.store.log):
        catalog.changed([change for change in changes if change.family in FAMILIES])
    start(world.store, clock, catalog)
    assert (read, catalog.rows - read) == (8, 1)
