"""Readers see what is durable for the strictest class of its commit; writers see what is written."""

from random import Random

import pytest
from table_support import READER, TableWorld, finished

from topics_service.engine.errors import TopicsError
from topics_service.engine.tables import pending
from topics_service.engine.tables.model import TableName
from topics_service.engine.tables.plans import Select


@pytest.fixture
def world() -> TableWorld:
    return TableWorld()


def written(world: TableWorld, text: str, *parameters: object) -> int:
    """A committed statement, and the ticket that its acknowledgement waits for."""
    transaction = world.tables.begin()
    finished(transaction.run(world.plan(text), parameters))
    return transaction.commit()


def make(world: TableWorld, durability: str, topic: str | None = None) -> None:
    world.sql(f"CREATE TABLE t (id BIGINT PRIMARY KEY, a BIGINT, b TEXT UNIQUE) WITH (durability = '{durability}')")
    world.sql("CREATE INDEX by_a ON t (a)")
    if topic is not None:
        world.sql(f"CREATE TOPIC app.events WITH (durability = '{topic}')")
        for op in ("INSERT", "UPDATE", "DELETE"):
            world.sql(f"ALTER TOPIC app.events ADD SOURCE app.t ON {op} WITH (payload = 'full')")
    world.sql("INSERT INTO t VALUES (1, 1, 'x'), (2, 2, 'y'), (3, 3, 'z')")


QUERIES = [
    "SELECT * FROM t",
    "SELECT * FROM t ORDER BY id DESC",
    "SELECT * FROM t WHERE id = 2",
    "SELECT * FROM t WHERE id IN (1, 4)",
    "SELECT * FROM t WHERE a >= 1 ORDER BY a, id",
    "SELECT * FROM t WHERE a = 2",
    "SELECT * FROM t WHERE b = 'x'",
    "SELECT count(*) FROM t",
]
CHANGES = [
    "INSERT INTO t VALUES (4, 2, 'w'), (0, 0, 'v')",
    "UPDATE t SET a = 2, b = 'q' WHERE id = 1",
    "DELETE FROM t WHERE id = 2",
]


def seen(world: TableWorld) -> list[object]:
    return [world.sql(query) for query in QUERIES]


@pytest.mark.parametrize("topic", [None, "disk"])
def test_what_is_of_the_class_disk_is_seen_at_once(world: TableWorld, topic: str | None) -> None:
    make(world, "disk", topic)
    before = seen(world)
    assert [written(world, change) for change in CHANGES] == [0, 0, 0]
    assert seen(world) != before
    assert world.sql("SELECT id FROM t ORDER BY id") == [(0,), (1,), (3,), (4,)]


@pytest.mark.parametrize(("durability", "topic"), [("fsync", None), ("fsync", "disk"), ("disk", "fsync")])
def test_rows_are_seen_when_their_commit_is_durable(world: TableWorld, durability: str, topic: str | None) -> None:
    make(world, durability, topic)
    before, tickets, states = seen(world), [], []
    for change in CHANGES:
        tickets.append(written(world, change))
        assert seen(world) == before, "the fsync is held"
    assert tickets == sorted(set(tickets))
    assert tickets[0] > 0
    for ticket in tickets:
        world.engine.synced(ticket)
        states.append(seen(world))
    assert before not in states
    assert [state[-1] for state in states] == [[(5,)], [(5,)], [(4,)]]
    assert states[-1][0] == [(0, 0, "v"), (1, 2, "q"), (3, 3, "z"), (4, 2, "w")]
    assert world.tables.pending.nbytes == 0


def test_row_and_event_are_seen_together(world: TableWorld) -> None:
    """A topic of the class `disk` waits too where the table is `fsync`, or another topic of the commit."""
    make(world, "disk", "disk")
    world.sql("CREATE TOPIC app.others WITH (durability = 'fsync')")
    world.sql("ALTER TOPIC app.others ADD SOURCE app.t ON DELETE")

    def heads() -> list[int]:
        return [world.engine.get_topic(name).head_seq for name in ("app.events", "app.others")]

    assert heads() == [3, 0]
    ticket = written(world, "DELETE FROM t WHERE id = 1")
    assert (heads(), world.sql("SELECT count(*) FROM t")) == ([3, 0], [(3,)])
    after = written(world, "INSERT INTO t VALUES (9, 9, '9')")
    assert after > ticket, "of a table, nothing overtakes what waits"
    assert (heads(), world.sql("SELECT count(*) FROM t")) == ([3, 0], [(3,)])
    world.engine.synced(ticket)
    assert (heads(), world.sql("SELECT count(*) FROM t")) == ([4, 1], [(2,)])
    world.engine.synced(after)
    assert (heads(), world.sql("SELECT count(*) FROM t")) == ([5, 1], [(3,)])


def test_a_commit_that_waits_for_a_ceiling_waits_as_a_whole(world: TableWorld) -> None:
    make(world, "disk", "disk")
    log = world.engine.catalog.topics["app.events"].log
    log.ceiling = log._reserved = log.state.head
    ticket = written(world, "DELETE FROM t WHERE id = 1")
    assert ticket > 0
    assert world.sql("SELECT count(*) FROM t") == [(3,)]
    world.engine.synced(ticket)
    assert world.sql("SELECT count(*) FROM t") == [(2,)]


def test_other_tables_do_not_wait(world: TableWorld) -> None:
    make(world, "fsync")
    world.sql("CREATE TABLE u (id BIGINT PRIMARY KEY)")
    assert written(world, "DELETE FROM t WHERE id = 1") > 0
    assert written(world, "INSERT INTO u VALUES (1)") == 0
    assert world.sql("SELECT count(*) FROM u") == [(1,)]


def test_writers_see_what_is_written(world: TableWorld) -> None:
    make(world, "fsync")
    written(world, "INSERT INTO t VALUES (4, 4, 'w')")
    with pytest.raises(TopicsError, match="t_pkey"):
        written(world, "INSERT INTO t VALUES (4, 4, 'v')")
    transaction = world.tables.begin()
    outcome = finished(transaction.run(world.plan("SELECT count(*) FROM t")))
    assert outcome.rows == [(4,)]
    ticket = transaction.commit()
    assert ticket > world.engine.writer.synced, "the reply tells of rows that are not durable"


def test_a_read_is_of_one_moment(world: TableWorld) -> None:
    make(world, "disk")
    world.sql(f"INSERT INTO t VALUES {', '.join(f'({n}, {n}, NULL)' for n in range(1000, 2000))}")
    steps = [
        world.tables.select(world.plan(query))
        for query in (
            "SELECT a FROM t WHERE a >= 1000",
            "SELECT a FROM t WHERE id >= 1000",
            "SELECT a FROM t ORDER BY id DESC",
        )
    ]
    for each in steps:
        next(each)
    written(world, "UPDATE t SET a = a - 1000")
    written(world, "DELETE FROM t WHERE id % 2 = 0")
    for each in steps:
        values = [row[0] for row in finished(each).rows if row[0] > 3]
        assert sorted(values) == list(range(1000, 2000))
    assert world.sql("SELECT count(*) FROM t") == [(502,)]


def test_a_read_stays_at_its_moment_while_commits_become_durable(world: TableWorld) -> None:
    make(world, "fsync")
    world.sql(f"INSERT INTO t VALUES {', '.join(f'({n}, {n}, NULL)' for n in range(1000, 2000))}")
    first = written(world, "UPDATE t SET a = 7 WHERE id >= 1000")
    steps = world.tables.select(world.plan("SELECT a FROM t WHERE id >= 1000"))
    next(steps)
    world.engine.synced(first)
    written(world, "DELETE FROM t WHERE id > 1500")
    world.sync()
    assert [row[0] for row in finished(steps).rows] == list(range(1000, 2000))
    assert world.sql("SELECT count(*) FROM t WHERE a = 7") == [(501,)]


def test_after_a_failed_fsync_nothing_more_is_seen(world: TableWorld) -> None:
    make(world, "fsync")
    before = seen(world)
    written(world, CHANGES[0])
    world.engine.sync_failed(OSError("no"))
    assert seen(world) == before
    with pytest.raises(TopicsError, match="read-only"):
        world.tables.begin()


def test_what_waits_has_a_bound(world: TableWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    make(world, "fsync")
    monkeypatch.setattr(pending, "MAX_BYTES", 3000)
    written(world, f"UPDATE t SET b = '{'b' * 1000}' WHERE id = 1")
    written(world, f"UPDATE t SET b = '{'c' * 1000}' WHERE id = 1")
    with pytest.raises(TopicsError) as error:
        written(world, "DELETE FROM t WHERE id = 2")
    assert error.value.reason.code == "throttled"
    world.sync()
    written(world, "DELETE FROM t WHERE id = 2")


def test_a_definition_is_seen_when_it_is_durable(world: TableWorld) -> None:
    name, version = TableName("app", "t"), world.tables.schema.version
    ticket = world.define(world.plan("CREATE TABLE t (id BIGINT PRIMARY KEY)"), sync=False)
    assert world.tables.newest.table(name) is not None
    assert (world.tables.schema.table(name), world.tables.schema.version) == (None, version)
    world.engine.synced(ticket)
    assert world.tables.schema.table(name) is not None
    assert world.tables.schema.version != version


@pytest.mark.parametrize("seed", range(20))
def test_random_commits_are_seen_in_their_order(seed: int) -> None:
    """Whatever is read is the state after a commit: the newest one whose fsync is known, or a later one."""
    chance, world = Random(seed), TableWorld()
    make(world, "fsync", chance.choice([None, "disk", "fsync"]))
    states = [seen(world)]
    tickets = [0]
    for number in range(20):
        pick = chance.random()
        row = chance.randint(0, 6)
        text = chance.choice(
            [
                f"INSERT INTO t VALUES ({row}, {number}, NULL) ON CONFLICT (id) DO UPDATE SET a = excluded.a",
                f"DELETE FROM t WHERE id = {row}",
                f"UPDATE t SET a = a + 1, b = 'b{number}' WHERE id = {row}",
            ]
        )
        ticket = written(world, text)
        if ticket > tickets[-1]:
            tickets.append(ticket)
            twin = [world.tables.begin() for _ in QUERIES]
            newest = [
                [tuple(row) for row in finished(each.run(world.plan(query))).rows]
                for each, query in zip(twin, QUERIES, strict=True)
            ]
            states.append(newest)
        if pick < 0.4:
            world.engine.synced(chance.choice(tickets))
        durable = max(at for at, ticket in enumerate(tickets) if ticket <= world.engine.writer.synced)
        assert seen(world) == states[durable]


def test_a_table_that_was_changed_and_dropped_is_read_until_that_is_durable(world: TableWorld) -> None:
    """Rows of a definition that is not durable yet are seen with it."""
    make(world, "disk")
    select = READER.bind(READER.parse("SELECT * FROM t")[0], world.tables.schema, "app").action
    world.sql("ALTER TABLE t ADD COLUMN c BIGINT DEFAULT 5", sync=False)
    world.sql("INSERT INTO t VALUES (4, 4, NULL, 6)", sync=False)
    world.sql("DROP TABLE t", sync=False)
    assert isinstance(select, Select)
    assert world.select(select) == [(1, 1, "x"), (2, 2, "y"), (3, 3, "z")]
    world.sync()
    with pytest.raises(TopicsError, match="does not exist"):
        world.select(select)


def test_an_index_that_was_dropped_is_read_until_that_is_durable(world: TableWorld) -> None:
    """It has no entries of the rows that are written meanwhile: these wait for the definition."""
    make(world, "disk")
    select = READER.bind(READER.parse("SELECT id FROM t WHERE a = 1")[0], world.tables.schema, "app").action
    assert isinstance(select, Select)
    world.sql("DROP INDEX by_a", sync=False)
    assert written(world, "UPDATE t SET a = 1 WHERE id = 2") > world.engine.writer.synced
    assert written(world, "UPDATE t SET a = 9 WHERE id = 1") > world.engine.writer.synced
    assert world.select(select) == [(1,)]
    world.sync()
    assert world.sql("SELECT id FROM t WHERE a = 1") == [(2,)]
    assert written(world, "DELETE FROM t WHERE id = 3") == 0


def test_an_index_that_was_dropped_with_its_table_is_read_until_that_is_durable(world: TableWorld) -> None:
    """The last definition of the table has no such index any more; the one that readers see has."""
    make(world, "disk")
    select = READER.bind(READER.parse("SELECT id FROM t WHERE a = 1")[0], world.tables.schema, "app").action
    assert isinstance(select, Select)
    world.sql("DROP INDEX by_a", sync=False)
    world.sql("DROP TABLE t", sync=False)
    assert world.select(select) == [(1,)]
    world.sync()
    with pytest.raises(TopicsError, match="does not exist"):
        world.select(select)
