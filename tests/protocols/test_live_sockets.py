"""Many live queries on one WebSocket: commands, their bounds, and what ends them."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from support.http import Api, fresh
from support.server import ServerProcess
from support.sql import Sql

SECONDS = 20


class Socket:
    """A connection, and its frames."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection

    def send(self, op: str, request_id: Any = None, **members: Any) -> None:
        self.connection.send(json.dumps({"op": op, "request_id": request_id, **members}))

    def wait(self, kind: str, request_id: Any = None) -> dict[str, Any]:
        """The next frame of that kind and query; others are passed over."""
        while True:
            frame: dict[str, Any] = json.loads(self.connection.recv(SECONDS))
            if (frame["type"], frame["request_id"]) == (kind, request_id):
                return frame


@pytest.fixture
def sql(server: ServerProcess) -> Iterator[Sql]:
    with Api(server.base) as api:
        yield Sql(api)


@pytest.fixture
def table(sql: Sql) -> str:
    name = fresh("socket").replace("-", "_")
    sql.run(f"CREATE TABLE {name}.t (id BIGINT PRIMARY KEY, n BIGINT)")
    return f"{name}.t"


@pytest.fixture(params=["/api/sql/ws", "/v1/api/sql/ws"])
def opened(request: pytest.FixtureRequest, server: ServerProcess) -> Iterator[Socket]:
    with connect(f"ws{server.base.removeprefix('http')}{request.param}") as connection:
        yield Socket(connection)


def test_queries_have_their_names(sql: Sql, table: str, opened: Socket) -> None:
    opened.send("subscribe", "all", sql=f"SUBSCRIBE TO {table}")
    large = f"SELECT id FROM {table} WHERE n > $1"
    opened.send("subscribe", {"of": "large ones"}, sql=large, params=[10], bigint="string")
    opened.wait("caught-up", "all")
    opened.wait("caught-up", {"of": "large ones"})
    sql.run(f"INSERT INTO {table} VALUES (1, 5), (2, 50)")
    found = [json.loads(opened.connection.recv(SECONDS)) for _ in range(3)]
    assert sorted((str(frame["request_id"]), frame["type"], json.dumps(frame["row"])) for frame in found) == [
        ("all", "change", '{"id": 1, "n": 5}'),
        ("all", "change", '{"id": 2, "n": 50}'),
        ("{'of': 'large ones'}", "change", '{"id": "2"}'),
    ]
    opened.send("unsubscribe", "all")
    opened.wait("unsubscribed", "all")
    sql.run(f"INSERT INTO {table} VALUES (3, 70)")
    frame = json.loads(opened.connection.recv(SECONDS))
    assert (frame["request_id"], frame["row"]) == ({"of": "large ones"}, {"id": "3"})
    opened.send("subscribe", "all", sql=f"SUBSCRIBE TO {table}")
    assert len(opened.wait("snapshot", "all")["rows"]) == 3
    opened.send("ping", 7)
    opened.wait("pong", 7)


@pytest.mark.parametrize(
    ("members", "code"),
    [
        ({"sql": "SELEC"}, "syntax_error"),
        ({"sql": "SELECT 1"}, "unsupported_sql"),
        ({"sql": "SUBSCRIBE TO nowhere.t"}, "table_not_found"),
        ({"sql": 5}, "invalid_request"),
        ({}, "invalid_request"),
        ({"sql": "SUBSCRIBE TO nowhere.t", "after": "x"}, "invalid_request"),
    ],
)
def test_a_refused_query_leaves_the_others(
    sql: Sql, table: str, opened: Socket, members: dict[str, Any], code: str
) -> None:
    opened.send("subscribe", 1, sql=f"SUBSCRIBE TO {table}")
    opened.wait("caught-up", 1)
    opened.send("subscribe", 2, **members)
    assert opened.wait("error", 2)["code"] == code
    sql.run(f"INSERT INTO {table} VALUES (1, 1)")
    assert opened.wait("change", 1)["row"]["id"] == 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        "[]",
        "{",
        '{"op":1}',
        '{"op":"publish"}',
        '{"request_id":1}',
        "[" * 5000,
        '{"op":"x","a":"' + "x" * 2**20,
    ],
)
def test_texts_that_are_no_commands(text: str, table: str, opened: Socket) -> None:
    opened.connection.send(text)
    frame = json.loads(opened.connection.recv(SECONDS))
    assert (frame["type"], frame["code"]) == ("error", "invalid_request")
    opened.send("subscribe", 1, sql=f"SUBSCRIBE TO {table}")
    opened.wait("caught-up", 1)


def test_bytes_are_no_command(opened: Socket) -> None:
    opened.connection.send(b'{"op":"ping"}')
    assert json.loads(opened.connection.recv(SECONDS))["code"] == "unsupported_message"


def test_each_query_has_a_name_of_its_own(table: str, opened: Socket) -> None:
    opened.send("subscribe", 1, sql=f"SUBSCRIBE TO {table}")
    opened.wait("caught-up", 1)
    opened.send("subscribe", 1, sql=f"SUBSCRIBE TO {table}")
    assert opened.wait("error", 1)["code"] == "invalid_request"
    opened.send("unsubscribe", 2)
    assert opened.wait("error", 2)["code"] == "invalid_request"
    opened.send("ping", "x" * 300)
    assert opened.wait("error", None)["code"] == "invalid_request"


def test_the_number_of_queries_is_bounded(table: str, opened: Socket) -> None:
    for number in range(65):
        opened.send("subscribe", number, sql=f"SUBSCRIBE TO {table}")
    assert opened.wait("error", 64)["code"] == "throttled"
    opened.send("unsubscribe", 0)
    opened.wait("unsubscribed", 0)
    opened.send("subscribe", 64, sql=f"SUBSCRIBE TO {table}")
    opened.wait("caught-up", 64)


def test_access(tmp_path_factory: pytest.TempPathFactory) -> None:
    env = {"TOPICS_API_KEYS": f"{'r' * 40}:read,{'w' * 40}:write,{'a' * 40}"}
    with ServerProcess(tmp_path_factory.mktemp("keyed"), env=env) as server:
        with Api(server.base) as api:
            api.client.headers["Authorization"] = f"Bearer {'a' * 40}"
            Sql(api).run("CREATE TABLE app.t (id BIGINT PRIMARY KEY)")
        url = f"ws{server.base.removeprefix('http')}/api/sql/ws"
        with pytest.raises(InvalidStatus) as refused:
            connect(url)
        assert refused.value.response.status_code == 401
        with connect(url, additional_headers={"Authorization": f"Bearer {'w' * 40}"}) as connection:
            opened = Socket(connection)
            opened.send("subscribe", 1, sql="SUBSCRIBE TO app.t")
            assert opened.wait("error", 1)["code"] == "forbidden"


def test_a_server_that_stops_says_so(tmp_path_factory: pytest.TempPathFactory) -> None:
    with ServerProcess(tmp_path_factory.mktemp("stops")) as server:
        with Api(server.base) as api:
            Sql(api).run("CREATE TABLE app.t (id BIGINT PRIMARY KEY)")
        with connect(f"ws{server.base.removeprefix('http')}/api/sql/ws") as connection:
            opened = Socket(connection)
            opened.send("subscribe", 1, sql="SUBSCRIBE TO app.t")
            opened.wait("caught-up", 1)
            assert server.stop() == 0
            assert opened.wait("error", None)["code"] == "server_shutting_down"
            with pytest.raises(ConnectionClosed) as closed:
                connection.recv(SECONDS)
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1012
