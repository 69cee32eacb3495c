"""Indexes built on rows that are there, in slices, beside writers, over restarts."""

from random import Random

import pytest
from table_support import TableWorld, at_write, finished
from test_table_model import check_entries

from topics_service.engine.errors import TopicsError
from topics_service.engine.tables import indexing
from topics_service.engine.tables.model import IndexState, TableName
from topics_service.storage import keys
from topics_service.storage.store import Family


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> TableWorld:
    monkeypatch.setattr(indexing, "_ROWS_A_SLICE", 4)
    made = TableWorld()
    made.sql("CREATE TABLE t (id INT PRIMARY KEY, a INT, b TEXT)")
    made.sql(f"INSERT INTO t VALUES {', '.join(f'({n}, {n % 7}, {chr(39)}b{n}{chr(39)})' for n in range(30))}")
    return made


def begin(world: TableWorld, text: str) -> None:
    """Define an index, and build nothing of it yet."""
    finished(world.tables.define(world.plan(text)))
    world.sync()


def state(world: TableWorld) -> list[str]:
    return [index.state.value for index in world.named().indexes]


def build(world: TableWorld) -> int:
    """Build to the end; the number of slices."""
    slices = 1
    while world.tables.upkeep():
        slices += 1
    world.sync()
    return slices


def test_an_empty_table_has_its_index_at_once() -> None:
    world = TableWorld()
    world.sql("CREATE TABLE t (id INT PRIMARY KEY, a INT)")
    begin(world, "CREATE INDEX i ON t (a)")
    assert state(world) == ["ready"]
    assert not world.tables.upkeep()


def test_a_build_goes_in_slices_and_is_used_when_it_is_durable(world: TableWorld) -> None:
    query = "SELECT id FROM t WHERE a = 3 ORDER BY id"
    begin(world, "CREATE INDEX i ON t (a)")
    assert state(world) == ["building"]
    while world.tables.upkeep():
        assert world.plan(query).source.access.index is None
        assert world.sql(query) == [(3,), (10,), (17,), (24,)]
    assert state(world) == ["ready"]
    view = world.tables.schema.table(TableName("app", "t"))
    assert view is not None
    assert view.indexes[0].state is IndexState.BUILDING, "until it is durable"
    world.sync()
    assert world.plan(query).source.access.index == 1
    assert world.sql(query) == [(3,), (10,), (17,), (24,)]
    check_entries(world)


@pytest.mark.parametrize("seed", range(15))
def test_writers_keep_an_index_while_it_is_built(world: TableWorld, seed: int) -> None:
    chance = Random(seed)
    begin(world, "CREATE INDEX i ON t (a, b)")
    while True:
        for _ in range(chance.randint(0, 3)):
            row, value = chance.randint(-5, 40), chance.randint(0, 9)
            world.sql(
                chance.choice(
                    [
                        f"INSERT INTO t VALUES ({row}, {value}, NULL) ON CONFLICT (id) DO UPDATE SET a = excluded.a",
                        f"UPDATE t SET a = {value} WHERE id = {row}",
                        f"DELETE FROM t WHERE id = {row}",
                        f"UPDATE t SET b = 'b' WHERE a = {value}",
                    ]
                )
            )
        if chance.random() < 0.2:
            world.kill()
        if not world.tables.upkeep():
            break
    world.sync()
    assert state(world) == ["ready"]
    check_entries(world)


def test_a_build_goes_on_after_a_restart_where_it_was(world: TableWorld) -> None:
    begin(world, "CREATE INDEX i ON t (a)")
    for _ in range(5):
        assert world.tables.upkeep()
    world.kill()
    assert state(world) == ["building"]
    assert build(world) == 3, "20 of 30 rows were done"
    check_entries(world)


def test_a_power_cut_between_two_slices(world: TableWorld) -> None:
    begin(world, "CREATE INDEX i ON t (a)")
    first = world.store.synced
    build(world)
    states = set()
    for writes in range(first, world.store.writes + 1):
        other = TableWorld(at_write(world.store, writes))
        states.add(state(other)[0])
        build(other)
        assert state(other) == ["ready"]
        check_entries(other)
    assert states == {"building", "ready"}


def test_a_unique_index_of_values_that_are_there_twice_is_dropped(world: TableWorld) -> None:
    begin(world, "CREATE UNIQUE INDEX i ON t (a)")
    with pytest.raises(TopicsError) as error:
        finished(world.tables.builds.finish(TableName("app", "i")))
    assert (error.value.reason.code, error.value.detail["constraint"]) == ("unique_violation", "i")
    assert world.named().indexes == ()
    check_entries(world)
    world.sql("INSERT INTO t VALUES (100, 1, 'b1')")
    with pytest.raises(TopicsError) as error:
        world.sql("CREATE UNIQUE INDEX j ON t (b)")
    assert error.value.reason.code == "unique_violation"
    world.sql("DELETE FROM t WHERE id = 100; CREATE UNIQUE INDEX k ON t (b)")
    with pytest.raises(TopicsError, match='"k"'):
        world.sql("INSERT INTO t VALUES (100, 1, 'b1')")
    check_entries(world)


def test_a_build_that_failed_before_anybody_waited_is_told(world: TableWorld) -> None:
    definition = world.plan("CREATE UNIQUE INDEX i ON t (a)")
    for _ in range(2):
        finished(world.tables.define(definition))
        build(world)
        with pytest.raises(TopicsError) as error:
            finished(world.tables.built(definition))
        assert error.value.reason.code == "unique_violation"
    world.sql("UPDATE t SET a = id")
    finished(world.tables.define(definition))
    build(world)
    assert finished(world.tables.built(definition)) == 0
    check_entries(world)


def test_a_duplicate_that_a_writer_makes_is_found(world: TableWorld) -> None:
    """Of a row without an entry yet a writer does not know: the build does."""
    begin(world, "CREATE UNIQUE INDEX i ON t (b)")
    world.tables.upkeep()
    with pytest.raises(TopicsError):
        world.sql("UPDATE t SET b = 'b2' WHERE id = 20")
    world.sql("UPDATE t SET b = 'b25' WHERE id = 20")
    build(world)
    assert world.named().indexes == ()
    check_entries(world)


def test_null_values_may_be_there_twice(world: TableWorld) -> None:
    world.sql("UPDATE t SET b = NULL WHERE id < 10; CREATE UNIQUE INDEX i ON t (b)")
    assert state(world) == ["ready"]
    world.sql("INSERT INTO t VALUES (100, 1, NULL)")
    check_entries(world)


def test_a_build_waits_for_the_end_of_a_transaction(world: TableWorld) -> None:
    begin(world, "CREATE INDEX i ON t (a)")
    transaction = world.tables.begin()
    finished(transaction.run(world.plan("UPDATE t SET a = 5 WHERE id = 29")))
    assert not world.tables.upkeep()
    assert not list(world.store.scan(Family.INDEXES, *keys.prefix_range(keys.index_prefix(1, 1))))
    transaction.commit()
    assert world.tables.upkeep()
    build(world)
    check_entries(world)


def test_what_is_being_built_can_be_dropped(world: TableWorld) -> None:
    begin(world, "CREATE INDEX i ON t (a)")
    world.tables.upkeep()
    world.sql("DROP INDEX i")
    assert not world.tables.upkeep()
    check_entries(world)
    begin(world, "CREATE INDEX j ON t (a)")
    world.tables.upkeep()
    world.sql("TRUNCATE t")
    build(world)
    assert state(world) == ["ready"]
    begin(world, "CREATE INDEX k ON t (a, b)")
    world.sql("INSERT INTO t VALUES (1, 1, '1')")
    world.sql("DROP TABLE t")
    assert not world.tables.upkeep()
    check_entries(world)


def test_the_engine_builds_in_its_upkeep(world: TableWorld) -> None:
    begin(world, "CREATE INDEX i ON t (a)")
    slices = 0
    while world.engine.maintain():
        slices += 1
    assert slices == 7
    world.sync()
    assert state(world) == ["ready"]
