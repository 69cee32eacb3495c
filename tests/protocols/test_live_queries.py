"""Live queries on a real server: snapshot, changes, resuming, gaps, and what ends them."""

import threading
from collections.abc import Callable, Iterator

import pytest

from support.http import Api, fresh, ok
from support.live import Fold, Follower, GrpcFrames, SocketFrames, Source, SseFrames
from support.server import ServerProcess
from support.sql import Sql, error_of

Open = Callable[..., Source]


@pytest.fixture
def sql(server: ServerProcess) -> Iterator[Sql]:
    with Api(server.base) as api:
        yield Sql(api)


@pytest.fixture
def table(sql: Sql) -> str:
    name = fresh("live").replace("-", "_")
    sql.run(f"CREATE TABLE {name}.t (id BIGINT PRIMARY KEY, name TEXT, price DECIMAL(10, 2), paid BOOLEAN)")
    return f"{name}.t"


@pytest.fixture(params=["sse", "socket", "grpc"])
def follow(request: pytest.FixtureRequest, server: ServerProcess) -> Open:
    def opened(text: str, after: str | None = None) -> Source:
        if request.param == "grpc":
            return GrpcFrames(server.grpc_target, text, after)
        frames = SocketFrames if request.param == "socket" else SseFrames
        return frames(server.base, {"sql": text, "after": after})

    return opened


def test_a_snapshot_and_then_its_changes(sql: Sql, table: str, follow: Open) -> None:
    sql.run(f"INSERT INTO {table} VALUES (1, 'a', 1.5, true), (2, 'b', 2, false), (3, NULL, NULL, NULL)")
    with Follower(follow(f"SELECT id, price FROM {table} WHERE paid")) as live:
        assert live.wait("snapshot")["rows"] == [{"id": 1, "price": "1.50"}]
        live.wait("caught-up")
        sql.run(f"UPDATE {table} SET paid = true WHERE id = 2")
        assert live.wait("change") | {"position": ""} == {
            "op": "Insert", "row": {"id": 2, "price": "2.00"}, "old": None, "position": "",
        }  # fmt: skip
        sql.run(f"UPDATE {table} SET name = 'not shown' WHERE id = 2")
        sql.run(f"UPDATE {table} SET price = 7 WHERE id = 2")
        change = live.wait("change", 2)
        assert (change["op"], change["row"]["price"], change["old"]["price"]) == ("Update", "7.00", "2.00")
        sql.run(f"UPDATE {table} SET paid = NULL WHERE id = 2")
        change = live.wait("change", 3)
        assert (change["op"], change["row"], change["old"]) == ("Delete", None, {"id": 2, "price": "7.00"})
        sql.run(f"DELETE FROM {table}")
        change = live.wait("change", 4)
        assert (change["op"], change["old"]["id"]) == ("Delete", 1)
        assert not live.fold.sorted


def test_a_transaction_is_its_outcome(sql: Sql, table: str, follow: Open) -> None:
    with Follower(follow(f"SUBSCRIBE TO {table} WHERE id < 10")) as live:
        live.wait("caught-up")
        sql.results(
            f"BEGIN; INSERT INTO {table} (id) VALUES (1), (2); UPDATE {table} SET name = 'x'; "
            f"DELETE FROM {table} WHERE id = 1; INSERT INTO {table} (id) VALUES (20); COMMIT"
        )
        change = live.wait("change")
        assert (change["op"], change["row"]["id"], change["row"]["name"]) == ("Insert", 2, "x")
        sql.run(f"INSERT INTO {table} (id) VALUES (3)")
        assert live.wait("change", 2)["row"]["id"] == 3


def test_reading_goes_on_behind_each_position(sql: Sql, table: str, follow: Open) -> None:
    with Follower(follow(f"SUBSCRIBE TO {table}")) as live:
        live.wait("caught-up")
        for number in range(5):
            sql.run(f"INSERT INTO {table} (id) VALUES ({number}), ({number + 100})")
        sql.run(f"DELETE FROM {table} WHERE id >= 102")
        live.wait("change", 13)
        frames = list(live.frames)
    wanted = [data for name, data in frames if name == "change"]
    for at, (name, data) in enumerate(frames):
        if name in ("snapshot", "caught-up", "change"):
            behind = [data for name, data in frames[at + 1 :] if name == "change"]
            with Follower(follow(f"SUBSCRIBE TO {table}", data["position"]), folds=False) as again:
                again.wait("caught-up")
                assert [data for name, data in again.frames if name == "change"] == behind
                assert "snapshot" not in dict(again.frames)
    assert len(wanted) == 13


def test_a_position_of_another_table_is_a_gap(sql: Sql, table: str, follow: Open) -> None:
    with Follower(follow(f"SUBSCRIBE TO {table}")) as live:
        position = live.wait("caught-up")["position"]
    other = table.replace(".t", ".other")
    sql.run(f"CREATE TABLE {other} (id BIGINT PRIMARY KEY)")
    sql.run(f"INSERT INTO {other} VALUES (1)")
    with Follower(follow(f"SUBSCRIBE TO {other}", position)) as live:
        gap = live.wait("gap")
        assert (gap["from"], gap["reason"]) == (position, "unknown")
        assert live.wait("snapshot") == {"rows": [{"id": 1}], "position": gap["to"]}


def test_last_rows_and_no_snapshot(sql: Sql, table: str, follow: Open) -> None:
    sql.run(f"INSERT INTO {table} (id, paid) VALUES ($1, true)", param_rows=[[number] for number in range(1200)])
    with Follower(follow(f"SUBSCRIBE TO (SELECT id FROM {table} WHERE paid) OPTIONS (last_rows = 3)")) as live:
        assert [row["id"] for row in live.wait("snapshot")["rows"]] == [1197, 1198, 1199]
    with Follower(follow(f"SUBSCRIBE TO {table} OPTIONS (snapshot = false)"), folds=False) as live:
        live.wait("caught-up")
        assert [name for name, _ in live.frames] == ["caught-up"]
        sql.run(f"DELETE FROM {table} WHERE id = 7")
        assert live.wait("change")["old"]["id"] == 7
    with Follower(follow(f"SELECT id FROM {table}")) as live:
        live.wait("caught-up")
        snapshots = [data for name, data in live.frames if name == "snapshot"]
        assert [len(data["rows"]) for data in snapshots] == [500, 500, 199]
        assert ["position" in data for data in snapshots] == [False, False, True]


def test_a_change_of_the_schema_ends_it_and_reading_goes_on(sql: Sql, table: str, follow: Open) -> None:
    with Follower(follow(f"SUBSCRIBE TO {table}")) as live:
        live.wait("caught-up")
        sql.run(f"INSERT INTO {table} (id) VALUES (1)")
        position = live.wait("change")["position"]
        sql.run(f"CREATE INDEX by_name ON {table} (name)")
        sql.run(f"INSERT INTO {table} (id) VALUES (2)")
        live.wait("change", 2)
        sql.run(f"ALTER TABLE {table} ADD COLUMN city TEXT DEFAULT 'x'")
        sql.run(f"INSERT INTO {table} (id, city) VALUES (3, 'y')")
        assert live.wait("error")["code"] in ("schema_changed", "ABORTED")
    with Follower(follow(f"SUBSCRIBE TO {table}", position), folds=False) as live:
        assert [live.wait("change", count)["row"]["city"] for count in (1, 2)] == ["x", "y"]


def test_a_table_that_is_followed_stays(sql: Sql, table: str, follow: Open) -> None:
    with Follower(follow(f"SUBSCRIBE TO {table}")) as live:
        live.wait("caught-up")
        assert sql.refused(f"DROP TABLE {table}", "dependent_objects", 409)["detail"]["live_queries"] == 1
        sql.refused(f"TRUNCATE {table}", "dependent_objects", 409)
        sql.run(f"DROP TABLE {table} CASCADE")
        assert live.wait("error")["code"] in ("table_not_found", "NOT_FOUND")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("SELECT count(*) FROM {t}", "unsupported_sql"),
        ("SELECT sum(id) FROM {t}", "unsupported_sql"),
        ("SELECT id FROM {t} ORDER BY id", "unsupported_sql"),
        ("SELECT id FROM {t} LIMIT 1", "unsupported_sql"),
        ("SELECT DISTINCT name FROM {t}", "unsupported_sql"),
        ("SELECT a.id FROM {t} a JOIN {t} b ON a.id = b.id", "unsupported_sql"),
        ("SELECT 1", "unsupported_sql"),
        ('SELECT data FROM topics."a.b"', "unsupported_sql"),
        ("SELECT name FROM system.tables", "forbidden"),
        ("SUBSCRIBE TO {t} WHERE now() IS NOT NULL", "unsupported_sql"),
        ("SUBSCRIBE TO {t} OPTIONS (last_rows = 0)", "invalid_value"),
        ("SUBSCRIBE TO {t} OPTIONS (last_rows = 99999999999999999999)", "invalid_value"),
        ("SUBSCRIBE TO {t} OPTIONS (speed = 1)", "invalid_value"),
        ("SELECT id, id FROM {t}", "invalid_request"),
        ("SELECT id FROM {t}; SELECT id FROM {t}", "syntax_error"),
        ("DELETE FROM {t}", "unsupported_sql"),
        ("SELECT nope FROM {t}", "column_not_found"),
        ("SUBSCRIBE TO nowhere", "table_not_found"),
        ("", "syntax_error"),
    ],
)
def test_what_can_not_be_followed(sql: Sql, table: str, text: str, code: str) -> None:
    answer = sql.api.send("POST", "/api/sql/subscribe", {"sql": text.format(t=table)})
    assert answer.json()["error"]["code"] == code, answer.text
    assert "sqlstate" in answer.json()["error"]["detail"]


@pytest.mark.parametrize(
    "body",
    [
        "", "[]", '{"sql": 1}', "{}", '{"sql": "SELECT 1", "sql": "SELECT 2"}', '{"sql": "SUBSCRIBE TO t", "after": 5}',
        '{"sql": "SUBSCRIBE TO t", "after": "x"}', '{"sql": "SUBSCRIBE TO t", "after": "0123456789abcdef-"}',
        '{"sql": "SUBSCRIBE TO t", "after": "0123456789abcdeg-1"}', '{"sql": "SUBSCRIBE TO t", "bigint": "big"}',
        '{"sql": "SUBSCRIBE TO t", "after": "0123456789abcdef-99999999999999999999"}',
        '{"sql": "SUBSCRIBE TO t", "after": "0123456789abcdef--1"}', '{"sql": "SUBSCRIBE TO t", "params": {}}',
    ],
)  # fmt: skip
def test_bodies_that_are_refused(sql: Sql, body: str) -> None:
    error_of(sql.api.send("POST", "/api/sql/subscribe", body), "invalid_request", 400)


def test_the_stream_is_asked_for_by_its_own_path(sql: Sql, table: str) -> None:
    error = sql.refused(f"SUBSCRIBE TO {table}", "unsupported_sql", 400)
    assert "/api/sql/subscribe" in error["message"]
    error_of(
        sql.api.send("POST", "/api/sql/subscribe", {"sql": "SELECT 1"}, headers={"accept": "text/html"}),
        "not_acceptable", 406,
    )  # fmt: skip


def test_parameters_and_bigints_as_text(sql: Sql, table: str, server: ServerProcess) -> None:
    sql.run(f"INSERT INTO {table} (id, name) VALUES (9007199254740993, 'a'), (2, 'b')")
    body = {"sql": f"SELECT id FROM {table} WHERE name = $1", "params": ["a"], "bigint": "string"}
    with Follower(SseFrames(server.base, body)) as live:
        assert live.wait("snapshot")["rows"] == [{"id": "9007199254740993"}]
    error_of(sql.api.send("POST", "/api/sql/subscribe", body | {"params": []}), "invalid_request", 400)


def test_an_expression_that_fails_ends_the_stream(sql: Sql, table: str, follow: Open) -> None:
    with Follower(follow(f"SELECT id FROM {table} WHERE 10 / id > 1")) as live:
        live.wait("caught-up")
        sql.run(f"INSERT INTO {table} (id) VALUES (0)")
        assert live.wait("error")["code"] in ("division_by_zero", "INVALID_ARGUMENT")


def test_rows_are_shown_when_they_are_durable(sql: Sql, server: ServerProcess, follow: Open) -> None:
    name = fresh("safe").replace("-", "_")
    sql.run(f"CREATE TABLE {name}.t (id BIGINT PRIMARY KEY, n INT) WITH (durability = 'fsync', changes = on)")
    fold = Fold()
    done = threading.Event()

    def write() -> None:
        with Api(server.base) as api:
            for number in range(100):
                ok(Sql(api).send(f"INSERT INTO {name}.t VALUES ($1, 0)", number))
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    opened = 0
    while not done.is_set() or opened < 3:
        with Follower(follow(f"SUBSCRIBE TO {name}.t", fold.position), fold) as live:
            live.wait("caught-up")
        opened += 1
    writer.join()
    with Follower(follow(f"SUBSCRIBE TO {name}.t", fold.position), fold) as live:
        live.until(sql.rows(f"SELECT * FROM {name}.t"))
        assert "snapshot" not in dict(live.frames)


def test_metrics_count_live_queries(sql: Sql, table: str, follow: Open) -> None:
    def followed() -> float:
        text = sql.api.client.get("/v0/metrics", headers={"accept": "text/plain"}).text
        return float(next(line for line in text.splitlines() if line.startswith("topics_live_queries ")).split()[1])

    before = followed()
    with Follower(follow(f"SUBSCRIBE TO {table}")) as live:
        live.wait("caught-up")
        assert followed() == before + 1
