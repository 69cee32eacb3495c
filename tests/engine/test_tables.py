"""Transactions over tables: their statements, bounds and slices. Rows themselves: `test_table_model`."""

from collections.abc import Generator

import pytest
from table_support import TableWorld, finished

from topics_service.engine.errors import TopicsError
from topics_service.engine.tables import outcomes, plans, staging, transaction
from topics_service.engine.tables.model import Op
from topics_service.engine.tables.outcomes import Outcome
from topics_service.engine.tables.types import Value


@pytest.fixture
def world() -> TableWorld:
    made = TableWorld()
    made.sql("CREATE TABLE t (id INT PRIMARY KEY, a INT DEFAULT 7, b TEXT UNIQUE)")
    return made


def code(world: TableWorld, text: str, *parameters: Value) -> tuple[str, str]:
    with pytest.raises(TopicsError) as error:
        world.sql(text, *parameters)
    assert error.value.detail is not None
    return error.value.reason.code, str(error.value.detail["sqlstate"])


def values(count: int, start: int = 0) -> str:
    return ", ".join(f"({n}, {n % 10})" for n in range(start, start + count))


# ---------------------------------------------------------------- transactions


def test_statements_see_those_before_them_and_others_see_nothing(world: TableWorld) -> None:
    tx = world.tables.begin()
    finished(tx.run(world.plan("INSERT INTO t VALUES (1, 1, 'x'), (2, 2, 'y')")))
    finished(tx.run(world.plan("UPDATE t SET a = a + 10 WHERE id = 1")))
    finished(tx.run(world.plan("DELETE FROM t WHERE b = 'y'")))
    finished(tx.run(world.plan("INSERT INTO t (id, b) SELECT id + 5, 'y' FROM t")))
    seen = finished(tx.run(world.plan("SELECT * FROM t ORDER BY id DESC"))).rows
    assert [tuple(row) for row in seen] == [(6, 7, "y"), (1, 11, "x")]
    assert world.sql("SELECT * FROM t") == []
    tx.commit()
    assert world.sql("SELECT * FROM t") == [(1, 11, "x"), (6, 7, "y")]


def test_a_failed_statement_leaves_the_transaction_to_be_rolled_back(world: TableWorld) -> None:
    tx = world.tables.begin()
    finished(tx.run(world.plan("INSERT INTO t VALUES (1, 1, 'x')")))
    with pytest.raises(TopicsError):
        finished(tx.run(world.plan("INSERT INTO t VALUES (2, 2, 'y'), (1, 1, 'z')")))
    for call in (tx.commit, lambda: finished(tx.run(world.plan("SELECT * FROM t"))), lambda: tx.savepoint("s")):
        with pytest.raises(TopicsError) as error:
            call()
        assert error.value.detail == {"sqlstate": "25P02"}
    tx.rollback()
    for call in (tx.commit, lambda: tx.savepoint("s"), lambda: tx.rollback_to("s")):
        with pytest.raises(TopicsError) as error:
            call()
        assert error.value.detail == {"sqlstate": "25P01"}
    tx.rollback()
    assert world.sql("SELECT * FROM t") == []


def test_savepoints(world: TableWorld) -> None:
    world.sql("CREATE TOPIC app.e; ALTER TOPIC app.e ADD SOURCE app.t ON INSERT; INSERT INTO t VALUES (0, 0, 'a')")
    tx = world.tables.begin()
    for number, name in enumerate(("s", "u", "s"), 1):
        finished(tx.run(world.plan(f"INSERT INTO t VALUES ({number}, 1, NULL)")))
        tx.savepoint(name)
    finished(tx.run(world.plan("DELETE FROM t")))
    with pytest.raises(TopicsError):
        finished(tx.run(world.plan("INSERT INTO t VALUES (9, 1 / 0, NULL)")))
    tx.rollback_to("s")
    tx.release("s")
    with pytest.raises(TopicsError) as error:
        tx.release("none")
    assert error.value.detail == {"sqlstate": "3B001"}
    tx.rollback_to("u")
    tx.rollback_to("u")
    finished(tx.run(world.plan("INSERT INTO t VALUES (8, 8, NULL)")))
    tx.commit()
    assert [row[0] for row in world.sql("SELECT id FROM t")] == [0, 1, 2, 8]
    assert world.engine.get_topic("app.e").head_seq == 4


def test_there_is_a_bound_of_savepoints(world: TableWorld) -> None:
    tx = world.tables.begin()
    for number in range(transaction.MAX_SAVEPOINTS):
        tx.savepoint(f"s{number}")
    with pytest.raises(TopicsError) as error:
        tx.savepoint("more")
    assert error.value.reason.code == "result_too_large"
    tx.release("s3")
    tx.savepoint("more")


def test_a_row_inserted_and_deleted_in_one_transaction_has_both_events(world: TableWorld) -> None:
    world.sql("CREATE TOPIC app.e")
    for op in Op:
        world.sql(f"ALTER TOPIC app.e ADD SOURCE app.t ON {op.name}")
    world.run(world.plan("INSERT INTO t VALUES (1, 1, 'x')"), world.plan("DELETE FROM t WHERE id = 1"))
    assert world.engine.get_topic("app.e").head_seq == 2
    assert world.sql("SELECT * FROM t") == []


def test_an_update_that_changes_nothing_counts_and_writes_nothing(world: TableWorld) -> None:
    world.sql("CREATE TOPIC app.e; ALTER TOPIC app.e ADD SOURCE app.t ON UPDATE; INSERT INTO t VALUES (1, 1, 'x')")
    writes = world.store.writes
    outcome = world.run(world.plan("UPDATE t SET a = 1, b = 'x' RETURNING a"))
    assert (outcome.row_count, list(map(tuple, outcome.rows))) == (1, [(1,)])
    assert world.store.writes == writes
    assert world.engine.get_topic("app.e").head_seq == 0


def test_columns_of_the_primary_key_stay(world: TableWorld) -> None:
    t = world.named()
    plan = plans.Update(t, plans.Scan(), ((t.primary_key[0], None),))
    with pytest.raises(TopicsError) as error:
        world.run(plan)
    assert error.value.reason.code == "unsupported_sql"


def test_rows_of_parameters_are_one_commit(world: TableWorld) -> None:
    plan = world.plan("INSERT INTO t (id, b) VALUES ($1, $2) ON CONFLICT (id) DO UPDATE SET a = 8 RETURNING id, a")
    tx = world.tables.begin()
    outcome = finished(tx.run_many(plan, [(1, "x"), (2, None), (1, "z")]))
    tx.commit()
    assert (outcome.row_count, list(map(tuple, outcome.rows))) == (3, [(1, 7), (2, 7), (1, 8)])
    tx = world.tables.begin()
    plan = world.plan("UPDATE t SET a = $1 WHERE id = $2")
    assert finished(tx.run_many(plan, [(10, 1), (20, 1), (30, 5)])).row_count == 2
    assert finished(tx.run_many(world.plan("DELETE FROM t WHERE id = $1"), [(2,), (2,)])).row_count == 1
    tx.commit()
    assert world.sql("SELECT * FROM t") == [(1, 20, "x")]


# ---------------------------------------------------------------- reading


def test_limits_are_values(world: TableWorld) -> None:
    world.sql(f"INSERT INTO t (id, a) VALUES {values(20)}")
    assert world.sql("SELECT id FROM t LIMIT $1 OFFSET $2", 2, 3) == [(3,), (4,)]
    assert world.sql("SELECT id FROM t LIMIT $1 OFFSET $2", None, 18) == [(18,), (19,)]
    assert world.sql("SELECT id FROM t LIMIT 0") == world.sql("SELECT count(*) FROM t OFFSET 1") == []
    assert world.sql("SELECT count(*) FROM t LIMIT 1") == [(20,)]
    assert world.sql("SELECT DISTINCT a FROM t ORDER BY a DESC LIMIT 3") == [(9,), (8,), (7,)]
    assert world.sql("SELECT id FROM t ORDER BY a DESC, id DESC LIMIT 2 OFFSET 1") == [(9,), (18,)]
    assert world.sql("SELECT 1 + 1, 'x'") == [(2, "x")]
    assert code(world, "SELECT id FROM t LIMIT $1", -1) == ("invalid_value", "2201W")
    assert code(world, "SELECT id FROM t OFFSET $1", -1) == ("invalid_value", "2201X")


def test_a_null_in_a_key_or_range_is_no_row(world: TableWorld) -> None:
    world.sql("INSERT INTO t VALUES (1, 1, NULL)")
    for where in ("id = $1", "id > $1", "id IN ($1, NULL)", "b = $2", "b < $2", "b >= $2"):
        assert world.sql(f"SELECT * FROM t WHERE {where} OR $1 = 5 AND $2 = ''", None, None) == []
        assert world.sql(f"SELECT * FROM t WHERE {where}".replace("$2", "NULL"), None) == []
    assert world.sql("SELECT * FROM t WHERE b IS NULL") == [(1, 1, None)]


def test_system_tables_and_their_joins_are_of_rows_handed_in(world: TableWorld) -> None:
    rows = {
        "tables": [("app", name, "", count, "[]", "disk", "sql", 1, 0) for name, count in (("t", 3), ("u", 1))],
        "columns": [("app", table, name, 1, "", False, True, None) for table, name in (("t", "id"), (None, "x"))],
    }  # fmt: skip

    def select(text: str, given: dict[str, list[tuple[Value, ...]]]) -> list[tuple[Value, ...]]:
        return [tuple(row) for row in finished(world.tables.select(world.plan(text), (), given.__getitem__)).rows]

    assert select("SELECT name FROM system.tables WHERE columns > 1", rows) == [("t",)]
    join = "SELECT t.name, c.name FROM system.tables t {} JOIN system.columns c ON c.table_name = t.name ORDER BY 1"
    assert select(join.format(""), rows) == [("t", "id")]
    assert select(join.format("LEFT"), rows) == [("t", "id"), ("u", None)]
    assert select(join.format("LEFT"), rows | {"columns": []}) == [("t", None), ("u", None)]
    tx = world.tables.begin()
    with pytest.raises(TopicsError) as error:
        finished(tx.run(world.plan("SELECT name FROM system.tables")))
    assert error.value.reason.code == "unsupported_sql"


def test_the_bounds_of_a_result(world: TableWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topics_service.engine.tables.outcomes.MAX_ROWS", 10)
    monkeypatch.setattr("topics_service.engine.tables.selection.MAX_ROWS", 10)
    world.sql(f"INSERT INTO t (id, a) VALUES {values(30)}")
    too_large = ("result_too_large", "54000")
    assert len(world.sql("SELECT * FROM t LIMIT 10")) == 10
    assert world.sql("SELECT id FROM t ORDER BY a DESC, id LIMIT 2") == [(9,), (19,)]
    assert world.sql("SELECT count(*) FROM t") == [(30,)]
    for text in (
        "SELECT * FROM t",
        "SELECT * FROM t ORDER BY a",
        "SELECT DISTINCT id FROM t",
        "UPDATE t SET a = 1 RETURNING *",
    ):
        assert code(world, text) == too_large
    assert world.sql("SELECT a FROM t WHERE id = 0") == [(0,)]
    world.sql("INSERT INTO t (id, a) SELECT id + 100, a FROM t")
    assert world.sql("SELECT count(*) FROM t") == [(60,)]
    monkeypatch.setattr(outcomes, "MAX_BYTES", 1000)
    world.sql(f"UPDATE t SET b = '{'b' * 2000}' WHERE id = 1")
    assert code(world, "SELECT b FROM t WHERE id = 1") == too_large
    assert world.sql("SELECT a FROM t WHERE id = 1") == [(1,)]


def test_the_bounds_of_a_transaction(world: TableWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world.sql(f"INSERT INTO t (id, a) VALUES {values(100)}")
    monkeypatch.setattr(staging, "MAX_BYTES", 2000)
    monkeypatch.setattr("topics_service.engine.tables.execution.MAX_BYTES", 2000)
    before = world.sql("SELECT * FROM t")
    for text in (
        f"INSERT INTO t (id, a) VALUES {values(100, 100)}", "UPDATE t SET a = 3", "DELETE FROM t",
        "INSERT INTO t (id) SELECT id + 100 FROM t",
    ):  # fmt: skip
        assert code(world, text) == ("result_too_large", "54000")
    assert world.sql("SELECT * FROM t") == before
    world.sql("UPDATE t SET a = 3 WHERE id < 5")


def test_statements_give_others_a_turn(world: TableWorld) -> None:
    """At least every 128 rows that are examined, every 256 that are changed."""

    def turns(steps: Generator[None, None, Outcome]) -> int:
        count = 0
        while True:
            try:
                next(steps)
            except StopIteration:
                return count
            count += 1

    tx = world.tables.begin()
    plan = world.plan("INSERT INTO t (id, a) VALUES ($1, $2)")
    assert turns(tx.run_many(plan, [(n, n) for n in range(1024)])) == 4
    tx.commit()
    world.sync()
    for text, expected in (
        ("SELECT count(*) FROM t WHERE a < 0", 8),
        ("SELECT id FROM t WHERE a % 100 = 0", 8),
        ("SELECT id FROM t WHERE id = 5", 0),
    ):
        assert turns(world.tables.select(world.plan(text))) == expected
    for text, expected in (
        ("UPDATE t SET a = a + 1", 12),
        ("DELETE FROM t", 12),
        ("UPDATE t SET a = 1 WHERE id = 1", 0),
    ):
        tx = world.tables.begin()
        assert turns(tx.run(world.plan(text))) == expected
        tx.rollback()
