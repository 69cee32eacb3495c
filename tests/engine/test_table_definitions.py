"""Definitions of namespaces, tables, columns and indexes: made, refused, recovered."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from table_support import TableWorld, at_write, column, finished, literal, table
from test_table_model import check_entries

from topics_service.engine.errors import TopicsError
from topics_service.engine.tables import catalog, definitions, plans
from topics_service.engine.tables.expressions import Binary
from topics_service.engine.tables.model import Check, ColumnSchema, Index, TableName
from topics_service.engine.tables.types import Kind, Type
from topics_service.storage import keys
from topics_service.storage.store import Family, StoreOpenError

BIGINT = Type(Kind.BIGINT)


@pytest.fixture
def world() -> TableWorld:
    return TableWorld()


def rows_of(world: TableWorld, family: Family) -> dict[bytes, bytes]:
    return dict(world.store.scan(family, b"", b"\xff" * 40))


def refused(world: TableWorld, definition: Any) -> tuple[str, str]:
    """The code and the SQLSTATE of a refusal, which changes nothing."""
    before = {family: rows_of(world, family) for family in Family}
    state, version = world.tables.newest, world.tables.newest.version
    with pytest.raises(TopicsError) as error:
        world.define(world.plan(definition) if isinstance(definition, str) else definition)
    assert {family: rows_of(world, family) for family in Family} == before
    assert (world.tables.newest, world.tables.newest.version) == (state, version)
    detail = error.value.detail
    assert detail is not None
    return error.value.reason.code, detail["sqlstate"]


def tables_of(world: TableWorld) -> list[str]:
    return sorted(each.table_id for each in world.tables.newest.tables.values())


# ---------------------------------------------------------------- tables


def test_a_table_comes_with_its_namespace_and_survives_a_restart(world: TableWorld) -> None:
    world.clock.advance(5)
    t = world.create(checks=(Check("positive", Binary(">", column(table(), "a"), literal(0), BIGINT), "a > 0"),))
    assert (t.number, t.next_column, t.next_index, t.versions, t.created_ms) == (1, 4, 1, ((1, 2, 3),), 1_000_005)
    namespace = world.tables.newest.namespace("app")
    assert namespace is not None
    assert (namespace.placement, namespace.created_ms) == ("sql", 1_000_005)
    world.index(t, "by_a", "a")
    before = world.tables.newest
    world.kill()
    assert world.named() == before.table(TableName("app", "t"))
    assert world.tables.newest.namespaces == before.namespaces
    assert world.tables.newest.index(TableName("app", "by_a")) == (world.named(), world.named().indexes[0])


def test_numbers_are_never_used_again(world: TableWorld) -> None:
    first = world.create()
    world.define(plans.DropTable(first))
    world.kill()
    assert world.create().number == 2
    world.define(plans.DropTable(world.named()))
    world.store.sync()
    world.kill()
    assert world.create().number == 3
    assert rows_of(world, Family.META)[b"next_table"] == keys.u64(4)


def test_names_that_are_taken(world: TableWorld) -> None:
    t = world.create()
    world.index(t, "by_a", "a")
    create = "CREATE TABLE app.{} (id BIGINT PRIMARY KEY)"
    assert refused(world, plans.CreateTable(table())) == ("already_exists", "42P07")
    assert refused(world, plans.CreateTable(table("by_a"))) == ("already_exists", "42P07")
    assert refused(world, plans.CreateNamespace("app", "sql")) == ("already_exists", "42P06")
    assert refused(world, plans.CreateIndex(t, Index(0, "by_a", (3,)))) == ("already_exists", "42P07")
    assert refused(world, plans.CreateIndex(t, Index(0, "t", (3,)))) == ("already_exists", "42P07")
    assert refused(world, plans.AddColumn(t, ColumnSchema(0, "a", BIGINT))) == ("already_exists", "42701")
    assert refused(world, plans.RenameColumn(t, 2, "b")) == ("already_exists", "42701")
    version = world.tables.newest.version
    for definition in (
        plans.CreateTable(table(), if_not_exists=True),
        plans.CreateNamespace("app", "sql", if_not_exists=True),
        plans.CreateIndex(t, Index(0, "by_a", (3,)), if_not_exists=True),
        plans.AddColumn(t, ColumnSchema(0, "a", BIGINT), if_not_exists=True),
    ):
        assert world.define(definition) == 0
    assert world.tables.newest.version == version
    world.sql(create.format("u"))
    assert refused(world, plans.RenameTable(t, "u")) == ("already_exists", "42P07")
    world.sql("ALTER TABLE t RENAME TO v")
    assert tables_of(world) == ["app.u", "app.v"]


@pytest.mark.parametrize("name", ["", " a", "a ", "a\0b", "a\nb", "x" * 256])
def test_names_that_are_none(world: TableWorld, name: str) -> None:
    t = world.create()
    for definition in (
        plans.CreateTable(table(name)),
        plans.CreateTable(table("u", namespace=name)),
        plans.CreateTable(table("u", [ColumnSchema(1, name, BIGINT)])),
        plans.CreateNamespace(name, "sql"),
        plans.CreateIndex(t, Index(0, name, (2,))),
        plans.AddColumn(t, ColumnSchema(0, name, BIGINT)),
        plans.RenameColumn(t, 2, name),
        plans.RenameTable(t, name),
    ):
        assert refused(world, definition) == ("invalid_value", "42602")


@pytest.mark.parametrize("name", ["system", "topics", "pg_catalog", "information_schema"])
def test_reserved_namespaces(world: TableWorld, name: str) -> None:
    assert refused(world, plans.CreateTable(table(namespace=name))) == ("invalid_value", "42939")
    assert refused(world, plans.CreateNamespace(name, "sql")) == ("invalid_value", "42939")


def many(count: int) -> list[ColumnSchema]:
    return [ColumnSchema(n, f"c{n}", BIGINT) for n in range(1, count + 1)]


def test_bounds(world: TableWorld) -> None:
    assert refused(world, plans.CreateTable(table(columns=many(1601)))) == ("unsupported_sql", "54011")
    wide = world.create(table("wide", many(1600)))
    assert refused(world, plans.AddColumn(wide, ColumnSchema(0, "more", BIGINT))) == ("unsupported_sql", "54011")
    indexes = tuple(Index(0, f"i{n}", (2,)) for n in range(65))
    assert refused(world, plans.CreateTable(table(indexes=indexes))) == ("unsupported_sql", "54011")
    t = world.create(table(indexes=indexes[:64]))
    assert refused(world, plans.CreateIndex(t, Index(0, "more", (2,)))) == ("unsupported_sql", "54011")
    world.tables.max_tables = 2
    with pytest.raises(TopicsError) as error:
        world.create(table("third"))
    assert (error.value.reason.code, error.value.detail) == ("throttled", {"limit": "max_tables", "max": 2})


def test_tables_that_are_none(world: TableWorld) -> None:
    json = ColumnSchema(1, "doc", Type(Kind.JSON))
    assert refused(world, plans.CreateTable(table(key=()))) == ("invalid_value", "42P16")
    assert refused(world, plans.CreateTable(table(columns=[json]))) == ("unsupported_sql", "0A000")
    twice = table(columns=[*many(1), ColumnSchema(2, "c1", BIGINT)])
    assert refused(world, plans.CreateTable(twice)) == ("already_exists", "42701")
    check = Check("c", literal(1), "1")
    assert refused(world, plans.CreateTable(table(checks=(check, check)))) == ("already_exists", "42710")
    index = Index(0, "i", (2,))
    assert refused(world, plans.CreateTable(table(indexes=(index, index)))) == ("already_exists", "42710")
    assert refused(world, plans.CreateTable(table(durability="ephemeral"))) == ("invalid_value", "22P02")
    t = world.create(columns=(ColumnSchema(1, "id", BIGINT), ColumnSchema(2, "doc", Type(Kind.JSON))))
    assert refused(world, plans.CreateIndex(t, Index(0, "i", (2,)))) == ("unsupported_sql", "0A000")
    assert refused(world, plans.CreateIndex(t, Index(0, "i", (1, 1)))) == ("already_exists", "42701")
    assert refused(world, plans.SetTableOptions(t, "memory")) == ("invalid_value", "22P02")


def test_what_depends_on_it(world: TableWorld) -> None:
    world.sql(
        "CREATE TABLE t (id BIGINT PRIMARY KEY, a BIGINT, b TEXT, c TEXT UNIQUE, d INT, CHECK (a > 0));"
        "CREATE INDEX by_b ON t (b); CREATE TOPIC app.events;"
        "ALTER TOPIC app.events ADD SOURCE app.t ON INSERT WHERE d > 1"
    )
    t = world.named()
    dependent = ("dependent_objects", "2BP01")
    for name in ("id", "a", "b", "c", "d"):
        assert refused(world, f"ALTER TABLE t DROP COLUMN {name}") == dependent
    assert refused(world, "DROP TABLE t") == dependent
    assert refused(world, "TRUNCATE t") == dependent
    assert refused(world, "DROP NAMESPACE app") == dependent
    assert refused(world, plans.DropNamespace("default", cascade=True)) == dependent
    assert refused(world, "ALTER TABLE t ALTER COLUMN d TYPE BIGINT") == dependent, "the filter counts with its type"
    constraint = next(index for index in t.indexes if index.constraint)
    assert refused(world, plans.DropIndex(t, constraint.number)) == dependent
    assert refused(world, plans.DropColumn(t, column(t, "id").column, cascade=True)) == dependent
    world.sql("INSERT INTO t VALUES (1, 1, 'b', 'c', 2), (2, 2, 'b', 'd', 1)")
    for name in ("a", "b", "c", "d"):
        world.define(plans.DropColumn(world.named(), column(world.named(), name).column, cascade=True))
    t = world.named()
    assert (t.indexes, t.checks, world.tables.newest.routes(t.number)) == ((), (), ())
    check_entries(world)
    assert rows_of(world, Family.INDEXES) == {}
    assert world.sql("SELECT * FROM t") == [(1,), (2,)]
    world.kill()
    assert world.sql("SELECT * FROM t") == [(1,), (2,)]
    assert world.engine.get_topic("app.events").head_seq == 1, "messages stay"


def test_cascades(world: TableWorld) -> None:
    world.sql("CREATE TABLE t (id INT PRIMARY KEY, a INT UNIQUE); CREATE TABLE u (id INT PRIMARY KEY)")
    world.sql("CREATE TOPIC app.events; ALTER TOPIC app.events ADD SOURCE app.t ON INSERT")
    world.sql(f"INSERT INTO t VALUES {', '.join(f'({n}, {n})' for n in range(20))}; INSERT INTO u VALUES (1)")
    world.define(plans.DropTable(world.named("t"), cascade=True))
    assert (tables_of(world), world.tables.newest.index(TableName("app", "t_a_key"))) == (["app.u"], None)
    world.sql("DROP NAMESPACE app CASCADE")
    assert tables_of(world) == []
    world.upkeep()
    assert rows_of(world, Family.ROWS) == rows_of(world, Family.INDEXES) == rows_of(world, Family.TABLES) == {}
    assert world.engine.get_topic("app.events").head_seq == 20
    with pytest.raises(TopicsError) as error:
        world.define(plans.DropNamespace("app", cascade=True))
    assert error.value.reason.code == "namespace_not_found"


def test_a_namespace_with_a_topic_is_dropped_with_cascade_only_and_the_topic_stays(world: TableWorld) -> None:
    world.sql("CREATE NAMESPACE logs; CREATE TOPIC logs.all; CREATE TOPIC logsother.all")
    with pytest.raises(TopicsError) as error:
        world.sql("DROP NAMESPACE logs")
    assert error.value.reason.code == "dependent_objects"
    assert error.value.detail is not None
    assert error.value.detail["dependents"] == ["logs.all"]
    world.sql("DROP NAMESPACE logs CASCADE")
    assert world.engine.get_topic("logs.all").head_seq == 0
    assert world.tables.newest.namespace("logs") is None


def test_truncate(world: TableWorld) -> None:
    world.sql("CREATE TABLE t (id INT PRIMARY KEY, a INT UNIQUE); CREATE TABLE u (id INT PRIMARY KEY)")
    world.sql(f"INSERT INTO t VALUES {', '.join(f'({n}, {n})' for n in range(20))}; INSERT INTO u VALUES (1)")
    world.sql("TRUNCATE t")
    assert world.sql("SELECT count(*) FROM t") == [(0,)]
    world.sql("INSERT INTO t VALUES (1, 1)")
    assert (world.sql("SELECT * FROM t WHERE a = 1"), world.sql("SELECT * FROM u")) == ([(1, 1)], [(1,)])


@pytest.mark.parametrize(
    "text", ["DROP TABLE t", "TRUNCATE t", "DROP INDEX by_a", "ALTER TABLE t DROP COLUMN a CASCADE"]
)
def test_what_is_dropped_is_read_until_that_is_durable(world: TableWorld, text: str) -> None:
    world.sql("CREATE TABLE t (id INT PRIMARY KEY, a INT, b TEXT); CREATE INDEX by_a ON t (a)")
    world.sql(f"INSERT INTO t VALUES {', '.join(f'({n}, {n % 3}, NULL)' for n in range(20))}")
    queries = {"SELECT count(*) FROM t": (20,), "SELECT id FROM t WHERE a = 2 AND id > 15": (17,)}
    found = {world.plan(query): row for query, row in queries.items()}
    start = world.store.writes
    ticket = world.define(world.plan(text), sync=False)
    assert not world.tables.upkeep(), "nothing is removed before"
    if "COLUMN" not in text:
        for plan, row in found.items():
            assert world.select(plan) == [row]
    world.engine.synced(ticket)
    world.upkeep()
    newest = world.tables.newest
    for writes in range(start, world.store.writes + 1):
        left = TableWorld(at_write(world.store, writes))
        if writes == start:
            assert [left.sql(query) for query in queries] == [[row] for row in queries.values()]
        else:
            assert left.tables.newest.tables == newest.tables
        check_entries(left)
    check_entries(world)


def test_plans_of_before_a_truncate(world: TableWorld) -> None:
    world.sql("CREATE TABLE t (id INT PRIMARY KEY); INSERT INTO t VALUES (1)")
    insert, find = world.plan("INSERT INTO t VALUES (2)"), world.plan("SELECT * FROM t")
    world.sql("TRUNCATE t")
    codes = [stale(world, lambda: world.run(insert)), stale(world, lambda: world.select(find))]
    assert codes == ["42P01", "42P01"]
    world.sql("INSERT INTO t VALUES (3)")
    assert world.sql("SELECT * FROM t") == [(3,)]


# ---------------------------------------------------------------- columns


def test_columns_come_and_go(world: TableWorld) -> None:
    world.sql("CREATE TABLE t (id INT PRIMARY KEY, a INT); INSERT INTO t VALUES (1, 1)")
    world.sql("ALTER TABLE t ADD COLUMN b TEXT NOT NULL DEFAULT 'old'; INSERT INTO t (id) VALUES (2)")
    world.sql("ALTER TABLE t ALTER COLUMN b SET DEFAULT 'new'; INSERT INTO t (id) VALUES (3)")
    assert world.sql("SELECT id, b FROM t") == [(1, "old"), (2, "old"), (3, "new")]
    world.sql("ALTER TABLE t DROP COLUMN a; ALTER TABLE t RENAME COLUMN b TO c; ALTER TABLE t ADD COLUMN a INT")
    world.sql("INSERT INTO t VALUES (4, 'x', 5); UPDATE t SET a = 7 WHERE id = 2")
    expected = [(1, "old", None), (2, "old", 7), (3, "new", None), (4, "x", 5)]
    assert world.sql("SELECT * FROM t") == expected
    world.kill()
    assert world.sql("SELECT * FROM t") == expected
    assert world.sql("SELECT id FROM t WHERE c = 'old'") == [(1,), (2,)]
    assert len(world.named().versions) == 4


def test_a_column_that_is_added_has_a_constant_default(world: TableWorld) -> None:
    world.sql("CREATE TABLE t (id INT PRIMARY KEY, at TIMESTAMP DEFAULT now())")
    t = world.named()
    added = ColumnSchema(0, "more", t.columns[1].type, default=t.columns[1].default)
    assert refused(world, plans.AddColumn(t, added)) == ("unsupported_sql", "0A000")
    world.clock.advance(1000)
    world.sql("INSERT INTO t (id) VALUES (1), (2)")
    assert world.sql("SELECT at FROM t") == [(1_001_000_000,)] * 2


def test_not_null_needs_a_default(world: TableWorld) -> None:
    world.sql("CREATE TABLE t (id INT PRIMARY KEY)")
    world.sql("ALTER TABLE t ADD COLUMN a INT NOT NULL")
    world.sql("INSERT INTO t VALUES (1, 1)")
    assert refused(world, "ALTER TABLE t ADD COLUMN b INT NOT NULL") == ("not_null_violation", "23502")


@pytest.mark.parametrize(
    ("old", "new", "value"),
    [
        ("SMALLINT", "INT", 7), ("SMALLINT", "BIGINT", 7), ("INT", "BIGINT", -7), ("REAL", "DOUBLE", 1.5),
        ("VARCHAR(3)", "VARCHAR(9)", "abc"), ("VARCHAR(3)", "TEXT", "abc"), ("DECIMAL(4, 1)", "DECIMAL(9, 1)", "1.5"),
    ],
)  # fmt: skip
def test_a_type_becomes_wider(world: TableWorld, old: str, new: str, value: object) -> None:
    world.sql(f"CREATE TABLE t (id {old}, a {old}, PRIMARY KEY (id)); CREATE INDEX by_a ON t (a)")
    world.sql("INSERT INTO t VALUES ($1, $1)".replace("$1", repr(value)))
    before = world.sql("SELECT * FROM t")
    for name in ("id", "a"):
        world.sql(f"ALTER TABLE t ALTER COLUMN {name} TYPE {new}")
    for name in ("id", "a"):
        assert world.sql(f"SELECT * FROM t WHERE {name} = {value!r}") == before
    world.kill()
    assert world.sql("SELECT * FROM t") == before
    assert refused(world, f"ALTER TABLE t ALTER COLUMN a TYPE {old}") == ("unsupported_sql", "0A000")
    assert refused(world, "ALTER TABLE t ALTER COLUMN a TYPE BOOLEAN") == ("unsupported_sql", "0A000")


# ------------------------------------------------------------------ plans and catalogs that are behind


def test_a_plan_of_before_a_definition_runs_if_it_means_the_same(world: TableWorld) -> None:
    world.sql("CREATE TABLE t (id INT PRIMARY KEY, a INT, b TEXT); CREATE INDEX by_a ON t (a)")
    insert, find = world.plan("INSERT INTO t (id, a) VALUES (1, 2)"), world.plan("SELECT id FROM t WHERE a = 2")
    world.sql("ALTER TABLE t ADD COLUMN c INT DEFAULT 9; ALTER TABLE t RENAME COLUMN a TO z; ALTER TABLE t RENAME TO u")
    world.run(insert)
    assert world.select(find) == [(1,)]
    assert world.sql("SELECT * FROM u") == [(1, 2, None, 9)]
    world.sql("DROP INDEX app.by_a")
    for change in ("ALTER TABLE u DROP COLUMN b", "DROP TABLE u"):
        world.sql(change)
        codes = [stale(world, lambda: world.run(insert)), stale(world, lambda: world.select(find))]
        expected = "42P01" if change.startswith("DROP") else "40001"
        assert codes == [expected, expected]


def stale(world: TableWorld, call: Callable[[], object]) -> str:
    with pytest.raises(TopicsError) as error:
        call()
    assert error.value.detail is not None
    return str(error.value.detail["sqlstate"])


def test_definitions_wait_for_the_end_of_a_transaction(world: TableWorld) -> None:
    t = world.create()
    transaction = world.tables.begin()
    finished(transaction.run(world.plan("INSERT INTO t VALUES (1, 1, 'x')")))
    assert refused(world, plans.DropTable(t)) == ("transaction_error", "25P02")
    transaction.rollback()
    world.define(plans.DropTable(t))


@pytest.mark.parametrize("value", [b"", b"\x02\x80", b"\x01\xc1", b"\x01\x80"])
@pytest.mark.parametrize("kind", [catalog.NAMESPACE_ROWS, catalog.TABLE_ROWS])
def test_a_damaged_definition_is_named(world: TableWorld, kind: bytes, value: bytes) -> None:
    batch = world.store.batch()
    batch.put(Family.TABLES, kind + b"12345678", value)
    world.store.write(batch)
    with pytest.raises(StoreOpenError, match="12345678"):
        world.start()


def test_every_definition_of_tables_has_a_handler() -> None:
    topics = {
        plans.CreateTopic, plans.DropTopic, plans.ClearTopic, plans.AddSource, plans.DropSource, plans.SetAlias,
        plans.SetTopicOptions,
    }  # fmt: skip
    assert set(definitions._RUN) == set(plans.Definition.__args__) - topics  # type: ignore[attr-defined]


def test_rows_on_disk_are_as_they_were() -> None:
    world = TableWorld()
    world.sql("CREATE TABLE t (id INT, a TEXT, b INT, PRIMARY KEY (id, a)); CREATE INDEX i ON t (b)")
    world.sql("INSERT INTO t VALUES (1, 'x', -2), (2, 'y', NULL)")
    number = bytes(7) + b"\1"
    one, two = b"\1\x80" + bytes(6) + b"\1\1x\0\1", b"\1\x80" + bytes(6) + b"\2\1y\0\1"
    assert dict(world.store.scan(Family.ROWS, b"", b"\xff" * 40)) == {
        number + one: b"\0\0" + msgspec.msgpack.encode([1, "x", -2]),
        number + two: b"\0\0" + msgspec.msgpack.encode([2, "y", None]),
    }
    assert dict(world.store.scan(Family.INDEXES, b"", b"\xff" * 40)) == {
        number + b"\0\0\0\1\1\x7f" + b"\xff" * 6 + b"\xfe" + one: b"\0\x0d",
        number + b"\0\0\0\1\0" + two: b"\0\x0d",
    }
    value = world.store.get(Family.TABLES, b"table\0" + number)
    assert value is not None
    assert (value[:1], msgspec.msgpack.decode(value[1:])["name"]) == (b"\1", "t")
