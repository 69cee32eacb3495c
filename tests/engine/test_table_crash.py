"""Tables after SIGKILL and power cuts: prefixes of the commits, rows with their entries and events."""

from random import Random
from typing import Any

import pytest
from engine_support import FaultyStore
from table_support import TableWorld, at_write, finished
from test_table_model import check_entries, events

from topics_service.engine.errors import TopicsError
from topics_service.storage.store import Family


def make(world: TableWorld, durability: str, topic: str) -> None:
    world.sql(f"CREATE TABLE t (id INT PRIMARY KEY, a INT, b TEXT UNIQUE) WITH (durability = '{durability}')")
    world.sql(f"CREATE INDEX i ON t (a); CREATE TOPIC app.events WITH (durability = '{topic}', partitions = 1)")
    for op in ("INSERT", "UPDATE", "DELETE"):
        world.sql(f"ALTER TOPIC app.events ADD SOURCE app.t ON {op} WITH (payload = 'full')")


def rows(world: TableWorld) -> list[Any]:
    return world.sql("SELECT * FROM t")


def fold(world: TableWorld) -> list[Any]:
    """The rows that the events come to."""
    found: dict[int, Any] = {}
    for op, data in events(world, "app.events"):
        row = (data["id"], data["a"], data["b"])
        if op == "Delete":
            assert found.pop(row[0]) == row
        else:
            assert (row[0] in found) == (op == "Update")
            found[row[0]] = row
    return sorted(found.values())


@pytest.mark.parametrize("durability", ["disk", "fsync"])
@pytest.mark.parametrize("topic", ["disk", "fsync"])
def test_rows_entries_and_events_are_of_the_same_commits(durability: str, topic: str) -> None:
    chance, world = Random(f"{durability}{topic}"), TableWorld()
    make(world, durability, topic)
    start, states, acked = world.store.writes, {}, 0
    tickets: list[tuple[int, int]] = []
    for number in range(25):
        transaction = world.tables.begin()
        for _ in range(chance.randint(1, 3)):
            row = chance.randint(0, 6)
            text = chance.choice(
                [
                    f"INSERT INTO t VALUES ({row}, {number}, NULL) ON CONFLICT (id) DO UPDATE SET a = excluded.a",
                    f"UPDATE t SET a = a + 1, b = 'b{row}' WHERE id = {row}",
                    f"DELETE FROM t WHERE id = {row}",
                ]
            )
            finished(transaction.run(world.plan(text)))
        ticket = transaction.commit()
        twin = world.tables.begin()
        states[world.store.writes] = [tuple(each) for each in finished(twin.run(world.plan("SELECT * FROM t"))).rows]
        tickets.append((ticket, world.store.writes))
        if chance.random() < 0.3:
            world.sync()
            acked = world.store.writes
            assert (rows(world), fold(world)) == (states[acked], states[acked])
    assert acked > start
    newest = []
    for writes in range(start, world.store.writes + 1):
        newest = states.get(writes, newest)
        left = TableWorld(at_write(world.store, writes))
        assert rows(left) == newest
        check_entries(left)
        lost = left.engine.get_topic("app.events").earliest_seq
        if topic == "fsync" or lost == 1:
            assert fold(left) == newest
        left.sql("INSERT INTO t VALUES (100, 1, 'new') ON CONFLICT DO NOTHING")
        assert left.sql("SELECT a FROM t WHERE b = 'new'") == [(1,)]


@pytest.mark.parametrize("fails", ["stalled", "broken"])
def test_a_commit_that_fails_has_changed_nothing(fails: str) -> None:
    store = FaultyStore()
    world = TableWorld(store)
    make(world, "disk", "disk")
    world.sql("INSERT INTO t VALUES (1, 1, 'x')")
    transaction = world.tables.begin()
    finished(transaction.run(world.plan("UPDATE t SET a = 2, b = 'y' WHERE id = 1")))
    finished(transaction.run(world.plan("INSERT INTO t VALUES (2, 2, 'z')")))
    setattr(store, fails, True)
    with pytest.raises(TopicsError) as error:
        transaction.commit()
    assert error.value.reason.code == {"stalled": "throttled", "broken": "internal"}[fails]
    setattr(store, fails, False)
    assert (rows(world), fold(world)) == ([(1, 1, "x")], [(1, 1, "x")])
    assert world.tables.pending.nbytes == 0
    if fails == "stalled":
        world.sql("INSERT INTO t VALUES (2, 2, 'y')")
        assert rows(world) == fold(world) == [(1, 1, "x"), (2, 2, "y")]
    world.kill()
    check_entries(world)


@pytest.mark.parametrize("fails", ["stalled", "broken"])
def test_a_definition_that_fails_has_changed_nothing(fails: str) -> None:
    store = FaultyStore()
    world = TableWorld(store)
    make(world, "disk", "disk")
    before = world.tables.newest
    for text in ("CREATE TABLE u (id INT PRIMARY KEY)", "ALTER TABLE t ADD COLUMN c INT", "DROP INDEX i"):
        setattr(store, fails, True)
        with pytest.raises(TopicsError):
            world.sql(text)
        setattr(store, fails, False)
        assert world.tables.newest is before
    world.kill()
    assert world.tables.newest.tables == before.tables
    if fails == "stalled":
        world.sql("CREATE TABLE u (id INT PRIMARY KEY)")


def test_a_full_topic_refuses_the_rows() -> None:
    world = TableWorld()
    make(world, "disk", "disk")
    world.sql("CREATE TOPIC app.few WITH (cap_records = 2, discard = 'reject')")
    world.sql("ALTER TOPIC app.few ADD SOURCE app.t ON INSERT")
    world.sql("INSERT INTO t VALUES (1, 1, 'x'), (2, 2, 'y')")
    with pytest.raises(TopicsError) as error:
        world.sql("INSERT INTO t VALUES (3, 3, 'z')")
    assert error.value.reason.code == "topic_full"
    world.sync()
    assert rows(world) == fold(world) == [(1, 1, "x"), (2, 2, "y")]
    check_entries(world)
    world.sql("UPDATE t SET a = 9 WHERE id = 1")
    assert rows(world) == fold(world)


def test_a_route_that_fails_refuses_the_statement() -> None:
    world = TableWorld()
    make(world, "disk", "disk")
    world.sql("CREATE TOPIC app.odd; ALTER TOPIC app.odd ADD SOURCE app.t ON INSERT WHERE 10 / a > 1")
    with pytest.raises(TopicsError, match=r"app\.odd") as error:
        world.sql("INSERT INTO t VALUES (1, 1, 'x'), (2, 0, 'y')")
    assert error.value.reason.code == "division_by_zero"
    world.sync()
    assert rows(world) == fold(world) == []
    check_entries(world)


def test_a_damaged_row_is_told_and_nothing_is_guessed() -> None:
    world = TableWorld()
    make(world, "disk", "disk")
    world.sql("INSERT INTO t VALUES (1, 1, 'x'), (2, 2, 'y')")
    key, _ = next(iter(world.store.scan(Family.ROWS, b"", b"\xff" * 20)))
    batch = world.store.batch()
    batch.put(Family.ROWS, key, b"\x00\x00\x93\x01")
    world.store.write(batch)
    for text in ("SELECT * FROM t", "SELECT * FROM t WHERE id = 1", "UPDATE t SET a = 3", "DELETE FROM t WHERE a = 1"):
        with pytest.raises(TopicsError) as error:
            world.sql(text)
        assert error.value.reason.code == "internal"
    assert world.sql("SELECT * FROM t WHERE id = 2") == [(2, 2, "y")]
    begun = world.plan("CREATE INDEX j ON t (b)")
    finished(world.tables.define(begun))
    with pytest.raises(TopicsError, match="can't be read"):
        finished(world.tables.built(begun))
    assert not world.tables.upkeep()
